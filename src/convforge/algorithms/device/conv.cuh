// What every convolution kernel is handed, and how it finds its way in the arrays.
//
// At run time come batch, image sizes, padding and strides of the arrays, so that a new size of image compiles
// nothing. At compile time, as constants of the prelude, come the rest:
//   C, K, GROUPS, C_GROUP = C / GROUPS, K_GROUP = K / GROUPS     channels and outputs, all and of one group
//   R, S, STRIDE_H, STRIDE_W, DILATION_H, DILATION_W             the filter's size, and how it moves
//   BORDER                                                       what stands outside the image: see border.cuh
//   DIVISOR, SCALE, BIAS, RESIDUAL, ACTIVATION                   the epilogue: see epilogue.cuh
//   x_t, w_t, out_t, math_t, acc_t                               types: of what is stored, of factors, of sums;
//   epilogue_t, operand_t, index_t                               of the epilogue, and of its scale and bias as they are
//                                                                given; index_t is long long beyond 2^31 elements
#pragma once
#include "types.cuh"

// Strides of an array in elements.
struct Strides {
    long long n, c, h, w;
};

struct Conv {
    const x_t *x;
    const acc_t *w;  // prepared: (K, C_GROUP, R, S), cross-correlation order, in the type of the sums
    out_t *out;
    const operand_t *scale, *bias;
    const out_t *residual;
    Strides x_strides, out_strides, residual_strides;
    int N, H, W, P, Q;
    int top, left;       // padding
    acc_t outside;       // what stands outside the image
    acc_t zero;          // subtracted from every pixel: the zero point of x
    epilogue_t alpha;        // of the activation
    int scale_channels;  // 1 where scale has one number for each output channel, 0 where it has one for all
};

// Where element (n, c, h, w) lies.
__device__ inline index_t offset_of(const Strides &strides, index_t n, index_t c, index_t h, index_t w) {
    return n * static_cast<index_t>(strides.n) + c * static_cast<index_t>(strides.c) +
           h * static_cast<index_t>(strides.h) + w * static_cast<index_t>(strides.w);
}

// Division of whole numbers below 2^30 by a number that the host knows: one product and a shift.
struct Divisor {
    int by;
    unsigned factor;  // 2^shift / by, rounded up
    int shift;        // 30 and the bits of `by`: then no remainder is large enough to reach the next quotient
};

__device__ inline int quotient(int number, const Divisor &divisor) {
    return static_cast<int>(static_cast<unsigned long long>(number) * divisor.factor >> divisor.shift);
}

// The columns of im2col's matrix: column i is what output pixel i of the batch sees, pixels counted along q, p, n.
// This is its output pixel.
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

// The column after one.
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

// `planes` planes from (n, k) on, and their first output.
struct PlaneTile {
    int n, k, planes, p, q;
};

template <int PLANES, int TILE_P, int TILE_Q>
__device__ inline PlaneTile tile_of(const PlaneTiles &tiles, const Conv &conv, int i) {
    const int strip = quotient(i, tiles.across), group = quotient(strip, tiles.down);
    const long long first = static_cast<long long>(group) * PLANES,
                    planes = static_cast<long long>(conv.N) * cfg::K - first;
    // The cheapest division that does.
    const int n = sizeof(index_t) == 4 ? static_cast<unsigned>(first) / cfg::K : first / cfg::K;
    return {n, static_cast<int>(first - static_cast<long long>(n) * cfg::K),
            static_cast<int>(planes < PLANES ? planes : PLANES), (strip - group * tiles.down.by) * TILE_P,
            (i - strip * tiles.across.by) * TILE_Q};
}
