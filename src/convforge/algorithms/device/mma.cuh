// Products of matrices by a warp, on tensor cores (sm_80 and later): of bytes 16 x 32 by 32 x 8, added to 16 x 8 sums.
//
// multiply_bytes<A, B>(sums, a, b);     A and B are signed or unsigned char
//
// With lane = 4 * g + t, a lane holds, as PTX has it (mma.m16n8k32):
//   a[0], a[1]    row g and row g + 8 of the first matrix, columns 4 t to 4 t + 3, a byte each
//   a[2], a[3]    the same rows, columns 16 + 4 t and on
//   b[0], b[1]    column g of the second matrix, rows 4 t to 4 t + 3, and 16 + 4 t and on
//   sums[0], [1]  row g, columns 2 t and 2 t + 1;  sums[2], [3] of row g + 8
//
// multiply_halves<T>(sums, a, b);       T is half_t or bfloat16_t: 16 x 16 by 16 x 8, floats as sums (mma.m16n8k16)
//   a[0], a[1]    row g and row g + 8 of the first matrix, columns 2 t and 2 t + 1;  a[2], a[3] columns 8 + 2 t and on
//   b[0], b[1]    column g of the second matrix, rows 2 t and 2 t + 1, and 8 + 2 t and on
#pragma once
#include "device.cuh"
#include "types.cuh"

constexpr int MMA_ROWS = 16, MMA_COLUMNS = 8, MMA_BYTES = 32, MMA_HALVES = 16;

#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)

#define MULTIPLY_BYTES(types)                                                             \
    asm("mma.sync.aligned.m16n8k32.row.col.s32." types ".s32 "                            \
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"             \
        : "=r"(next[0]), "=r"(next[1]), "=r"(next[2]), "=r"(next[3])                      \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(sums[0]), \
          "r"(sums[1]), "r"(sums[2]), "r"(sums[3]))

// `next` may be `sums` or other numbers: what was summed so far need not stay where it was.
template <class A, class B>
__device__ inline void multiply_bytes(int (&next)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                      const int (&sums)[4]) {
    constexpr bool SIGNED_A = limits<A>::low < 0, SIGNED_B = limits<B>::low < 0;
    if constexpr (SIGNED_A && SIGNED_B) MULTIPLY_BYTES("s8.s8");
    else if constexpr (SIGNED_A) MULTIPLY_BYTES("s8.u8");
    else if constexpr (SIGNED_B) MULTIPLY_BYTES("u8.s8");
    else MULTIPLY_BYTES("u8.u8");
}

#undef MULTIPLY_BYTES

template <class T> __device__ void multiply_halves(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]);

#define MULTIPLY_HALVES(type, name)                                                                                  \
    template <>                                                                                                      \
    __device__ inline void multiply_halves<type>(float(&sums)[4], const unsigned(&a)[4], const unsigned(&b)[2]) {    \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 "                                           \
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                        \
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                             \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                     \
    }

MULTIPLY_HALVES(half_t, "f16")
MULTIPLY_HALVES(bfloat16_t, "bf16")

#undef MULTIPLY_HALVES

// A place in shared memory, in its register from here on: see settled.cuh.
template <class T>
__device__ inline T *settled_shared(T *place) {
    unsigned at = shared_address(place);
    asm volatile("" : "+r"(at));
    return static_cast<T *>(__cvta_shared_to_generic(at));
}

#else  // the emulator

#define AT int line = __builtin_LINE(), const char *file = __builtin_FILE()

template <class A, class B>
inline void multiply_bytes(int (&next)[4], const unsigned (&a)[4], const unsigned (&b)[2], const int (&sums)[4], AT) {
    constexpr bool SIGNED_A = limits<A>::low < 0, SIGNED_B = limits<B>::low < 0;
    const char *types = SIGNED_A ? SIGNED_B ? "s8.s8" : "s8.u8" : SIGNED_B ? "u8.s8" : "u8.u8";
    int found[4] = {sums[0], sums[1], sums[2], sums[3]};
    emulator::here()->services->multiply_fragments({"multiply_bytes", file, line}, types, found, a, b);
    for (int i = 0; i < 4; i++) next[i] = found[i];
}

inline const char *type_name(half_t) { return "f16"; }
inline const char *type_name(bfloat16_t) { return "bf16"; }

template <class T>
inline void multiply_halves(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2], AT) {
    emulator::here()->services->multiply_fragments({"multiply_halves", file, line}, type_name(T{}), sums, a, b);
}

#undef AT

template <class T>
inline T *settled_shared(T *place) {
    return place;
}

#endif
