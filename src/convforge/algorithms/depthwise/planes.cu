// depthwise_planes: a block copies tiles of a few planes to shared memory. A thread slides along rows of one of them.
//
// Since direct_shared: each channel has its own filter and there are no sums over channels. So a block holds
//           several planes, however small, and their filters. Pixels keep their type of storage and are copied without
//           registers (cp.async, 16 bytes if rows allow it). A thread computes OUT_P x OUT_Q outputs: a row of the
//           window is loaded in 16-byte vectors, CHUNK taps at a time, and serves all output rows whose windows contain
//           it.
// Tile      of a thread OUT_P x OUT_Q outputs; of a block STRIPS_Y x STRIPS_X such tiles on PLANES neighbouring planes.
// Threads   THREADS = PLANES * STRIPS_Y * STRIPS_X in one dimension. In NHWC neighbouring threads have neighbouring
//           planes. In NCHW they are neighbours along q if the outputs of a thread in a row are one store, so that
//           stores fill whole lines; else along p. Rows, or planes, are an odd multiple of 16 bytes apart if OUT_P *
//           STRIDE_H is odd, so that the eight threads whose 16-byte loads are served together have no bank conflicts.
// Grid      one dimension: tiles of a plane, then planes.
// Pixels    a row of the tile begins SHIFT columns left of its first window, so that vectors of FILL pixels have the
//           same alignment in the image and in shared memory. A load from shared memory has LOAD pixels.
// Copies    the threads of a plane copy its rows. A thread always has the same columns, so a vector costs one test and
//           one product.
// Filters   FILTER numbers for each plane, in rows of FILTER_PITCH. In NCHW most warps read one address.
// Balance   with CHUNK = 8 and 7 x 8 outputs: 448 FMAs for 4 loads of pixels and 14 of weights. In cycles of an SM: 112
//           for FMAs against 16 + 14 for shared memory.
// Needs     tiles and filters in shared memory; the host computes and checks the size. FILL divides W, or copies have
//           single pixels.
// Limit     FMA from about 9 x 9 on. Below, memory: each pixel is read once a block from DRAM, and halos twice, from
//           L2.
#include "border.cuh"
#include "conv.cuh"
#include "epilogue.cuh"
#include "filter.cuh"
#include "memory.cuh"
#include "pixels.cuh"

constexpr int TILE_P = cfg::STRIPS_Y * cfg::OUT_P, TILE_Q = cfg::STRIPS_X * cfg::OUT_Q,
              THREADS = cfg::PLANES * cfg::STRIPS_Y * cfg::STRIPS_X;
// Of the window of a thread.
constexpr int ROWS = (cfg::OUT_P - 1) * cfg::STRIDE_H + cfg::DILATION_H * (cfg::R - 1) + 1;
constexpr int TILE_H = (TILE_P - 1) * cfg::STRIDE_H + cfg::DILATION_H * (cfg::R - 1) + 1;
constexpr int TILE_W = cfg::SHIFT + (TILE_Q - 1) * cfg::STRIDE_W + cfg::DILATION_W * (cfg::S - 1) + 1;
constexpr bool COPIES = CAN_COPY<cfg::RAW, cfg::FILL>;       // true if asynchronous copies of vectors are possible
constexpr int FILLS = (TILE_W + cfg::FILL - 1) / cfg::FILL;  // vectors of a row
constexpr int WEIGHT_LOAD = 16 / sizeof(acc_t);

// True if neighbouring threads compute neighbouring columns.
constexpr bool COLUMNS_ADJACENT = cfg::OUT_Q * sizeof(out_t) <= 16;
// Small windows are unrolled, so that the rows of pixels of each output row are known at compile time.
constexpr bool UNROLLED = cfg::OUT_P * cfg::OUT_Q * cfg::R * cfg::S <= 1536;

static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(cfg::PITCH % cfg::LOAD == 0 && cfg::OUT_Q * cfg::STRIDE_W % cfg::LOAD == 0 &&
                  cfg::OUT_Q * cfg::STRIDE_W % cfg::FILL == 0,
              "vectors lie alike");
static_assert(cfg::CHUNK == cfg::S || (cfg::CHUNK * cfg::DILATION_W % cfg::LOAD == 0 && cfg::CHUNK % WEIGHT_LOAD == 0),
              "so do those of all chunks");

struct Planes {
    Conv conv;
    Filter filter;
    int aligned_x, aligned_out;  // true if rows allow vectors of FILL pixels and STORE outputs
    PlaneTiles tiles;
};

struct Held {
    acc_t filters[cfg::PLANES * cfg::FILTER];
    tile_t pixels[cfg::PLANES * cfg::PLANE];
};

// Partition of the copies among the threads of a plane: WIDE vectors of a row, LINES rows at a time.
constexpr int SHARE = THREADS / cfg::PLANES, WIDE = FILLS < SHARE ? FILLS : SHARE, LINES = SHARE / WIDE;
constexpr int TWIDDLES = (TILE_H + LINES - 1) / LINES;

// Issues the copies of the tile of plane `slot`, and writes the border's values. The thread is number u of the plane's
// threads.
__device__ inline void copy_pixels(const Planes &args, Held &to, const PlaneTile &tile, int slot, int u) {
    if (slot >= tile.planes || u >= WIDE * LINES) return;
    const Conv &conv = args.conv;
    const int k = tile.k + slot, first = u / WIDE;
    const int h0 = tile.p * cfg::STRIDE_H - conv.top + first, w0 = tile.q * cfg::STRIDE_W - conv.left - cfg::SHIFT;
    const x_t *const plane = conv.x + offset_of(conv.x_strides, tile.n + k / cfg::K, k % cfg::K / cfg::K_GROUP, 0, 0);
    const index_t step_h = conv.x_strides.h, step_w = conv.x_strides.w;
#pragma unroll
    for (int v = 0; v < FILLS; v += WIDE) {
        const int column = (v + u % WIDE) * cfg::FILL, w = w0 + column;
        if (FILLS % WIDE && column >= FILLS * cfg::FILL) break;
        tile_t *const target = to.pixels + (slot * cfg::PLANE + first * cfg::PITCH + column);
        const bool whole = w >= 0 && w < conv.W;  // a vector is inside the image as a whole, or outside
        if (COPIES && args.aligned_x && (whole || BLANK)) {
            const x_t *const line = plane + (whole ? w * step_w : 0);
#pragma unroll(TWIDDLES <= 16 ? TWIDDLES : 4)
            for (int i = 0; i < TILE_H; i += LINES) {
                if (i + LINES > TILE_H && i + first >= TILE_H) break;
                const int h = inside(h0 + i, conv.H);
                const bool there = h >= 0 && whole;
                if (h < 0 && !BLANK)
                    for (int e = 0; e < cfg::FILL; e++)
                        target[i * cfg::PITCH + e] = held<cfg::RAW, tile_t>(conv, nullptr);
                else if constexpr (cfg::FILL * sizeof(x_t) == 16)
                    copy_async16_l2_128b(target + i * cfg::PITCH, line + max(h, 0) * step_h, there);
                else if constexpr (COPIES)
                    copy_async<cfg::FILL * sizeof(x_t)>(target + i * cfg::PITCH, line + max(h, 0) * step_h, there);
            }
        } else {
#pragma unroll 4
            for (int i = 0; i < TILE_H - first; i += LINES) {
                const int h = inside(h0 + i, conv.H);
                for (int e = 0; e < cfg::FILL; e++) {
                    const int x = inside(w + e, conv.W);
                    const bool there = h >= 0 && x >= 0;
                    target[i * cfg::PITCH + e] =
                        held<cfg::RAW, tile_t>(conv, there ? plane + (h * step_h + x * step_w) : nullptr);
                }
            }
        }
    }
}

__device__ inline void copy_filters(const Filter &filter, Held &to, const PlaneTile &tile) {
    for (int i = threadIdx.x; i < cfg::PLANES * cfg::R * cfg::S; i += THREADS) {
        const int slot = i / (cfg::R * cfg::S), tap = i % (cfg::R * cfg::S), r = tap / cfg::S, s = tap % cfg::S;
        if (slot < tile.planes)
            to.filters[slot * cfg::FILTER + r * cfg::FILTER_PITCH + s] =
                given_tap(filter, (tile.k + slot) % cfg::K, 0, r, s);
    }
}

// Adds COUNT products of a row of pixels, from a tap on, to all outputs whose windows contain the row, which is row i
// of the first window. Unless TESTED, all windows contain it.
template <int COUNT, bool TESTED>
__device__ inline void add_taps(const Conv &conv, acc_t (&sums)[cfg::OUT_P][cfg::OUT_Q], const tile_t *pixels,
                                const acc_t *filter, int i) {
    constexpr int SPAN = cfg::SHIFT + (cfg::OUT_Q - 1) * cfg::STRIDE_W + (COUNT - 1) * cfg::DILATION_W + 1;
    acc_t row[SPAN];
#pragma unroll
    for (int v = 0; v < SPAN; v += cfg::LOAD) {
        const auto values = load_vector<cfg::LOAD>(pixels + v);
#pragma unroll
        for (int e = 0; e < cfg::LOAD; e++)
            if (v + e < SPAN) row[v + e] = taken<cfg::RAW>(conv, values.at[e]);
    }
#pragma unroll
    for (int p = 0; p < cfg::OUT_P; p++) {
        const int below = i - p * cfg::STRIDE_H, r = below / cfg::DILATION_H;
        if (TESTED && (below < 0 || below % cfg::DILATION_H != 0 || r >= cfg::R)) continue;
#pragma unroll
        for (int s0 = 0; s0 < COUNT; s0 += WEIGHT_LOAD) {
            const auto weights = load_vector<WEIGHT_LOAD>(filter + (r * cfg::FILTER_PITCH + s0));
#pragma unroll
            for (int s = s0; s < s0 + WEIGHT_LOAD && s < COUNT; s++)
#pragma unroll
                for (int q = 0; q < cfg::OUT_Q; q++)
                    sums[p][q] = multiply_add(weights.at[s - s0],
                                              row[cfg::SHIFT + q * cfg::STRIDE_W + s * cfg::DILATION_W], sums[p][q]);
        }
    }
}

template <bool TESTED>
__device__ inline void add_row(const Conv &conv, acc_t (&sums)[cfg::OUT_P][cfg::OUT_Q], const tile_t *pixels,
                               const acc_t *filter, int i) {
    pixels += i * cfg::PITCH;
#pragma unroll 1
    for (int s = 0; s + cfg::CHUNK <= cfg::S; s += cfg::CHUNK)
        add_taps<cfg::CHUNK, TESTED>(conv, sums, pixels + s * cfg::DILATION_W, filter + s, i);
    constexpr int LEFT = cfg::S % cfg::CHUNK, AT = cfg::S - LEFT;
    if constexpr (LEFT > 0) add_taps<LEFT, TESTED>(conv, sums, pixels + AT * cfg::DILATION_W, filter + AT, i);
}

__device__ inline void add_products(const Conv &conv, acc_t (&sums)[cfg::OUT_P][cfg::OUT_Q], const tile_t *pixels,
                                    const acc_t *filter) {
    constexpr bool CLOSE = cfg::STRIDE_H == 1 && cfg::DILATION_H == 1;
#pragma unroll(UNROLLED ? ROWS : 1)
    for (int i = 0; i < ROWS; i++)
        if (CLOSE && !UNROLLED && i >= cfg::OUT_P - 1 && i < cfg::R) add_row<false>(conv, sums, pixels, filter, i);
        else
            add_row<true>(conv, sums, pixels, filter, i);
}

// Stores the thread's outputs of plane (n, k), from (p0, q0) on.
__device__ inline void store(const Planes &args, const acc_t (&sums)[cfg::OUT_P][cfg::OUT_Q], int n, int k, int p0,
                             int q0) {
    const Conv &conv = args.conv;
    const index_t step = conv.out_strides.w;
    out_t *row = conv.out + offset_of(conv.out_strides, n, k, p0, q0);
    const int rows = conv.P - p0, columns = conv.Q - q0;
#pragma unroll
    for (int p = 0; p < cfg::OUT_P; p++, row += conv.out_strides.h) {
        if (p >= rows) break;
#pragma unroll
        for (int q = 0; q < cfg::OUT_Q; q += cfg::STORE) {
            if (args.aligned_out && q + cfg::STORE <= columns) {
                Vector<out_t, cfg::STORE> values;
#pragma unroll
                for (int e = 0; e < cfg::STORE; e++)
                    values.at[e] = output_value(conv, n, k, p0 + p, q0 + q + e, sums[p][q + e]);
                store_vector(row + (cfg::STORE > 1 ? q : q * step), values);
            } else {
#pragma unroll
                for (int e = q; e < q + cfg::STORE; e++)
                    if (e < columns) row[e * step] = output_value(conv, n, k, p0 + p, q0 + e, sums[p][e]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, cfg::BLOCKS)
    depthwise_planes(const __grid_constant__ Planes args) {
    DYNAMIC_SHARED(Held, held);
    const Conv &conv = args.conv;
    const int t = threadIdx.x;
    const int slot = cfg::CHANNELS_LAST ? t % cfg::PLANES : t / SHARE,
              strip = cfg::CHANNELS_LAST ? t / cfg::PLANES : t % SHARE;
    const int y = COLUMNS_ADJACENT ? strip / cfg::STRIPS_X : strip % cfg::STRIPS_Y,
              x = COLUMNS_ADJACENT ? strip % cfg::STRIPS_X : strip / cfg::STRIPS_Y;
    const PlaneTile tile = tile_of<cfg::PLANES, TILE_P, TILE_Q>(args.tiles, conv, blockIdx.x);
    pdl_wait();
    copy_pixels(args, *held, tile, slot, strip);
    copy_async_commit();
    copy_filters(args.filter, *held, tile);  // overlaps with the copies of the pixels
    copy_async_wait();
    __syncthreads();
    const int k = tile.k + slot, p = tile.p + y * cfg::OUT_P, q = tile.q + x * cfg::OUT_Q;
    if (slot >= tile.planes || p >= conv.P || q >= conv.Q) return;
    acc_t sums[cfg::OUT_P][cfg::OUT_Q] = {};
    add_products(conv, sums,
                 held->pixels +
                     (slot * cfg::PLANE + y * cfg::OUT_P * cfg::STRIDE_H * cfg::PITCH + x * cfg::OUT_Q * cfg::STRIDE_W),
                 held->filters + slot * cfg::FILTER);
    store(args, sums, tile.n + k / cfg::K, k % cfg::K, p, q);
}
