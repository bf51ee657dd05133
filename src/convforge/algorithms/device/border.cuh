// Pixels of the image and its border. A padded position is mapped to a position in the image, or to -1 for the
// value conv.outside.
#pragma once
#include "conv.cuh"

enum Border { ZEROS, CONSTANT, REFLECT, SYMMETRIC, REPLICATE, CIRCULAR };

// Maps position i of an axis, counted from the image's edge, to a position in [0, size), or -1.
__device__ inline int inside(int i, int size) {
    if (0 <= i && i < size) return i;
    if constexpr (cfg::BORDER == REPLICATE) return i < 0 ? 0 : size - 1;
    if constexpr (cfg::BORDER == REFLECT) {  // the edge is not repeated: period 2 (size - 1)
        if (size == 1) return 0;
        int period = 2 * (size - 1);
        i = (i % period + period) % period;
        return i < size ? i : period - i;
    }
    if constexpr (cfg::BORDER == SYMMETRIC) {  // the edge is repeated: period 2 size
        int period = 2 * size;
        i = (i % period + period) % period;
        return i < size ? i : period - 1 - i;
    }
    if constexpr (cfg::BORDER == CIRCULAR) return (i % size + size) % size;
    return -1;
}

// True for integer sums: only they have a zero point.
constexpr bool HAS_ZERO = static_cast<acc_t>(1) / 2 == 0;

// A stored pixel as acc_t, minus the zero point.
__device__ inline acc_t centred(const Conv &conv, x_t value) {
    return HAS_ZERO ? as<acc_t>(value) - conv.zero : as<acc_t>(value);
}

// The value outside the image, minus the zero point, for border modes that have one value.
__device__ inline acc_t outside(const Conv &conv) { return HAS_ZERO ? conv.outside - conv.zero : conv.outside; }

// Pixel (n, c, h, w) minus the zero point, with h and w counted from the image's edge.
__device__ inline acc_t pixel(const Conv &conv, int n, int c, int h, int w) {
    h = inside(h, conv.H);
    w = inside(w, conv.W);
    if (h < 0 || w < 0) return outside(conv);
    return centred(conv, conv.x[offset_of(conv.x_strides, n, c, h, w)]);
}

// Sum of one output over filter k and `channels` channels, from channel `first_c` of the image and `first` of the
// filter on. `of_w` are the filter's strides. Plain FMAs in order, for outputs whose numbers two float16 halves cannot
// represent (split.cuh).
__device__ inline acc_t plain_sum(const Conv &conv, const Strides &of_w, const Column &output, int k, int first_c, int first,
                                  int channels) {
    acc_t sum = 0;
#pragma unroll 1
    for (int tap = 0; tap < cfg::R * cfg::S; tap++) {
        const int h = inside(output.p * cfg::STRIDE_H - conv.top + tap / cfg::S * cfg::DILATION_H, conv.H);
        const int w = inside(output.q * cfg::STRIDE_W - conv.left + tap % cfg::S * cfg::DILATION_W, conv.W);
        const bool there = h >= 0 && w >= 0;
        const x_t *x = conv.x + (there ? offset_of(conv.x_strides, output.n, first_c, h, w) : 0);
        const acc_t *weights = conv.w + k * of_w.n + first * of_w.c + tap / cfg::S * of_w.h + tap % cfg::S * of_w.w;
        const index_t step = conv.x_strides.c;
#pragma unroll 4
        for (int c = 0; c < channels; c++) sum = multiply_add(there ? as<acc_t>(x[c * step]) : conv.outside, weights[c * of_w.c], sum);
    }
    return sum;
}
