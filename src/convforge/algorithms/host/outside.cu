// store_outside: stores the outputs whose windows are entirely in a padding of zeros, as the epilogue of a zero sum.
//
// A transform leaves rounding noise of other outputs there. This launch follows those that stored the outputs, only for
// problems that have such outputs: see outside.py.
// Threads   THREADS a block, one output each: along a row in NCHW, along the channels of a pixel in NHWC
//           (OUT_CHANNELS_LAST).
// Grid      one dimension, over all outputs of the batch.
// Limit     launch overhead: few outputs are stored, and only the epilogue's operands are read.
#include "epilogue.cuh"

constexpr int THREADS = 256;

struct Outside {
    Conv conv;
    long long outputs;  // N * K * P * Q
};

// True if a window of TAPS pixels, DILATION apart, that begins at `first` has a tap inside an axis of `size` pixels.
template <int TAPS, int DILATION>
__device__ inline bool meets(int first, int size) {
    const int skipped = first < 0 ? (DILATION - 1 - first) / DILATION : 0;
    return skipped < TAPS && first + skipped * DILATION < size;
}

extern "C" __global__ void __launch_bounds__(THREADS) store_outside(const __grid_constant__ Outside args) {
    const Conv &conv = args.conv;
    long long rest = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;
    if (rest >= args.outputs) return;
    int k = 0;
    if constexpr (cfg::OUT_CHANNELS_LAST) {
        k = rest % cfg::K;
        rest /= cfg::K;
    }
    const int q = rest % conv.Q;
    rest /= conv.Q;
    const int p = rest % conv.P;
    rest /= conv.P;
    if constexpr (!cfg::OUT_CHANNELS_LAST) {
        k = rest % cfg::K;
        rest /= cfg::K;
    }
    if (!meets<cfg::R, cfg::DILATION_H>(p * cfg::STRIDE_H - conv.top, conv.H) ||
        !meets<cfg::S, cfg::DILATION_W>(q * cfg::STRIDE_W - conv.left, conv.W))
        store_output(conv, static_cast<int>(rest), k, p, q, 0);
}
