// Matrix products of a warpgroup, four warps, on Hopper's tensor cores (sm_90a): 64 x 16 by 16 x N, both in shared
// memory, added to 64 x N floats in registers; of bytes 64 x 32 by 32 x N, integers with int sums. The products are
// asynchronous; the warpgroup issues them and waits.
//
// k_major_matrix<128>(place, pitch); descriptor of a K-major matrix in shared memory: rows of 128 (64, 32) bytes, 64
//                                    16-bit numbers, whose 16-byte pieces are swizzled as by a map with a swizzle of as
//                                    many bytes; `pitch` bytes from 8 rows to the next 8. + 2: the next 16 numbers
// mn_major_matrix(place, pitch);     the same for an MN-major matrix: rows of 128 bytes along M or N, in order along K;
//                                    `pitch` bytes from 64 numbers of M or N to the next 64. + 128: the
//                                    next 16 of K
// wgmma_fence();                     before the first product after registers of sums were accessed
// wgmma(sums, a, b, adds);           sums = a b, or sums + a b if it `adds`
// wgmma_commit();                    the products since the last commit become one group
// wgmma_wait<1>();                   waits for all groups but the last one
//
// With lane = 4 * g + t of warp w, sums[4 j + e] is row 16 w + g + 8 (e / 2), column 8 j + 2 t + e % 2.
//
// The host writes the parts that depend on N and on the type (wgmma_lines): WGMMA, the instruction up to its sums;
// SUM_NAMES and SUMS_OF, its N / 2 sums; A_NAME, B_NAME and ADDS_NAME, the operands after them; SIGNS, that floats are
// not negated; MAJORS, which of A and B are MN-major.
#pragma once
#include "memory.cuh"
#include "types.cuh"

constexpr int SUMS = cfg::BLOCK_N / 2;  // sums of a thread, of 64 rows

template <int ROW = 128>
__device__ inline unsigned long long k_major_matrix(const void *place, int pitch) {
    static_assert(ROW == 128 || ROW == 64 || ROW == 32, "as a swizzle is");
    constexpr unsigned long long SWIZZLE = (ROW == 128 ? 1ull : ROW == 64 ? 2ull : 3ull) << 62;
    constexpr unsigned long long LEADING = 1ull << 16;  // not used for K-major rows
    const unsigned long long at = shared_address(place) >> 4 & 0x3fff;
    return at | LEADING | static_cast<unsigned long long>(pitch >> 4) << 32 | SWIZZLE;
}
// PTX ISA, wgmma, strides: with a swizzle of 128 bytes an MN-major atom is 64 numbers of M or N by 8 of K, 1024 bytes.
// The leading offset leads to the next atom along M or N, the stride offset to the next one along K.
__device__ inline unsigned long long mn_major_matrix(const void *place, int pitch) {
    constexpr unsigned long long SWIZZLE_128 = 1ull << 62, STRIDE = 1024ull >> 4 << 32;
    const unsigned long long at = shared_address(place) >> 4 & 0x3fff;
    return at | static_cast<unsigned long long>(pitch >> 4) << 16 | STRIDE | SWIZZLE_128;
}

// Moves registers from warpgroups that only issue copies to those that hold sums. The number is a multiple of 8.
template <int COUNT> __device__ void setmaxnreg_dec();
template <int COUNT> __device__ void setmaxnreg_inc();

// Rounds two numbers to 16 bits, the first in the low half.
template <class T> __device__ unsigned narrow_pair(float first, float second);

// Writes four matrices of 8 x 8 16-bit numbers to shared memory, from fragments in the layout of sums. Lane l gives the
// address of row l % 8 of matrix l / 8. TRANSPOSED: of column l % 8.
template <bool TRANSPOSED> __device__ void stmatrix(void *place, const unsigned (&v)[4]);

#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
template <class T>
__device__ inline void wgmma(T (&sums)[SUMS], unsigned long long a, unsigned long long b, bool adds) {
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " ADDS_NAME ", 0;\n" WGMMA " {" SUM_NAMES "}, "
                 A_NAME ", " B_NAME ", adds" SIGNS MAJORS ";\n}"
                 : SUMS_OF(sums)
                 : "l"(a), "l"(b), "r"(static_cast<int>(adds)));
}
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
template <int COUNT>
__device__ inline void setmaxnreg_dec() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT>
__device__ inline void setmaxnreg_inc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <>
__device__ inline unsigned narrow_pair<half_t>(float first, float second) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}
template <>
__device__ inline unsigned narrow_pair<bfloat16_t>(float first, float second) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}
template <bool TRANSPOSED>
__device__ inline void stmatrix(void *place, const unsigned (&v)[4]) {
    const unsigned at = shared_address(place);
    if constexpr (TRANSPOSED)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v[0]),
                     "r"(v[1]), "r"(v[2]), "r"(v[3])
                     : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v[0]), "r"(v[1]),
                     "r"(v[2]), "r"(v[3])
                     : "memory");
}

#else  // the emulator: products are computed when a thread waits for them

#define AT int line = __builtin_LINE(), const char *file = __builtin_FILE()

inline void wgmma_fence() {}
template <class T>
inline void wgmma(T (&sums)[SUMS], unsigned long long a, unsigned long long b, bool adds, AT) {
    emulator::here()->services->multiply({"wgmma", file, line}, WGMMA, MAJORS, sums, SUMS, a, b, adds);
}
inline void wgmma_commit() { emulator::here()->services->commit_products(); }
template <int PENDING>
inline void wgmma_wait(AT) {
    emulator::here()->services->await_products({"wgmma_wait", file, line}, PENDING);
}
template <int COUNT>
inline void setmaxnreg_dec() {}
template <int COUNT>
inline void setmaxnreg_inc() {}
template <>
inline unsigned narrow_pair<half_t>(float first, float second) {
    return narrow_half(first).bits | static_cast<unsigned>(narrow_half(second).bits) << 16;
}
template <>
inline unsigned narrow_pair<bfloat16_t>(float first, float second) {
    return narrow_bfloat16(first).bits | static_cast<unsigned>(narrow_bfloat16(second).bits) << 16;
}
template <bool TRANSPOSED>
inline void stmatrix(void *place, const unsigned (&v)[4]) {
    const int row = emulator::here()->lane / 4, column = emulator::here()->lane % 4 * 2;
    for (int i = 0; i < 4; i++) {
        if (TRANSPOSED) {
            for (int j = 0; j < 2; j++) {
                void *const to = __shfl_sync(0xffffffffu, place, 8 * i + column + j);
                static_cast<unsigned short *>(to)[row] = static_cast<unsigned short>(v[i] >> 16 * j);
            }
        } else {
            void *const to = __shfl_sync(0xffffffffu, place, 8 * i + row);
            static_cast<unsigned *>(to)[column / 2] = v[i];
        }
    }
    __syncwarp();
}

#undef AT

#endif

// Barrier of one warpgroup.
__device__ inline void warpgroup_sync(int warpgroup) { named_barrier<128>(1 + warpgroup); }
