// implicit_gemm_wgmma: implicit GEMM on Hopper's tensor cores. One warpgroup loads tiles, two multiply them.
//
// Since implicit_gemm_mma: no thread gathers pixels, and no lane holds fragments of A or B. The TMA loads
//           pixels and filters to shared memory in the order that the tensor cores read, and stores the results.
//           Threads only issue instructions, wait, and apply the epilogue. x and w have 16 bits, or are floats of which
//           the first 19 bits are multiplied (TF32), or bytes, in NHWC. Sums are floats, or of integers int.
//
// Threads   three warpgroups of 128 threads: a producer, of which two threads load, and two consumers, which multiply.
//           Registers move from the producer to the consumers.
// Layout    out (NPQ x K) = columns (NPQ x RSC) times weights (RSC x K), in steps of one tap and 64 channels of 16
//           bits, or 32 floats: a row of 128 bytes for each pixel or filter (ROW_BYTES: 64 or 32 for few channels). A
//           tile has BLOCK_PIXELS x BLOCK_FILTERS outputs. Persistent grid, one block an SM. Either operand may have
//           the 64 rows of a product; FILTERS_ON_M selects the better fit. PATCH: a tile is 8 outputs wide. The pixels
//           for all taps of a row of channels are loaded once, as a patch with halo, and a tap is an offset into it.
//           Otherwise the pixels of each tap are loaded separately, in im2col mode.
// Producer  one thread loads pixels and one loads filters, each ahead in its own ring (PIXEL_STAGES, FILTER_STAGES)
//           with full and empty barriers. RESIDENT: all filters stay in shared memory.
// Consumer  cooperative: each warpgroup has half of a tile's rows. PING_PONG: each has its own tiles, and one applies
//           the epilogue while the other multiplies.
// Finish    the epilogue in registers; results are rounded, transposed in shared memory to the order of out, and stored
//           by the TMA while the next tile is multiplied. SCATTERED: threads store them, in any layout and type.
// Needs     zeros at the border; rows of channels, addresses and strides that are multiples of 16 bytes. pixel_rows.cu
//           repacks other x. Groups: channels of a group fill whole products.
// Limit     tensor cores; if K is small, memory.
// Bytes     TWO_LEVELS: the sums of one row of 8-bit floats are added to others by multiply-add units, because the tensor
//           cores keep 14 bits of them. ZERO_POINT: that of integer pixels is subtracted from the sums (zero_point.cuh).
//           Results of one byte are four filters of a pixel in a word, after lanes have exchanged bytes (bytes.cuh).
// implicit_gemm_tf32, implicit_gemm_int8 and implicit_gemm_fp8 are this kernel on other types; the host passes the name.
#include "bytes.cuh"
#include "wgmma_tiles.cuh"
#include "zero_point.cuh"

constexpr int RESULT = sizeof(out_t);
// Filters of a pixel in a box of results that the TMA stores, at most 128 bytes.
constexpr int BOX_FILTERS = cfg::FILTERS_ON_M ? 64 : cfg::BLOCK_N % (128 / RESULT) == 0 ? 128 / RESULT
                                                 : cfg::BLOCK_N % (64 / RESULT) == 0  ? 64 / RESULT : 32 / RESULT;
constexpr int RESULT_BYTES = BOX_FILTERS * RESULT, PIECES = RESULT_BYTES / 16;
// In shared memory the TMA permutes the 16-byte pieces of a row by the number of its 128 bytes.
constexpr int OF_LINE = PIECES < 8 ? 8 / PIECES : 1;
__device__ inline int piece_at(int row, int piece) { return piece % PIECES ^ row / OF_LINE % PIECES; }
constexpr int OUT_BYTES = cfg::SCATTERED ? 1024 : 64 * cfg::ROWS_64 * cfg::BLOCK_N * RESULT;  // of a warpgroup

constexpr int THREADS = WARPGROUP * (1 + CONSUMERS);
// Without a wait between taps, the compiler would keep the sums of several taps in registers.
constexpr int UNROLLED = cfg::TWO_LEVELS && cfg::RESIDENT ? 1 : TAPS_AT_ONCE;

struct Wgmma {
    Conv conv;
    TensorMap pixels, filters, results;
    Tiling tiling;
    int store_width;  // SCATTERED: neighbouring outputs a store
    Optional<cfg::ZERO_POINT, ZeroPoint>::type zero;
};

// IN_BYTES: the TMA stores bytes. MULTIPLY_ADD: their epilogue is a multiply-add for each filter, whose factors are in
// shared memory, perhaps one for the residual, and bounds: a relu or clipped relu of integers is a bound of the result.
constexpr bool IN_BYTES = !cfg::SCATTERED && RESULT == 1;
constexpr bool MULTIPLY_ADD =
    IN_BYTES && static_cast<acc_t>(1) / 2 == 0 && cfg::DIVISOR == 1 && !cfg::OUT_SCALE &&
    (cfg::ACTIVATION == IDENTITY || cfg::ACTIVATION == RELU || cfg::ACTIVATION == CLIPPED_RELU);

struct Factor {
    epilogue_t scale, bias;
};
template <bool> struct Factors {};
template <> struct Factors<true> { Factor factors[CONSUMERS][BLOCK_FILTERS]; };

template <bool> struct Classes {};
template <> struct Classes<true> { int classes[CONSUMERS][BLOCK_PIXELS]; };

struct Memory : Factors<MULTIPLY_ADD>, Classes<cfg::ZERO_POINT> {
    alignas(1024) unsigned char results[CONSUMERS][OUT_BYTES];
    alignas(1024) unsigned char pixels[cfg::PIXEL_STAGES][PIXEL_BYTES];
    alignas(1024) unsigned char filters[cfg::FILTER_STAGES][FILTER_BYTES];
};
static_assert(sizeof(Memory) + 1024 - 128 <= cfg::SHARED_BYTES,
              "the host asks for the shared memory that a block uses");

struct Barriers {
    unsigned long long pixels_full[cfg::PIXEL_STAGES], pixels_empty[cfg::PIXEL_STAGES];
    unsigned long long filters_full[cfg::FILTER_STAGES], filters_empty[cfg::FILTER_STAGES];
    unsigned long long turn[CONSUMERS];  // the consumer that may multiply
};

// Producer.
__device__ inline void load_pixels(const Wgmma &args, Memory *memory, Barriers &bars) {
    Ring<cfg::PIXEL_STAGES> ring{0, 1};
    for (int tile = blockIdx.x; tile < args.tiling.tiles; tile += gridDim.x) {
        const Place at = place_of(args.tiling, tile);
        const Windows from = windows_of(args.conv, args.tiling, at);
        for (int i = 0; i < STAGES_OF_TILE; i++, ring.next()) {
            unsigned long long *there = &bars.pixels_full[ring.stage];
            const int tap = cfg::PATCH ? 0 : i % TAPS, c = at.c + (cfg::PATCH ? i : i / TAPS) * ROW_CHANNELS;
            mbarrier_wait(&bars.pixels_empty[ring.stage], ring.parity);
            mbarrier_expect_tx(there, PIXEL_ROWS * cfg::ROW_BYTES);
            if (cfg::PATCH)
#pragma unroll
                for (int i = 0; i < PHASES; i++)
                    tma_load(memory->pixels[ring.stage] + i * PHASE_BYTES, args.pixels, c, from.w + i % PHASES_W,
                             from.h + i / PHASES_W, from.n, there);
            else load_windows(memory->pixels[ring.stage], args.pixels, c, from, tap, there);
        }
    }
}

// Results.
// ZERO_POINT: writes for each pixel of a tile where the sums of taps of its class begin, by a warpgroup.
template <class Args, class Shared>
__device__ inline void write_classes(const Args &args, const Place &at, Shared *memory, int warpgroup) {
    if constexpr (cfg::ZERO_POINT) {
        if (args.zero.one_class) return;
        warpgroup_sync(warpgroup);  // all have read those of the tile before
        for (int i = threadIdx.x % WARPGROUP; i < BLOCK_PIXELS; i += WARPGROUP) {
            const Output out = output_of(args.conv, args.tiling, at, i);
            memory->classes[warpgroup][i] = tap_sums_of(args.zero, args.conv, out.p, out.q);
        }
        warpgroup_sync(warpgroup);
    }
}

// Subtracts the zero point times the weights from a thread's sums of the rows from 64 * `row` on.
template <class Args, class Shared>
__device__ inline void subtract_zero_point(const Args &args, const Place &at, const Shared *memory, int warpgroup,
                                           acc_t (&sums)[SUMS], int row) {
    if constexpr (cfg::ZERO_POINT) {
        using Pair = Neighbours<int, 2>;
        const int lane = threadIdx.x % 32, first = 64 * row + threadIdx.x % WARPGROUP / 32 * 16 + lane / 4;
        const int column = lane % 4 * 2, inside = tap_sums_inside(args.zero);
        const int *classes = memory->classes[warpgroup];
        if constexpr (cfg::FILTERS_ON_M) {
            const int *of_filters[2];
            int within[2] = {};
#pragma unroll
            for (int half = 0; half < 2; half++) {
                of_filters[half] = args.zero.tap_sums + min(at.k + first + 8 * half, cfg::K - 1);
                within[half] = of_filters[half][inside];
            }
            if (args.zero.one_class) {
#pragma unroll
                for (int e = 0; e < SUMS; e++) sums[e] -= within[e / 2 % 2];
                return;
            }
#pragma unroll
            for (int j = 0; j < SUMS / 4; j++) {
                const Pair pixels = *reinterpret_cast<const Pair *>(classes + 8 * j + column);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int from = pixels.at[e % 2];
                    sums[4 * j + e] -= from == inside ? within[e / 2] : of_filters[e / 2][from];
                }
            }
        } else {
            const int *of_pixels[2];
#pragma unroll
            for (int half = 0; half < 2; half++)
                of_pixels[half] =
                    args.zero.tap_sums + (args.zero.one_class ? 0 : classes[first + 8 * half]) + at.k + column;
#pragma unroll
            for (int j = 0; j < SUMS / 4; j++) {
                if (at.k + column + 8 * j >= cfg::K) continue;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const Pair taps = *reinterpret_cast<const Pair *>(of_pixels[half] + 8 * j);
#pragma unroll
                    for (int i = 0; i < 2; i++) sums[4 * j + 2 * half + i] -= taps.at[i];
                }
            }
        }
    }
}

// MULTIPLY_ADD: brings the factors of a tile's filters to shared memory, by a warpgroup.
template <class Shared>
__device__ inline void load_factors(const Conv &conv, const Place &at, Shared *memory, int warpgroup) {
    if constexpr (MULTIPLY_ADD)
        for (int i = threadIdx.x % WARPGROUP; i < BLOCK_FILTERS; i += WARPGROUP) {
            Factor factor{1, 0};
            if (at.k + i < cfg::K) {
                if (cfg::SCALE) factor.scale = conv.scale[(at.k + i) * conv.scale_channels];
                if (cfg::BIAS) factor.bias = conv.bias[at.k + i];
            }
            if (cfg::OUT_ZERO_POINT) factor.bias = conv.requantization.of_result(factor.bias);
            memory->factors[warpgroup][i] = factor;
        }
}

// What all results of a tile have in common, for MULTIPLY_ADD.
struct Finish {
    int low, high;            // bounds of the results
    epilogue_t residual;      // factor of the residual
    bool words;               // four filters of a pixel's residual are an aligned word
};

__device__ inline Finish finish_of(const Conv &conv) {
    Finish finish{-2147483647 - 1, 2147483647, conv.requantization.of_residual(1), false};
    if constexpr (MULTIPLY_ADD) {
        if (cfg::ACTIVATION != IDENTITY) finish.low = whole_number<false>(conv.requantization.of_result(0));
        if (cfg::ACTIVATION == CLIPPED_RELU) finish.high = whole_number<false>(conv.requantization.of_result(conv.alpha));
        const Strides &steps = conv.residual_strides;
        const long long all = steps.n | steps.h | steps.w | reinterpret_cast<long long>(conv.residual);
        finish.words = cfg::RESIDUAL && steps.c == 1 && all % 4 == 0;
    }
    return finish;
}

// True if no sum of integers times its filter's factor is beyond 2^31; the same for all threads of a warp.
template <class Shared>
__device__ inline bool all_within(const Shared *memory, int warpgroup, const Finish &finish) {
    bool within = fabs(finish.residual) < 1048576.0;  // 2^20
    if constexpr (MULTIPLY_ADD)
        for (int i = threadIdx.x % 32; i < BLOCK_FILTERS; i += 32) {
            const Factor factor = memory->factors[warpgroup][i];
            within = within && fabs(factor.scale) < 0.25 && fabs(factor.bias) < 536870912.0;  // 2^29
        }
    return __all_sync(0xffffffffu, within);
}

template <class Shared>
__device__ inline Factor factor_of(const Shared *memory, int warpgroup, int filter) {
    if constexpr (MULTIPLY_ADD) return memory->factors[warpgroup][filter];
    return {};
}

// The residual of four filters of a pixel, from filter k on.
__device__ inline unsigned residual_word(const Wgmma &args, const Place &at, int pixel, int k) {
    const Output out = output_of(args.conv, args.tiling, at, pixel);
    if (!out.there || k >= cfg::K) return 0;
    const out_t *from = args.conv.residual + offset_of(args.conv.residual_strides, out.n, k, out.p, out.q);
    return *reinterpret_cast<const unsigned *>(from);
}

// Four results, one byte each. WITHIN: as all_within says, and residuals are given as four bytes.
template <class T, bool WITHIN>
__device__ inline unsigned finished_bytes(const Wgmma &args, const Place &at, const int (&pixel)[4],
                                          const int (&filter)[4], const Factor (&factors)[4], const acc_t (&sums)[4],
                                          const Finish &finish, unsigned residual) {
    if constexpr (MULTIPLY_ADD && (WITHIN || !cfg::RESIDUAL)) {
        int values[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            epilogue_t value = wide(sums[i]) * factors[i].scale + factors[i].bias;
            if (cfg::RESIDUAL) value += finish.residual * wide(static_cast<T>(residual >> 8 * i));
            values[i] = whole_number<WITHIN>(value);
            if (cfg::ACTIVATION != IDENTITY) values[i] = max(values[i], finish.low);
            if (cfg::ACTIVATION == CLIPPED_RELU) values[i] = min(values[i], finish.high);
        }
        return packed<T>(values);
    }
    unsigned word = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int k = at.k + filter[i];
        const Output out = output_of(args.conv, args.tiling, at, pixel[i]);
        T value{};
        if (k < cfg::K && out.there) value = output_value(args.conv, out.n, k, out.p, out.q, sums[i]);
        word |= static_cast<unsigned>(reinterpret_cast<const unsigned char &>(value)) << 8 * i;
    }
    return word;
}

// transpose_results for results of one byte: 16 bytes are 16 filters of a pixel.
template <bool WITHIN, class Shared>
__device__ inline void transpose_bytes(const Wgmma &args, const Place &at, const acc_t (&sums)[SUMS], int row, int part,
                                       const Shared *memory, int warpgroup, const Finish &finish,
                                       unsigned char *results) {
    constexpr bool WORDS = MULTIPLY_ADD && WITHIN && cfg::RESIDUAL;  // the residual is read as the results are stored
    const int lane = threadIdx.x % 32, warp = threadIdx.x % WARPGROUP / 32, first = 64 * row + 16 * warp + lane / 4;
    if constexpr (cfg::FILTERS_ON_M) {  // part: 64 filters, BLOCK_N pixels
        Factor factors[4];
#pragma unroll
        for (int i = 0; i < 4; i++) factors[i] = factor_of(memory, warpgroup, first + i / 2 * 8);
#pragma unroll
        for (int j = 0; j < cfg::BLOCK_N / 8; j++) {
            int pixel[4], filter[4];
            acc_t own[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                own[i] = sums[4 * j + i];
                pixel[i] = 8 * j + 2 * (lane % 4) + i % 2, filter[i] = first + i / 2 * 8;
            }
            const int to = 8 * j + 2 * (lane % 4) + lane / 4 % 2, byte = lane / 8 % 2 * 8 + lane / 16 * 4;
            unsigned added = 0;
            if (WORDS) added = turned_quads(residual_word(args, at, to, at.k + 64 * row + 16 * warp + byte));
            const unsigned four =
                turned_quads(finished_bytes<out_t, WITHIN>(args, at, pixel, filter, factors, own, finish, added));
            *reinterpret_cast<unsigned *>(results + (part * cfg::BLOCK_N + to) * RESULT_BYTES +
                                          piece_at(to, warp) * 16 + byte) = four;
        }
    } else {  // part: 64 pixels, BLOCK_N filters in groups of BOX_FILTERS
#pragma unroll
        for (int j = 0; j < cfg::BLOCK_N / 8; j += 2) {
            int filter[4];
            Factor factors[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                filter[i] = 8 * (j + i / 2) + 2 * (lane % 4) + i % 2;
                factors[i] = factor_of(memory, warpgroup, filter[i]);
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int pixel[4];
                acc_t own[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    pixel[i] = first + 8 * half;
                    own[i] = sums[4 * (j + i / 2) + 2 * half + i % 2];
                }
                const int to = 16 * warp + lane / 4 + 8 * half, piece = j / 2;
                const int byte = lane % 2 * 8 + lane / 2 % 2 * 4;
                unsigned added = 0;
                if (WORDS) added = turned_pairs(residual_word(args, at, pixel[0], at.k + 16 * piece + byte));
                const unsigned four =
                    turned_pairs(finished_bytes<out_t, WITHIN>(args, at, pixel, filter, factors, own, finish, added));
                *reinterpret_cast<unsigned *>(
                    results + ((part * (cfg::BLOCK_N / BOX_FILTERS) + piece / PIECES) * 64 + to) * RESULT_BYTES +
                    piece_at(to, piece) * 16 + byte) = four;
            }
        }
    }
}

// Two results of 16 bits.
__device__ inline unsigned finished_pair(const Wgmma &args, const Place &at, const int (&pixel)[2], const int (&k)[2],
                                         acc_t first, acc_t second) {
    if constexpr (!HAS_EPILOGUE) return narrow_pair<out_t>(odd_float(first), odd_float(second));
    const Conv &conv = args.conv;
    const acc_t sums[2] = {first, second};
    epilogue_t values[2] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        Output out{};
        if (cfg::RESIDUAL) out = output_of(conv, args.tiling, at, pixel[i]);
        if (k[i] < cfg::K && (!cfg::RESIDUAL || out.there))
            values[i] = epilogue_value(conv, out.n, k[i], out.p, out.q, sums[i]);
    }
    return narrow_pair<out_t>(odd_float(values[0]), odd_float(values[1]));  // one instruction for both
}

// Writes the results of a warpgroup's rows from 64 * `row` on to shared memory: a row of 128 bytes is 64 filters of a
// pixel.
__device__ inline void transpose_results(const Wgmma &args, const Place &at, const acc_t (&sums)[SUMS], int row, int part,
                                         unsigned char *results) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % WARPGROUP / 32;
#pragma unroll
    for (int j = 0; j < cfg::BLOCK_N / 8; j += 2) {
        unsigned v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int e = 4 * (j + i / 2) + 2 * (i % 2);
            const int m = 64 * row + 16 * warp + lane / 4 + 8 * (i % 2), n = 8 * (j + i / 2) + 2 * (lane % 4);
            const int pixel[2] = {cfg::FILTERS_ON_M ? n : m, cfg::FILTERS_ON_M ? n + 1 : m};
            const int k[2] = {at.k + (cfg::FILTERS_ON_M ? m : n), at.k + (cfg::FILTERS_ON_M ? m : n + 1)};
            v[i] = finished_pair(args, at, pixel, k, sums[e], sums[e + 1]);
        }
        if (cfg::FILTERS_ON_M) {  // part: 64 filters, BLOCK_N pixels
            const int pixel = 8 * (j + lane / 16) + lane % 8, piece = 2 * warp + lane / 8 % 2;
            stmatrix<true>(results + (part * cfg::BLOCK_N + pixel) * RESULT_BYTES + piece_at(pixel, piece) * 16, v);
        } else {  // part: 64 pixels, BLOCK_N filters in groups of BOX_FILTERS
            const int pixel = 16 * warp + lane % 16, piece = j + lane / 16;
            stmatrix<false>(results + ((part * (cfg::BLOCK_N / BOX_FILTERS) + piece / PIECES) * 64 + pixel) * RESULT_BYTES +
                                piece_at(pixel, piece) * 16,
                            v);
        }
    }
}

// One thread issues the store of 64 rows of a tile.
__device__ inline void store_results(const Wgmma &args, const Place &at, int row, int part,
                                     const unsigned char *results) {
    constexpr int BOXES = cfg::FILTERS_ON_M ? 1 : cfg::BLOCK_N / BOX_FILTERS, BOX_PIXELS = cfg::FILTERS_ON_M ? cfg::BLOCK_N : 64;
#pragma unroll
    for (int i = 0; i < BOXES; i++) {
        const unsigned char *from = results + (part * BOXES + i) * BOX_PIXELS * RESULT_BYTES;
        const int k = at.k + (cfg::FILTERS_ON_M ? 64 * row : BOX_FILTERS * i), pixel = cfg::FILTERS_ON_M ? 0 : 64 * row;
        if (cfg::GROUPS > 1 && k >= at.end()) continue;  // the filters of a group fill whole boxes
        if (cfg::PATCH) tma_store(args.results, from, k, at.q, at.p + pixel / TILE_W, at.n);
        else tma_store(args.results, from, k, at.first + pixel);
    }
}

// Consumer: adds the products of a row of channels of a tile's pixels and filters to the sums, or sets the sums.
__device__ __forceinline__ void multiply_row(acc_t (&sums)[cfg::ROWS_64][SUMS], const unsigned char *pixels,
                                             const unsigned char *filters, int share, bool adds) {
    constexpr int PIECES = PRODUCT_BYTES / 16;
#pragma unroll
    for (int i = 0; i < PRODUCTS; i++)
#pragma unroll
        for (int t = 0; t < cfg::ROWS_64; t++) {
            const int row = share * cfg::ROWS_64 + t;
            const int filters_in = cfg::FILTERS_ON_M ? row * 8 * EIGHT_ROWS : 0;
            const int pixels_in = cfg::FILTERS_ON_M ? 0 : row * 8 * PIXEL_PITCH;
            const auto of_filters = k_major_matrix<cfg::ROW_BYTES>(filters + filters_in, EIGHT_ROWS) + PIECES * i;
            const auto of_pixels = k_major_matrix<cfg::ROW_BYTES>(pixels + pixels_in, PIXEL_PITCH) + PIECES * i;
            if (cfg::FILTERS_ON_M) wgmma(sums[t], of_filters, of_pixels, adds || i > 0);
            else wgmma(sums[t], of_pixels, of_filters, adds || i > 0);
        }
}

__device__ inline void multiply_tiles(const Wgmma &args, Memory *memory, Barriers &bars, int warpgroup) {
    const bool elected = threadIdx.x % WARPGROUP == 0;
    const int share = cfg::PING_PONG ? 0 : warpgroup;  // of the tile's rows
    unsigned char *results = memory->results[warpgroup];
    Ring<cfg::PIXEL_STAGES> pixels;
    Ring<cfg::FILTER_STAGES> filters;
    int turn = 0;
    unsigned parity = warpgroup ^ 1;
    bool first = true;
    for (int tile = blockIdx.x; tile < args.tiling.tiles; tile += gridDim.x, turn ^= 1) {
        if (cfg::PING_PONG && turn != warpgroup) {
            pixels.skip(STAGES_OF_TILE);
            if (!cfg::RESIDENT) filters.skip(STEPS);
            continue;
        }
        const Place at = place_of(args.tiling, tile);
        acc_t sums[cfg::ROWS_64][SUMS];
        acc_t sums_of_row[cfg::ROWS_64][SUMS];  // TWO_LEVELS
        if (cfg::TWO_LEVELS)
#pragma unroll
            for (int e = 0; e < cfg::ROWS_64 * SUMS; e++) sums[e / SUMS][e % SUMS] = 0;
        if (cfg::PING_PONG) {
            mbarrier_wait(&bars.turn[warpgroup], parity);
            parity ^= 1;
        }
        int filters_before = -1, pixels_before = -1;  // stages that products in flight may still read
        for (int slice = 0; slice < SLICES; slice++) {
#pragma unroll UNROLLED
            for (int tap = 0; tap < TAPS; tap++) {
                const int step = slice * TAPS + tap, stage = cfg::RESIDENT ? step : filters.stage;
                if (!cfg::PATCH || tap == 0) mbarrier_wait(&bars.pixels_full[pixels.stage], pixels.parity);
                if (!cfg::RESIDENT || first)
                    mbarrier_wait(&bars.filters_full[stage], cfg::RESIDENT ? 0 : filters.parity);
                const unsigned char *pixel = memory->pixels[pixels.stage] + tap_offset(tap);
                const unsigned char *filter = memory->filters[stage];
                wgmma_fence();
                if constexpr (cfg::TWO_LEVELS) {
                    multiply_row(sums_of_row, pixel, filter, share, false);
                    wgmma_commit();
                    wgmma_wait<0>();
#pragma unroll
                    for (int t = 0; t < cfg::ROWS_64; t++)
#pragma unroll
                        for (int e = 0; e < SUMS; e++) sums[t][e] += sums_of_row[t][e];
                } else {
                    multiply_row(sums, pixel, filter, share, step > 0);
                    wgmma_commit();
                    wgmma_wait<1>();
                }
                release_stage<cfg::PAIRS_FILTERS>(&bars.filters_empty[max(filters_before, 0)],
                                                  !cfg::RESIDENT && filters_before >= 0);
                release_stage<cfg::PAIRS_PIXELS>(&bars.pixels_empty[max(pixels_before, 0)],
                                                 pixels_before >= 0 && (!cfg::PATCH || tap == 0));
                filters_before = stage;
                if (!cfg::PATCH || tap == TAPS - 1) pixels_before = pixels.stage, pixels.next();
                if (!cfg::RESIDENT) filters.next();
            }
        }
        first = false;
        wgmma_wait<0>();
        release_stage<cfg::PAIRS_FILTERS>(&bars.filters_empty[max(filters_before, 0)], !cfg::RESIDENT);
        release_stage<cfg::PAIRS_PIXELS>(&bars.pixels_empty[max(pixels_before, 0)], true);
        mbarrier_arrive_if(&bars.turn[warpgroup ^ 1], elected && cfg::PING_PONG);

        // Of split-K, the first share subtracts the zero point.
        if (cfg::ZERO_POINT && (cfg::SPLIT_K == 1 || at.share == 0)) {
            write_classes(args, at, memory, warpgroup);
#pragma unroll
            for (int t = 0; t < cfg::ROWS_64; t++)
                subtract_zero_point(args, at, memory, warpgroup, sums[t], share * cfg::ROWS_64 + t);
        }
        if constexpr (cfg::SCATTERED) {
            const int lane = threadIdx.x % 32, warp = threadIdx.x % WARPGROUP / 32;
#pragma unroll
            for (int t = 0; t < cfg::ROWS_64; t++) {
                const int row = 64 * (share * cfg::ROWS_64 + t) + 16 * warp + lane / 4;
                store_sums(args.conv, args.tiling, at, sums[t], row, lane % 4 * 2, args.store_width);
            }
        } else {
            if (elected) tma_store_wait_read();
            load_factors(args.conv, at, memory, warpgroup);
            warpgroup_sync(warpgroup);
            const Finish finish = finish_of(args.conv);
            const bool within =
                MULTIPLY_ADD && (!cfg::RESIDUAL || finish.words) && all_within(memory, warpgroup, finish);
#pragma unroll
            for (int t = 0; t < cfg::ROWS_64; t++)
                if constexpr (!IN_BYTES)
                    transpose_results(args, at, sums[t], share * cfg::ROWS_64 + t, t, results);
                else if (MULTIPLY_ADD && within)
                    transpose_bytes<true>(args, at, sums[t], share * cfg::ROWS_64 + t, t, memory, warpgroup, finish,
                                          results);
                else
                    transpose_bytes<false>(args, at, sums[t], share * cfg::ROWS_64 + t, t, memory, warpgroup, finish,
                                           results);
            fence_proxy_async();
            warpgroup_sync(warpgroup);
            if (elected) {
#pragma unroll
                for (int t = 0; t < cfg::ROWS_64; t++) store_results(args, at, share * cfg::ROWS_64 + t, t, results);
                tma_store_commit();
            }
        }
    }
    if (elected && !cfg::SCATTERED) tma_store_wait();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) implicit_gemm_wgmma(const __grid_constant__ Wgmma args) {
    TMA_SHARED(unsigned char, shared);
    Memory *memory = reinterpret_cast<Memory *>(shared + (-shared_address(shared) & 1023));
    __shared__ Barriers bars;
    const int warpgroup = threadIdx.x / WARPGROUP;
    if (threadIdx.x == 0) {
        for (int i = 0; i < cfg::PIXEL_STAGES; i++) {
            mbarrier_init(&bars.pixels_full[i], 1);
            mbarrier_init(&bars.pixels_empty[i], GROUPS_OF_TILE * (cfg::PAIRS_PIXELS ? 2 : 1));
        }
        for (int i = 0; i < cfg::FILTER_STAGES; i++) {
            mbarrier_init(&bars.filters_full[i], 1);
            mbarrier_init(&bars.filters_empty[i], GROUPS_OF_TILE * (cfg::PAIRS_FILTERS ? 2 : 1));
        }
        for (int i = 0; i < CONSUMERS; i++) mbarrier_init(&bars.turn[i], 1);
        mbarrier_init_fence();
        prefetch_tensormap(args.pixels);
        prefetch_tensormap(args.filters);
        if (!cfg::SCATTERED) prefetch_tensormap(args.results);
    }
    cluster_begin<PAIRED>();
    pdl_wait();
    if (warpgroup == 0) {
        setmaxnreg_dec<40>();
        if (threadIdx.x == 0) load_pixels(args, memory, bars);
        if (threadIdx.x == 32)
            load_filters(args.filters, args.tiling, memory->filters, bars.filters_full, bars.filters_empty);
    } else {
        setmaxnreg_inc<232>();
        multiply_tiles(args, memory, bars, warpgroup - 1);
    }
    if (PAIRED) cluster_sync();
}
