// Element types and conversions. x_t, w_t, out_t, math_t, acc_t and epilogue_t come from the prelude that the host
// writes (ElementTypes): the types of storage, factors, sums, and of the epilogue's arithmetic.
#pragma once

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
#undef __grid_constant__
#define __grid_constant__  // such GPUs have no other kind of argument
#endif

// float16 and bfloat16 in memory. Arithmetic is in float, so that no CUDA header is needed.
struct half_t {
    unsigned short bits;
};
struct bfloat16_t {
    unsigned short bits;
};
// 8-bit floats (OCP FP8): e4m3 has no infinity, and NaN is 0x7f; e5m2 is the upper byte of a float16.
struct e4m3_t {
    unsigned char bits;
};
struct e5m2_t {
    unsigned char bits;
};

#ifdef __CUDA_ARCH__
__device__ inline float widen(half_t value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
}
__device__ inline half_t narrow_half(float value) {
    half_t narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(value));
    return narrow;
}
__device__ inline unsigned bits_of(float value) { return __float_as_uint(value); }
__device__ inline float float_of(unsigned bits) { return __uint_as_float(bits); }
#else  // the emulator: by integers, because C++ compilers before GCC 12 and 13 have no 16-bit floats
__device__ inline unsigned bits_of(float value) {
    unsigned bits;
    __builtin_memcpy(&bits, &value, 4);
    return bits;
}
__device__ inline float float_of(unsigned bits) {
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}
__device__ inline float widen(half_t value) {
    const unsigned sign = (value.bits & 0x8000u) << 16, exponent = value.bits >> 10 & 31, fraction = value.bits & 1023;
    if (exponent == 31) return float_of(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) return float_of(sign | bits_of(fraction * 5.9604644775390625e-8f));  // multiples of 2^-24
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}
__device__ inline half_t narrow_half(float value) {
    unsigned bits = bits_of(value);
    const unsigned sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return {static_cast<unsigned short>(sign | 0x7e00u | (bits >> 13 & 1023))};  // NaN
    if (bits >= 0x47800000u) return {static_cast<unsigned short>(sign | 0x7c00u)};  // 65536 and beyond: infinity
    if (bits < 0x38800000u)  // multiples of 2^-24; 1024 of them are the least normal number
        return {static_cast<unsigned short>(sign | static_cast<unsigned>(rintf(float_of(bits) * 16777216.0f)))};
    bits -= 112u << 23;
    // A carry into the exponent gives the correct result.
    return {static_cast<unsigned short>(sign | (bits + 0xfffu + (bits >> 13 & 1u)) >> 13)};
}
#endif

__device__ inline float widen(bfloat16_t value) { return float_of(static_cast<unsigned>(value.bits) << 16); }
__device__ inline bfloat16_t narrow_bfloat16(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    bfloat16_t narrow;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(value));
    return narrow;
#else  // older GPUs have no such instruction; nor has the emulator
    unsigned bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<unsigned short>((bits >> 16) | 0x40)};  // NaN stays NaN
    return {static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};  // ties to even
#endif
}
// As bits of a float16, e4m3 is 2^-8 of its value.
__device__ inline float widen(e4m3_t value) {
    const unsigned size = value.bits & 127u, sign = (value.bits & 128u) << 24;
    const float wide = widen(half_t{static_cast<unsigned short>(size << 7)}) * 256.0f;
    return float_of(sign | (size == 127 ? 0x7fc00000u : bits_of(wide)));
}
__device__ inline float widen(e5m2_t value) { return widen(half_t{static_cast<unsigned short>(value.bits << 8)}); }
template <class T>
__device__ inline T widen(T value) { return value; }

// Rounds to an 8-bit float with FRACTION bits behind its first, whose normal numbers begin at 2^LEAST_EXPONENT: ties to
// even. Numbers beyond `largest` become it; NaN stays NaN.
template <int FRACTION, int LEAST_EXPONENT>
__device__ inline unsigned char narrow_byte(float value, float largest) {
    const unsigned bits = bits_of(value), sign = bits >> 24 & 128u;
    float size = float_of(bits & 0x7fffffffu);
    if (size != size) return 127;
    size = size < largest ? size : largest;
    constexpr int BIAS = 1 - LEAST_EXPONENT, DROPPED = 23 - FRACTION;
    const float unit = float_of(static_cast<unsigned>(127 + LEAST_EXPONENT - FRACTION) << 23);  // least positive number
    if (size < unit * (1 << FRACTION)) return static_cast<unsigned char>(sign | static_cast<unsigned>(rintf(size / unit)));
    const unsigned own = bits_of(size) - (static_cast<unsigned>(127 - BIAS) << 23);
    // A carry into the exponent gives the correct result.
    return static_cast<unsigned char>(sign | (own + (1u << (DROPPED - 1)) - 1 + (own >> DROPPED & 1u)) >> DROPPED);
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
__device__ inline e4m3_t narrow_e4m3(float value) {
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    return {static_cast<unsigned char>(pair)};
}
__device__ inline e5m2_t narrow_e5m2(float value) {
    unsigned short pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    return {static_cast<unsigned char>(pair)};
}
#else
__device__ inline e4m3_t narrow_e4m3(float value) { return {narrow_byte<3, -6>(value, 448.0f)}; }
__device__ inline e5m2_t narrow_e5m2(float value) { return {narrow_byte<2, -14>(value, 57344.0f)}; }
#endif

// Prepares a float64 number for rounding to 16 bits: rounds it to float to odd, which sets the last bit if anything was
// lost. A value beside a tie of the 16-bit type stays beside it, so it is not rounded twice (Boldo and Melquiond,
// Emulation of a FMA and correctly rounded sums, 2008).
__device__ inline float odd_float(float value) { return value; }
__device__ inline float odd_float(double value) {
    const float nearest = static_cast<float>(value);
    const bool above = fabs(static_cast<double>(nearest)) > fabs(value);
    const bool below = fabs(static_cast<double>(nearest)) < fabs(value);
    return above || below ? float_of((bits_of(nearest) - above) | 1u) : nearest;
}
__device__ inline float odd_float(int value) { return odd_float(static_cast<double>(value)); }

// Converts a stored number to the type of sums.
template <class To, class From>
__device__ inline To as(From value) { return static_cast<To>(widen(value)); }

// Limits of the integer types of outputs.
template <class T> struct limits;
template <> struct limits<unsigned char> { static constexpr double low = 0, high = 255; };
template <> struct limits<signed char> { static constexpr double low = -128, high = 127; };
template <> struct limits<unsigned short> { static constexpr double low = 0, high = 65535; };
template <> struct limits<short> { static constexpr double low = -32768, high = 32767; };
template <> struct limits<int> { static constexpr double low = -2147483648.0, high = 2147483647.0; };

// Conversion for storing: rounds to nearest, ties to even. Integers saturate, and NaN becomes 0.
template <class T> struct stored {
    // Small integers need no conversion instruction. Near 3 * 2^22 the last bit of a float is one, so the sum rounds,
    // and its last 16 bits are the number.
    static __device__ T of(float value) {
        if constexpr (sizeof(T) > 2) return of(static_cast<double>(value));
        if (limits<T>::low < 0 && value != value) return 0;
        const float low = static_cast<float>(limits<T>::low), high = static_cast<float>(limits<T>::high);
        return static_cast<T>(bits_of(fminf(fmaxf(value, low), high) + 12582912.0f));  // fmaxf(NaN, low) is low
    }
    template <class V>
    static __device__ T of(V value) {
        if (value != value) return 0;
        double whole = rint(static_cast<double>(value));
        whole = whole < limits<T>::low ? limits<T>::low : whole;
        return static_cast<T>(whole > limits<T>::high ? limits<T>::high : whole);
    }
    static __device__ T of(int value) {
        int low = static_cast<int>(limits<T>::low), high = static_cast<int>(limits<T>::high);
        value = value < low ? low : value;
        return static_cast<T>(value > high ? high : value);
    }
};
template <> struct stored<float> {
    template <class V>
    static __device__ float of(V value) { return static_cast<float>(value); }
};
template <> struct stored<double> {
    template <class V>
    static __device__ double of(V value) { return static_cast<double>(value); }
};
template <> struct stored<half_t> {
    template <class V>
    static __device__ half_t of(V value) { return narrow_half(odd_float(value)); }
};
template <> struct stored<bfloat16_t> {
    template <class V>
    static __device__ bfloat16_t of(V value) { return narrow_bfloat16(odd_float(value)); }
};
template <> struct stored<e4m3_t> {  // saturates, as FP8 hardware does
    template <class V>
    static __device__ e4m3_t of(V value) { return narrow_e4m3(odd_float(value)); }
};
template <> struct stored<e5m2_t> {
    template <class V>
    static __device__ e5m2_t of(V value) { return narrow_e5m2(odd_float(value)); }
};

// a * b + c, rounded once for floats.
__device__ inline float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double multiply_add(double a, double b, double c) { return fma(a, b, c); }
__device__ inline int multiply_add(int a, int b, int c) { return a * b + c; }
