// The filter as its user gave it, for kernels that read it so: no other launch has to come first.
#pragma once
#include "conv.cuh"

struct Filter {
    const w_t *taps;
    Strides strides;  // in the order K, C_GROUP, R, S; negative where the filter is flipped
};

// A tap in the type that sums are taken in.
__device__ inline acc_t given_tap(const Filter &filter, int k, int c, int r, int s) {
    return as<acc_t>(filter.taps[place(filter.strides, k, c, r, s)]);
}
