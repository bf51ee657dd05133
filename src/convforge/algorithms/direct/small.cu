// direct_small: a thread loads all pixels of its window at the same time as the filter.
//
// Since direct_tiled: a small image is finished before memory or arithmetic are busy, so the number of
//           sequential memory latencies limits it. direct_tiled copies the filter to shared memory and then loads
//           pixels: two latencies. Here pixels and filter are loaded at once: one. There is no tile and no sliding row.
//           All addresses are computed before the launch may begin to read (pdl_wait in memory.cuh).
// Threads   thread (x, y) of a block of BLOCK_X x BLOCK_Y computes output q = blockIdx.x * BLOCK_X + x, p = blockIdx.y
//           * BLOCK_Y + y of OUT_K channels.
// Grid      a block along z for each image, group and tile of channels.
// Registers C_GROUP x R x S pixels, OUT_K sums, and SHARE taps of the filter. The compiler limits registers so that
//           BLOCKS blocks fit on an SM.
// Weights   staged in shared memory by each block, in the order of filter.cuh.
// Needs     a window of few numbers, a filter of few bytes, and a grid within the limits of each axis.
// Limit     latency: a launch, one load and one store. Larger images: loads, because neighbours share no pixels.
#include "border.cuh"
#include "epilogue.cuh"
#include "filter.cuh"
#include "memory.cuh"

constexpr int TILES_K = (cfg::K_GROUP + cfg::OUT_K - 1) / cfg::OUT_K, THREADS = cfg::BLOCK_X * cfg::BLOCK_Y;
// Taps of the filter, and taps staged by a thread.
constexpr int TAPS = cfg::K * cfg::C_GROUP * cfg::R * cfg::S, SHARE = (TAPS + THREADS - 1) / THREADS;

static_assert(THREADS >= 32 && THREADS <= 1024, "a block has 32 to 1024 threads");

struct Small {
    Conv conv;
    Filter filter;
};

// Address of tap i of the given filter, with i in the order of staging.
__device__ inline const w_t *given_at(const Filter &filter, int i) {
    return filter.taps + offset_of(filter.strides, i / (cfg::S * cfg::R * cfg::C_GROUP),
                               i / (cfg::S * cfg::R) % cfg::C_GROUP, i / cfg::S % cfg::R, i % cfg::S);
}

extern "C" __global__ void __launch_bounds__(THREADS, cfg::BLOCKS) direct_small(const __grid_constant__ Small args) {
    __shared__ __align__(16) acc_t staged[STAGED_TAPS<cfg::STAGED_WEIGHTS>];
    const Conv &conv = args.conv;
    const int t = threadIdx.y * cfg::BLOCK_X + threadIdx.x;
    const int q = blockIdx.x * cfg::BLOCK_X + threadIdx.x, p = blockIdx.y * cfg::BLOCK_Y + threadIdx.y;
    const int part = blockIdx.z / TILES_K, n = part / cfg::GROUPS, g = part % cfg::GROUPS;
    const int first = g * cfg::K_GROUP, k0 = first + blockIdx.z % TILES_K * cfg::OUT_K;

    // Addresses of the rows and columns of the window. Positions outside the image point to the first row or column;
    // the values read there are not used.
    const x_t *rows[cfg::C_GROUP][cfg::R];
    index_t columns[cfg::S];
    bool has_row[cfg::R], has_column[cfg::S];
#pragma unroll
    for (int r = 0; r < cfg::R; r++) {
        const int h = inside(p * cfg::STRIDE_H - conv.top + r * cfg::DILATION_H, conv.H);
        has_row[r] = h >= 0;
#pragma unroll
        for (int c = 0; c < cfg::C_GROUP; c++)
            rows[c][r] = in_register(conv.x + offset_of(conv.x_strides, n, g * cfg::C_GROUP + c, max(h, 0), 0));
    }
#pragma unroll
    for (int s = 0; s < cfg::S; s++) {
        const int w = inside(q * cfg::STRIDE_W - conv.left + s * cfg::DILATION_W, conv.W);
        has_column[s] = w >= 0;
        columns[s] = in_register(max(w, 0) * static_cast<index_t>(conv.x_strides.w));
    }
    const w_t *given[SHARE];
#pragma unroll
    for (int i = 0; i < SHARE; i++) given[i] = in_register(given_at(args.filter, min(t + i * THREADS, TAPS - 1)));
    out_t *outs[cfg::OUT_K];
#pragma unroll
    for (int k = 0; k < cfg::OUT_K; k++) outs[k] = in_register(conv.out + offset_of(conv.out_strides, n, k0 + k, p, q));
    const bool stores = p < conv.P && q < conv.Q;
    pdl_wait();

    w_t taken[SHARE];
#pragma unroll
    for (int i = 0; i < SHARE; i++) taken[i] = *given[i];
    x_t pixels[cfg::C_GROUP][cfg::R][cfg::S];
#pragma unroll
    for (int c = 0; c < cfg::C_GROUP; c++)
#pragma unroll
        for (int r = 0; r < cfg::R; r++)
#pragma unroll
            for (int s = 0; s < cfg::S; s++) pixels[c][r][s] = rows[c][r][columns[s]];
#pragma unroll
    for (int i = 0; i < SHARE; i++)
        if (const int tap = t + i * THREADS; tap < TAPS)
            staged[tap / cfg::S * TAP_PITCH + tap % cfg::S] = as<acc_t>(taken[i]);
    __syncthreads();

    acc_t sums[cfg::OUT_K] = {};
#pragma unroll
    for (int c = 0; c < cfg::C_GROUP; c++)
#pragma unroll
        for (int r = 0; r < cfg::R; r++)
#pragma unroll
            for (int k = 0; k < cfg::OUT_K; k++) {
                acc_t taps[cfg::S];
                staged_taps(taps, staged, min(k0 + k, cfg::K - 1), c, r);  // beyond: not stored
#pragma unroll
                for (int s = 0; s < cfg::S; s++) {
                    const bool there = has_row[r] & has_column[s];
                    const acc_t pixel = there ? centred(conv, pixels[c][r][s]) : outside(conv);
                    sums[k] = multiply_add(taps[s], pixel, sums[k]);
                }
            }
    if (!stores) return;
#pragma unroll
    for (int k = 0; k < cfg::OUT_K; k++)
        if (cfg::K_GROUP % cfg::OUT_K == 0 || k0 + k < first + cfg::K_GROUP)
            *outs[k] = output_value(conv, n, k0 + k, p, q, sums[k]);
}
