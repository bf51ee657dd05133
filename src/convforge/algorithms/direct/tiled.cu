// direct_tiled: a thread computes a small tile of outputs from rows of pixels that it holds in registers.
//
// Since direct_shared: the window lies in registers, which need no barrier and no second load. It slides down the
//           picture: a row is loaded once, in vectors of up to 16 bytes, and serves every output row whose window
//           covers it; only the few columns of halo beside it are loaded by two threads, the second time from L1.
// Tile      of a thread: OUT_Q outputs wide, OUT_P high, OUT_K channels. Of the picture it takes ROWS x COLUMNS pixels.
// Threads   thread (x, y) of BLOCK_X x BLOCK_Y takes outputs q0 = (blockIdx.x * BLOCK_X + x) * OUT_Q and on,
//           p0 = (blockIdx.y * BLOCK_Y + y) * OUT_P and on.
// Grid      blocks along y and z (picture, group, tile of channels) go on in steps of the grid.
// Run       RUN elements side by side in memory, one row of the window: CHUNK = 1 channel in NCHW, all C channels of
//           its pixels in NHWC where they are few. Left padding decides how a run lies against multiples of LOAD
//           elements, so the host gives it at compile time: a run begins SHIFT elements behind such a multiple.
// Weights   staged in shared memory by each block (see staged.cuh), or packed beforehand (see weights.cuh).
// Vectors   LOAD elements a load and STORE a store, where the host finds rows so aligned and the tile lies inside the
//           picture with its vectors; nothing is tested there. Elsewhere every pixel and output is, one by one.
// Registers BLOCKS blocks share a multiprocessor's: fewer threads have more loads in flight each.
// Needs     OUT_Q * STRIDE_W * CHUNK a multiple of LOAD, so that all threads' runs lie alike.
// Limit     memory: each pixel is read once, and ROWS / (OUT_P * STRIDE_H) times from L1 or L2. Larger filters: FMA.
#include "tile.cuh"

// Unrolled as far as the code stays small: by the multiply-adds of one slice of channels, and of all of them. Tested
// loads take registers for their addresses too, so fewer are in flight.
constexpr int PRODUCTS = OUT_K * OUT_P * OUT_Q * R * S * CHUNK;
constexpr int UNROLL_C = PRODUCTS * (C_GROUP / CHUNK) <= 1536 ? C_GROUP / CHUNK : 1;
constexpr int UNROLL_ROWS = PRODUCTS <= 1536 ? ROWS : 1, UNROLL_TESTED = RUN * ROWS <= 32 ? ROWS : 1;

constexpr int THREADS = BLOCK_X * BLOCK_Y;

static_assert(THREADS >= 32 && THREADS <= 1024, "a block has 32 to 1024 threads");

struct Tiled {
    Conv conv;
    Filter filter;  // where weights are staged
    int aligned_x, aligned_out;  // whether rows allow vectors of LOAD and STORE elements
};

// A row that reaches beyond the picture, or whose rows are not aligned. `h` and `columns` are places in the picture, -1
// where there is none.
__device__ inline void load_tested(const Conv &conv, acc_t (&row)[RUN], const x_t *plane, int h,
                                   const int (&columns)[COLUMNS]) {
    const index_t step_c = conv.x_strides.c, step_h = conv.x_strides.h, step_w = conv.x_strides.w;
    const x_t *line = plane + max(h, 0) * step_h;
#pragma unroll
    for (int e = 0; e < RUN; e++) {
        const int w = columns[e / CHUNK];
        row[e] = h < 0 || w < 0 ? outside(conv) : centred(conv, line[w * step_w + e % CHUNK * step_c]);
    }
}

// Sum the products of all channels; `INSIDE` says that the window lies inside the picture, and that rows are aligned.
template <bool INSIDE>
__device__ inline void add_products(const Conv &conv, const acc_t (&staged)[STAGED], Sums &sums,
                                    const Tile &tile) {
    const int h0 = tile.p * STRIDE_H - conv.top, w0 = tile.q * STRIDE_W - conv.left;
    const x_t *plane = conv.x + place(conv.x_strides, tile.n, tile.c, INSIDE ? h0 : 0, INSIDE ? w0 : 0);
    int columns[COLUMNS];
    if constexpr (!INSIDE)
        for (int i = 0; i < COLUMNS; i++) columns[i] = inside(w0 + i, conv.W);
#pragma unroll(INSIDE ? UNROLL_C : 1)
    for (int c = 0; c < C_GROUP; c += CHUNK, plane += CHUNK * conv.x_strides.c)
#pragma unroll(INSIDE ? UNROLL_ROWS : UNROLL_TESTED)
        for (int i = 0; i < ROWS; i++) {
            acc_t row[RUN];
            if constexpr (INSIDE)
                load_run(conv, row, plane + i * static_cast<index_t>(conv.x_strides.h));
            else
                load_tested(conv, row, plane, inside(h0 + i, conv.H), columns);
            add_row(conv, staged, sums, row, tile.k, c, i);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) direct_tiled(const __grid_constant__ Tiled args) {
    const Conv &conv = args.conv;
    __shared__ __align__(16) acc_t staged[STAGED];
    if constexpr (STAGED_WEIGHTS) {
        stage(args.filter, staged, threadIdx.y * BLOCK_X + threadIdx.x, THREADS);
        __syncthreads();
    }
    const int q = (blockIdx.x * BLOCK_X + threadIdx.x) * OUT_Q;
    // The same for all threads of a row of the block, so that a warp goes one way: the block's first and last vectors.
    const int first = (blockIdx.x * BLOCK_X * OUT_Q * STRIDE_W - conv.left) * CHUNK - SHIFT;
    const int last = first + (BLOCK_X - 1) * OUT_Q * STRIDE_W * CHUNK + LOADS * LOAD;
    const bool columns_inside = first >= 0 && last <= conv.W * CHUNK && (blockIdx.x + 1) * BLOCK_X * OUT_Q <= conv.Q;
    const long long planes = static_cast<long long>(conv.N) * (GROUPS * TILES_K);
    const int step_p = gridDim.y * BLOCK_Y * OUT_P;
    if (q >= conv.Q) return;
    for (long long plane = blockIdx.z; plane < planes; plane += gridDim.z) {
        const int n = plane / (GROUPS * TILES_K), part = plane % (GROUPS * TILES_K), g = part / TILES_K;
        Tile tile = {n, g * K_GROUP + part % TILES_K * OUT_K, g * C_GROUP, 0, q};
        for (tile.p = (blockIdx.y * BLOCK_Y + threadIdx.y) * OUT_P; tile.p < conv.P; tile.p += step_p) {
            const int h0 = tile.p * STRIDE_H - conv.top;
            const bool rows_inside = h0 >= 0 && h0 + ROWS <= conv.H && tile.p + OUT_P <= conv.P;
            Sums sums = {};
            if (args.aligned_x && columns_inside && rows_inside)
                add_products<true>(conv, staged, sums, tile);
            else
                add_products<false>(conv, staged, sums, tile);
            if (args.aligned_out && columns_inside && rows_inside)
                store_vectors(conv, sums, tile);
            else
                store_tested(conv, sums, tile);
        }
    }
}
