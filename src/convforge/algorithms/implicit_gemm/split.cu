// implicit_gemm_split: implicit GEMM of floats on Hopper's tensor cores, by three products of float16 halves.
//
// Since implicit_gemm_wgmma: x, w and out are floats. Tensor cores multiply 16-bit numbers, so pixels and
//           filters are split into two halves each (split.cuh): filters beforehand, pixels here, in shared memory, once
//           for all taps. SPLIT_FIRST: split_pixels.cu has split the pixels too. This pays if the pixels of each tap
//           are loaded separately, or if many tiles of filters use the same pixels, because they would be split here
//           repeatedly.
//
// Threads   four warpgroups of 128 threads: one splits pixels, two multiply, and two threads of another one load pixels
//           and filters. Registers move to the consumers. With 128 columns there are three warpgroups, and a warp of
//           the first one loads. With SPLIT_FIRST there are three, and none splits.
// Layout    as in wgmma_tiles.cuh. A stage of pixels and a stage of filters have two matrices each, high and low.
// Producer  the TMA loads pixels: SPLIT_FIRST as halves, with a scale for each pixel; else as floats, rows of 32
//           channels. Then threads find the largest value of a stage, compute its scale, and write the halves over the
//           floats.
// Consumer  for each 32 channels of a tap, high * high goes to sums of its own, which are then added in floats. For
//           each stage, high * low + low * high goes to other sums. These products run while the first sums are added.
// Finish    threads apply the epilogue and store: neighbours of a warp store 8 neighbours of a row.
// Range     if the halves lose accuracy, a tile is computed from floats (plainly), by FMAs in order: if its pixels have
//           Inf, NaN or numbers out of range, or if all numbers of a pixel or of a channel are so small relative to the
//           largest of the stage that they lose bits. *redone counts such tiles.
// Needs     NHWC, zeros at the border, C a multiple of 4, addresses and strides of 16 bytes. pixel_rows.cu repacks
//           other x.
// Limit     tensor cores, which compute three products for one; with few filters, shared memory.
#include "border.cuh"
#include "split.cuh"
#include "wgmma_tiles.cuh"

// Threads that split. With 128 columns the sums need so many registers that no other warpgroup fits.
constexpr bool OWN_PRODUCER = cfg::BLOCK_N <= 112 && !cfg::SPLIT_FIRST;
constexpr int SPLITTERS = OWN_PRODUCER ? WARPGROUP : WARPGROUP - 32, THREADS = WARPGROUP * (CONSUMERS + 1 + OWN_PRODUCER);
static_assert(PHASES == 1, "a patch is split as one");
static_assert(!cfg::SPLIT_FIRST || (!cfg::PATCH && !cfg::FILTERS_ON_M && cfg::GROUPS == 1),
              "each row of a product has a scale of its own");
constexpr int PIECES = cfg::ROW_BYTES / 16;  // of a row
// Registers of a thread. Consumers have three sums for each pair of columns.
constexpr int CONSUMER_REGISTERS = cfg::SPLIT_FIRST     ? 232
                                   : cfg::BLOCK_N > 112 ? 224
                                   : cfg::BLOCK_N > 96  ? 216
                                   : cfg::BLOCK_N > 64  ? 200
                                                        : 192;
constexpr int PRODUCER_REGISTERS = cfg::SPLIT_FIRST ? 40 : 24;
constexpr int SPLITTER_REGISTERS =
    cfg::SPLIT_FIRST ? PRODUCER_REGISTERS : (OWN_PRODUCER ? 512 - PRODUCER_REGISTERS : 504) - 2 * CONSUMER_REGISTERS;
constexpr int RAW_CHANNELS = 32;  // of a row of floats
constexpr int SCALES = 4;         // of a pixel's scales, one for each 64 channels, loaded at once: 16 bytes

struct Split {
    Conv conv;
    TensorMap pixels, filters, downs;  // downs: scales of pixels that were split first
    Tiling tiling;
    int store_width;  // neighbouring outputs a store
    const float *scales;  // of filters
    Strides w_strides;    // of conv.w, the filters as floats: filter, channel, row, column
    unsigned *redone;
};

struct Memory {
    alignas(1024) unsigned char pixels[cfg::PIXEL_STAGES][2 * PIXEL_BYTES];
    alignas(1024) unsigned char filters[cfg::FILTER_STAGES][FILTER_BYTES];
};
static_assert(sizeof(Memory) + 1024 - 128 <= cfg::SHARED_BYTES,
              "the host asks for the shared memory that a block uses");

struct Barriers {
    unsigned long long raw_full[cfg::PIXEL_STAGES], pixels_full[cfg::PIXEL_STAGES], pixels_empty[cfg::PIXEL_STAGES];
    unsigned long long filters_full[cfg::FILTER_STAGES], filters_empty[cfg::FILTER_STAGES];
    unsigned long long turn[CONSUMERS];  // the consumer that may multiply
    float down[cfg::PIXEL_STAGES][SPLITTERS / 32];  // to undo a stage's scale, or 0, as found by each warp
    alignas(16) float column[SPLITTERS / 16][ROW_CHANNELS];  // the largest of each channel, found by each part
    // To undo the scale of each pixel of a stage.
    alignas(128) float of_pixels[cfg::SPLIT_FIRST ? cfg::PIXEL_STAGES : 1][cfg::SPLIT_FIRST ? PIXEL_ROWS : 1][SCALES];
};

__device__ inline void splitters_meet() { named_barrier<SPLITTERS>(3); }

// Index of a 16-byte piece of a pixel's row in shared memory, swizzled.
__device__ inline int piece_at(int pixel, int piece) { return pixel * cfg::ROW_BYTES + (piece ^ pixel % PIECES) * 16; }

// Producer: one thread loads pixels, 64 channels at a time, ahead in their ring: floats in two rows of 32, or halves.
__device__ inline void load_pixels(const Split &args, Memory *memory, Barriers &bars) {
    const Conv &conv = args.conv;
    Ring<cfg::PIXEL_STAGES> ring{0, 1};
    for (int tile = blockIdx.x; tile < args.tiling.tiles; tile += gridDim.x) {
        const Place at = place_of(args.tiling, tile);
        Windows from = windows_of(conv, args.tiling, at);
        from.w += cfg::ROWS_LEFT, from.h += cfg::ROWS_TOP;
#pragma unroll 1  // this thread has few registers
        for (int i = 0; i < STAGES_OF_TILE; i++, ring.next()) {
            unsigned long long *there = cfg::SPLIT_FIRST ? &bars.pixels_full[ring.stage] : &bars.raw_full[ring.stage];
            const int tap = cfg::PATCH ? 0 : i % TAPS, first_c = at.c + (cfg::PATCH ? i : i / TAPS) * ROW_CHANNELS;
            mbarrier_wait(&bars.pixels_empty[ring.stage], ring.parity);
            mbarrier_expect_tx(there, 2 * PIXEL_ROWS * cfg::ROW_BYTES + (cfg::SPLIT_FIRST ? PIXEL_ROWS * SCALES * 4 : 0));
#pragma unroll
            for (int half = 0; half < 2; half++) {
                unsigned char *to = memory->pixels[ring.stage] + half * PIXEL_BYTES;
                const int c = cfg::SPLIT_FIRST ? first_c : first_c + half * RAW_CHANNELS;
                const Windows here{from.w, from.h, cfg::SPLIT_FIRST ? from.n + half * conv.N : from.n};
                if (cfg::PATCH) tma_load(to, args.pixels, c, here.w, here.h, here.n, there);
                else load_windows(to, args.pixels, c, here, tap, there);
            }
            if (cfg::SPLIT_FIRST) {
                const int scales = first_c / ROW_CHANNELS / SCALES * SCALES;
                const int w = at.q * cfg::STRIDE_W - conv.left + cfg::ROWS_LEFT,
                          h = at.p * cfg::STRIDE_H - conv.top + cfg::ROWS_TOP;
                tma_load_im2col(bars.of_pixels[ring.stage], args.downs, scales, w, h, at.n, tap % cfg::S * cfg::DILATION_W,
                            tap / cfg::S * cfg::DILATION_H, there);
            }
        }
    }
}

// Channels of the next group, which the TMA loads with the last ones of this group, count as zeros.
constexpr bool MEETS_OTHERS = cfg::GROUPS > 1 && cfg::C_GROUP % ROW_CHANNELS != 0;
__device__ inline float of_group(float v, int c) { return MEETS_OTHERS && c >= cfg::C_GROUP ? 0 : v; }

// The largest number of a stage, and the smaller of the largest numbers of a lane's two channels. Channels of zeros do
// not count.
struct Largest {
    float all, least;
};

__device__ inline Largest largest_of_raw(const unsigned char *raw, Barriers &bars, int first_c, int thread) {
    constexpr int PARTS = SPLITTERS / 16;  // each thread of a part has four channels
    const int part = thread / 16, half = thread % 16 / PIECES, piece = thread % PIECES;
    float column[4] = {};
#pragma unroll 4
    for (int pixel = part; pixel < PIXEL_ROWS; pixel += PARTS) {
        const float4 v = *reinterpret_cast<const float4 *>(raw + half * PIXEL_BYTES + piece_at(pixel, piece));
        const float numbers[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) column[i] = largest_of(column[i], numbers[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) column[i] = of_group(column[i], first_c + 4 * (thread % 16) + i);
    float4 *mine = reinterpret_cast<float4 *>(&bars.column[part][4 * (thread % 16)]);
    *mine = make_float4(column[0], column[1], column[2], column[3]);
    splitters_meet();
    float all = 0, least = 3.402823466e38f;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float largest = 0;
#pragma unroll
        for (int j = 0; j < PARTS; j++) largest = largest_of(largest, bars.column[j][thread % 32 + 32 * i]);
        all = largest_of(all, largest);
        if (largest > 0) least = fminf(least, largest);
    }
    return {float_of(__reduce_max_sync(0xffffffffu, bits_of(all))), least};
}

// Splits a stage and writes the halves over its floats: a row of high halves over the first 32 channels, a row of low
// halves over the others. Returns true if each pixel that is not all zeros has a number that keeps all its bits. Four
// lanes share a pixel, with 16 channels each; they write when all four have read. The order of pieces avoids bank
// conflicts among eight lanes.
__device__ inline bool split_raw(unsigned char *stage, float up, int first_c, int thread) {
    constexpr unsigned EXPONENTS = 0x7fff7fffu, FULL = 3u << 10;  // a half's exponent of IN_FULL
    const int part = thread % 4, upper = part / 2;
    bool keep = true;
    for (int pixel = thread / 4; pixel < (PIXEL_ROWS + 7) / 8 * 8; pixel += SPLITTERS / 4) {
        const bool there = pixel < PIXEL_ROWS;
        unsigned some = 0, full = 0, high[8], low[8];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int piece = 4 * (part % 2) + (i ^ 2 * upper);
            const unsigned char *from = stage + upper * PIXEL_BYTES + piece_at(pixel, piece);
            const float4 a = there ? *reinterpret_cast<const float4 *>(from) : float4{};
            float v[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
            for (int j = 0; j < 4; j++) v[j] = of_group(v[j], first_c + RAW_CHANNELS * upper + 4 * piece + j);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                split_pair(v[2 * j] * up, v[2 * j + 1] * up, high[2 * i + j], low[2 * i + j]);
                some |= bits_of(v[2 * j]) | bits_of(v[2 * j + 1]);
                full |= high[2 * i + j];
            }
        }
        // The exponents are or-ed: the result is at least the largest of them, and less than twice that.
        full = (full | full >> 16) & EXPONENTS & 0x7fffu;
#pragma unroll
        for (int lanes = 1; lanes < 4; lanes *= 2) {
            some |= __shfl_xor_sync(0xffffffffu, some, lanes);
            full |= __shfl_xor_sync(0xffffffffu, full, lanes);
        }
        keep = keep && (full >= FULL || some << 1 == 0);
        __syncwarp();
        if (!there) continue;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            unsigned char *to = stage + piece_at(pixel, 2 * part + (i ^ upper));
            const unsigned *h = high + 4 * i, *l = low + 4 * i;
            *reinterpret_cast<uint4 *>(to) = make_uint4(h[0], h[1], h[2], h[3]);
            *reinterpret_cast<uint4 *>(to + PIXEL_BYTES) = make_uint4(l[0], l[1], l[2], l[3]);
        }
    }
    return keep;
}

__device__ inline void split_pixels(const Split &args, Memory *memory, Barriers &bars, int thread) {
    Ring<cfg::PIXEL_STAGES> ring;
    for (int tile = blockIdx.x; tile < args.tiling.tiles; tile += gridDim.x) {
        for (int i = 0; i < STAGES_OF_TILE; i++, ring.next()) {
            unsigned char *stage = memory->pixels[ring.stage];
            const int first_c = (cfg::PATCH ? i : i / TAPS) * ROW_CHANNELS;
            mbarrier_wait(&bars.raw_full[ring.stage], ring.parity);
            const Largest largest = largest_of_raw(stage, bars, first_c, thread);
            const Scale scale = scale_of(largest.all, SHIFT);
            const bool channels = largest.least * scale.up >= IN_FULL;
            const bool rows = split_raw(stage, scale.up, first_c, thread);
            const bool keep = __all_sync(0xffffffffu, channels && rows) && !cannot_split(largest.all);
            if (thread % 32 == 0) bars.down[ring.stage][thread / 32] = keep ? scale.down : 0;
            fence_proxy_async();
            __syncwarp();
            mbarrier_arrive_if(&bars.pixels_full[ring.stage], thread % 32 == 0);
            splitters_meet();
        }
    }
}

// Results.
__device__ inline float plainly(const Split &args, const Place &at, int k, const Output &out) {
    const int first = at.share * SHARE_CHANNELS;  // of the filter's channels
    const int channels = cfg::SPLIT_K == 1 ? cfg::FILTER_CHANNELS : min(cfg::FILTER_CHANNELS - first, SHARE_CHANNELS);
    return plain_sum(args.conv, args.w_strides, {out.n, out.p, out.q}, k, at.c, first, channels);
}

// The factor of a tile's sums for filter k, or 0 if its outputs are computed from floats.
__device__ inline float scale_of_filter(const Split &args, const Place &at, int k) {
    return k < at.end() ? args.scales[k] : 1;
}

// Computes from floats the outputs of a thread's sums: two of a warpgroup's 64 rows, 8 apart, and two columns of each
// 8.
__device__ inline void finish_plainly(const Split &args, const Place &at, int row, int column) {
#pragma unroll 1
    for (int e = 0; e < SUMS; e++) {
        const int m = row + e / 2 % 2 * 8, n = column + e / 4 * 8 + e % 2, k = at.k + (cfg::FILTERS_ON_M ? m : n);
        const Output out = output_of(args.conv, args.tiling, at, cfg::FILTERS_ON_M ? n : m);
        if (!out.there || k >= at.end()) continue;
        const out_t value = output_value(args.conv, out.n, k, out.p, out.q, plainly(args, at, k, out));
        results_of(args.conv, at)[offset_of(args.conv.out_strides, out.n, k, out.p, out.q)] = value;
    }
}

__device__ inline void finish_tile(const Split &args, const Place &at, float (&sums)[SUMS], int share, bool plain) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % WARPGROUP / 32;
    const int row = (cfg::BY_PIXELS ? 0 : 64 * share) + 16 * warp + lane / 4;
    const int column = (cfg::BY_PIXELS ? cfg::BLOCK_N * share : 0) + lane % 4 * 2;
    float downs[cfg::FILTERS_ON_M ? 2 : SUMS / 2];
#pragma unroll
    for (int i = 0; i < (cfg::FILTERS_ON_M ? 2 : SUMS / 2); i++) {
        downs[i] = scale_of_filter(args, at, at.k + (cfg::FILTERS_ON_M ? row + 8 * i : column + i / 2 * 8 + i % 2));
        plain |= downs[i] == 0;
    }
    if (plain) {
        finish_plainly(args, at, row, column);
        return;
    }
#pragma unroll
    for (int e = 0; e < SUMS; e++) sums[e] *= downs[cfg::FILTERS_ON_M ? e / 2 % 2 : e / 4 * 2 + e % 2];
    store_sums(args.conv, args.tiling, at, sums, row, column, args.store_width);
}

// Consumer.
__device__ inline void multiply_tiles(const Split &args, Memory *memory, Barriers &bars, int warpgroup) {
    constexpr int OF_PART = 2, PARTS = (PRODUCTS + 1) / OF_PART, PIECE = PRODUCT_BYTES / 16;
    const bool elected = threadIdx.x % WARPGROUP == 0;
    const int share = cfg::PING_PONG ? 0 : warpgroup;  // of the tile's rows or columns
    const int filters_in = cfg::FILTERS_ON_M && !cfg::BY_PIXELS ? share * 8 * EIGHT_ROWS : 0;
    const int row = 64 * share + threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4;  // of a thread's first
    const int pixels_in =
        cfg::FILTERS_ON_M ? (cfg::BY_PIXELS ? share * cfg::BLOCK_N / 8 * PIXEL_PITCH : 0) : share * 8 * PIXEL_PITCH;
    Ring<cfg::PIXEL_STAGES> pixels;
    Ring<cfg::FILTER_STAGES> filters;
    unsigned parity = warpgroup ^ 1;
    bool first = true;
    const auto skip_tile = [&]() {  // a tile of the other warpgroup
        pixels.skip(STAGES_OF_TILE);
        if (!cfg::RESIDENT) filters.skip(STEPS);
    };
    constexpr int TWIDDLES = cfg::PING_PONG ? 2 : 1;
    if (cfg::PING_PONG && warpgroup == 1) skip_tile();
    for (int tile = blockIdx.x + (cfg::PING_PONG ? warpgroup * gridDim.x : 0); tile < args.tiling.tiles;
         tile += TWIDDLES * gridDim.x) {
        const Place at = place_of(args.tiling, tile);
        float sums[SUMS], main[SUMS], cross[SUMS];
        bool plain = false;
#pragma unroll
        for (int i = 0; i < SUMS; i++) sums[i] = 0;
        if (cfg::PING_PONG) {
            mbarrier_wait(&bars.turn[warpgroup], parity);
            parity ^= 1;
        }
        int filters_before = -1;  // a stage that products in flight may still read
        for (int i = 0; i < STAGES_OF_TILE; i++) {
            mbarrier_wait(&bars.pixels_full[pixels.stage], pixels.parity);
            float down[2];  // of the thread's rows
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float *downs = bars.down[pixels.stage];
                if (cfg::SPLIT_FIRST) {
                    down[j] = bars.of_pixels[pixels.stage][row + 8 * j][(at.c / ROW_CHANNELS + i / TAPS) % SCALES];
                    plain |= down[j] < 0;
                } else {
                    down[j] = downs[0];
                    plain |= downs[0] == 0 || downs[1] == 0 || downs[2] == 0;
                }
            }
            // Offsets are added to the first descriptor, because a descriptor for each tap would take registers from
            // the sums.
            const auto x_first = k_major_matrix(memory->pixels[pixels.stage] + pixels_in, PIXEL_PITCH);
#pragma unroll 3
            for (int tap = 0; tap < TAPS_OF_STAGE; tap++) {
                const int stage = cfg::RESIDENT ? i * TAPS_OF_STAGE + tap : filters.stage;
                if (!cfg::RESIDENT || first)
                    mbarrier_wait(&bars.filters_full[stage], cfg::RESIDENT ? 0 : filters.parity);
                const auto x_high = x_first + tap_offset(tap) / 16, x_low = x_high + PIXEL_BYTES / 16;
                const auto w_high = k_major_matrix(memory->filters[stage] + filters_in, EIGHT_ROWS);
                const auto w_low = w_high + FILTER_BYTES / 2 / 16;
                const auto a_high = cfg::FILTERS_ON_M ? w_high : x_high, a_low = cfg::FILTERS_ON_M ? w_low : x_low;
                const auto b_high = cfg::FILTERS_ON_M ? x_high : w_high, b_low = cfg::FILTERS_ON_M ? x_low : w_low;
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    wgmma_fence();
#pragma unroll
                    for (int j = 0; j < OF_PART; j++) {
                        const int at = PIECE * (part * OF_PART + j);
                        wgmma(main, a_high + at, b_high + at, j);
                    }
                    wgmma_commit();
#pragma unroll
                    for (int j = 0; j < OF_PART; j++) {
                        const int at = PIECE * (part * OF_PART + j);
                        wgmma(cross, a_high + at, b_low + at, tap | part | j);
                        wgmma(cross, a_low + at, b_high + at, 1);
                    }
                    wgmma_commit();
                    wgmma_wait<1>();
                    release_stage<cfg::PAIRS_FILTERS>(&bars.filters_empty[max(filters_before, 0)],
                                                      !cfg::RESIDENT && part == 0 && filters_before >= 0);
#pragma unroll
                    for (int e = 0; e < SUMS; e++) sums[e] = fmaf(main[e], down[e / 2 % 2], sums[e]);
                }
                filters_before = stage;
                if (!cfg::RESIDENT) filters.next();
            }
            wgmma_wait<0>();
            release_stage<cfg::PAIRS_PIXELS>(&bars.pixels_empty[pixels.stage], true);
            pixels.next();
#pragma unroll
            for (int e = 0; e < SUMS; e++) sums[e] = fmaf(cross[e], down[e / 2 % 2] * (1 / LOW), sums[e]);
        }
        first = false;
        release_stage<cfg::PAIRS_FILTERS>(&bars.filters_empty[max(filters_before, 0)], !cfg::RESIDENT);
        mbarrier_arrive_if(&bars.turn[warpgroup ^ 1], elected && cfg::PING_PONG);
        if (cfg::PING_PONG) skip_tile();
        finish_tile(args, at, sums, share, plain);
        if (cfg::SPLIT_FIRST) {  // a thread knows only its own pixels, and each warp counts for itself
            if (__any_sync(0xffffffffu, plain) && threadIdx.x % 32 == 0) atomicAdd(args.redone, 1u);
        } else if (elected && plain && share == 0) {
            atomicAdd(args.redone, 1u);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) implicit_gemm_split(const __grid_constant__ Split args) {
    TMA_SHARED(unsigned char, shared);
    Memory *memory = reinterpret_cast<Memory *>(shared + (-shared_address(shared) & 1023));
    __shared__ Barriers bars;
    const int warpgroup = threadIdx.x / WARPGROUP;
    if (threadIdx.x == 0) {
        for (int i = 0; i < cfg::PIXEL_STAGES; i++) {
            mbarrier_init(&bars.raw_full[i], 1);
            mbarrier_init(&bars.pixels_full[i], cfg::SPLIT_FIRST ? 1 : SPLITTERS / 32);
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
        if (cfg::SPLIT_FIRST) prefetch_tensormap(args.downs);
    }
    cluster_begin<PAIRED>();
    pdl_wait();
    const int thread = threadIdx.x % WARPGROUP;
    if (warpgroup > CONSUMERS) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (thread == 0)
            load_filters(args.filters, args.tiling, memory->filters, bars.filters_full, bars.filters_empty);
        if (thread == 32) load_pixels(args, memory, bars);
    } else if (warpgroup == 0) {
        setmaxnreg_dec<SPLITTER_REGISTERS>();
        const int splitter = thread - (WARPGROUP - SPLITTERS);
        if (splitter >= 0 && !cfg::SPLIT_FIRST) split_pixels(args, memory, bars, splitter);
        else if (thread == 0)
            load_filters(args.filters, args.tiling, memory->filters, bars.filters_full, bars.filters_empty);
        else if (thread == (cfg::SPLIT_FIRST ? 32 : 1))  // a thread of another warp if those do not split
            load_pixels(args, memory, bars);
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        multiply_tiles(args, memory, bars, warpgroup - 1);
    }
    if (PAIRED) cluster_sync();
}
