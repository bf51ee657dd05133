// implicit_gemm_split_mma: implicit GEMM of floats on tensor cores since Ampere, by three products of float16 halves.
//
// Since implicit_gemm_mma: x, w and out are floats. Pixels and filters are two halves each (split.cuh), which
//           other kernels have written: split_pixels.cu rows of channels with a scale for each pixel and 64 channels,
//           split_filters.cu filters with a scale each. A stage of each operand is two tiles, high and low.
// Threads   as in implicit_gemm_mma.
// Order     along K: taps, and for each tap its channels, BLOCK_K at a time; the last step of a tap may have fewer.
// Products  for 32 of K and 16 x 8 outputs, high * high, and high * low + low * high. Both begin at zero each time and
//           are added to the sum in floats, multiplied by the pixel's scale, because tensor cores truncate sums.
// Range     split_pixels.cu marks pixels, and split_filters.cu filters, whose halves lose accuracy. A marked pixel
//           makes the sums of all windows that contain it NaN. If a sum is NaN, or its filter is marked, the output is
//           computed from the floats (border.cuh). *redone counts the warps that met marked pixels.
// Split-K| with SPLIT_K, several blocks compute parts of the channels, and sum_shares.cu adds up their sums.
// Any       stride, padding, border, dilation, groups, layout, C and K: split_pixels.cu repacks x of any form.
// Limit     tensor cores, which compute three products for one, and shared memory, which has two tiles for one.
#define FACTORS_ARE_HALVES
#include "border.cuh"
#include "epilogue.cuh"
#include "mma_tiles.cuh"
#include "split.cuh"

constexpr int TAPS = cfg::R * cfg::S, SLICE = 64;                             // channels that share a pixel's scale
constexpr int SPANS = (cfg::FILTER_PITCH + cfg::BLOCK_K - 1) / cfg::BLOCK_K;  // steps of a tap
constexpr int SHARE_SPANS = (SPANS + cfg::SPLIT_K - 1) / cfg::SPLIT_K;        // steps of a block
static_assert(SLICE % cfg::BLOCK_K == 0, "a step has channels of one scale");
static_assert(ROWS * COLUMNS * 4 <= 64, "each sum of a lane has a bit");

struct SplitMma {
    Conv conv;
    const half_t *pixels, *filters;  // high halves, then the low ones
    const float *downs, *scales;     // to undo the scales of pixels and filters
    Strides w_strides;               // of conv.w, the filters as floats: filter, channel, row, column
    unsigned *redone;
    int height, width;  // of the images of halves, with border values if these are not zeros
    int pairs;          // true if two neighbouring outputs, the first of them even, may be stored as one
};

struct Tiles {
    OperandTile<cfg::BLOCK_M, true> pixels[2];  // high, low
    OperandTile<cfg::BLOCK_N, true> filters[2];
    float downs[cfg::BLOCK_M];
};

// The window of an output in the image of halves.
struct Window {
    int h, w;       // of its first tap, which may be outside
    index_t first;  // linear index of that pixel, along w, h and n
};

// The copies of a thread in each step: a piece of several lines of pixels and of filters.
struct Loader {
    // Lines that all threads copy at once.
    static constexpr int PIECES = cfg::BLOCK_K / PIECE, LINES = THREADS / PIECES;
    static constexpr int PIXELS = (cfg::BLOCK_M + LINES - 1) / LINES, FILTERS = (cfg::BLOCK_N + LINES - 1) / LINES;
    const SplitMma &args;
    const int line, piece, group, first_c, end_c;  // channels of the group, from the share's first one to its end
    const int left;                                // filters of the group from this thread's first one on
    const half_t *filters;                         // the first of them
    Window windows[PIXELS];
    int r = 0, s = 0, c;  // of the next step

    __device__ Loader(const SplitMma &args, int group, int share, index_t tile_m, int tile_n)
        : args(args),
          line(threadIdx.x / PIECES),
          piece(threadIdx.x % PIECES),
          group(group),
          first_c(share * SHARE_SPANS * cfg::BLOCK_K),
          end_c(min(cfg::FILTER_PITCH, first_c + SHARE_SPANS * cfg::BLOCK_K)),
          left(cfg::K_GROUP - tile_n - line),
          filters(args.filters +
                  (static_cast<long long>(group) * cfg::K_GROUP + tile_n + line) * (TAPS * cfg::FILTER_PITCH)),
          c(first_c) {
        const Conv &conv = args.conv;
        const index_t pixels = static_cast<index_t>(conv.N) * conv.P * conv.Q;
#pragma unroll
        for (int i = 0; i < PIXELS; i++) {  // pixels beyond the last repeat the last one
            const index_t m = tile_m + line + i * LINES;
            const Column at = column_of(conv, m < pixels ? m : pixels - 1);
            const int h = at.p * cfg::STRIDE_H - conv.top + cfg::ROWS_TOP,
                      w = at.q * cfg::STRIDE_W - conv.left + cfg::ROWS_LEFT;
            windows[i] = {h, w, (static_cast<index_t>(at.n) * args.height + h) * args.width + w};
        }
    }

    __device__ __forceinline__ void ask(Tiles &tiles) {
        const int own = c + piece * PIECE, h = r * cfg::DILATION_H, w = s * cfg::DILATION_W;
        const bool some = r < cfg::R && own < end_c;
        const index_t tap = static_cast<index_t>(h) * args.width + w;
        const long long lows = static_cast<long long>(args.conv.N) * args.height * args.width * cfg::PIXEL_PITCH;
        const half_t *const pixels = args.pixels + group * cfg::GROUP_PITCH + own;
#pragma unroll
        for (int i = 0; i < PIXELS; i++) {
            const int m = line + i * LINES;
            if (cfg::BLOCK_M % LINES && m >= cfg::BLOCK_M) break;
            const Window &window = windows[i];
            const bool inside = 0 <= window.h + h && window.h + h < args.height && 0 <= window.w + w && window.w + w < args.width;
            const long long pixel = window.first + tap;
            const half_t *from = pixels + pixel * cfg::PIXEL_PITCH;
            copy_async16_l1(tiles.pixels[0].piece(m, piece), from, some && inside);
            copy_async16_l1(tiles.pixels[1].piece(m, piece), from + lows, some && inside);
            if (piece == 0)
                copy_async<4>(&tiles.downs[m],
                              args.downs + (pixel * cfg::SLICES + (group * cfg::GROUP_PITCH + c) / SLICE),
                              some && inside);
        }
        const half_t *from = filters + ((r * cfg::S + s) * cfg::FILTER_PITCH + own);
        const long long further = static_cast<long long>(cfg::K) * TAPS * cfg::FILTER_PITCH;
#pragma unroll
        for (int i = 0; i < FILTERS; i++) {
            const int n = line + i * LINES;
            if (cfg::BLOCK_N % LINES && n >= cfg::BLOCK_N) break;
            const bool there = some && (cfg::K_GROUP % cfg::BLOCK_N == 0 || i * LINES < left);
            const half_t *filter = from + i * static_cast<long long>(LINES * TAPS * cfg::FILTER_PITCH);
            copy_async16(tiles.filters[0].piece(n, piece), filter, there);
            copy_async16(tiles.filters[1].piece(n, piece), filter + further, there);
        }
        c += cfg::BLOCK_K;
        const bool tap_ends = c >= end_c;
        c = tap_ends ? first_c : c, s += tap_ends;
        const bool row_ends = s == cfg::S;
        s = row_ends ? 0 : s, r += row_ends;
    }
};

// Adds the products of a step to the `sums` of the warp's part of the tile. Pixels that are `marked` make them NaN.
__device__ __forceinline__ void multiply_step(WarpSums &sums, bool &marked, const Tiles &tiles, int m0, int n0) {
    constexpr int PARTS = cfg::BLOCK_K / MMA_HALVES;
    unsigned columns[PARTS][2][COLUMNS / 2][4];
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int j = 0; j < COLUMNS / 2; j++)
                load_columns<true>(columns[part][half][j], tiles.filters[half], n0 + j * 16, part * MMA_HALVES);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        unsigned rows[PARTS][2][4];
        float downs[2];
#pragma unroll
        for (int part = 0; part < PARTS; part++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                load_rows<true>(rows[part][half], tiles.pixels[half], m0 + i * MMA_ROWS, part * MMA_HALVES);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float down = tiles.downs[m0 + i * MMA_ROWS + 8 * half + threadIdx.x % 32 / 4];
            marked |= down < 0;
            downs[half] = down < 0 ? float_of(0x7fffffffu) : down;
        }
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            float main[4] = {}, cross[4] = {};
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                const auto &of_columns = columns[part];
                const unsigned high[2] = {of_columns[0][j / 2][j % 2 * 2], of_columns[0][j / 2][j % 2 * 2 + 1]};
                const unsigned low[2] = {of_columns[1][j / 2][j % 2 * 2], of_columns[1][j / 2][j % 2 * 2 + 1]};
                mma_halves<half_t>(main, rows[part][0], high);
                mma_halves<half_t>(cross, rows[part][0], low);
                mma_halves<half_t>(cross, rows[part][1], high);
            }
#pragma unroll
            for (int e = 0; e < 4; e++)
                sums[i][j][e] = fmaf(fmaf(cross[e], 1 / LOW, main[e]), downs[e / 2], sums[i][j][e]);
        }
    }
}

// The output of a lane's sum: row 8 * i + g of the warp's part, column 8 * j + 2 * t + v.
struct Output {
    index_t m;
    int n;
};

__device__ inline Output output_of(index_t m0, int n0, int i, int j, int v) {
    const int lane = threadIdx.x % 32;
    return {m0 + 8 * i + lane / 4, n0 + 8 * j + lane % 4 * 2 + v};
}

// Results.
__device__ inline void finish_sums(const SplitMma &args, int group, int share, index_t m0, int n0, const WarpSums &sums) {
    const Conv &conv = args.conv;
    const index_t pixels = static_cast<index_t>(conv.N) * conv.P * conv.Q;
    out_t *const outs = conv.out + share * pixels * cfg::K;
    unsigned long long plain = 0;  // a bit for each output that is computed from floats
#pragma unroll
    for (int i = 0; i < 2 * ROWS; i++) {
        const index_t m = output_of(m0, n0, i, 0, 0).m;
        if (m >= pixels) continue;
        const Column at = column_of(conv, m);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            Vector<out_t, 2> pair;
            const int n = output_of(m0, n0, i, j, 0).n, k = group * cfg::K_GROUP + n;
#pragma unroll
            for (int v = 0; v < 2; v++) {
                if (n + v >= cfg::K_GROUP) continue;
                const float sum = sums[i / 2][j][i % 2 * 2 + v], scale = args.scales[k + v];
                if (scale == 0 || sum != sum) plain |= 1ull << ((i * COLUMNS + j) * 2 + v);
                pair.at[v] = output_value(conv, at.n, k + v, at.p, at.q, sum * scale);
            }
            if (n >= cfg::K_GROUP) continue;
            out_t *to = outs + offset_of(conv.out_strides, at.n, k, at.p, at.q);
            if (args.pairs) {
                store_vector(to, pair);
                continue;
            }
            to[0] = pair.at[0];
            if (n + 1 < cfg::K_GROUP) to[conv.out_strides.c] = pair.at[1];
        }
    }
    const int first = share * SHARE_SPANS * cfg::BLOCK_K,
              channels = min(cfg::C_GROUP - first, SHARE_SPANS * cfg::BLOCK_K);
#pragma unroll 1
    for (int bit = 0; bit < 64 && plain >> bit; bit++) {
        if (!(plain >> bit & 1)) continue;
        const Output output = output_of(m0, n0, bit / (2 * COLUMNS), bit / 2 % COLUMNS, bit % 2);
        const Column at = column_of(conv, output.m);
        const int k = group * cfg::K_GROUP + output.n;
        const float sum = plain_sum(conv, args.w_strides, at, k, group * cfg::C_GROUP + first, first, channels);
        outs[offset_of(conv.out_strides, at.n, k, at.p, at.q)] = output_value(conv, at.n, k, at.p, at.q, sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) implicit_gemm_split_mma(const __grid_constant__ SplitMma args) {
    DYNAMIC_SHARED(Tiles, stages);
    constexpr unsigned ACROSS = (cfg::K_GROUP + cfg::BLOCK_N - 1) / cfg::BLOCK_N;
    const index_t pixels = static_cast<index_t>(args.conv.N) * args.conv.P * args.conv.Q;
    const unsigned down = static_cast<unsigned>((pixels + cfg::BLOCK_M - 1) / cfg::BLOCK_M), rest = blockIdx.x / ACROSS;
    const int share = rest / (down * cfg::GROUPS), group = rest / down % cfg::GROUPS;
    const int tile_n = blockIdx.x % ACROSS * cfg::BLOCK_N;
    const index_t tile_m = static_cast<index_t>(rest % down) * cfg::BLOCK_M;
    const int warp = threadIdx.x / 32, m0 = warp / WARPS_N * cfg::WARP_M, n0 = warp % WARPS_N * cfg::WARP_N;
    const int steps = TAPS * min(SHARE_SPANS, SPANS - share * SHARE_SPANS);
    pdl_wait();
    Loader load(args, group, share, tile_m, tile_n);
    WarpSums sums = {};
    bool marked = false;
    for (int stage = 0; stage < cfg::STAGES - 1; stage++) {
        load.ask(stages[stage]);
        copy_async_commit();
    }
    int stage = 0;
    for (int step = 0; step < steps; step++) {
        copy_async_wait<cfg::STAGES - 2>();  // this thread's part of the tile has landed,
        __syncthreads();                // so has every other's, and all are done with the tile before it
        load.ask(stages[stage == 0 ? cfg::STAGES - 1 : stage - 1]);
        copy_async_commit();
        multiply_step(sums, marked, stages[stage], m0, n0);
        stage = stage + 1 == cfg::STAGES ? 0 : stage + 1;
    }
    copy_async_wait();
    finish_sums(args, group, share, tile_m + m0, tile_n + n0, sums);
    if (__any_sync(0xffffffffu, marked) && threadIdx.x % 32 == 0) atomicAdd(args.redone, 1u);
}
