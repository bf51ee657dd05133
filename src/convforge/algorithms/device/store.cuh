// Stores: the way of a sum to its place, of type out_t.
//
// From the prelude:
//   CONVOLUTION    defined where C is a convolution's output: sums go through the epilogue straight into NCHW or NHWC
//   C_NEAR_M       whether neighbours of the output are neighbours along M: channels in NHWC; else along N
#pragma once
#ifdef CONVOLUTION
#include "columns.cuh"
#include "ends.cuh"
#endif
#include "vector.cuh"

#ifdef CONVOLUTION
struct Store {
    Conv conv;
    index_t first;  // column of the whole matrix that column 0 is
    int vectors;    // whether four neighbours of the output, counted from a multiple of four, are aligned for one store
};
#else
struct Store {
    out_t *data;
    int row, column;  // strides of C
    int vectors;
};
#endif

// The part of C that a block computes: its group, its first row and column.
struct Tile {
    int group, m, n;
};

// A column of C begins at `start` and has a row every `row_step` elements; `value` is what is stored.
#ifdef CONVOLUTION
__device__ inline Column column_at(const Store &store, int n) { return column_of(store.conv, store.first + n); }
__device__ inline Column after(const Store &store, const Column &column) { return after(store.conv, column); }
__device__ inline out_t *start(const Store &store, int group, const Column &at) {
    return store.conv.out + place(store.conv.out_strides, at.n, group * K_GROUP, at.p, at.q);
}
__device__ inline index_t row_step(const Store &store) { return store.conv.out_strides.c; }
__device__ inline out_t value(const Store &store, int group, int m, const Column &at, acc_t sum) {
    return finished(store.conv, at.n, group * K_GROUP + m, at.p, at.q, sum);
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

// Store the sum of row m and column n.
__device__ inline void put(const Store &store, int group, int m, int n, acc_t sum) {
    const Column column = column_at(store, n);
    start(store, group, column)[m * row_step(store)] = value(store, group, m, column, sum);
}

// Store a thread's squares of a tile that begins at row m0 and column n0, of an M x N matrix; whole squares several at
// once where the output's layout allows it.
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
                            several.at[w] = C_NEAR_M ? values[v + w][u] : values[u][v + w];
                        store_vector(C_NEAR_M ? starts[u] + (m + v) : starts[v] + (m + u) * step, several);
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
