// gemm_tile_2d: a thread computes THREAD_M x THREAD_N elements of C, so that every loaded number serves several
// products.
//
// Since gemm_tile_1d: several columns too. THREAD_M elements of A and THREAD_N of B give THREAD_M * THREAD_N
//           products: with 8 x 8 a quarter of a load from shared memory for each FMA.
// Threads   ROWS x COLUMNS = BLOCK_M / THREAD_M x BLOCK_N / THREAD_N in one dimension. Thread t computes rows t /
//           COLUMNS + i * ROWS and columns t % COLUMNS + j * COLUMNS, so neighbouring threads read neighbours of the
//           tile of B and write neighbours of C.
// Tiles     BLOCK_M x BLOCK_K of A and BLOCK_K x BLOCK_N of B. The tile of A is transposed.
// Any       M, N, K: elements outside A and B are 0. Only tiles at the edge test each element.
// Limit     all threads wait while a tile is loaded from global memory. Loads of 4 bytes need many instructions.
#include "gemm.cuh"

constexpr int ROWS = cfg::BLOCK_M / cfg::THREAD_M, COLUMNS = cfg::BLOCK_N / cfg::THREAD_N, THREADS = ROWS * COLUMNS;
static_assert(cfg::BLOCK_M % cfg::THREAD_M == 0 && cfg::BLOCK_N % cfg::THREAD_N == 0,
              "threads cover the block's tile exactly");
static_assert(THREADS >= 32 && THREADS <= 1024, "a block has 32 to 1024 threads");

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) gemm_tile_2d(const __grid_constant__ Gemm args) {
    __shared__ math_t a_tile[cfg::BLOCK_K][cfg::BLOCK_M + 4], b_tile[cfg::BLOCK_K][cfg::BLOCK_N + 4];
    const Tile tile = tile_of(args);
    const Operand a = of_group(args.a, tile.group), b = of_group(args.b, tile.group);
    const int m = threadIdx.x / COLUMNS, n = threadIdx.x % COLUMNS;
    acc_t sums[cfg::THREAD_M][cfg::THREAD_N] = {};
    for (int k0 = 0; k0 < args.K; k0 += cfg::BLOCK_K) {
        load_tile<cfg::BLOCK_M, THREADS, cfg::A_K_MAJOR>(a_tile, a, tile.m, k0, args.M, args.K);
        load_tile<cfg::BLOCK_N, THREADS, cfg::B_K_MAJOR>(b_tile, b, tile.n, k0, args.N, args.K);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < cfg::BLOCK_K; k++) {
            math_t rows[cfg::THREAD_M], columns[cfg::THREAD_N];
#pragma unroll
            for (int i = 0; i < cfg::THREAD_M; i++) rows[i] = a_tile[k][m + i * ROWS];
#pragma unroll
            for (int j = 0; j < cfg::THREAD_N; j++) columns[j] = b_tile[k][n + j * COLUMNS];
#pragma unroll
            for (int i = 0; i < cfg::THREAD_M; i++)
#pragma unroll
                for (int j = 0; j < cfg::THREAD_N; j++) sums[i][j] = multiply_add(rows[i], columns[j], sums[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < cfg::THREAD_N; j++) {
        const int column = tile.n + n + j * COLUMNS;
        if (column >= args.N) continue;
#pragma unroll
        for (int i = 0; i < cfg::THREAD_M; i++) {
            const int row = tile.m + m + i * ROWS;
            if (row < args.M) put(args.store, tile.group, row, column, sums[i][j]);
        }
    }
}
