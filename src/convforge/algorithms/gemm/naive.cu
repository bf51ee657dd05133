// gemm_naive: a thread computes one element of C, from global memory.
//
// First step of the ladder.
// Threads   a block has BLOCK_N x BLOCK_M threads, 32 to 1024. Thread (x, y) computes row y and column x of the block's
//           tile. A warp reads neighbours of B and one element of A, which is broadcast to all its threads.
// Any       M, N, K: threads outside C return. Any strides of A, B and C. 16-bit numbers are summed in float.
// Limit     two loads for each FMA. A block reads each element of A BLOCK_N times and each element of B BLOCK_M times.
//           Most loads hit L1, whose bandwidth is the limit.
#include "gemm.cuh"

static_assert(cfg::BLOCK_M * cfg::BLOCK_N >= 32 && cfg::BLOCK_M * cfg::BLOCK_N <= 1024,
              "a block has 32 to 1024 threads");

extern "C" __global__ void __launch_bounds__(cfg::BLOCK_M *cfg::BLOCK_N) gemm_naive(const __grid_constant__ Gemm args) {
    const Tile tile = tile_of(args);
    const int m = tile.m + threadIdx.y, n = tile.n + threadIdx.x;
    if (m >= args.M || n >= args.N) return;
    const Operand a = of_group(args.a, tile.group), b = of_group(args.b, tile.group);
    const math_t *a_row = at(a, m, 0), *b_column = at(b, n, 0);
    acc_t sum = 0;
    for (int k = 0; k < args.K; k++) {
        sum = multiply_add(as<acc_t>(*a_row), as<acc_t>(*b_column), sum);
        a_row += a.k_stride;
        b_column += b.k_stride;
    }
    put(args.store, tile.group, m, n, sum);
}
