// gemm_warp_tiled: each warp has a compact part of the block's tile, and copies run several tiles ahead by themselves.
//
// Since gemm_vectorised: a warp's threads form a rectangle, so that of each k a warp reads fewer numbers, without bank
// conflicts (see warp_tile.cuh). Tiles go from global to shared memory without passing through registers, STAGES - 1 of
// them on their way at a time, which leaves the registers to larger parts of C: 8 x 16 sums a thread make 128 multiply-
// adds of six 16-byte loads.
// Threads   WARPS_M x WARPS_N warps of LANES_M x LANES_N threads; a thread has THREAD_M x THREAD_N sums.
// Tiles     STAGES of BLOCK_M x BLOCK_K of A and of BLOCK_K x BLOCK_N of B, in dynamic shared memory. An operand whose
//           neighbours lie along K is transposed by copies of one element.
// Any       M, N, K, alignment: copies of 16 bytes only where they are aligned and the tile is whole; elements outside
//           are not read but filled with 0.
// Limit     FMAs: an issue slot in ten goes to loads and addresses. Few tiles leave multiprocessors idle.
#include "device.cuh"
#include "warp_tile.cuh"

static_assert(STAGES >= 2, "one tile is used while another is on its way");

// Ask for this thread's part of the tile of an operand that begins at (x0, k0), PER neighbours at a time.
template <int LENGTH, bool DEEP, int PER, bool WHOLE, int PITCH>
__device__ inline void copy_parts(math_t (&tile)[BLOCK_K][PITCH], const Operand &from, int x0, int k0, int length,
                                  int depth) {
    using S = Share<LENGTH, BLOCK_K, THREADS, DEEP, PER>;
    const S share(threadIdx.x);
    const math_t *first = at(from, x0 + share.x, k0 + share.k);
#pragma unroll
    for (int i = 0; i < S::COUNT; i++) {
        const int dx = i / S::COUNT_K * S::STEP_X, dk = i % S::COUNT_K * S::STEP_K;
        if (!share.has(dx, dk)) continue;
        const bool there = WHOLE || (x0 + share.x + dx < length && k0 + share.k + dk < depth);
        const math_t *place = first + (static_cast<long long>(dx) * from.along + static_cast<long long>(dk) * from.deep);
        copy_async<PER * sizeof(math_t)>(&tile[share.k + dk][share.x + dx], there ? place : from.data, there);
    }
}

template <int LENGTH, bool DEEP, int PITCH>
__device__ inline void copy_tile(math_t (&tile)[BLOCK_K][PITCH], const Operand &from, int x0, int k0, int length,
                                 int depth) {
    if (x0 + LENGTH > length || k0 + BLOCK_K > depth)
        copy_parts<LENGTH, DEEP, 1, false>(tile, from, x0, k0, length, depth);
    else if (!DEEP && from.vectors)
        copy_parts<LENGTH, DEEP, DEEP ? 1 : VECTOR, true>(tile, from, x0, k0, length, depth);
    else
        copy_parts<LENGTH, DEEP, 1, true>(tile, from, x0, k0, length, depth);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) gemm_warp_tiled(const __grid_constant__ Gemm args) {
    struct Tiles {
        math_t a[BLOCK_K][PITCH_A], b[BLOCK_K][PITCH_B];
    };
    DYNAMIC_SHARED(Tiles, stages);
    const Tile tile = tile_of(args);
    const Operand a = of_group(args.a, tile.group), b = of_group(args.b, tile.group);
    const Lane lane = lane_of(threadIdx.x);
    const auto ask = [&](int k0) {  // a commit for every step, so that waiting can count them
        if (k0 < args.K) {
            Tiles &target = stages[k0 / BLOCK_K % STAGES];
            copy_tile<BLOCK_M, A_DEEP>(target.a, a, tile.m, k0, args.M, args.K);
            copy_tile<BLOCK_N, B_DEEP>(target.b, b, tile.n, k0, args.N, args.K);
        }
        copy_async_commit();
    };
    for (int stage = 0; stage < STAGES - 1; stage++) ask(stage * BLOCK_K);
    acc_t sums[THREAD_M][THREAD_N] = {};
    for (int k0 = 0; k0 < args.K; k0 += BLOCK_K) {
        copy_async_wait<STAGES - 2>();  // this thread's part of the tile has landed,
        __syncthreads();                // so has every other's, and all are done with the tile before it
        ask(k0 + (STAGES - 1) * BLOCK_K);
        const Tiles &now = stages[k0 / BLOCK_K % STAGES];
        multiply(sums, now.a, now.b, lane.m, lane.n, LANES_M * 4, LANES_N * 4);
    }
    put_squares(args.store, args.M, args.N, tile.group, tile.m + lane.m, tile.n + lane.n, LANES_M * 4, LANES_N * 4, sums);
}
