// What stands outside the picture. A padded position is mapped to a position in the picture, or to -1, where
// conv.outside stands.
#pragma once
#include "conv.cuh"

enum Border { ZEROS, CONSTANT, REFLECT, SYMMETRIC, REPLICATE, CIRCULAR };

// The position in the picture that stands at position i of an axis of `size`, i counted from the picture's edge.
__device__ inline int inside(int i, int size) {
    if (0 <= i && i < size) return i;
    if constexpr (BORDER == REPLICATE) return i < 0 ? 0 : size - 1;
    if constexpr (BORDER == REFLECT) {  // the edge is not repeated: period 2 (size - 1)
        if (size == 1) return 0;
        int period = 2 * (size - 1);
        i = (i % period + period) % period;
        return i < size ? i : period - i;
    }
    if constexpr (BORDER == SYMMETRIC) {  // the edge is repeated: period 2 size
        int period = 2 * size;
        i = (i % period + period) % period;
        return i < size ? i : period - 1 - i;
    }
    if constexpr (BORDER == CIRCULAR) return (i % size + size) % size;
    return -1;
}

// Only integer sums have a zero point.
constexpr bool HAS_ZERO = static_cast<acc_t>(1) / 2 == 0;

// A stored pixel in the type of the sums, less the zero point.
__device__ inline acc_t centred(const Conv &conv, x_t value) {
    return HAS_ZERO ? as<acc_t>(value) - conv.zero : as<acc_t>(value);
}

// What stands outside the picture, where the border mode has one value for it; less the zero point too.
__device__ inline acc_t outside(const Conv &conv) { return HAS_ZERO ? conv.outside - conv.zero : conv.outside; }

// Pixel (n, c, h, w), h and w counted from the picture's edge, as `centred` gives it.
__device__ inline acc_t pixel(const Conv &conv, int n, int c, int h, int w) {
    h = inside(h, conv.H);
    w = inside(w, conv.W);
    if (h < 0 || w < 0) return outside(conv);
    return centred(conv, conv.x[place(conv.x_strides, n, c, h, w)]);
}
