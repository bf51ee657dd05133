// What every convolution kernel is handed, and how it finds its way in the arrays.
//
// At run time come batch, picture sizes, padding and strides of the arrays, so that a new size of picture compiles
// nothing. At compile time, as constants of the prelude, come the rest:
//   C, K, GROUPS, C_GROUP = C / GROUPS, K_GROUP = K / GROUPS     channels and outputs, all and of one group
//   R, S, STRIDE_H, STRIDE_W, DILATION_H, DILATION_W             the filter's size, and how it moves
//   BORDER                                                       what stands outside the picture: see border.cuh
//   DIVISOR, SCALE, BIAS, RESIDUAL, ACTIVATION                   the epilogue: see ends.cuh
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
    acc_t outside;       // what stands outside the picture
    acc_t zero;          // subtracted from every pixel: the zero point of x
    epilogue_t alpha;        // of the activation
    int scale_channels;  // 1 where scale has one number for each output channel, 0 where it has one for all
};

// Where element (n, c, h, w) lies.
__device__ inline index_t place(const Strides &strides, index_t n, index_t c, index_t h, index_t w) {
    return n * static_cast<index_t>(strides.n) + c * static_cast<index_t>(strides.c) +
           h * static_cast<index_t>(strides.h) + w * static_cast<index_t>(strides.w);
}
