// Arguments of every convolution kernel, and how it addresses the arrays.
//
// Run-time arguments are the batch, image sizes, padding and strides of the arrays, so that a new image size compiles
// nothing. The rest are compile-time constants of the prelude:
//   C, K, GROUPS, C_GROUP = C / GROUPS, K_GROUP = K / GROUPS     channels and outputs, in total and of one group
//   R, S, STRIDE_H, STRIDE_W, DILATION_H, DILATION_W             size and steps of the filter
//   BORDER                                                       border mode: see border.cuh
//   DIVISOR, SCALE, BIAS, RESIDUAL, ACTIVATION, RESIDUAL_SCALE, OUT_SCALE, OUT_ZERO_POINT
//                                                                the epilogue: see epilogue.cuh
//   x_t, w_t, out_t, math_t, acc_t                               types of storage, of factors, of sums
//   epilogue_t, operand_t, index_t                               types of the epilogue's arithmetic, of its scale and
//                                                                bias, and of offsets (long long beyond 2^31 elements)
#pragma once
#include "types.cuh"

// Strides of an array in elements.
struct Strides {
    long long n, c, h, w;
};

// Numbers of the epilogue that few problems have. Without them the struct is empty: it then lies in the last bytes of
// struct Conv, which are padding, so that the place of every other field is the same.
template <bool PRESENT> struct Requantization {
    __device__ epilogue_t of_residual(epilogue_t residual) const { return residual; }
    __device__ epilogue_t of_result(epilogue_t value) const { return value; }
};
template <> struct Requantization<true> {
    epilogue_t residual_scale, out_scale, out_zero_point;
    __device__ epilogue_t of_residual(epilogue_t residual) const {
        return cfg::RESIDUAL_SCALE ? residual_scale * residual : residual;
    }
    __device__ epilogue_t of_result(epilogue_t value) const {
        if (cfg::OUT_SCALE) value /= out_scale;
        return cfg::OUT_ZERO_POINT ? value + out_zero_point : value;
    }
};

struct Conv {
    const x_t *x;
    const acc_t *w;  // prepared: (K, C_GROUP, R, S), cross-correlation order
    out_t *out;
    const operand_t *scale, *bias;
    const out_t *residual;
    Strides x_strides, out_strides, residual_strides;
    int N, H, W, P, Q;
    int top, left;       // padding
    acc_t outside;       // value of pixels outside the image (constant border)
    acc_t zero;          // subtracted from every pixel: the zero point of x
    epilogue_t alpha;        // parameter of the activation
    int scale_channels;  // 1: a scale for each output channel; 0: one for all
    Requantization<cfg::RESIDUAL_SCALE || cfg::OUT_SCALE || cfg::OUT_ZERO_POINT> requantization;
};

// Offset of element (n, c, h, w), in elements.
__device__ inline index_t offset_of(const Strides &strides, index_t n, index_t c, index_t h, index_t w) {
    return n * static_cast<index_t>(strides.n) + c * static_cast<index_t>(strides.c) +
           h * static_cast<index_t>(strides.h) + w * static_cast<index_t>(strides.w);
}

// Divides a whole number below 2^30 by a divisor that the host knows, with one product and a shift.
struct Divisor {
    int by;
    unsigned factor;  // 2^shift / by, rounded up
    int shift;        // 30 + bits of `by`: large enough that every quotient is exact
};

__device__ inline int quotient(int number, const Divisor &divisor) {
    return static_cast<int>(static_cast<unsigned long long>(number) * divisor.factor >> divisor.shift);
}

// Column i of the im2col matrix is the window of output pixel i of the batch, with pixels counted along q, p, n. A
// Column is that output pixel.
struct Column {
    int n, p, q;
};

__device__ inline Column column_of(const Conv &conv, index_t i) {
    if constexpr (sizeof(index_t) == 4) {  // unsigned 32-bit divisions are the cheapest
        const unsigned row = static_cast<unsigned>(i) / conv.Q, n = row / conv.P;
        return {static_cast<int>(n), static_cast<int>(row - n * conv.P), static_cast<int>(i - row * conv.Q)};
    }
    const long long row = i / conv.Q, n = row / conv.P;
    return {static_cast<int>(n), static_cast<int>(row - n * conv.P), static_cast<int>(i - row * conv.Q)};
}

// The next column.
__device__ inline Column after(const Conv &conv, Column column) {
    if (++column.q < conv.Q) return column;
    column.q = 0;
    if (++column.p < conv.P) return column;
    return {column.n + 1, 0, 0};
}

// Tiles of neighbouring planes, numbered along q, then p, then planes.
struct PlaneTiles {
    Divisor across, down;
};

// A tile: `planes` planes from (n, k) on, and its first output.
struct PlaneTile {
    int n, k, planes, p, q;
};

template <int PLANES, int TILE_P, int TILE_Q>
__device__ inline PlaneTile tile_of(const PlaneTiles &tiles, const Conv &conv, int i) {
    const int strip = quotient(i, tiles.across), group = quotient(strip, tiles.down);
    const long long first = static_cast<long long>(group) * PLANES,
                    planes = static_cast<long long>(conv.N) * cfg::K - first;
    // The cheapest sufficient division.
    const int n = sizeof(index_t) == 4 ? static_cast<unsigned>(first) / cfg::K : first / cfg::K;
    return {n, static_cast<int>(first - static_cast<long long>(n) * cfg::K),
            static_cast<int>(planes < PLANES ? planes : PLANES), (strip - group * tiles.down.by) * TILE_P,
            (i - strip * tiles.across.by) * TILE_Q};
}
