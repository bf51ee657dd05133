// gemm_vectorised: 16-byte loads, and double buffering: the next tiles are loaded while the current ones are used.
//
// Since gemm_tile_2d: global and shared memory are read 16 bytes at a time. The loads of the next tiles are
//           issued before the products of the current ones. The data waits in registers and is then written to the
//           other half of shared memory, so a step needs one barrier.
// Threads   ROWS x COLUMNS = BLOCK_M / THREAD_M x BLOCK_N / THREAD_N in one dimension. Thread t computes squares of 4 x
//           4 elements, from row t / COLUMNS * 4 and column t % COLUMNS * 4 on, with steps of ROWS * 4 rows and COLUMNS
//           * 4 columns.
// Tiles     two of BLOCK_M x BLOCK_K of A and of BLOCK_K x BLOCK_N of B. Tiles of A are transposed on the way to shared
//           memory, where rows are padded by 16 bytes, so that there are no bank conflicts.
// Any       M, N, K, alignment: an operand whose rows are not aligned to 16 bytes, and tiles at the edge, are read
//           element by element. So are the elements of C if it has gaps.
// Limit     the threads of a warp are neighbours along N: a warp reads 8 numbers of A and COLUMNS * 8 of B a step.
#include "gemm.cuh"

constexpr int ROWS = cfg::BLOCK_M / cfg::THREAD_M, COLUMNS = cfg::BLOCK_N / cfg::THREAD_N, THREADS = ROWS * COLUMNS;
static_assert(cfg::BLOCK_M % cfg::THREAD_M == 0 && cfg::BLOCK_N % cfg::THREAD_N == 0,
              "threads cover the block's tile exactly");
static_assert(cfg::THREAD_M % 4 == 0 && cfg::THREAD_N % 4 == 0, "a thread's sums lie in squares of four by four");
static_assert(THREADS >= 32 && THREADS <= 1024, "a block has 32 to 1024 threads");
// 64 sums of 4 bytes a thread fit 128 registers. Then 512 threads fit on an SM, and one block works while another
// waits.
constexpr int TOGETHER = sizeof(acc_t) == 4 && THREADS <= 512 ? 512 / THREADS : 1;

extern "C" __global__ void __launch_bounds__(THREADS, TOGETHER) gemm_vectorised(const __grid_constant__ Gemm args) {
    __shared__ __align__(16) math_t a_tiles[2][cfg::BLOCK_K][cfg::BLOCK_M + 4];
    __shared__ __align__(16) math_t b_tiles[2][cfg::BLOCK_K][cfg::BLOCK_N + 4];
    const Tile tile = tile_of(args);
    const int m = threadIdx.x / COLUMNS * 4, n = threadIdx.x % COLUMNS * 4;
    const Operand a = of_group(args.a, tile.group), b = of_group(args.b, tile.group);
    const MatrixLoader<cfg::BLOCK_M, cfg::BLOCK_K, THREADS, cfg::A_K_MAJOR> load_a = {a, tile.m, args.M, args.K};
    const MatrixLoader<cfg::BLOCK_N, cfg::BLOCK_K, THREADS, cfg::B_K_MAJOR> load_b = {b, tile.n, args.N, args.K};
    const Squares<cfg::THREAD_M, cfg::THREAD_N, ROWS * 4, COLUMNS * 4> multiply = {m, n};
    const SquaresStore<ROWS * 4, COLUMNS * 4> put = {args.store, args.M, args.N, tile, m, n};
    product(load_a, load_b, multiply, put, a_tiles, b_tiles, args.K);
}
