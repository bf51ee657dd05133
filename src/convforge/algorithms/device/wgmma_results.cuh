// Results of wgmma.cu: the zero point, the epilogue in registers, the order of the output in shared memory, stores by
// the TMA.
//
// write_classes(...), subtract_zero_point(...);   ZERO_POINT: zero_point.cuh for a tile of pixels
// load_factors(...), finish_of(conv), all_within(...);
//                                     MULTIPLY_ADD: what the results of a tile have in common
// transpose_results(...);             results of 16 bits of 64 rows, to shared memory
// transpose_bytes<WITHIN>(...);       results of one byte
// store_results(...);                 one thread stores them
#pragma once
#include "amax.cuh"
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

struct Wgmma {
    Conv conv;
    TensorMap pixels, filters, results;
    Tiling tiling;
    int store_width;  // SCATTERED: neighbouring outputs a store
#ifdef AMAX
    Amax amax;  // of floats, which have no zero point
#else
    Optional<cfg::ZERO_POINT, ZeroPoint>::type zero;
#endif
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
        if (cfg::ACTIVATION == CLIPPED_RELU)
            finish.high = whole_number<false>(conv.requantization.of_result(conv.alpha));
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
                                          const Finish &finish, unsigned residual, Largest &largest) {
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
        if (k < (HAS_AMAX ? at.end() : cfg::K) && out.there)
            value = output_value(args.conv, out.n, k, out.p, out.q, sums[i], largest);
        word |= static_cast<unsigned>(reinterpret_cast<const unsigned char &>(value)) << 8 * i;
    }
    return word;
}

// transpose_results for results of one byte: 16 bytes are 16 filters of a pixel.
template <bool WITHIN, class Shared>
__device__ inline void transpose_bytes(const Wgmma &args, const Place &at, const acc_t (&sums)[SUMS], int row, int part,
                                       const Shared *memory, int warpgroup, const Finish &finish,
                                       unsigned char *results, Largest &largest) {
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
                turned_quads(finished_bytes<out_t, WITHIN>(args, at, pixel, filter, factors, own, finish, added,
                                                           largest));
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
                    turned_pairs(finished_bytes<out_t, WITHIN>(args, at, pixel, filter, factors, own, finish, added,
                                                               largest));
                *reinterpret_cast<unsigned *>(
                    results + ((part * (cfg::BLOCK_N / BOX_FILTERS) + piece / PIECES) * 64 + to) * RESULT_BYTES +
                    piece_at(to, piece) * 16 + byte) = four;
            }
        }
    }
}

// Two results of 16 bits.
__device__ inline unsigned finished_pair(const Wgmma &args, const Place &at, const int (&pixel)[2], const int (&k)[2],
                                         acc_t first, acc_t second, Largest &largest) {
    if constexpr (!HAS_EPILOGUE && !HAS_AMAX) return narrow_pair<out_t>(odd_float(first), odd_float(second));
    const Conv &conv = args.conv;
    const acc_t sums[2] = {first, second};
    epilogue_t values[2] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        Output out{};
        if (cfg::RESIDUAL || HAS_AMAX) out = output_of(conv, args.tiling, at, pixel[i]);
        if (k[i] < (HAS_AMAX ? at.end() : cfg::K) && (!(cfg::RESIDUAL || HAS_AMAX) || out.there))
            values[i] = epilogue_value(conv, out.n, k[i], out.p, out.q, sums[i], largest);
    }
    return narrow_pair<out_t>(odd_float(values[0]), odd_float(values[1]));  // one instruction for both
}

// Writes the results of a warpgroup's rows from 64 * `row` on to shared memory: a row of 128 bytes is 64 filters of a
// pixel.
__device__ inline void transpose_results(const Wgmma &args, const Place &at, const acc_t (&sums)[SUMS], int row,
                                         int part, unsigned char *results, Largest &largest) {
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
            v[i] = finished_pair(args, at, pixel, k, sums[e], sums[e + 1], largest);
        }
        if (cfg::FILTERS_ON_M) {  // part: 64 filters, BLOCK_N pixels
            const int pixel = 8 * (j + lane / 16) + lane % 8, piece = 2 * warp + lane / 8 % 2;
            stmatrix<true>(results + (part * cfg::BLOCK_N + pixel) * RESULT_BYTES + piece_at(pixel, piece) * 16, v);
        } else {  // part: 64 pixels, BLOCK_N filters in groups of BOX_FILTERS
            const int pixel = 16 * warp + lane % 16, piece = j + lane / 16;
            const int box = part * (cfg::BLOCK_N / BOX_FILTERS) + piece / PIECES;
            stmatrix<false>(results + (box * 64 + pixel) * RESULT_BYTES + piece_at(pixel, piece) * 16, v);
        }
    }
}

// One thread issues the store of 64 rows of a tile.
__device__ inline void store_results(const Wgmma &args, const Place &at, int row, int part,
                                     const unsigned char *results) {
    constexpr int BOXES = cfg::FILTERS_ON_M ? 1 : cfg::BLOCK_N / BOX_FILTERS;
    constexpr int BOX_PIXELS = cfg::FILTERS_ON_M ? cfg::BLOCK_N : 64;
#pragma unroll
    for (int i = 0; i < BOXES; i++) {
        const unsigned char *from = results + (part * BOXES + i) * BOX_PIXELS * RESULT_BYTES;
        const int k = at.k + (cfg::FILTERS_ON_M ? 64 * row : BOX_FILTERS * i), pixel = cfg::FILTERS_ON_M ? 0 : 64 * row;
        if (cfg::GROUPS > 1 && k >= at.end()) continue;  // the filters of a group fill whole boxes
        if (cfg::PATCH) tma_store(args.results, from, k, at.q, at.p + pixel / TILE_W, at.n);
        else tma_store(args.results, from, k, at.first + pixel);
    }
}
