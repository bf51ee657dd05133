// gemm_shared: a block reads each element of its tiles of A and B from global memory once, into shared memory.
//
// Since gemm_naive: a block goes along K in steps of BLOCK. Each thread loads one element of A and one of B,
//           waits at a barrier, and computes BLOCK products from shared memory.
// Threads   a block has BLOCK x BLOCK threads. Thread (x, y) computes element (y, x) of the block's tile of C. For
//           loads, neighbouring threads take neighbours in memory, along K or across it depending on the operand's
//           layout.
// Tiles     BLOCK = BLOCK_M = BLOCK_N = 8, 16, 24 or 32. Rows are padded by one element, because a transposed operand
//           is written column by column, and the columns of rows of 32 would all be in one bank.
// Any       M, N, K: elements outside A and B are 0. 16-bit numbers are floats in the tiles. Global reads fall to 1 /
//           BLOCK of those of gemm_naive.
// Limit     the bandwidth of shared memory: two loads for each FMA.
#include "gemm.cuh"

constexpr int BLOCK = cfg::BLOCK_M;
static_assert(cfg::BLOCK_M == cfg::BLOCK_N, "the threads of a square tile load a square tile of A and of B");
static_assert(BLOCK * BLOCK >= 32 && BLOCK * BLOCK <= 1024, "a block has 32 to 1024 threads");

extern "C" __global__ void __launch_bounds__(BLOCK * BLOCK) gemm_shared(const __grid_constant__ Gemm args) {
    __shared__ acc_t a_tile[BLOCK][BLOCK + 1];  // [m][k]
    __shared__ acc_t b_tile[BLOCK][BLOCK + 1];  // [k][n]
    const Tile tile = tile_of(args);
    const Operand a = of_group(args.a, tile.group), b = of_group(args.b, tile.group);
    const int x = threadIdx.x, y = threadIdx.y;
    const int a_m = cfg::A_K_MAJOR ? y : x, a_k = cfg::A_K_MAJOR ? x : y, b_n = cfg::B_K_MAJOR ? y : x,
              b_k = cfg::B_K_MAJOR ? x : y;
    acc_t sum = 0;
    for (int k0 = 0; k0 < args.K; k0 += BLOCK) {
        const bool a_there = tile.m + a_m < args.M && k0 + a_k < args.K;
        const bool b_there = tile.n + b_n < args.N && k0 + b_k < args.K;
        a_tile[a_m][a_k] = a_there ? as<acc_t>(*at(a, tile.m + a_m, k0 + a_k)) : 0;
        b_tile[b_k][b_n] = b_there ? as<acc_t>(*at(b, tile.n + b_n, k0 + b_k)) : 0;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BLOCK; k++) sum = multiply_add(a_tile[y][k], b_tile[k][x], sum);
        __syncthreads();  // all have read before the next tiles are written
    }
    if (tile.m + y < args.M && tile.n + x < args.N) put(args.store, tile.group, tile.m + y, tile.n + x, sum);
}
