// tap_sums: zero point times the sums of the weights of a filter over the taps that are inside the image, for every
// class of outputs (zero_point.cuh).
//
// Threads   THREADS a block, which takes one filter. A warp sums the channels of a tap; then a thread takes a class.
// Shared    the sum of each tap, in the order of cross-correlation.
// Limit     memory: reads the weights once.
#include "types.cuh"
#include "memory.cuh"

constexpr int THREADS = 128, WARPS = THREADS / 32, TAPS = cfg::R * cfg::S;

struct Axis {
    int size, steps, start, step, dilation;  // of the image; taps; minus the padding; stride; of the filter
    int first, last, classes;                // see struct ZeroPoint
};

struct TapSums {
    const w_t *w;
    int *sums;
    long long strides[4];  // of w, in elements, in the order k, c, r, s
    Axis h, w_axis;
    int channels, pitch, zero, flip;
};

// Range of the taps inside the image for a class of outputs.
struct Range {
    int first, end;
};

__device__ inline Range taps_inside(const Axis &axis, int number) {
    const int output = number <= axis.first ? number : axis.last + number - axis.first;
    const int start = axis.start + output * axis.step;
    Range range{start < 0 ? (-start + axis.dilation - 1) / axis.dilation : 0, axis.steps};
    const int room = axis.size - start;  // taps at offsets below it are inside
    if (room <= (axis.steps - 1) * axis.dilation) range.end = room <= 0 ? 0 : (room - 1) / axis.dilation + 1;
    return range;
}

extern "C" __global__ void __launch_bounds__(THREADS) tap_sums(const __grid_constant__ TapSums args) {
    __shared__ int taps[TAPS];
    const int lane = threadIdx.x % 32, k = blockIdx.x;
    pdl_wait();
    for (int tap = threadIdx.x / 32; tap < TAPS; tap += WARPS) {
        const int seen = args.flip ? TAPS - 1 - tap : tap;
        const w_t *from = args.w + k * args.strides[0] + seen / cfg::S * args.strides[2] + seen % cfg::S * args.strides[3];
        int sum = 0;
#pragma unroll 4
        for (int c = lane; c < args.channels; c += 32) sum += from[c * args.strides[1]];
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane == 0) taps[tap] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < args.h.classes * args.w_axis.classes; i += THREADS) {
        const Range rows = taps_inside(args.h, i / args.w_axis.classes);
        const Range columns = taps_inside(args.w_axis, i % args.w_axis.classes);
        int sum = 0;
        for (int r = rows.first; r < rows.end; r++)
            for (int s = columns.first; s < columns.end; s++) sum += taps[r * cfg::S + s];
        args.sums[static_cast<long long>(i) * args.pitch + k] = args.zero * sum;
    }
}
