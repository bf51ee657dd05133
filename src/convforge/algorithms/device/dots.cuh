// Four products of bytes and their sum in one instruction: a column of four pixels, times four taps of a column of the
// filter. Pixels lie in rows, so four rows of four pixels are turned into four columns first.
//
// Words     rows of pixels are taken four at a time, a word from row BASE * i on. Filters of up to three rows have all
//           rows of a window in one word: words begin BASE = 5 - R rows apart, so that some word holds the window
//           whole. Larger filters take word after word, four rows apart.
// Taps      a column of R taps against a word that begins `d` rows below the window's first, d = FIRST and on: taps d to
//           d + 3, zeros where the filter has none.
#pragma once
#include "types.cuh"
#include "vector.cuh"

constexpr int BASE = R < 4 ? 5 - R : 4, FIRST = 1 - BASE, TURNS = (R < 4 ? 1 : R) - FIRST;

// The sum of four products: of bytes of `pixels`, each an X, and of `taps`, each a W.
template <class X, class W>
__device__ inline int dot(unsigned pixels, unsigned taps, int sum) {
    [[maybe_unused]] constexpr bool SIGNED_X = limits<X>::low < 0, SIGNED_W = limits<W>::low < 0;
#ifdef __CUDA_ARCH__
    int next;
    if constexpr (SIGNED_X && SIGNED_W)
        asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(next) : "r"(pixels), "r"(taps), "r"(sum));
    else if constexpr (SIGNED_X)
        asm("dp4a.s32.u32 %0, %1, %2, %3;" : "=r"(next) : "r"(pixels), "r"(taps), "r"(sum));
    else if constexpr (SIGNED_W)
        asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(next) : "r"(pixels), "r"(taps), "r"(sum));
    else
        asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(next) : "r"(pixels), "r"(taps), "r"(sum));
    return next;
#else
    for (int i = 0; i < 32; i += 8)
        sum += static_cast<int>(static_cast<X>(pixels >> i)) * static_cast<int>(static_cast<W>(taps >> i));
    return sum;
#endif
}

// Sums as bytes, saturated: two at a time.
template <class T, int COUNT>
__device__ inline Vector<T, COUNT> saturated(const int (&sums)[COUNT]) {
    Vector<T, COUNT> bytes;
#pragma unroll
    for (int e = 0; e < COUNT; e += 4) {
#ifdef __CUDA_ARCH__
        unsigned high, all;
        if constexpr (limits<T>::low < 0) {
            asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(high) : "r"(sums[e + 3]), "r"(sums[e + 2]));
            asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(all) : "r"(sums[e + 1]), "r"(sums[e]), "r"(high));
        } else {
            asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, 0;" : "=r"(high) : "r"(sums[e + 3]), "r"(sums[e + 2]));
            asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(all) : "r"(sums[e + 1]), "r"(sums[e]), "r"(high));
        }
        for (int i = 0; i < 4; i++) bytes.at[e + i] = static_cast<T>(all >> 8 * i);
#else
        for (int i = 0; i < 4; i++) bytes.at[e + i] = stored<T>::of(sums[e + i]);
#endif
    }
    return bytes;
}

// Four words, rows of four pixels, as four columns: byte i of columns[j] is byte j of rows[i].
__device__ inline void turn(unsigned (&columns)[4], unsigned first, unsigned second, unsigned third, unsigned fourth) {
    const unsigned low = __byte_perm(first, second, 0x5140), high = __byte_perm(first, second, 0x7362);
    const unsigned low2 = __byte_perm(third, fourth, 0x5140), high2 = __byte_perm(third, fourth, 0x7362);
    columns[0] = __byte_perm(low, low2, 0x5410), columns[1] = __byte_perm(low, low2, 0x7632);
    columns[2] = __byte_perm(high, high2, 0x5410), columns[3] = __byte_perm(high, high2, 0x7632);
}

// Taps d to d + 3 of a column of R taps, `step` apart from `taps` on.
__device__ inline unsigned column_of_taps(const int *taps, int step, int d) {
    unsigned word = 0;
    for (int i = 0; i < 4; i++)
        if (d + i >= 0 && d + i < R) word |= (static_cast<unsigned>(taps[(d + i) * step]) & 255u) << 8 * i;
    return word;
}

// Whether output row p of a tile, whose window begins at row p * STRIDE_H, takes anything from the word at row b.
__device__ constexpr bool takes_word(int p, int b) {
    const int top = p * STRIDE_H, whole = top / BASE * BASE;  // the last word that begins no later than the window
    return b >= whole && b < top + R && (b == whole || R >= 4);
}
