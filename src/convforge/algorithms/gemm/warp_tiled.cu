// gemm_warp_tiled: each warp has a compact part of the block's tile, and asynchronous copies run several tiles ahead.
//
// Since gemm_vectorised: the threads of a warp form a rectangle, so a warp reads fewer numbers for each k,
//           without bank conflicts (gemm.cuh). Tiles are copied from global to shared memory without registers, STAGES
//           - 1 of them in flight. So registers are free for larger parts of C: 8 x 16 sums a thread give 128 FMAs for
//           six 16-byte loads.
// Threads   WARPS_M x WARPS_N warps of LANES_M x LANES_N threads. A thread has THREAD_M x THREAD_N sums.
// Tiles     STAGES of BLOCK_M x BLOCK_K of A and of BLOCK_K x BLOCK_N of B, in dynamic shared memory. K-major operands
//           are transposed by copies of one element.
// Any       M, N, K, alignment: 16-byte copies only if they are aligned and the tile is whole. Elements outside are
//           filled with 0 without a read.
// Limit     FMAs: one issue slot in ten goes to loads and addresses. With few tiles, SMs are idle.
#include "gemm.cuh"

using Warps = WarpTile<cfg::BLOCK_M, cfg::BLOCK_N, cfg::WARP_M, cfg::WARP_N, cfg::THREAD_M, cfg::THREAD_N>;
constexpr int THREADS = Warps::THREADS;

static_assert(cfg::STAGES >= 2, "one tile is used while another is on its way");

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) gemm_warp_tiled(const __grid_constant__ Gemm args) {
    struct Tiles {
        math_t a[cfg::BLOCK_K][Warps::PITCH_A], b[cfg::BLOCK_K][Warps::PITCH_B];
    };
    DYNAMIC_SHARED(Tiles, stages);
    const Tile tile = tile_of(args);
    const Operand a = of_group(args.a, tile.group), b = of_group(args.b, tile.group);
    const Warps::Lane lane = Warps::lane_of(threadIdx.x);
    const MatrixCopies<cfg::BLOCK_M, THREADS, cfg::A_K_MAJOR> copy_a = {a, tile.m, args.M, args.K};
    const MatrixCopies<cfg::BLOCK_N, THREADS, cfg::B_K_MAJOR> copy_b = {b, tile.n, args.N, args.K};
    const Squares<cfg::THREAD_M, cfg::THREAD_N, Warps::LANES_M * 4, Warps::LANES_N * 4> multiply = {lane.m, lane.n};
    const SquaresStore<Warps::LANES_M * 4, Warps::LANES_N * 4> put = {args.store, args.M, args.N, tile, lane.m, lane.n};
    const auto ask = [&](int k0) {  // a commit for every step, so that the wait can count them
        if (k0 < args.K) {
            Tiles &target = stages[k0 / cfg::BLOCK_K % cfg::STAGES];
            copy_a.copy(target.a, k0);
            copy_b.copy(target.b, k0);
        }
        copy_async_commit();
    };
    for (int stage = 0; stage < cfg::STAGES - 1; stage++) ask(stage * cfg::BLOCK_K);
    acc_t sums[cfg::THREAD_M][cfg::THREAD_N] = {};
    for (int k0 = 0; k0 < args.K; k0 += cfg::BLOCK_K) {
        copy_async_wait<cfg::STAGES - 2>();  // this thread's copies have completed,
        __syncthreads();                // so has every other's, and all are done with the tile before it
        ask(k0 + (cfg::STAGES - 1) * cfg::BLOCK_K);
        const Tiles &now = stages[k0 / cfg::BLOCK_K % cfg::STAGES];
        multiply(sums, now.a, now.b);
    }
    put(sums);
}
