// direct_naive: each thread computes its outputs straight from the definition of the convolution, from global memory.
//
// First step of the ladder.
// Threads   a block has BLOCK_X x BLOCK_Y threads, 32 to 1024. Thread (x, y) computes outputs q0 to q0 + per_q - 1 and
//           p0 to p0 + per_p - 1 of a plane (n, k), with q0 = (blockIdx.x * BLOCK_X + x) * per_q and p0 = (blockIdx.y *
//           BLOCK_Y + y) * per_p.
// Partition by pixel: 1 x 1 outputs a thread. By block: a few rows and columns. By row: a whole row. By column: a whole
//           column. per_p and per_q are run-time arguments, because they may equal the image size.
// Registers the compiler limits registers so that BLOCKS blocks fit on an SM: some threads compute while others wait
//           for memory.
// Grid      blocks loop over y and z (planes) in steps of the grid, because a grid has at most 65535 blocks along these
//           axes.
// Limit     every product loads its pixel and its weight through L1: a 3 x 3 filter needs nine loads of each for nine
//           FMAs. By row, neighbouring threads read pixels a whole row apart, so each load of a warp touches 32 lines.
#include "border.cuh"
#include "epilogue.cuh"

static_assert(cfg::BLOCK_X * cfg::BLOCK_Y >= 32 && cfg::BLOCK_X * cfg::BLOCK_Y <= 1024,
              "a block has 32 to 1024 threads");

// Returns the sum of output (n, k, p, q): all channels and taps of its window times the filter at `w`, in the order
// (C_GROUP, R, S). A window inside the image takes the first loops. Only a window across the border maps each of its
// taps (border.cuh).
__device__ inline acc_t window_sum(const Conv &conv, const acc_t *w, int n, int k, int p, int q) {
    // Size of the dilated filter, in pixels.
    constexpr int EXTENT_H = cfg::DILATION_H * (cfg::R - 1) + 1, EXTENT_W = cfg::DILATION_W * (cfg::S - 1) + 1;
    // Loops over taps are unrolled while the code stays small. A rolled loop costs an index sum for each tap.
    constexpr int UNROLL_S = cfg::S <= 16 ? cfg::S : 1, UNROLL_R = cfg::R * cfg::S <= 64 ? cfg::R : 1,
                  UNROLL_C = cfg::C_GROUP * cfg::R * cfg::S <= 64 ? cfg::C_GROUP : 1;
    const int c0 = k / cfg::K_GROUP * cfg::C_GROUP, h0 = p * cfg::STRIDE_H - conv.top,
              w0 = q * cfg::STRIDE_W - conv.left;
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

struct Naive {
    Conv conv;
    int per_p, per_q;  // outputs of a thread
};

extern "C" __global__ void __launch_bounds__(cfg::BLOCK_X *cfg::BLOCK_Y, cfg::BLOCKS)
    direct_naive(const __grid_constant__ Naive args) {
    const Conv &conv = args.conv;
    const int q0 = (blockIdx.x * cfg::BLOCK_X + threadIdx.x) * args.per_q, q1 = min(q0 + args.per_q, conv.Q);
    const int step_p = gridDim.y * cfg::BLOCK_Y * args.per_p;
    const long long planes = static_cast<long long>(conv.N) * cfg::K;
    for (long long plane = blockIdx.z; plane < planes; plane += gridDim.z) {
        const int n = plane / cfg::K, k = plane % cfg::K;
        for (int p0 = (blockIdx.y * cfg::BLOCK_Y + threadIdx.y) * args.per_p; p0 < conv.P; p0 += step_p)
            for (int p = p0; p < min(p0 + args.per_p, conv.P); p++)
                for (int q = q0; q < q1; q++)
                    store_output(conv, n, k, p, q,
                           window_sum(conv, conv.w + static_cast<index_t>(k) * (cfg::C_GROUP * cfg::R * cfg::S), n, k,
                                      p, q));
    }
}
