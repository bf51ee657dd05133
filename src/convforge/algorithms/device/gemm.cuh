// What the kernels of the GEMM ladder share. A kernel is a loader of each operand (loader.cuh), a multiplier
// (multiply.cuh) and a store (store.cuh), each to be had in several kinds; `product` joins them.
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
#include "loader.cuh"
#include "multiply.cuh"
#include "store.cuh"

// Blocks that a multiprocessor must have room for, as far as registers go. Sums of 8 bytes take twice the registers:
// left to itself the compiler spills a few for the sake of more blocks. 0 leaves the choice to it.
constexpr int RESIDENT = sizeof(acc_t) > 4 ? 1 : 0;

struct Gemm {
    Operand a, b;
    Store store;
    int M, N, K;
};

__device__ inline Tile tile_of(const Gemm &args) {
    const unsigned rows = (args.M + BLOCK_M - 1) / BLOCK_M, columns = (args.N + BLOCK_N - 1) / BLOCK_N;
    const unsigned row = blockIdx.x % rows, rest = blockIdx.x / rows;
    return {static_cast<int>(rest / columns), static_cast<int>(row * BLOCK_M),
            static_cast<int>(rest % columns * BLOCK_N)};
}

// A block's part of C through registers: two tiles of each operand in shared memory; the next ones wait in registers
// while these are used, so a step needs one barrier.
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
        if (more) {  // no one reads this half any more: all have passed the barrier of the step before
            next_a.store(a_tiles[now]);
            next_b.store(b_tiles[now]);
        }
        __syncthreads();
    }
    put(sums);
}
