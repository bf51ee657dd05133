// Shared parts of the kernels of the GEMM ladder. A kernel is composed of a loader for each operand (loader.cuh), a
// multiplier and a store; `product` joins them.
//
// C = A B, with A of M x K and B of K x N, once for each group. The prelude defines
//   x_t, w_t, out_t, math_t, acc_t, ...    types: math_t of factors, acc_t of sums
//   BLOCK_M, BLOCK_N      the tile of C that a block computes
//   A_K_MAJOR, B_K_MAJOR  true if elements of the operand are contiguous along K: a row-major A, a transposed B. This
//                         decides which thread loads which element; any strides give correct results.
//   C_M_MAJOR             true if elements of the output are contiguous along M (channels in NHWC); else along N
//   CONVOLUTION           defined if C is the output of a convolution: sums pass the epilogue and are stored in NCHW or
//                         NHWC. A has the weights of a group; a column of B is the window of an output pixel.
// The grid has one dimension, because only x allows 2^31 blocks. Neighbours along x share columns of B.
#pragma once
#ifdef CONVOLUTION
#include "epilogue.cuh"
#endif
#include "loader.cuh"

// Multipliers: add the products of two tiles in shared memory.
//
//   Sums sums = {};                     a thread's part of C
//   multiply(sums, a_tile, b_tile);     adds the products of two tiles in the layout that the multiplier defines

// FMAs of a thread: ROWS x COLUMNS sums in squares of 4 x 4. The rows are m to m + 3, then the same `step_m` further
// on, and so on; columns likewise. The numbers of the next k are loaded before those of this k are used.
template <int ROWS, int COLUMNS, int DEPTH, int PITCH_A, int PITCH_B>
__device__ inline void multiply_squares(acc_t (&sums)[ROWS][COLUMNS], const math_t (&a_tile)[DEPTH][PITCH_A],
                                const math_t (&b_tile)[DEPTH][PITCH_B], int m, int n, int step_m, int step_n) {
    static_assert(PITCH_A % VECTOR == 0 && PITCH_B % VECTOR == 0, "rows in shared memory begin at 16 bytes");
    math_t a[2][ROWS], b[2][COLUMNS];
    const auto fragments = [&](int k) {
#pragma unroll
        for (int i = 0; i < ROWS; i += VECTOR) {
            const auto part = load_vector<VECTOR>(&a_tile[k][m + i / 4 * step_m + i % 4]);
#pragma unroll
            for (int v = 0; v < VECTOR; v++) a[k % 2][i + v] = part.at[v];
        }
#pragma unroll
        for (int j = 0; j < COLUMNS; j += VECTOR) {
            const auto part = load_vector<VECTOR>(&b_tile[k][n + j / 4 * step_n + j % 4]);
#pragma unroll
            for (int v = 0; v < VECTOR; v++) b[k % 2][j + v] = part.at[v];
        }
    };
    fragments(0);
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        if (k + 1 < DEPTH) fragments(k + 1);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) sums[i][j] = multiply_add(a[k % 2][i], b[k % 2][j], sums[i][j]);
    }
}

// Squares that begin at row m and column n of the block's tile.
template <int ROWS, int COLUMNS, int STEP_M, int STEP_N>
struct Squares {
    using Sums = acc_t[ROWS][COLUMNS];
    const int &m, &n;
    template <class A, class B>
    __device__ __forceinline__ void operator()(Sums &sums, const A &a_tile, const B &b_tile) const {
        multiply_squares(sums, a_tile, b_tile, m, n, STEP_M, STEP_N);
    }
};

// Stores: write a sum to the output, as out_t.
#ifdef CONVOLUTION
struct Store {
    Conv conv;
    index_t first;  // column of the whole matrix that is column 0 here
    int vectors;    // true if four aligned neighbours of the output may be stored as one vector
};
#else
struct Store {
    out_t *data;
    int row, column;  // strides of C
    int vectors;
};
#endif

// The tile of a block: its group, its first row and column.
struct Tile {
    int group, m, n;
};

// A column of C begins at `start` and has a row every `row_step` elements. `value` is the stored value.
#ifdef CONVOLUTION
__device__ inline Column column_at(const Store &store, int n) { return column_of(store.conv, store.first + n); }
__device__ inline Column after(const Store &store, const Column &column) { return after(store.conv, column); }
__device__ inline out_t *start(const Store &store, int group, const Column &at) {
    return store.conv.out + offset_of(store.conv.out_strides, at.n, group * cfg::K_GROUP, at.p, at.q);
}
__device__ inline index_t row_step(const Store &store) { return store.conv.out_strides.c; }
__device__ inline out_t value(const Store &store, int group, int m, const Column &at, acc_t sum) {
    return output_value(store.conv, at.n, group * cfg::K_GROUP + m, at.p, at.q, sum);
}
#else
using Column = int;
__device__ inline Column column_at(const Store &, int n) { return n; }
__device__ inline Column after(const Store &, Column column) { return column + 1; }
__device__ inline out_t *start(const Store &store, int, Column n) {
    return store.data + static_cast<long long>(n) * store.column;
}
__device__ inline long long row_step(const Store &store) { return store.row; }
__device__ inline out_t value(const Store &, int, int, Column, acc_t sum) { return stored<out_t>::of(sum); }
#endif

// Stores the sum of row m and column n.
__device__ inline void put(const Store &store, int group, int m, int n, acc_t sum) {
    const Column column = column_at(store, n);
    start(store, group, column)[m * row_step(store)] = value(store, group, m, column, sum);
}

// Stores a thread's squares of a tile at row m0 and column n0 of an M x N matrix, in vectors if the output's layout
// allows it.
template <int ROWS, int COLUMNS>
__device__ inline void put_squares(const Store &store, const int &M, const int &N, int group, int m0, int n0, int step_m, int step_n,
                                   const acc_t (&sums)[ROWS][COLUMNS]) {
    constexpr int AT_ONCE = sizeof(out_t) > 4 ? 2 : 4;
    const auto step = row_step(store);
#pragma unroll
    for (int j = 0; j < COLUMNS; j += 4) {
        const int n = n0 + j / 4 * step_n, columns = N - n;
        if (columns <= 0) continue;
        Column at[4] = {column_at(store, n)};
        out_t *starts[4] = {start(store, group, at[0])};
#pragma unroll
        for (int v = 1; v < 4; v++) {
            at[v] = after(store, at[v - 1]);
            starts[v] = start(store, group, at[v]);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i += 4) {
            const int m = m0 + i / 4 * step_m, rows = M - m;
            out_t values[4][4];
#pragma unroll
            for (int u = 0; u < 4; u++)
#pragma unroll
                for (int v = 0; v < 4; v++)
                    if (u < rows && v < columns) values[u][v] = value(store, group, m + u, at[v], sums[i + u][j + v]);
            if (store.vectors && rows >= 4 && columns >= 4) {
#pragma unroll
                for (int u = 0; u < 4; u++)
#pragma unroll
                    for (int v = 0; v < 4; v += AT_ONCE) {
                        Vector<out_t, AT_ONCE> several;
#pragma unroll
                        for (int w = 0; w < AT_ONCE; w++)
                            several.at[w] = cfg::C_M_MAJOR ? values[v + w][u] : values[u][v + w];
                        store_vector(cfg::C_M_MAJOR ? starts[u] + (m + v) : starts[v] + (m + u) * step, several);
                    }
                continue;
            }
#pragma unroll
            for (int u = 0; u < 4; u++)
#pragma unroll
                for (int v = 0; v < 4; v++)
                    if (u < rows && v < columns) starts[v][(m + u) * step] = values[u][v];
        }
    }
}

// Stores the squares of a thread that begin at row m and column n of the block's tile.
template <int STEP_M, int STEP_N>
struct SquaresStore {
    const Store &store;
    const int &M, &N;
    const Tile &tile;
    const int &m, &n;
    template <int ROWS, int COLUMNS>
    __device__ __forceinline__ void operator()(const acc_t (&sums)[ROWS][COLUMNS]) const {
        put_squares(store, M, N, tile.group, tile.m + m, tile.n + n, STEP_M, STEP_N, sums);
    }
};

// Blocks that must fit on an SM. 8-byte sums take twice the registers, and the compiler would spill some of them to fit
// more blocks. 0 leaves the choice to the compiler.
constexpr int RESIDENT = sizeof(acc_t) > 4 ? 1 : 0;

struct Gemm {
    Operand a, b;
    Store store;
    int M, N, K;
};

__device__ inline Tile tile_of(const Gemm &args) {
    const unsigned rows = (args.M + cfg::BLOCK_M - 1) / cfg::BLOCK_M,
                   columns = (args.N + cfg::BLOCK_N - 1) / cfg::BLOCK_N;
    const unsigned row = blockIdx.x % rows, rest = blockIdx.x / rows;
    return {static_cast<int>(rest / columns), static_cast<int>(row * cfg::BLOCK_M),
            static_cast<int>(rest % columns * cfg::BLOCK_N)};
}

// Computes a block's tile of C with double buffering through registers: the next tiles of both operands wait in
// registers while the current ones are used, so a step needs one barrier.
template <class LoadA, class LoadB, class Multiply, class Put, int DEPTH, int PITCH_A, int PITCH_B>
__device__ __forceinline__ void product(const LoadA &a, const LoadB &b, const Multiply &multiply, const Put &put,
                                        math_t (&a_tiles)[2][DEPTH][PITCH_A], math_t (&b_tiles)[2][DEPTH][PITCH_B],
                                        const int &depth) {
    typename LoadA::Part next_a;
    typename LoadB::Part next_b;
    typename Multiply::Sums sums = {};
    a.load(next_a, 0);
    b.load(next_b, 0);
    next_a.store(a_tiles[0]);
    next_b.store(b_tiles[0]);
    __syncthreads();
    int now = 0;
    for (int k0 = 0; k0 < depth; k0 += DEPTH) {
        const bool more = k0 + DEPTH < depth;
        if (more) {
            a.load(next_a, k0 + DEPTH);
            b.load(next_b, k0 + DEPTH);
        }
        multiply(sums, a_tiles[now], b_tiles[now]);
        now ^= 1;
        if (more) {  // nobody reads this half any more: all threads have passed the barrier of the previous step
            next_a.store(a_tiles[now]);
            next_b.store(b_tiles[now]);
        }
        __syncthreads();
    }
    put(sums);
}

// Partition of a tile among warps and threads: BLOCK_M x BLOCK_N of C a block, WARP_M x WARP_N a warp, THREAD_M x
// THREAD_N a thread, in squares of 4 x 4 with steps of LANES_M * 4 rows and LANES_N * 4 columns. For one k, a warp
// reads LANES_M contiguous runs of 16 bytes of A and LANES_N of B, without bank conflicts. Lanes are numbered in pairs
// of rows: lanes t and t + 2 share rows, lanes t and t + 1 share columns. A 16-byte load is served for a quarter of a
// warp at a time, and for two quarters at once if such neighbours read the same address.
template <int BLOCK_M, int BLOCK_N, int WARP_M, int WARP_N, int THREAD_M, int THREAD_N>
struct WarpTile {
    static constexpr int WARPS_M = BLOCK_M / WARP_M, WARPS_N = BLOCK_N / WARP_N, THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr int LANES_M = WARP_M / THREAD_M, LANES_N = WARP_N / THREAD_N;
    static constexpr int PITCH_A = BLOCK_M + 4, PITCH_B = BLOCK_N + 4;  // of a row of each tile in shared memory

    static_assert(BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0, "warps cover the block's tile exactly");
    static_assert(WARP_M % THREAD_M == 0 && WARP_N % THREAD_N == 0, "threads cover the warp's tile exactly");
    static_assert(LANES_M * LANES_N == 32 && LANES_M % 2 == 0, "a warp has 32 threads, counted in pairs of rows");
    static_assert(THREAD_M % 4 == 0 && THREAD_N % 4 == 0, "a thread's sums lie in squares of four by four");
    static_assert(THREADS <= 1024, "a block has at most 1024 threads");

    // Position of this thread's sums in the block's tile.
    struct Lane {
        int m, n;
    };

    __device__ static Lane lane_of(int thread) {
        const int warp = thread / 32, lane = thread % 32;
        const int lane_m = lane / (2 * LANES_N) * 2 + lane % 2, lane_n = lane / 2 % LANES_N;
        return {warp / WARPS_N * WARP_M + lane_m * 4, warp % WARPS_N * WARP_N + lane_n * 4};
    }
};
