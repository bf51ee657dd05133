// Results of one byte from sums in integers: multiplied and rounded in double, which is exact, by few instructions.
//
// wide(sum);              an integer as double
// whole_number<WITHIN>(value);
//                         rounds to an integer, ties to even; saturates, and NaN gives 0, unless the value is WITHIN
//                         2^31
// packed<T>(v);           four integers, saturated to bytes of type T, the first in the low byte
// turned_pairs(word);     exchanges halves of words: of lanes 2 i and 2 i + 1, the first gets both low halves, the second
//                         both high halves
// turned_quads(word);     lanes that differ in bits 2 and 3 exchange bytes: lane number b of four gets byte b of all four
#pragma once
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
    const double near = value + ONES;
    const int low = __double2loint(near), beyond = __double2hiint(near) - 0x43380000;
    if (WITHIN || beyond == low >> 31) return low;
    if (near != near) return 0;
    return beyond < 0 ? -2147483647 - 1 : 2147483647;
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
