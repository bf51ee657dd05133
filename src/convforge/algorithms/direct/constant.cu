// direct_constant: direct_naive with the filter in constant memory.
//
// Since direct_naive: weights come through the constant cache, which broadcasts one number a cycle to the 32
//           threads of a warp. All threads of a warp need the same weight at the same time. If the compiler knows its
//           address, the weight is an operand of the FMA itself, so half of the loads disappear.
// Threads   as direct_naive by pixel: thread (x, y) of a block of BLOCK_X x BLOCK_Y computes output q = blockIdx.x *
//           BLOCK_X + x, p = blockIdx.y * BLOCK_Y + y of plane (n, k).
// Registers as direct_naive. Weights need no registers, so an SM can hold its maximum number of threads.
// Grid      blocks loop over y and z (planes) in steps of the grid, because a grid has at most 65535 blocks along these
//           axes.
// Needs     K * C_GROUP * R * S weights of acc_t in 64 KB, the constant memory of a module.
// Limit     each pixel is read through L1 once for every tap of every output channel: nine times for a 3 x 3 filter.
#include "border.cuh"
#include "epilogue.cuh"

constexpr int TAPS = cfg::C_GROUP * cfg::R * cfg::S;
static_assert(sizeof(acc_t) * cfg::K * TAPS <= 65536, "constant memory holds 64 KB");

__constant__ acc_t weights[cfg::K * TAPS];

// The sum of direct_naive, with weights from constant memory.
__device__ inline acc_t window_sum(const Conv &conv, int n, int k, int p, int q) {
    // Size of the dilated filter, in pixels.
    constexpr int EXTENT_H = cfg::DILATION_H * (cfg::R - 1) + 1, EXTENT_W = cfg::DILATION_W * (cfg::S - 1) + 1;
    // Loops over taps are unrolled while the code stays small. A rolled loop costs an index sum for each tap.
    constexpr int UNROLL_S = cfg::S <= 16 ? cfg::S : 1, UNROLL_R = cfg::R * cfg::S <= 64 ? cfg::R : 1,
                  UNROLL_C = cfg::C_GROUP * cfg::R * cfg::S <= 64 ? cfg::C_GROUP : 1;
    const int c0 = k / cfg::K_GROUP * cfg::C_GROUP, h0 = p * cfg::STRIDE_H - conv.top,
              w0 = q * cfg::STRIDE_W - conv.left;
    const acc_t *w = weights + k * TAPS;
    acc_t sum = 0;
    if (h0 >= 0 && w0 >= 0 && h0 + EXTENT_H <= conv.H && w0 + EXTENT_W <= conv.W) {
        const x_t *corner = conv.x + offset_of(conv.x_strides, n, c0, h0, w0);
        const index_t step_c = conv.x_strides.c, step_h = cfg::DILATION_H * conv.x_strides.h;
        const index_t step_w = cfg::DILATION_W * conv.x_strides.w;
#pragma unroll UNROLL_C
        for (int c = 0; c < cfg::C_GROUP; c++)
#pragma unroll UNROLL_R
            for (int r = 0; r < cfg::R; r++) {
                const x_t *row = corner + (c * step_c + r * step_h);
#pragma unroll UNROLL_S
                for (int s = 0; s < cfg::S; s++)
                    sum = multiply_add(w[(c * cfg::R + r) * cfg::S + s], centred(conv, row[s * step_w]), sum);
            }
    } else {
#pragma unroll 1
        for (int c = 0; c < cfg::C_GROUP; c++)
#pragma unroll 1
            for (int r = 0; r < cfg::R; r++)
#pragma unroll UNROLL_S
                for (int s = 0; s < cfg::S; s++) {
                    const acc_t x = pixel(conv, n, c0 + c, h0 + r * cfg::DILATION_H, w0 + s * cfg::DILATION_W);
                    sum = multiply_add(w[(c * cfg::R + r) * cfg::S + s], x, sum);
                }
    }
    return sum;
}

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
            store_output(conv, n, k, p, q, window_sum(conv, n, k, p, q));
    }
}
