// direct_constant: as direct_naive, but the filter lies in constant memory.
//
// Since direct_naive: a weight is read through the constant cache, which gives one number a cycle to all 32 threads of
//           a warp. All of them want the same weight at the same time, and where the compiler knows its place it is an
//           operand of the multiply-add itself: half of the loads are gone.
// Threads   as direct_naive by pixel: block of BLOCK_X x BLOCK_Y, thread (x, y) takes output
//           q = blockIdx.x * BLOCK_X + x, p = blockIdx.y * BLOCK_Y + y of plane (n, k).
// Registers as direct_naive; weights take none, so that an SM can hold all the threads that it has room for.
// Grid      blocks along y and z (planes) go on in steps of the grid: a grid has at most 65535 of them.
// Needs     K * C_GROUP * R * S weights of the sums' type in 64 KB: what a module's constant memory holds.
// Limit     a pixel is read through L1 once for every tap of every output channel: at 3 x 3 nine times.
#include "border.cuh"
#include "epilogue.cuh"

constexpr int TAPS = cfg::C_GROUP * cfg::R * cfg::S;
static_assert(sizeof(acc_t) * cfg::K * TAPS <= 65536, "constant memory holds 64 KB");

__constant__ acc_t weights[cfg::K * TAPS];

struct Constant {
    Conv conv;
};

static_assert(cfg::BLOCK_X * cfg::BLOCK_Y >= 32 && cfg::BLOCK_X * cfg::BLOCK_Y <= 1024,
              "a block has 32 to 1024 threads");

extern "C" __global__ void __launch_bounds__(cfg::BLOCK_X *cfg::BLOCK_Y, cfg::BLOCKS)
    direct_constant(const __grid_constant__ Constant args) {
    const Conv &conv = args.conv;
    const int q = blockIdx.x * cfg::BLOCK_X + threadIdx.x;
    if (q >= conv.Q) return;
    const long long planes = static_cast<long long>(conv.N) * cfg::K;
    for (long long plane = blockIdx.z; plane < planes; plane += gridDim.z) {
        const int n = plane / cfg::K, k = plane % cfg::K;
        for (int p = blockIdx.y * cfg::BLOCK_Y + threadIdx.y; p < conv.P; p += gridDim.y * cfg::BLOCK_Y)
            finish(conv, n, k, p, q, window_sum(conv, weights + k * TAPS, n, k, p, q));
    }
}
