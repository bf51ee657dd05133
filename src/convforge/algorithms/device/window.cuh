// The sum of one output as it is defined: the filter's window over the picture, tap by tap.
#pragma once
#include "border.cuh"

constexpr int EXTENT_H = DILATION_H * (R - 1) + 1, EXTENT_W = DILATION_W * (S - 1) + 1;  // of the filter, in pixels
constexpr int TAPS = C_GROUP * R * S;

// Loops over taps are unrolled while the code stays small; rolled ones cost an index sum a tap.
constexpr int UNROLL_S = S <= 16 ? S : 1;
constexpr int UNROLL_R = R * S <= 64 ? R : 1;
constexpr int UNROLL_C = TAPS <= 64 ? C_GROUP : 1;

// Sum of output (n, k, p, q) over the filter at `w`, in the order (C_GROUP, R, S). Whether the whole window lies inside
// the picture is asked once an output: only windows across the border test each of their taps.
__device__ inline acc_t window_sum(const Conv &conv, const acc_t *w, int n, int k, int p, int q) {
    const int c0 = k / K_GROUP * C_GROUP, h0 = p * STRIDE_H - conv.top, w0 = q * STRIDE_W - conv.left;
    acc_t sum = 0;
    if (h0 >= 0 && w0 >= 0 && h0 + EXTENT_H <= conv.H && w0 + EXTENT_W <= conv.W) {
        const x_t *corner = conv.x + place(conv.x_strides, n, c0, h0, w0);
        const index_t step_c = conv.x_strides.c, step_h = DILATION_H * conv.x_strides.h;
        const index_t step_w = DILATION_W * conv.x_strides.w;
#pragma unroll UNROLL_C
        for (int c = 0; c < C_GROUP; c++)
#pragma unroll UNROLL_R
            for (int r = 0; r < R; r++) {
                const x_t *row = corner + (c * step_c + r * step_h);
#pragma unroll UNROLL_S
                for (int s = 0; s < S; s++)
                    sum = multiply_add(w[(c * R + r) * S + s], centred(conv, row[s * step_w]), sum);
            }
    } else {
#pragma unroll 1
        for (int c = 0; c < C_GROUP; c++)
#pragma unroll 1
            for (int r = 0; r < R; r++)
#pragma unroll UNROLL_S
                for (int s = 0; s < S; s++) {
                    const acc_t x = pixel(conv, n, c0 + c, h0 + r * DILATION_H, w0 + s * DILATION_W);
                    sum = multiply_add(w[(c * R + r) * S + s], x, sum);
                }
    }
    return sum;
}
