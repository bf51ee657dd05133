// max_pool: the largest pixel of each window, compared in registers. NaN wins; pixels outside the image never do.
//
// Tile      of a thread: OUT_P x OUT_Q outputs, of one channel in NCHW, of CHANNELS neighbours in NHWC. Every row of
//           pixels is read once: its maxima along the window are combined into each output row whose windows contain
//           it.
// Threads   THREADS a block in one dimension. Thread i computes tile i, numbered along q, p, c, n in NCHW and along c,
//           q, p, n in NHWC, so neighbours are neighbours in memory, and no thread is idle for narrow images. Threads
//           loop in steps of the grid.
// Vectors   of LOAD and STORE elements, up to 16 bytes: along a row in NCHW, along the channels in NHWC, if the
//           alignment allows it; else single elements. In NCHW the left padding decides how a tile is aligned, so the
//           host passes SHIFT at compile time: a tile begins SHIFT elements after a whole vector.
// Border    loads outside go to the nearest position inside the image, so that no load waits for a test and all are in
//           flight together. Then values from outside are replaced by the lowest value. A vector is inside as a whole,
//           or outside.
// Needs     OUT_Q * STRIDE_W is a multiple of LOAD, so that all tiles have the same alignment. Every window contains a
//           pixel, as the problem guarantees; else the lowest value would be a result.
// NaN       from sm_80 on the maximum of floats is one instruction, which returns the canonical NaN for any NaN.
// Limit     memory: every pixel is read once from DRAM, and (extent - stride) / (OUT_P * stride) of them once more from
//           a cache. Large windows: R * S / OUT_P comparisons an output.
#include "memory.cuh"

__device__ constexpr int gcd(int a, int b) { return b ? gcd(b, a % b) : a; }

// Columns and rows of pixels of a tile, and the steps between those that some window contains.
constexpr int COLUMNS = (cfg::OUT_Q - 1) * cfg::STRIDE_W + cfg::DILATION_W * (cfg::S - 1) + 1;
constexpr int ROWS = (cfg::OUT_P - 1) * cfg::STRIDE_H + cfg::DILATION_H * (cfg::R - 1) + 1;
constexpr int STEP_W = cfg::OUT_Q > 1 ? gcd(cfg::STRIDE_W, cfg::DILATION_W) : cfg::DILATION_W;
constexpr int STEP_H = cfg::OUT_P > 1 ? gcd(cfg::STRIDE_H, cfg::DILATION_H) : cfg::DILATION_H;

// Loops are unrolled while the code stays small: a row, and all rows if all of their loads of V elements fit in
// registers.
constexpr int UNROLL_W = COLUMNS <= 32 ? COLUMNS : 1;
template <int V>
constexpr int UNROLL_H = ROWS *COLUMNS *cfg::CHANNELS <= 24 * V ? ROWS : 1;

static_assert(cfg::THREADS >= 32 && cfg::THREADS <= 1024, "a block has 32 to 1024 threads");
static_assert(cfg::CHANNELS_LAST ? cfg::LOAD == cfg::CHANNELS && cfg::STORE == cfg::CHANNELS : cfg::CHANNELS == 1,
              "vectors in NHWC are channels");
static_assert(cfg::CHANNELS_LAST || cfg::OUT_Q * cfg::STRIDE_W % cfg::LOAD == 0,
              "all tiles must lie alike against the vectors");
static_assert(cfg::CHANNELS_LAST || cfg::OUT_Q % cfg::STORE == 0, "stores must fill whole vectors");

// Strides of an array in elements.
struct Strides {
    long long n, c, h, w;
};

struct Pool {
    const x_t *x;
    out_t *out;
    Strides x_strides, out_strides;
    long long tiles;
    int N, C, H, W, P, Q;
    int top, left;               // padding
    int x_vectors, out_vectors;  // true if vectors of LOAD and STORE elements are aligned
    acc_t outside;             // the lowest value
};

using Maxima = acc_t[cfg::OUT_P][cfg::OUT_Q][cfg::CHANNELS];

// A tile's image, first channel and first output.
struct Tile {
    int n, c, p, q;
};

// Returns tile i. Unsigned 32-bit divisions are the cheapest; 64-bit ones are for arrays that need them.
__device__ inline Tile tile_of(const Pool &pool, long long i) {
    count_t rest = i;
    const auto next = [&rest](int size) {
        const count_t whole = rest / size;
        const int place = rest - whole * size;
        rest = whole;
        return place;
    };
    Tile tile;
    if constexpr (cfg::CHANNELS_LAST) tile.c = next(pool.C / cfg::CHANNELS) * cfg::CHANNELS;
    tile.q = next((pool.Q + cfg::OUT_Q - 1) / cfg::OUT_Q) * cfg::OUT_Q;
    tile.p = next((pool.P + cfg::OUT_P - 1) / cfg::OUT_P) * cfg::OUT_P;
    if constexpr (!cfg::CHANNELS_LAST) tile.c = next(pool.C);
    tile.n = rest;
    return tile;
}

__device__ inline index_t offset_of(const Strides &strides, index_t n, index_t c, index_t h, index_t w) {
    return n * static_cast<index_t>(strides.n) + c * static_cast<index_t>(strides.c) +
           h * static_cast<index_t>(strides.h) + w * static_cast<index_t>(strides.w);
}

template <class T>
__device__ inline T larger(T a, T b) { return a >= b || a != a ? a : b; }
#if __CUDA_ARCH__ >= 800
__device__ inline float larger(float a, float b) {
    float most;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
    return most;
}
#endif

// True if the window that begins at `first` contains position i, both counted from the tile's first pixel.
__device__ inline bool takes(int first, int i, int dilation, int taps) {
    const int beyond = i - first;
    return beyond >= 0 && beyond % dilation == 0 && beyond / dilation < taps;
}

// The maxima of one row of pixels for each column of outputs, from loads of V elements. The row may be outside.
template <int V>
__device__ inline void along_row(const Pool &pool, acc_t (&maxima)[cfg::OUT_Q][cfg::CHANNELS], const x_t *row, int w0,
                                 bool row_inside) {
    constexpr int WIDTH = cfg::CHANNELS_LAST ? 1 : V;  // columns of a load
    constexpr int BEFORE = WIDTH > 1 ? cfg::SHIFT : 0, STEP = WIDTH > 1 ? WIDTH : STEP_W;
    const index_t step_c = pool.x_strides.c, step_w = pool.x_strides.w;
#pragma unroll UNROLL_W
    for (int first = -BEFORE; first < COLUMNS; first += STEP) {
        const int w = w0 + first, clamped = min(max(w, 0), pool.W - WIDTH);
        const bool inside = row_inside && w == clamped;
#pragma unroll
        for (int e = 0; e < WIDTH * cfg::CHANNELS; e += V) {
            const auto values = load_vector<V>(row + clamped * step_w + e * step_c);
#pragma unroll
            for (int i = 0; i < V; i++) {
                const int column = cfg::CHANNELS_LAST ? first : first + i, c = cfg::CHANNELS_LAST ? e + i : 0;
                const acc_t value = inside ? static_cast<acc_t>(widen(values.at[i])) : pool.outside;
#pragma unroll
                for (int q = 0; q < cfg::OUT_Q; q++)
                    if (takes(q * cfg::STRIDE_W, column, cfg::DILATION_W, cfg::S))
                        maxima[q][c] = larger(maxima[q][c], value);
            }
        }
    }
}

// The maxima of a tile, row by row of its pixels.
template <int V>
__device__ inline void find(const Pool &pool, Maxima &maxima, const Tile &tile) {
    const int h0 = tile.p * cfg::STRIDE_H - pool.top, w0 = tile.q * cfg::STRIDE_W - pool.left;
    const x_t *plane = pool.x + offset_of(pool.x_strides, tile.n, tile.c, 0, 0);
#pragma unroll UNROLL_H<V>
    for (int i = 0; i < ROWS; i += STEP_H) {
        const int h = h0 + i, clamped = min(max(h, 0), pool.H - 1);
        acc_t across[cfg::OUT_Q][cfg::CHANNELS];
#pragma unroll
        for (int e = 0; e < cfg::OUT_Q * cfg::CHANNELS; e++)
            across[e / cfg::CHANNELS][e % cfg::CHANNELS] = pool.outside;
        along_row<V>(pool, across, plane + clamped * static_cast<index_t>(pool.x_strides.h), w0, h == clamped);
#pragma unroll
        for (int p = 0; p < cfg::OUT_P; p++) {
            if (!takes(p * cfg::STRIDE_H, i, cfg::DILATION_H, cfg::R)) continue;
#pragma unroll
            for (int e = 0; e < cfg::OUT_Q * cfg::CHANNELS; e++) {
                acc_t &most = maxima[p][e / cfg::CHANNELS][e % cfg::CHANNELS];
                most = larger(most, across[e / cfg::CHANNELS][e % cfg::CHANNELS]);
            }
        }
    }
}

// Stores a tile, V elements at a time, without rows and columns beyond the last.
template <int V>
__device__ inline void store(const Pool &pool, const Maxima &maxima, const Tile &tile) {
#pragma unroll
    for (int p = 0; p < cfg::OUT_P; p++) {
        if (tile.p + p >= pool.P) continue;
        out_t *row = pool.out + offset_of(pool.out_strides, tile.n, tile.c, tile.p + p, tile.q);
#pragma unroll
        for (int e = 0; e < cfg::OUT_Q * cfg::CHANNELS; e += V) {
            const int q = e / cfg::CHANNELS, c = e % cfg::CHANNELS;
            if (tile.q + q >= pool.Q) continue;
            Vector<out_t, V> values;
#pragma unroll
            for (int i = 0; i < V; i++)
                values.at[i] = stored<out_t>::of(maxima[p][(e + i) / cfg::CHANNELS][(e + i) % cfg::CHANNELS]);
            store_vector(row + offset_of(pool.out_strides, 0, c, 0, q), values);
        }
    }
}

// Asks for at least one block an SM; otherwise the compiler saves registers and serialises loads.
extern "C" __global__ void __launch_bounds__(cfg::THREADS, 1) max_pool(const __grid_constant__ Pool pool) {
    const long long step = static_cast<long long>(gridDim.x) * cfg::THREADS;
    for (long long i = static_cast<long long>(blockIdx.x) * cfg::THREADS + threadIdx.x; i < pool.tiles; i += step) {
        const Tile tile = tile_of(pool, i);
        Maxima maxima;
#pragma unroll
        for (int e = 0; e < cfg::OUT_P * cfg::OUT_Q * cfg::CHANNELS; e++)
            maxima[e / (cfg::OUT_Q * cfg::CHANNELS)][e / cfg::CHANNELS % cfg::OUT_Q][e % cfg::CHANNELS] = pool.outside;
        if (cfg::LOAD > 1 && pool.x_vectors) find<cfg::LOAD>(pool, maxima, tile);
        else
            find<1>(pool, maxima, tile);
        if (cfg::STORE > 1 && pool.out_vectors) store<cfg::STORE>(pool, maxima, tile);
        else
            store<1>(pool, maxima, tile);
    }
}
