// A block's tile of C shared out among its warps, and a warp's among its 32 threads.
//
// From the prelude: BLOCK_M x BLOCK_N of C a block, WARP_M x WARP_N of that a warp, THREAD_M x THREAD_N of that a thread,
// in squares of four by four that lie LANES_M * 4 rows and LANES_N * 4 columns apart. So the A of one k that a warp
// reads is LANES_M runs of 16 bytes side by side, its B LANES_N of them: no bank is met twice.
// Lanes are counted in pairs of rows: lanes t and t + 2 share rows, lanes t and t + 1 share columns. Loads of 16 bytes
// are served a quarter of a warp at a time, and two quarters at once where neighbours of this kind read the same.
#pragma once
#include "gemm.cuh"

constexpr int WARPS_M = BLOCK_M / WARP_M, WARPS_N = BLOCK_N / WARP_N, THREADS = 32 * WARPS_M * WARPS_N;
constexpr int LANES_M = WARP_M / THREAD_M, LANES_N = WARP_N / THREAD_N;
constexpr int PITCH_A = BLOCK_M + 4, PITCH_B = BLOCK_N + 4;  // of a row of A's and B's tile in shared memory

static_assert(BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0, "warps cover the block's tile exactly");
static_assert(WARP_M % THREAD_M == 0 && WARP_N % THREAD_N == 0, "threads cover the warp's tile exactly");
static_assert(LANES_M * LANES_N == 32 && LANES_M % 2 == 0, "a warp has 32 threads, counted in pairs of rows");
static_assert(THREAD_M % 4 == 0 && THREAD_N % 4 == 0, "a thread's sums lie in squares of four by four");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");

// Where the sums of this thread begin within the block's tile.
struct Lane {
    int m, n;
};

__device__ inline Lane lane_of(int thread) {
    const int warp = thread / 32, lane = thread % 32;
    const int lane_m = lane / (2 * LANES_N) * 2 + lane % 2, lane_n = lane / 2 % LANES_N;
    return {warp / WARPS_N * WARP_M + lane_m * 4, warp % WARPS_N * WARP_N + lane_n * 4};
}
