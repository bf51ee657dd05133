// A float as two numbers of 16 bits, so that the tensor cores multiply floats: x * up = high + low / 2048. `up` is a
// power of two that brings the largest of the numbers that share it to 2^14 or more, below 2^15. Three products of such
// halves, high * high and high * low + low * high, are what a product of floats is to 2^-22; low * low is below that.
//
// Tensor cores cut sums off instead of rounding them. So they take few at a time, and floats add those up:
// sum = fma(of high * high, down, sum), and fma(of the two others, down / 2048, sum).
//
// scale_of(largest, shift);        `up`, and `down` = 1 / up / 2^shift. Pixels have a shift of SHIFT and filters of
//                                  -SHIFT, so that their sums are scaled by little
// split_pair(a, b, high, low);     two numbers already multiplied by `up`, the first in the low bits
// cannot_split(largest);           it is Inf or NaN, or so large or small that sums of scaled numbers leave the floats'
//                                  range
// IN_FULL                          a number multiplied by `up` and not smaller than this keeps 22 bits; what is smaller
//                                  keeps fewer, down to 2^-50 of the largest
//
// Source: H. Ootomo and R. Yokota, Recovering single precision accuracy from Tensor Cores while surpassing the FP32
// theoretical peak performance, 2022.
#pragma once
#include "types.cuh"

constexpr float LOW = 2048, IN_FULL = 0.000244140625f;  // 2^11, 2^-12
constexpr int TOP = 14, SHIFT = TOP / 2;  // the largest number's exponent
constexpr int REACH = 100;                // exponents, up or down, of the largest numbers that are split
// 2^-REACH. Multiplied by the scale of this, every smaller number, denormals too, is two halves without a bit lost.
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
__device__ inline float largest_of(float a, float b) {  // of magnitudes; NaN, where one is
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
