// Bytes from sums in float, by six instructions each, where that certainly gives the result of double.
//
// float certain = factors.set(filter, exact);   the factors of a filter, from its scale and bias; `exact`: sums are below
//                                               2^24. `certain` is what a result needs
// factors.result(sum, certain, sure);           the result in the low byte. `sure` becomes false if it may not be that of
//                                               rescaled_exactly (bytes.cuh)
#pragma once
#include "rescaled.cuh"

// The type of results that are computed in float.
template <bool RESCALES, class T> struct ByteOf { using type = signed char; };
template <class T> struct ByteOf<true, T> { using type = T; };
using Byte = ByteOf<RESCALED<out_t>, out_t>::type;

// Results between LEAST and LEAST + SPREAD: bytes, cut off by a relu.
constexpr float LEAST = cfg::ACTIVATION == RELU ? 0.0f : static_cast<float>(limits<Byte>::low);
constexpr float SPREAD = static_cast<float>(limits<Byte>::high) - LEAST;
constexpr float MOST = (LEAST < 0 ? -LEAST : SPREAD) + 2.0f;  // above the sizes of results before they are rounded
constexpr float ONES = 12582912.0f;  // 3 * 2^22: nearby, the last bit of a float is one

// Factors of a filter for results as a share of SPREAD, between 0 and 1: there one instruction saturates.
// With u = 2^-24, the value in float differs from that in double by at most (SPREAD + 2 MOST + 2 |bias|) u. Within the
// range results are below MOST, so the scale's rounding makes (MOST + |bias|) u, the bias's (|bias| + MOST) u, and the
// share's SPREAD u / 2; the rest is for the distance. Sums that are not exact in float are rounded too. Biases from 2^18
// on are left to double.
struct Factors {
    float scale, bias;

    // Returns the distance from a whole number below which a value certainly rounds as the value in double.
    __device__ float set(const MultiplyAdd &filter, bool exact) {
        scale = static_cast<float>(filter.scale * (1.0 / SPREAD));
        bias = static_cast<float>((filter.bias - LEAST) * (1.0 / SPREAD));
        const float size = fabsf(static_cast<float>(filter.bias));
        const bool floats = fabsf(scale) < 1e30f && size < 262144.0f;
        const float units = SPREAD + 2 * MOST + 2 * size + (exact ? 0.0f : MOST + size);
        return floats ? 0.5f - units * 5.9604644775390625e-8f : -1.0f;
    }

    __device__ unsigned result(float sum, float certain, bool &sure) const {
        const float share = __saturatef(fmaf(sum, scale, bias)), near = fmaf(share, SPREAD, ONES + LEAST);
        sure = sure & (fabsf(fmaf(share, SPREAD, (ONES + LEAST) - near)) < certain);
        return bits_of(near);
    }
};
