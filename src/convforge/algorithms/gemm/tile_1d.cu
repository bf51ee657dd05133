// gemm_tile_1d: a thread computes a column of THREAD_M elements of C, so that one element of B serves THREAD_M
// products.
//
// Since gemm_shared: more sums a thread, in registers. One element of B is loaded from shared memory for
//           THREAD_M elements of A, which are broadcast to the whole warp. The loads for each FMA fall from 2 to 1 + 1
//           / THREAD_M.
// Threads   THREADS = BLOCK_M * BLOCK_N / THREAD_M in one dimension. Thread t computes column t % BLOCK_N and the
//           THREAD_M rows from t / BLOCK_N * THREAD_M on.
// Tiles     BLOCK_M x BLOCK_K of A and BLOCK_K x BLOCK_N of B. The tile of A is transposed, so rows of both tiles
//           belong to one k.
// Any       M, N, K: elements outside A and B are 0. Only tiles at the edge test each element.
// Limit     still one load from shared memory for each FMA.
#include "gemm.cuh"

constexpr int THREADS = cfg::BLOCK_M * cfg::BLOCK_N / cfg::THREAD_M;
static_assert(cfg::BLOCK_M % cfg::THREAD_M == 0, "threads cover the rows of the block's tile exactly");
static_assert(cfg::BLOCK_N % 32 == 0, "a warp has one row of threads, so that it reads one number of A at a time");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) gemm_tile_1d(const __grid_constant__ Gemm args) {
    __shared__ math_t a_tile[cfg::BLOCK_K][cfg::BLOCK_M + 4], b_tile[cfg::BLOCK_K][cfg::BLOCK_N + 4];
    const Tile tile = tile_of(args);
    const Operand a = of_group(args.a, tile.group), b = of_group(args.b, tile.group);
    const int n = threadIdx.x % cfg::BLOCK_N, m = threadIdx.x / cfg::BLOCK_N * cfg::THREAD_M;
    acc_t sums[cfg::THREAD_M] = {};
    for (int k0 = 0; k0 < args.K; k0 += cfg::BLOCK_K) {
        load_tile<cfg::BLOCK_M, THREADS, cfg::A_K_MAJOR>(a_tile, a, tile.m, k0, args.M, args.K);
        load_tile<cfg::BLOCK_N, THREADS, cfg::B_K_MAJOR>(b_tile, b, tile.n, k0, args.N, args.K);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < cfg::BLOCK_K; k++) {
            const math_t number = b_tile[k][n];
#pragma unroll
            for (int i = 0; i < cfg::THREAD_M; i++) sums[i] = multiply_add(a_tile[k][m + i], number, sums[i]);
        }
        __syncthreads();
    }
    if (tile.n + n >= args.N) return;
#pragma unroll
    for (int i = 0; i < cfg::THREAD_M; i++)
        if (tile.m + m + i < args.M) put(args.store, tile.group, tile.m + m + i, tile.n + n, sums[i]);
}
