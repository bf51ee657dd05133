// Splits a float into two 16-bit numbers, so that tensor cores can multiply floats: x * up = high + low / 2048. `up` is
// a power of two that scales the largest of the numbers that share it to [2^14, 2^15). Three products of halves, high *
// high, high * low and low * high, approximate the product of floats to 2^-22; low * low is smaller than that.
//
// Tensor cores truncate sums instead of rounding them. So they add few products at a time, and floats add those: sum =
// fma(sum of high * high, down, sum), then sum = fma(sum of the other two, down / 2048, sum).
//
// scale_of(largest, shift);        `up`, and `down` = 1 / up / 2^shift. Pixels have a shift of SHIFT and filters of
//                                  -SHIFT, so that the scale of their sums stays small
// split_pair(a, b, high, low);     splits two numbers already multiplied by `up`, the first in the low bits
// cannot_split(largest);           true for Inf and NaN, and if it is so large or small that sums of scaled numbers
//                                  leave the range of floats
// IN_FULL                          a scaled number of at least this size keeps 22 bits; smaller ones keep less, down to
//                                  2^-50 of the largest
//
// Source: H. Ootomo and R. Yokota, Recovering single precision accuracy from Tensor Cores while surpassing the FP32
// theoretical peak performance, 2022.
#pragma once
#include "types.cuh"

constexpr float LOW = 2048, IN_FULL = 0.000244140625f;  // 2^11, 2^-12
constexpr int TOP = 14, SHIFT = TOP / 2;  // exponent of the largest number after scaling
constexpr int REACH = 100;                // largest exponent, up or down, of numbers that are split
// 2^-REACH. Scaled by its `up`, every smaller number, denormals too, is split exactly.
constexpr float SMALLEST = 7.88860905e-31f;

struct Scale {
    float up, down;
};

__device__ inline Scale scale_of(float largest, int shift) {
    const int exponent = static_cast<int>(bits_of(largest) >> 23 & 255) - 127, up = TOP - exponent;
    if (largest == 0) return {1, 1};
    return {float_of(static_cast<unsigned>(127 + up) << 23), float_of(static_cast<unsigned>(127 - up - shift) << 23)};
}

__device__ inline bool cannot_split(float largest) {
    const int exponent = static_cast<int>(bits_of(largest) >> 23 & 255) - 127;
    return largest != 0 && (exponent > REACH || exponent < -REACH);
}

#ifdef __CUDA_ARCH__
__device__ inline unsigned half_pair(float first, float second) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}
__device__ inline float largest_of(float a, float b) {  // of magnitudes; NaN if one is NaN
    float most;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(fabsf(a)), "f"(fabsf(b)));
    return most;
}
#else
__device__ inline unsigned half_pair(float first, float second) {
    return narrow_half(first).bits | static_cast<unsigned>(narrow_half(second).bits) << 16;
}
__device__ inline float largest_of(float a, float b) {
    return a != a || b != b ? a + b : fmaxf(fabsf(a), fabsf(b));
}
#endif

__device__ inline void split_pair(float first, float second, unsigned &high, unsigned &low) {
    high = half_pair(first, second);
    const float a = widen(half_t{static_cast<unsigned short>(high)});
    const float b = widen(half_t{static_cast<unsigned short>(high >> 16)});
    low = half_pair((first - a) * LOW, (second - b) * LOW);
}
