// Products of small numbers: dp4a, which adds four products of bytes in one instruction, and matrix products of a warp
// on tensor cores (from sm_80 on): 16 x 32 by 32 x 8 bytes, added to 16 x 8 sums.
//
// mma_bytes<A, B>(next, a, b, sums);
//                                  A and B are signed or unsigned char; sums are exact, and wrap around
// mma_fp8<A, B>(sums, a, b);       A and B are e4m3_t or e5m2_t (from sm_89 on); the units keep few bits of a sum
// add_bytes<A, B>(sums, a, b);     either product, added to its sums
//
// Fragments of lane = 4 * g + t (PTX ISA, mma.m16n8k32):
//   a[0], a[1]    row g and row g + 8 of the first matrix, columns 4 t to 4 t + 3, a byte each
//   a[2], a[3]    the same rows, columns 16 + 4 t and on
//   b[0], b[1]    column g of the second matrix, rows 4 t to 4 t + 3, and 16 + 4 t and on
//   sums[0], [1]  row g, columns 2 t and 2 t + 1;  sums[2], [3] of row g + 8
//
// mma_halves<T>(sums, a, b);       T is half_t or bfloat16_t: 16 x 16 by 16 x 8, floats as sums (mma.m16n8k16)
//   a[0], a[1]    row g and row g + 8 of the first matrix, columns 2 t and 2 t + 1;  a[2], a[3] columns 8 + 2 t and on
//   b[0], b[1]    column g of the second matrix, rows 2 t and 2 t + 1, and 8 + 2 t and on
//
// ldmatrix<TRANSPOSED>(words, row);     loads four matrices of 8 x 8 numbers: lane i gives the address of row i % 8 of
//                                       matrix i / 8, 16 bytes. With lane = 4 * g + t, words[j] are the numbers 2 t and
//                                       2 t + 1 of row g of matrix j; TRANSPOSED, of its column g. A pair of 16-bit
//                                       numbers may be a float or four bytes; these are never transposed and must be
//                                       K-major
//
// dp4a<X, W>(pixels, taps, sum);   pixels must be in columns, so four rows of four are transposed first,
// transpose_bytes(columns, ...);   by this
#pragma once
#include "memory.cuh"
#include "types.cuh"

constexpr int MMA_ROWS = 16, MMA_COLUMNS = 8, MMA_BYTES = 32, MMA_HALVES = 16;

template <class T> constexpr bool IS_E4M3 = false;
template <> constexpr bool IS_E4M3<e4m3_t> = true;

#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)

#define MULTIPLY_BYTES(types)                                                             \
    asm("mma.sync.aligned.m16n8k32.row.col.s32." types ".s32 "                            \
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"             \
        : "=r"(next[0]), "=r"(next[1]), "=r"(next[2]), "=r"(next[3])                      \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(sums[0]), \
          "r"(sums[1]), "r"(sums[2]), "r"(sums[3]))

// `next` may be `sums` or other numbers, so sums need not stay in their registers.
template <class A, class B>
__device__ inline void mma_bytes(int (&next)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                      const int (&sums)[4]) {
    constexpr bool SIGNED_A = limits<A>::low < 0, SIGNED_B = limits<B>::low < 0;
    if constexpr (SIGNED_A && SIGNED_B) MULTIPLY_BYTES("s8.s8");
    else if constexpr (SIGNED_A) MULTIPLY_BYTES("s8.u8");
    else if constexpr (SIGNED_B) MULTIPLY_BYTES("u8.s8");
    else MULTIPLY_BYTES("u8.u8");
}

#undef MULTIPLY_BYTES

#define MULTIPLY_FP8(types)                                                               \
    asm("mma.sync.aligned.m16n8k32.row.col.f32." types ".f32 "                            \
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                 \
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                      \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

template <class A, class B>
__device__ inline void mma_fp8(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    if constexpr (IS_E4M3<A> && IS_E4M3<B>) MULTIPLY_FP8("e4m3.e4m3");
    else if constexpr (IS_E4M3<A>) MULTIPLY_FP8("e4m3.e5m2");
    else if constexpr (IS_E4M3<B>) MULTIPLY_FP8("e5m2.e4m3");
    else MULTIPLY_FP8("e5m2.e5m2");
}

#undef MULTIPLY_FP8

template <class T> __device__ void mma_halves(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]);

#define MULTIPLY_HALVES(type, name)                                                                                  \
    template <>                                                                                                      \
    __device__ inline void mma_halves<type>(float(&sums)[4], const unsigned(&a)[4], const unsigned(&b)[2]) {    \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 "                                           \
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                        \
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                             \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                     \
    }

MULTIPLY_HALVES(half_t, "f16")
MULTIPLY_HALVES(bfloat16_t, "bf16")

#undef MULTIPLY_HALVES

template <bool TRANSPOSED>
__device__ inline void ldmatrix(unsigned (&words)[4], const void *row) {
    const unsigned at = shared_address(row);
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(at));
}

#else  // the emulator

#define AT int line = __builtin_LINE(), const char *file = __builtin_FILE()

template <class A, class B>
inline void mma_bytes(int (&next)[4], const unsigned (&a)[4], const unsigned (&b)[2], const int (&sums)[4], AT) {
    constexpr bool SIGNED_A = limits<A>::low < 0, SIGNED_B = limits<B>::low < 0;
    const char *types = SIGNED_A ? SIGNED_B ? "s8.s8" : "s8.u8" : SIGNED_B ? "u8.s8" : "u8.u8";
    int found[4] = {sums[0], sums[1], sums[2], sums[3]};
    emulator::here()->services->multiply_fragments({"mma_bytes", file, line}, types, found, a, b);
    for (int i = 0; i < 4; i++) next[i] = found[i];
}

template <class A, class B>
inline void mma_fp8(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2], AT) {
    const char *types = IS_E4M3<A> ? IS_E4M3<B> ? "e4m3.e4m3" : "e4m3.e5m2" : IS_E4M3<B> ? "e5m2.e4m3" : "e5m2.e5m2";
    emulator::here()->services->multiply_fragments({"mma_fp8", file, line}, types, sums, a, b);
}

inline const char *type_name(half_t) { return "f16"; }
inline const char *type_name(bfloat16_t) { return "bf16"; }

template <class T>
inline void mma_halves(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2], AT) {
    emulator::here()->services->multiply_fragments({"mma_halves", file, line}, type_name(T{}), sums, a, b);
}

template <bool TRANSPOSED>
inline void ldmatrix(unsigned (&words)[4], const void *row, AT) {
    emulator::here()->services->load_fragments({"ldmatrix", file, line}, words, row, TRANSPOSED);
}

#undef AT

#endif

template <class A, class B>
__device__ __forceinline__ void add_bytes(int (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    mma_bytes<A, B>(sums, a, b, sums);
}
template <class A, class B>
__device__ __forceinline__ void add_bytes(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    mma_fp8<A, B>(sums, a, b);
}

// Order of columns in which the sums of a lane in four products are eight neighbours, so that it stores eight results of
// one or two bytes as one vector. Lane 4 * g + t has columns 2 t and 2 t + 1 of each product of 8 columns, so line 8 j + 2 t + e
// of 32 gets column 8 t + 2 j + e.
//
// column_at<EIGHTS>(line);     the column at a line of B's tile; without EIGHTS, the line itself
// lane_column<EIGHTS>(j, t);   the first of the two columns of a lane in product j
constexpr int EIGHT = 8;  // results in at most 16 bytes

// From a line below a power of 2 to that line plus a multiple of the power, columns change as from line 0.
template <bool EIGHTS>
__device__ constexpr int column_at(int line) {
    return EIGHTS ? line / 32 * 32 + line / 2 % 4 * 8 + line / 8 % 4 * 2 + line % 2 : line;
}

template <bool EIGHTS>
__device__ constexpr int lane_column(int j, int t) {
    return EIGHTS ? j / 4 * 32 + 8 * t + j % 4 * 2 : 8 * j + 2 * t;
}

// Adds four products to a sum: of the bytes of `pixels`, each an X, and of `taps`, each a W.
template <class X, class W>
__device__ inline int dp4a(unsigned pixels, unsigned taps, int sum) {
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

// Converts sums to saturated bytes, two at a time.
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

// Transposes four words, rows of four pixels: byte i of columns[j] is byte j of rows[i].
__device__ inline void transpose_bytes(unsigned (&columns)[4], unsigned first, unsigned second, unsigned third, unsigned fourth) {
    const unsigned low = __byte_perm(first, second, 0x5140), high = __byte_perm(first, second, 0x7362);
    const unsigned low2 = __byte_perm(third, fourth, 0x5140), high2 = __byte_perm(third, fourth, 0x7362);
    columns[0] = __byte_perm(low, low2, 0x5410), columns[1] = __byte_perm(low, low2, 0x7632);
    columns[2] = __byte_perm(high, high2, 0x5410), columns[3] = __byte_perm(high, high2, 0x7632);
}

// How dp4a combines a column of R taps with the words of a column of pixels.
// Words     rows of pixels are taken four at a time, a word from row BASE * i on. For filters of up to three rows,
//           words begin BASE = 5 - R rows apart, so that some word holds the whole window. For larger filters, words
//           are four rows apart.
// Taps      for a word that begins `d` rows below the window's first row, d = FIRST and on: taps d to d + 3, with zeros
//           where the filter has none. There are PLACES such words.
template <int R, int STRIDE>
struct TapWords {
    static constexpr int BASE = R < 4 ? 5 - R : 4, FIRST = 1 - BASE, PLACES = (R < 4 ? 1 : R) - FIRST;

    // Taps d to d + 3 of a column of R taps, which are `step` apart.
    __device__ static unsigned column(const int *taps, int step, int d) {
        unsigned word = 0;
        for (int i = 0; i < 4; i++)
            if (d + i >= 0 && d + i < R) word |= (static_cast<unsigned>(taps[(d + i) * step]) & 255u) << 8 * i;
        return word;
    }

    // True if output row p of a tile, whose window begins at row p * STRIDE, uses the word at row b.
    __device__ static constexpr bool takes(int p, int b) {
        const int top = p * STRIDE, whole = top / BASE * BASE;  // the last word that begins at or before the window
        return b >= whole && b < top + R && (b == whole || R >= 4);
    }
};
