// separable: a block applies a filter's row and then its column to a tile in shared memory, for each product of its
// rank.
//
// Since direct_shared: a filter is a sum of products of a column and a row, so R + S FMAs an output replace R
//           * S. Between the two passes a second tile is in shared memory, as acc_t; nothing of it goes to global
//           memory. Weights are in registers, CHUNK of them, and a loaded pixel is multiplied by all of them.
// Tile      TILE_P x TILE_Q outputs of PLANES neighbouring output channels, which need ROWS x TILE_W pixels a plane.
//           Pixels keep their type of storage and are copied without registers (cp.async, 16 bytes if rows allow it).
// Along     the row pass: a thread computes ALONG neighbouring sums of a row of pixels, THREADS times ALONG at once,
//           ROWS x TILE_Q in all. Lanes are below each other, and rows an odd multiple of 16 bytes apart, so 16-byte
//           loads and stores have no bank conflicts.
// Down      the column pass: a thread computes OUT_P outputs of a column of these sums. Lanes are beside each other, so
//           loads have no bank conflicts and stores fill whole lines; in NHWC the planes of a pixel are neighbours.
// Threads   THREADS = PLANES * TILE_Q * STRIPS_Y in one dimension, TILE_P = STRIPS_Y * OUT_P.
// Start     PDL: blocks start while the filter is still being factorised.
// Grid      persistent: block i computes tiles i, i + gridDim.x, ...: tiles of a plane, then planes.
// Steps     of a tile: products of the rank, channels of a group. The outputs' sums stay in registers.
// Ahead     after the row pass, nobody reads pixels any more: the copies for the next step overlap with the column
//           pass. That pass reads factors too, so there are two buffers of factors.
// Pixels    a row of the tile begins SHIFT columns left of its first window, so that vectors of FILL pixels have the
//           same alignment in the image and in shared memory. A load from shared memory has LOAD pixels.
// Balance   for 31 x 31 at 96 x 64 outputs, ALONG = 16, OUT_P = 24, of one product: an output takes 31 + 31 * 126 / 96
//           = 72 FMAs. Of shared memory it takes 1.9 words to copy pixels, 3 * 1.31 to load them in the row pass, 1.31
//           to store those sums and 54 / 24 to load them in the column pass: 9.4, that is 38 bytes. In cycles of an SM:
//           0.56 for FMAs against 0.29 for shared memory.
// Needs     both tiles and the factors in shared memory; the host computes and checks the size. FILL divides W, or
//           copies have single pixels.
// Limit     FMA from about 15 x 15 on. Below, memory: each pixel is read once a block from DRAM, and halos twice or
//           more, from L2.
#include "border.cuh"
#include "conv.cuh"
#include "epilogue.cuh"
#include "memory.cuh"
#include "pixels.cuh"

constexpr int TILE_P = cfg::STRIPS_Y * cfg::OUT_P, THREADS = cfg::PLANES * cfg::TILE_Q * cfg::STRIPS_Y;
constexpr int ROWS = (TILE_P - 1) * cfg::STRIDE_H + cfg::DILATION_H * (cfg::R - 1) + 1;
constexpr int TILE_W = cfg::SHIFT + (cfg::TILE_Q - 1) * cfg::STRIDE_W + cfg::DILATION_W * (cfg::S - 1) + 1;
constexpr int INTERLEAVED = cfg::IN_CHANNELS_LAST ? cfg::PLANES : 1;  // planes whose pixels are contiguous
constexpr bool COPIES = CAN_COPY<cfg::RAW, cfg::FILL>;         // true if asynchronous copies of vectors are possible
constexpr int FILLS = (TILE_W + cfg::FILL - 1) / cfg::FILL * INTERLEAVED;  // vectors of a row
constexpr int WEIGHT_LOAD = 16 / sizeof(acc_t), SUMS = 16 / sizeof(acc_t);
constexpr int ROW_PITCH = (cfg::S + WEIGHT_LOAD - 1) / WEIGHT_LOAD * WEIGHT_LOAD;
constexpr int COLUMN_PITCH = (cfg::R + WEIGHT_LOAD - 1) / WEIGHT_LOAD * WEIGHT_LOAD;
constexpr int MOST_PRODUCTS = cfg::R < cfg::S ? cfg::R : cfg::S;  // of a filter

static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(cfg::TILE_Q % cfg::ALONG == 0 && cfg::ALONG % SUMS == 0, "whole vectors of sums fill a row");
static_assert(cfg::PITCH % cfg::LOAD == 0 && cfg::ALONG * cfg::STRIDE_W % cfg::LOAD == 0 &&
                  cfg::TILE_Q * cfg::STRIDE_W % cfg::FILL == 0,
              "vectors lie alike");
static_assert(cfg::CHUNK_S == cfg::S ||
                  (cfg::CHUNK_S * cfg::DILATION_W % cfg::LOAD == 0 && cfg::CHUNK_S % WEIGHT_LOAD == 0),
              "so do all chunks'");
static_assert(cfg::CHUNK_R == cfg::R || cfg::CHUNK_R % WEIGHT_LOAD == 0, "chunks of weights are whole vectors");

struct Separable {
    Conv conv;
    const acc_t *rows, *columns;  // factors: (K, C_GROUP, MOST_PRODUCTS, S) and (K, C_GROUP, MOST_PRODUCTS, R)
    const int *ranks;             // (K, C_GROUP): number of a filter's products
    int aligned_x;                // true if rows allow vectors of FILL pixels
    PlaneTiles tiles;
    int count;  // of all tiles
};

struct Factors {
    acc_t rows[cfg::PLANES * ROW_PITCH], columns[cfg::PLANES * COLUMN_PITCH];
};

struct Held {
    Factors factors[2];  // of this step and the next
    acc_t middle[cfg::PLANES * cfg::MIDDLE];
    tile_t pixels[cfg::PLANES * cfg::PLANE];
};

// A step: product i of `products` of channel c, in tile `at`.
struct Step {
    int at;
    int c, i, products;
    PlaneTile tile;
};

__device__ inline PlaneTile tile_of(const Separable &args, int at) {
    return tile_of<cfg::PLANES, TILE_P, cfg::TILE_Q>(args.tiles, args.conv, at);
}

// Issues the copies of the tile of every plane, and writes the border's values. WIDE neighbouring threads keep their
// columns and copy LINES rows of the tile at a time.
__device__ inline void copy_pixels(const Separable &args, Held &to, const PlaneTile &tile, int c) {
    constexpr int WIDE = FILLS < THREADS ? FILLS : THREADS, LINES = THREADS / WIDE;
    const Conv &conv = args.conv;
    const index_t step_h = conv.x_strides.h, step_w = conv.x_strides.w;
    const int h0 = tile.p * cfg::STRIDE_H - conv.top, w0 = tile.q * cfg::STRIDE_W - conv.left - cfg::SHIFT,
              t = threadIdx.x;
    if (t >= WIDE * LINES) return;
    for (int i = t % WIDE; i < FILLS * (cfg::PLANES / INTERLEAVED); i += WIDE) {
        const int vector = i % FILLS, slot = i / FILLS + vector % INTERLEAVED, column = vector / INTERLEAVED * cfg::FILL,
                  k = tile.k + slot;
        if (slot >= tile.planes) continue;
        const int w = w0 + column;
        int at[cfg::FILL];
        for (int e = 0; e < cfg::FILL; e++) at[e] = inside(w + e, conv.W);
        const bool whole = w >= 0 && w < conv.W;  // a vector is inside the image as a whole, or outside
        const x_t *plane =
            conv.x + offset_of(conv.x_strides, tile.n + k / cfg::K, k % cfg::K / cfg::K_GROUP * cfg::C_GROUP + c, 0, 0);
        tile_t *target = to.pixels + (slot * cfg::PLANE + column);
        const int first = t / WIDE;
        if (COPIES && args.aligned_x && whole && h0 >= 0 && h0 + ROWS <= conv.H) {
            const x_t *from = plane + (h0 + first) * step_h + w * step_w;
#pragma unroll
            for (int row = 0; row < ROWS; row += LINES) {
                if (row + LINES > ROWS && row + first >= ROWS) break;
                if constexpr (COPIES) copy_async<cfg::FILL * sizeof(x_t)>(target + (row + first) * cfg::PITCH, from);
                from += LINES * step_h;
            }
        } else if (COPIES && args.aligned_x && (whole || BLANK)) {
#pragma unroll 2
            for (int row = first; row < ROWS; row += LINES) {
                const int h = inside(h0 + row, conv.H);
                if (h < 0 && !BLANK) {
                    for (int e = 0; e < cfg::FILL; e++)
                        target[row * cfg::PITCH + e] = held<cfg::RAW, tile_t>(conv, nullptr);
                } else if constexpr (COPIES) {
                    const bool there = h >= 0 && whole;
                    copy_async<cfg::FILL * sizeof(x_t)>(target + row * cfg::PITCH,
                                                        there ? plane + h * step_h + w * step_w : conv.x, there);
                }
            }
        } else {
#pragma unroll 4
            for (int row = first; row < ROWS; row += LINES) {
                const int h = inside(h0 + row, conv.H);
                for (int e = 0; e < cfg::FILL; e++) {
                    const bool there = h >= 0 && at[e] >= 0;
                    target[row * cfg::PITCH + e] =
                        held<cfg::RAW, tile_t>(conv, there ? plane + h * step_h + at[e] * step_w : nullptr);
                }
            }
        }
    }
}

// Index of the filter of channel `c` of a plane.
__device__ inline index_t filter_of(const PlaneTile &tile, int slot, int c) {
    return static_cast<index_t>((tile.k + slot) % cfg::K) * cfg::C_GROUP + c;
}

// The largest number of products of channel `c` in a plane.
__device__ inline int products_of(const Separable &args, const PlaneTile &tile, int c) {
    int most = 0;
#pragma unroll
    for (int slot = 0; slot < cfg::PLANES; slot++)
        if (slot < tile.planes) most = max(most, args.ranks[filter_of(tile, slot, c)]);
    return most;
}

// Issues the copies of the rows and columns of product `i` of channel `c`, of every plane; zeros if its rank is
// smaller.
__device__ inline void copy_factors(const Separable &args, Factors &to, const PlaneTile &tile, int c, int i) {
    for (int e = threadIdx.x; e < cfg::PLANES * (cfg::R + cfg::S); e += THREADS) {
        const int slot = e / (cfg::R + cfg::S), tap = e % (cfg::R + cfg::S);
        if (slot >= tile.planes) break;
        const index_t filter = filter_of(tile, slot, c), product = filter * MOST_PRODUCTS + i;
        acc_t *target =
            tap < cfg::S ? to.rows + slot * ROW_PITCH + tap : to.columns + slot * COLUMN_PITCH + tap - cfg::S;
        const acc_t *source =
            tap < cfg::S ? args.rows + product * cfg::S + tap : args.columns + product * cfg::R + tap - cfg::S;
        copy_async<sizeof(acc_t)>(target, source, cfg::PLANES == 1 || i < args.ranks[filter]);
    }
}

// Advances to the next step: the next product, the next channel, or the next tile.
__device__ inline void advance(const Separable &args, Step &step) {
    if (++step.i < step.products) return;
    step.i = 0;
    if (++step.c == cfg::C_GROUP) {
        step.c = 0;
        step.at += gridDim.x;
        if (step.at >= args.count) return;
        step.tile = tile_of(args, step.at);
    }
    step.products = products_of(args, step.tile, step.c);
}

// Issues the copies of a step. A channel's pixels stay for all its products.
__device__ inline void ask(const Separable &args, Held &to, Factors &factors, const Step &step) {
    if (step.i == 0) copy_pixels(args, to, step.tile, step.c);
    copy_factors(args, factors, step.tile, step.c, step.i);
    copy_async_commit();
}

template <int COUNT>
__device__ inline void load_taps(acc_t (&taps)[COUNT], const acc_t *factor) {
#pragma unroll
    for (int s = 0; s < COUNT; s += WEIGHT_LOAD) {
        const auto values = load_vector<WEIGHT_LOAD>(factor + s);
#pragma unroll
        for (int e = 0; e < WEIGHT_LOAD && s + e < COUNT; e++) taps[s + e] = values.at[e];
    }
}

// Adds COUNT taps of a row to all sums whose windows contain the pixels.
template <int COUNT>
__device__ inline void add_along(const Conv &conv, acc_t (&sums)[cfg::ALONG], const tile_t *pixels,
                                 const acc_t *factor) {
    constexpr int SPAN = cfg::SHIFT + (cfg::ALONG - 1) * cfg::STRIDE_W + (COUNT - 1) * cfg::DILATION_W + 1;
    acc_t taps[COUNT];
    load_taps(taps, factor);
#pragma unroll
    for (int v = 0; v < SPAN; v += cfg::LOAD) {
        const auto values = load_vector<cfg::LOAD>(pixels + v);
#pragma unroll
        for (int e = 0; e < cfg::LOAD; e++)
#pragma unroll
            for (int q = 0; q < cfg::ALONG; q++) {
                const int beyond = v + e - cfg::SHIFT - q * cfg::STRIDE_W, s = beyond / cfg::DILATION_W;
                if (beyond < 0 || beyond % cfg::DILATION_W != 0 || s >= COUNT) continue;
                sums[q] = multiply_add(taps[s], taken<cfg::RAW>(conv, values.at[e]), sums[q]);
            }
    }
}

// The row pass: the rows of the factors, over all pixels of the tile.
__device__ inline void pass_along(const Conv &conv, Held &held, const Factors &factors, int planes) {
    constexpr int ACROSS = cfg::TILE_Q / cfg::ALONG, LEFT = cfg::S % cfg::CHUNK_S, AT = cfg::S - LEFT;
#pragma unroll 1
    for (int i = threadIdx.x; i < cfg::PLANES * ACROSS * ROWS; i += THREADS) {
        const int row = i % ROWS, strip = i / ROWS % ACROSS, slot = i / (ROWS * ACROSS);
        if (slot >= planes) break;
        const tile_t *pixels =
            held.pixels + (slot * cfg::PLANE + row * cfg::PITCH + strip * (cfg::ALONG * cfg::STRIDE_W));
        const acc_t *factor = factors.rows + slot * ROW_PITCH;
        acc_t sums[cfg::ALONG] = {};
#pragma unroll 1
        for (int s = 0; s < AT; s += cfg::CHUNK_S)
            add_along<cfg::CHUNK_S>(conv, sums, pixels + s * cfg::DILATION_W, factor + s);
        if constexpr (LEFT > 0) add_along<LEFT>(conv, sums, pixels + AT * cfg::DILATION_W, factor + AT);
        acc_t *target = held.middle + (slot * cfg::MIDDLE + row * cfg::MIDDLE_PITCH + strip * cfg::ALONG);
#pragma unroll
        for (int q = 0; q < cfg::ALONG; q += SUMS) {
            Vector<acc_t, SUMS> values;
#pragma unroll
            for (int e = 0; e < SUMS; e++) values.at[e] = sums[q + e];
            store_vector(target + q, values);
        }
    }
}

// Adds COUNT taps of a column to all outputs whose windows contain the sums of a row.
template <int COUNT>
__device__ inline void add_down(acc_t (&sums)[cfg::OUT_P], const acc_t *middle, const acc_t *factor) {
    constexpr int SPAN = (cfg::OUT_P - 1) * cfg::STRIDE_H + (COUNT - 1) * cfg::DILATION_H + 1;
    acc_t taps[COUNT];
    load_taps(taps, factor);
#pragma unroll
    for (int i = 0; i < SPAN; i++) {
        const acc_t value = middle[i * cfg::MIDDLE_PITCH];
#pragma unroll
        for (int p = 0; p < cfg::OUT_P; p++) {
            const int beyond = i - p * cfg::STRIDE_H, r = beyond / cfg::DILATION_H;
            if (beyond < 0 || beyond % cfg::DILATION_H != 0 || r >= COUNT) continue;
            sums[p] = multiply_add(taps[r], value, sums[p]);
        }
    }
}

__device__ inline void pass_down(acc_t (&sums)[cfg::OUT_P], const acc_t *middle, const acc_t *factor) {
    constexpr int LEFT = cfg::R % cfg::CHUNK_R, AT = cfg::R - LEFT;
#pragma unroll 1
    for (int r = 0; r < AT; r += cfg::CHUNK_R)
        add_down<cfg::CHUNK_R>(sums, middle + r * cfg::DILATION_H * cfg::MIDDLE_PITCH, factor + r);
    if constexpr (LEFT > 0) add_down<LEFT>(sums, middle + AT * cfg::DILATION_H * cfg::MIDDLE_PITCH, factor + AT);
}

// Stores a column of outputs from (p0, q) on.
__device__ inline void store(const Conv &conv, const acc_t (&sums)[cfg::OUT_P], int n, int k, int p0, int q) {
    out_t *to = conv.out + offset_of(conv.out_strides, n, k, p0, q);
    const int left = conv.P - p0;
#pragma unroll
    for (int p = 0; p < cfg::OUT_P; p++) {
        if (p < left) *to = output_value(conv, n, k, p0 + p, q, sums[p]);
        to += conv.out_strides.h;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, cfg::BLOCKS) separable(const __grid_constant__ Separable args) {
    DYNAMIC_SHARED(Held, held);
    const Conv &conv = args.conv;
    const int t = threadIdx.x;
    const int slot = cfg::OUT_CHANNELS_LAST ? t % cfg::PLANES : t / (cfg::TILE_Q * cfg::STRIPS_Y),
              u = cfg::OUT_CHANNELS_LAST ? t / cfg::PLANES : t;
    const int x = u % cfg::TILE_Q, y = u / cfg::TILE_Q % cfg::STRIPS_Y;
    acc_t sums[cfg::OUT_P] = {};
    pdl_wait();
    Step step = {static_cast<int>(blockIdx.x), 0, 0, 0, tile_of(args, blockIdx.x)};
    step.products = products_of(args, step.tile, 0);
    ask(args, *held, held->factors[0], step);
    int turn = 0;
    while (step.at < args.count) {
        Step next = step;
        advance(args, next);
        copy_async_wait();
        __syncthreads();  // pixels and factors have landed; the sums along rows are no longer read
        const PlaneTile tile = step.tile;
        pass_along(conv, *held, held->factors[turn], tile.planes);
        __syncthreads();  // sums along rows are written; pixels are no longer read
        if (next.at < args.count) ask(args, *held, held->factors[turn ^ 1], next);
        const int k = tile.k + slot, p0 = tile.p + y * cfg::OUT_P, q = tile.q + x;
        const bool takes_part = slot < tile.planes && p0 < conv.P && q < conv.Q;
        if (takes_part)
            pass_down(sums,
                      held->middle + (slot * cfg::MIDDLE + y * cfg::OUT_P * cfg::STRIDE_H * cfg::MIDDLE_PITCH + x),
                      held->factors[turn].columns + slot * COLUMN_PITCH);
        turn ^= 1;
        const bool last = next.at != step.at;
        step = next;
        if (!last) continue;
        if (takes_part) store(conv, sums, tile.n + k / cfg::K, k % cfg::K, p0, q);
#pragma unroll
        for (int p = 0; p < cfg::OUT_P; p++) sums[p] = acc_t(0);
    }
}
