// Multipliers: what takes the products of two tiles in shared memory.
//
//   Sums sums = {};                     what a thread has of C
//   multiply(sums, a_tile, b_tile);     adds the products of two tiles; it says how they must lie in shared memory
#pragma once
#include "loader.cuh"

// By multiply-adds of a thread's own: ROWS x COLUMNS sums, in squares of four by four. Its rows are m, m + 1, m + 2,
// m + 3, then the same `step_m` further on, and so on; columns likewise. Numbers of the next k are asked for before those
// of this k are used.
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
