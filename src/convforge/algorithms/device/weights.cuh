// The prepared filter, (K, C_GROUP, R, S): in constant memory where it fits there, else in global memory.
//
// Constant memory gives one number a cycle to a whole warp, and the multiply-add takes it from there itself, without a
// register. CONSTANT_WEIGHTS comes from the host, which copies the filter there: see include/constant.py.
#pragma once
#include "conv.cuh"

constexpr int TAPS = C_GROUP * R * S;

__constant__ acc_t weights[CONSTANT_WEIGHTS ? static_cast<size_t>(K) * TAPS : 1];

// Weight (k, c, r, s), c counted within the group.
__device__ inline acc_t weight(const Conv &conv, int k, int c, int r, int s) {
    if constexpr (CONSTANT_WEIGHTS) return weights[((k * C_GROUP + c) * R + r) * S + s];
    return conv.w[static_cast<index_t>(k) * TAPS + (c * R + r) * S + s];
}
