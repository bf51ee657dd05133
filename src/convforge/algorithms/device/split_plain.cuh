// The sum of an output whose numbers halves do not hold (split.cuh): multiply-adds of floats, one after the other, from the
// arrays as they were given.
//
// plain_sum(conv, of_w, output, k, first_c, first, channels);    of filter k and so many channels, from `first_c` of the
//                                                                picture and `first` of the filter on
#pragma once
#include "border.cuh"
#include "columns.cuh"

__device__ inline float plain_sum(const Conv &conv, const Strides &of_w, const Column &output, int k, int first_c, int first,
                                  int channels) {
    float sum = 0;
#pragma unroll 1
    for (int tap = 0; tap < R * S; tap++) {
        const int h = inside(output.p * STRIDE_H - conv.top + tap / S * DILATION_H, conv.H);
        const int w = inside(output.q * STRIDE_W - conv.left + tap % S * DILATION_W, conv.W);
        const bool there = h >= 0 && w >= 0;
        const float *x = conv.x + (there ? place(conv.x_strides, output.n, first_c, h, w) : 0);
        const float *weights = conv.w + k * of_w.n + first * of_w.c + tap / S * of_w.h + tap % S * of_w.w;
        const index_t step = conv.x_strides.c;
#pragma unroll 4
        for (int c = 0; c < channels; c++) sum = fmaf(there ? x[c * step] : conv.outside, weights[c * of_w.c], sum);
    }
    return sum;
}
