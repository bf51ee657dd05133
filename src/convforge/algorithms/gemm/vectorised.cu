// gemm_vectorised: loads of 16 bytes, and two tiles of each operand: the next ones come while these are used.
//
// Since gemm_tile_2d: global and shared memory are read 16 bytes at a time. The next tiles are asked for before the
// products of these are taken, wait in registers, and are put into the other half of shared memory afterwards, so a
// step needs one barrier.
// Threads   ROWS x COLUMNS = BLOCK_M / THREAD_M x BLOCK_N / THREAD_N of them, in one dimension; thread t has squares of
//           four by four elements, from row t / COLUMNS * 4 and column t % COLUMNS * 4 on, ROWS * 4 and COLUMNS * 4 apart.
// Tiles     two of BLOCK_M x BLOCK_K of A and of BLOCK_K x BLOCK_N of B; A's are transposed on the way into shared
//           memory, where rows are 16 bytes longer, so that no bank is met twice.
// Any       M, N, K, alignment: an operand whose rows do not begin at multiples of 16 bytes, and tiles at the edge, are
//           read by element; so are the elements of C where it has gaps.
// Limit     the threads of a warp lie side by side along N: it reads 8 numbers of A and COLUMNS * 8 of B a step.
#include "gemm.cuh"

constexpr int ROWS = cfg::BLOCK_M / cfg::THREAD_M, COLUMNS = cfg::BLOCK_N / cfg::THREAD_N, THREADS = ROWS * COLUMNS;
static_assert(cfg::BLOCK_M % cfg::THREAD_M == 0 && cfg::BLOCK_N % cfg::THREAD_N == 0,
              "threads cover the block's tile exactly");
static_assert(cfg::THREAD_M % 4 == 0 && cfg::THREAD_N % 4 == 0, "a thread's sums lie in squares of four by four");
static_assert(THREADS >= 32 && THREADS <= 1024, "a block has 32 to 1024 threads");
// With 64 sums of 4 bytes a thread 128 registers do: 512 threads fit an SM, and one block works while another
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
