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

// Pixel (n, c, h, w), h and w counted from the picture's edge, in the type of the sums and less the zero point.
__device__ inline acc_t pixel(const Conv &conv, int n, int c, int h, int w) {
    h = inside(h, conv.H);
    w = inside(w, conv.W);
    if (h < 0 || w < 0) return conv.outside - conv.zero;
    return as<acc_t>(conv.x[place(conv.x_strides, n, c, h, w)]) - conv.zero;
}
