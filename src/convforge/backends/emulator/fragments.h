// Matrix products of a warp (mma.sync), and loads of their fragments from shared memory (ldmatrix).
//
// Sums of integers are exact, and wrap around. 8-bit floats are summed as in sum_of_14_bits.
//
// Every lane registers its fragments. The last lane that arrives computes for all of them, so each fragment is read
// once, and a lane waits once for a product.
#pragma once
#include "products.h"

namespace emulator {

// The registration of a lane for an operation of all lanes, and the function that the last one calls.
struct Together {
    void (*work)(Region *r, Site site, const Together *const *lanes);
};

struct Fragments : Together {
    const char *types;
    void *sums;  // four of a lane
    const unsigned *a, *b;
};

struct MatrixRow : Together {
    unsigned *words;
    const unsigned char *row;
    bool transposed;
};

// The numbers of a word of the first and of the second factor.
struct Halves {
    static constexpr unsigned IN_WORD = 2;
    typedef float Sum;
    static float first(unsigned word, unsigned i) { return half_float(static_cast<unsigned short>(word >> 16 * i)); }
    static float second(unsigned word, unsigned i) { return first(word, i); }
};
struct Bfloats {
    static constexpr unsigned IN_WORD = 2;
    typedef float Sum;
    static float first(unsigned word, unsigned i) { return float_of_bits(i ? word & 0xffff0000u : word << 16); }
    static float second(unsigned word, unsigned i) { return first(word, i); }
};
struct Tf32s {
    static constexpr unsigned IN_WORD = 1;
    typedef float Sum;
    static float first(unsigned word, unsigned) { return float_of_bits(word & ~0x1fffu); }
    static float second(unsigned word, unsigned) { return first(word, 0); }
};
template <class A, class B> struct Bytes {
    static constexpr unsigned IN_WORD = 4;
    typedef int Sum;
    static int first(unsigned word, unsigned i) { return static_cast<A>(word >> 8 * i); }
    static int second(unsigned word, unsigned i) { return static_cast<B>(word >> 8 * i); }
};

// A row of the first factor, and a column of the second, are eight words: word w % 2 of lane 4 i + w / 2. The products
// of a word are added to each other, then to the sum. Lane 4 g + t has the sums of row g, columns 2 t and 2 t + 1, and
// those of row g + 8.
template <class Types>
inline void multiply_words(const Together *const *lanes) {
    constexpr unsigned ROWS = 16, COLUMNS = 8, WORDS = 8, IN_WORD = Types::IN_WORD;
    typedef typename Types::Sum Sum;
    const auto lane = [&](unsigned i) { return static_cast<const Fragments *>(lanes[i]); };
    Sum rows[ROWS][WORDS * IN_WORD], columns[WORDS * IN_WORD][COLUMNS];
    for (unsigned w = 0; w < WORDS; w++)
        for (unsigned i = 0; i < IN_WORD; i++) {
            for (unsigned m = 0; m < ROWS; m++)
                rows[m][w * IN_WORD + i] = Types::first(lane(m % 8 * 4 + w / 2)->a[w % 2 * 2 + m / 8], i);
            for (unsigned n = 0; n < COLUMNS; n++)
                columns[w * IN_WORD + i][n] = Types::second(lane(n * 4 + w / 2)->b[w % 2], i);
        }
    for (unsigned m = 0; m < ROWS; m++) {
        Sum sums[COLUMNS];
        const auto place = [&](unsigned n) {
            return static_cast<Sum *>(lane(m % 8 * 4 + n / 2)->sums) + m / 8 * 2 + n % 2;
        };
        for (unsigned n = 0; n < COLUMNS; n++) sums[n] = *place(n);
        for (unsigned k = 0; k < WORDS * IN_WORD; k += IN_WORD)
            for (unsigned n = 0; n < COLUMNS; n++) {
                Sum added = rows[m][k] * columns[k][n];
                for (unsigned i = 1; i < IN_WORD; i++) added += rows[m][k + i] * columns[k + i][n];
                sums[n] += added;
            }
        for (unsigned n = 0; n < COLUMNS; n++) *place(n) = sums[n];
    }
}

// The same for 8-bit floats: the sum and all products, each cut off as in sum_of_14_bits.
inline void multiply_fp8(const Together *const *lanes, Kind first, Kind second) {
    constexpr unsigned ROWS = 16, COLUMNS = 8, DEPTH = 32;
    const auto lane = [&](unsigned i) { return static_cast<const Fragments *>(lanes[i]); };
    const auto number = [](unsigned word, unsigned i, Kind kind) {
        const unsigned char byte = static_cast<unsigned char>(word >> 8 * i);
        return number_of(&byte, kind);
    };
    for (unsigned m = 0; m < ROWS; m++)
        for (unsigned n = 0; n < COLUMNS; n++) {
            float *sum = static_cast<float *>(lane(m % 8 * 4 + n / 2)->sums) + m / 8 * 2 + n % 2;
            double numbers[DEPTH + 1] = {*sum};
            for (unsigned k = 0; k < DEPTH; k++) {
                const unsigned w = k / 4, t = w % 4, half = w / 4;
                numbers[k + 1] = number(lane(m % 8 * 4 + t)->a[half * 2 + m / 8], k % 4, first) *
                                 number(lane(n * 4 + t)->b[half], k % 4, second);
            }
            *sum = sum_of_14_bits(numbers, DEPTH + 1);
        }
}

inline void multiply_all(Region *, Site site, const Together *const *lanes) {
    const char *types = static_cast<const Fragments *>(lanes[0])->types;
    const auto are = [&](const char *name) { return !strcmp(types, name); };
    if (are("f16")) multiply_words<Halves>(lanes);
    else if (are("bf16")) multiply_words<Bfloats>(lanes);
    else if (are("tf32")) multiply_words<Tf32s>(lanes);
    else if (are("s8.s8")) multiply_words<Bytes<signed char, signed char>>(lanes);
    else if (are("s8.u8")) multiply_words<Bytes<signed char, unsigned char>>(lanes);
    else if (are("u8.s8")) multiply_words<Bytes<unsigned char, signed char>>(lanes);
    else if (are("u8.u8")) multiply_words<Bytes<unsigned char, unsigned char>>(lanes);
    else if (are("e4m3.e4m3")) multiply_fp8(lanes, E4M3, E4M3);
    else if (are("e4m3.e5m2")) multiply_fp8(lanes, E4M3, E5M2);
    else if (are("e5m2.e4m3")) multiply_fp8(lanes, E5M2, E4M3);
    else if (are("e5m2.e5m2")) multiply_fp8(lanes, E5M2, E5M2);
    else refuse(site, "the emulator multiplies no such types");
}

// Lane 8 j + i gives the address of row i of matrix j, 16 bytes. Lane 4 g + t gets numbers 2 t and 2 t + 1 of row g of
// each, or of column g if transposed.
inline void load_all(Region *r, Site site, const Together *const *lanes) {
    constexpr unsigned ROW_BYTES = 16;
    const auto lane = [&](unsigned i) { return static_cast<const MatrixRow *>(lanes[i]); };
    for (unsigned i = 0; i < WARP; i++) {
        if (!in_shared(r, lane(i)->row, ROW_BYTES)) refuse(site, "a row does not lie in shared memory");
        if (reinterpret_cast<bits_t>(lane(i)->row) % ROW_BYTES) refuse(site, "addresses of rows must be multiples of 16");
    }
    for (unsigned i = 0; i < WARP; i++)
        for (unsigned j = 0; j < 4; j++) {
            const unsigned g = i / 4, t = i % 4;
            unsigned short pair[2];
            for (unsigned e = 0; e < 2; e++) {
                const unsigned row = lane(i)->transposed ? 2 * t + e : g, number = lane(i)->transposed ? g : 2 * t + e;
                memcpy(&pair[e], lane(8 * j + row)->row + 2 * number, 2);
            }
            lane(i)->words[j] = pair[0] | static_cast<unsigned>(pair[1]) << 16;
        }
}

}  // namespace emulator
