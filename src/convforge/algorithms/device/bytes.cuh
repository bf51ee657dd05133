// Results of one byte from sums in integers: multiplied and rounded in double, which is exact, by few instructions.
//
// wide(sum);              an integer as double
// whole_number<WITHIN>(value);
//                         rounds to an integer, ties to even; saturates, and NaN gives 0, unless the value is WITHIN
//                         2^31
// rescaling_of(scale, bias);
//                         the factors for `rescaled`, of one filter
// rescaled<T, RELU>(sums, by, exactly);
//                         sums * scale + bias as bytes of type T: in float where double certainly gives the same, else by
//                         exactly(i, sum). GPUs for graphics compute double at 1/64 of the rate
// rescaled_exactly<T, RELU>(sum, scale, bias);
//                         the same for one sum in double; in the low byte
// packed<T>(v);           four integers, saturated to bytes of type T, the first in the low byte
// turned_pairs(word);     exchanges halves of words: of lanes 2 i and 2 i + 1, the first gets both low halves, the second
//                         both high halves
// turned_quads(word);     lanes that differ in bits 2 and 3 exchange bytes: lane number b of four gets byte b of all four
#pragma once
#include "memory.cuh"
#include "types.cuh"

#ifdef __CUDA_ARCH__
// 2^52 + 2^31 + sum has the bits of the sum, with its sign bit flipped, as its last ones.
__device__ inline double wide(int sum) {
    return __hiloint2double(0x43300000, sum ^ static_cast<int>(0x80000000u)) - 4503601774854144.0;
}
// Near 3 * 2^51 the last bit of a double is one, so the sum rounds, and its last 32 bits are the number.
template <bool WITHIN>
__device__ inline int whole_number(double value) {
    constexpr double ONES = 6755399441055744.0;
    if (WITHIN) return __double2loint(value + ONES);
    return value != value ? 0 : __double2int_rn(value);
}
template <class T>
__device__ inline unsigned packed(const int (&v)[4]) {
    unsigned word;
    if constexpr (limits<T>::low < 0)
        asm("{\n.reg .b32 high;\ncvt.pack.sat.s8.s32.b32 high, %4, %3, 0;\ncvt.pack.sat.s8.s32.b32 %0, %2, %1, high;\n}"
            : "=r"(word) : "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]));
    else
        asm("{\n.reg .b32 high;\ncvt.pack.sat.u8.s32.b32 high, %4, %3, 0;\ncvt.pack.sat.u8.s32.b32 %0, %2, %1, high;\n}"
            : "=r"(word) : "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]));
    return word;
}
#else
inline double wide(int sum) { return sum; }
template <bool WITHIN>
inline int whole_number(double value) { return stored<int>::of(value); }
template <class T>
inline unsigned packed(const int (&v)[4]) {
    unsigned word = 0;
    for (int i = 0; i < 4; i++) word |= static_cast<unsigned>(static_cast<unsigned char>(stored<T>::of(v[i]))) << 8 * i;
    return word;
}
#endif

// Factors of a filter. `certain`: a value in float that is no farther from a whole number rounds as the value in double.
struct Rescaling {
    float scale, bias, certain;
};

// Cuts a number off at the 24 bits of a float. Tiny numbers become 0; `is_float` is false for numbers beyond floats, and NaN.
__device__ inline float cut_to_float(double number, bool &is_float) {
    const unsigned high = static_cast<unsigned>(__double2hiint(number)), low = static_cast<unsigned>(__double2loint(number));
    const unsigned exponent = high >> 20 & 2047, sign = high & 0x80000000u;
    is_float = is_float && exponent < 1023 + 128;
    if (exponent <= 1023 - 127) return float_of(sign);
    return float_of(sign | (((high & 0x7fffffffu) - (896u << 20)) << 3 | low >> 29));
}

// With u = 2^-24, the value in float differs from that in double by at most (4 |sum * scale| + 3 |bias|) u and terms of
// higher order: sum and result are rounded, and scale and bias are cut off. Results between -256 and 256 have
// |sum * scale| below 256 + |bias|, and others have a byte's limit. Biases from 2^18 on are left to double.
__device__ inline Rescaling rescaling_of(double scale, double bias) {
    bool floats = true;
    Rescaling by;
    by.scale = cut_to_float(scale, floats), by.bias = cut_to_float(bias, floats);
    const float size = fabsf(by.bias);
    by.certain = floats && size < 262144.0f ? 0.5f - (1200.0f + 8.0f * size) * 5.9604644775390625e-8f : -1.0f;
    return by;
}

// The low byte is the result, if it is certain. Near 3 * 2^22 the last bit of a float is one.
template <class T, bool RELU>
__device__ inline unsigned rescaled_in_float(int sum, const Rescaling &by, bool &certain) {
    constexpr float ONES = 12582912.0f, LOW = RELU ? 0.0f : static_cast<float>(limits<T>::low);
    const float value = fminf(fmaxf(fmaf(static_cast<float>(sum), by.scale, by.bias), LOW), static_cast<float>(limits<T>::high));
    const float near = value + ONES;
    certain = fabsf(value - (near - ONES)) < by.certain;
    return bits_of(near);
}

template <class T, bool RELU>
__device__ inline unsigned rescaled_exactly(int sum, double scale, double bias) {
    const int whole = whole_number<false>(wide(sum) * scale + bias);
    const int low = RELU ? 0 : static_cast<int>(limits<T>::low);
    return static_cast<unsigned>(min(max(whole, low), static_cast<int>(limits<T>::high)));
}

// by(i) returns the factors of number i.
template <class T, bool RELU, int COUNT, class By, class Exactly>
__device__ __forceinline__ Vector<T, COUNT> rescaled(const int (&sums)[COUNT], const By &by, const Exactly &exactly) {
    unsigned bytes[COUNT], left = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        bool certain;
        bytes[i] = rescaled_in_float<T, RELU>(sums[i], by(i), certain);
        left |= (certain ? 0u : 1u) << i;
    }
#pragma unroll 1
    while (left != 0) {  // seldom
        const int which = __ffs(static_cast<int>(left)) - 1;
        left &= left - 1;
        int sum = sums[0];
#pragma unroll
        for (int i = 1; i < COUNT; i++) sum = i == which ? sums[i] : sum;
        const unsigned exact = exactly(which, sum);
#pragma unroll
        for (int i = 0; i < COUNT; i++) bytes[i] = i == which ? exact : bytes[i];
    }
    Vector<T, COUNT> result;
#pragma unroll
    for (int i = 0; i < COUNT; i++) result.at[i] = static_cast<T>(bytes[i]);
    return result;
}

__device__ inline unsigned turned_pairs(unsigned word) {
    const unsigned other = __shfl_xor_sync(0xffffffffu, word, 1);
    return __byte_perm(word, other, threadIdx.x % 2 ? 0x3276 : 0x5410);
}

__device__ inline unsigned turned_quads(unsigned word) {
    const unsigned first = __shfl_xor_sync(0xffffffffu, word, 4);
    word = __byte_perm(word, first, threadIdx.x / 4 % 2 ? 0x3715 : 0x6240);
    const unsigned second = __shfl_xor_sync(0xffffffffu, word, 8);
    return __byte_perm(word, second, threadIdx.x / 8 % 2 ? 0x3276 : 0x5410);
}
