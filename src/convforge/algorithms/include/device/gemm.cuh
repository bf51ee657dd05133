// What the kernels of the GEMM ladder share. A kernel is a loader of each operand (loader.cuh), a multiplier
// (multiply.cuh) and a store (store.cuh), each to be had in several kinds.
//
// C = A B, where A is M x K and B is K x N, once for each group. From the prelude come
//   x_t, w_t, out_t, math_t, acc_t, ...    types: math_t of factors, acc_t of sums
//   BLOCK_M, BLOCK_N      the part of C that a block computes
//   A_DEEP, B_DEEP        whether neighbours in memory are neighbours along K: true for a row-major A and a transposed
//                         B. It decides which threads load which elements, never what is right.
//   C_NEAR_M, CONVOLUTION      see store.cuh. Of a convolution A holds the weights of a group, a column of B what an
//                         output pixel sees.
// Blocks stand in one dimension, as a grid has room for 2^31 along x alone; neighbours along x share columns of B.
#pragma once
#include "store.cuh"

// Blocks that a multiprocessor must have room for, as far as registers go. Sums of 8 bytes take twice the registers:
// left to itself the compiler spills a few for the sake of more blocks. 0 leaves the choice to it.
constexpr int RESIDENT = sizeof(acc_t) > 4 ? 1 : 0;

struct Gemm {
    Operand a, b;
    Store store;
    int M, N, K;
};

// The part of C that a block computes: its group, its first row and column.
struct Tile {
    int group, m, n;
};

__device__ inline Tile tile_of(const Gemm &args) {
    const unsigned rows = (args.M + BLOCK_M - 1) / BLOCK_M, columns = (args.N + BLOCK_N - 1) / BLOCK_N;
    const unsigned row = blockIdx.x % rows, rest = blockIdx.x / rows;
    return {static_cast<int>(rest / columns), static_cast<int>(row * BLOCK_M),
            static_cast<int>(rest % columns * BLOCK_N)};
}

// All products of a block, in steps of STEP along K: two tiles of each operand in shared memory; the next ones wait in
// registers while these are used, so a step needs one barrier. load(k0) asks for the tiles that begin at k0, store(half)
// puts them into a half of shared memory, multiply(half) takes their products.
template <int STEP, class Load, class Store, class Multiply>
__device__ inline void take_products(const Load &load, const Store &store, const Multiply &multiply, int depth) {
    load(0);
    store(0);
    __syncthreads();
    int now = 0;
    for (int k0 = 0; k0 < depth; k0 += STEP) {
        const bool more = k0 + STEP < depth;
        if (more) load(k0 + STEP);
        multiply(now);
        now ^= 1;
        if (more) store(now);  // no one reads this half any more: all have passed the barrier of the step before
        __syncthreads();
    }
}
