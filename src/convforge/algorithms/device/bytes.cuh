// Results of one byte from sums in integers: multiplied and rounded in double, which is exact, by few instructions.
//
// wide(sum);              an integer as double
// whole_number<WITHIN>(value);
//                         rounds to an integer, ties to even; saturates, and NaN gives 0, unless the value is WITHIN
//                         2^31
// Rescaling<T, RELU> by;  factors of a filter for results of type T in float, by six instructions each
// certain = by.set(scale, bias, exact);
//                         `exact`: sums are below 2^24. `certain` is what a result needs
// by.result(sum, certain, sure);
//                         the result in the low byte. `sure` becomes false if it may not be that of double
// rescaled_exactly<T, RELU>(sum, scale, bias);
//                         the result in double, in the low byte. GPUs for graphics compute double at 1/64 of the rate
// rescaled_in_float(sums, certain, by, sure);
//                         results of several sums by by(i).result, four a word
// rescaled_slowly(words, sums, certain, by, exactly);
//                         the words that rescaled_in_float made, with exactly(i, sum) for results that are not sure
// packed<T>(v);           four integers, saturated to bytes of type T, the first in the low byte
// turned_pairs(word);     exchanges halves of words: of lanes 2 i and 2 i + 1, the first gets both low halves, the
//                         second both high halves
// turned_quads(word);     lanes that differ in bits 2 and 3 exchange bytes: lane number b of four gets byte b of all
//                         four
#pragma once
#include "memory.cuh"
#include "types.cuh"

// True for GPUs that compute double at half the rate of float: sm_60, 70, 80, 90, 100. The emulator shows the others.
#ifdef __CUDA_ARCH__
constexpr bool FAST_DOUBLES = __CUDA_ARCH__ % 100 == 0 && __CUDA_ARCH__ <= 1000;
#else
constexpr bool FAST_DOUBLES = false;
#endif

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

// The nearest float, by integer instructions. Tiny numbers become 0; NaN and numbers from 2^127 on become Inf.
__device__ inline float nearest_float(double number) {
    constexpr unsigned HALF = 1u << 28;  // of the last bit that a float has
    unsigned high = static_cast<unsigned>(__double2hiint(number)), low = static_cast<unsigned>(__double2loint(number));
    const unsigned exponent = high >> 20 & 2047, sign = high & 0x80000000u;
    if (exponent >= 1023 + 127) return float_of(0x7f800000u);
    if (exponent <= 1023 - 127) return 0;
    low += HALF, high += low < HALF;
    return float_of(sign | (((high & 0x7fffffffu) - (896u << 20)) << 3 | low >> 29));
}

// Factors of a filter, for results as a share of SPREAD: between 0 and 1, where one instruction saturates.
//
// With u = 2^-24, the value in float differs from that in double by at most (SPREAD + 2 ROUNDINGS (MOST + |bias|)) u.
// Within the range results are below MOST. So roundings of the scale make (MOST + |bias|) u each, of the bias
// (|bias| + MOST) u, and of the share SPREAD u / 2; the rest is for the distance. Sums that are not exact in float are
// rounded too. Biases from 2^18 on are left to double.
template <class T, bool RELU, bool DOUBLES = FAST_DOUBLES>
struct Rescaling {
    // Results are between LEAST and LEAST + SPREAD. Near ONES, 3 * 2^22, the last bit of a float is one.
    static constexpr float LEAST = RELU ? 0.0f : static_cast<float>(limits<T>::low);
    static constexpr float SPREAD = static_cast<float>(limits<T>::high) - LEAST, ONES = 12582912.0f;
    static constexpr float MOST = (LEAST < 0 ? -LEAST : SPREAD) + 2;  // above all results, before they are rounded
    static constexpr float ROUNDINGS = DOUBLES ? 1 : 3;
    static constexpr bool TEST_AGAIN = !DOUBLES;  // see rescaled_slowly
    float scale, bias;

    // Returns the distance from a whole number below which a value certainly rounds as the value in double.
    __device__ float set(double by, double added, bool exact) {
        float size = 0;
        if constexpr (DOUBLES) {
            scale = static_cast<float>(by * (1.0 / SPREAD));
            bias = static_cast<float>((added - LEAST) * (1.0 / SPREAD));
            size = fabsf(static_cast<float>(added));
        } else {
            const float near = nearest_float(added);
            scale = nearest_float(by) * (1.0f / SPREAD);
            bias = fmaf(near, 1.0f / SPREAD, -LEAST * (1.0f / SPREAD));
            size = fabsf(near);
        }
        const bool floats = fabsf(scale) < 1e30f && size < 262144.0f;
        const float units = SPREAD + 2 * ROUNDINGS * (MOST + size) + (exact ? 0.0f : MOST + size);
        return floats ? 0.5f - units * 5.9604644775390625e-8f : -1.0f;
    }

    // The result is in the low byte.
    __device__ unsigned result(float sum, float certain, bool &sure) const {
        const float share = __saturatef(fmaf(sum, scale, bias)), near = fmaf(share, SPREAD, ONES + LEAST);
        sure = sure & (fabsf(fmaf(share, SPREAD, (ONES + LEAST) - near)) < certain);
        return bits_of(near);
    }
};

template <class T, bool RELU>
__device__ inline unsigned rescaled_exactly(int sum, double scale, double bias) {
    const int whole = whole_number<false>(wide(sum) * scale + bias);
    const int low = RELU ? 0 : static_cast<int>(limits<T>::low);
    return static_cast<unsigned>(min(max(whole, low), static_cast<int>(limits<T>::high)));
}

// The low bytes of numbers, four a word.
template <int COUNT>
struct PackedBytes {
    static constexpr int SIZE = (COUNT + 3) / 4;
    unsigned at[SIZE];

    template <class T>
    __device__ __forceinline__ Vector<T, COUNT> as() const {
        Vector<T, COUNT> values;
        if constexpr (COUNT == 1) values.word.bits = static_cast<unsigned char>(at[0]);
        else if constexpr (COUNT == 2) values.word.bits = static_cast<unsigned short>(at[0]);
        else if constexpr (COUNT == 4) values.word.bits = at[0];
        else
#pragma unroll
            for (int i = 0; i < SIZE; i++) values.word.bits[i] = at[i];
        return values;
    }
};

template <int COUNT>
__device__ __forceinline__ PackedBytes<COUNT> low_bytes(const unsigned (&bytes)[COUNT]) {
    static_assert(COUNT < 4 || COUNT % 4 == 0, "words are whole");
    PackedBytes<COUNT> words;
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
        unsigned pairs[2] = {};
#pragma unroll
        for (int j = 0; j < 2; j++)
            if (i + 2 * j < COUNT)
                pairs[j] = i + 2 * j + 1 < COUNT ? __byte_perm(bytes[i + 2 * j], bytes[i + 2 * j + 1], 0x0040)
                                                 : bytes[i + 2 * j];
        words.at[i / 4] = COUNT > 2 ? __byte_perm(pairs[0], pairs[1], 0x5410) : pairs[0];
    }
    return words;
}

template <int COUNT, class Sum, class By>
__device__ __forceinline__ PackedBytes<COUNT> rescaled_in_float(const Sum (&sums)[COUNT], float certain, const By &by,
                                                          bool &sure) {
    unsigned bytes[COUNT];
    sure = true;
#pragma unroll
    for (int i = 0; i < COUNT; i++) bytes[i] = by(i).result(static_cast<float>(sums[i]), certain, sure);
    return low_bytes(bytes);
}

// rescaled_in_float has one test for all numbers, because that takes fewer instructions than one for each. GPUs that
// are slow in double test each number here (TEST_AGAIN); the others compute all numbers in double.
template <int COUNT, class Sum, class By, class Exactly>
__device__ __forceinline__ PackedBytes<COUNT> rescaled_slowly(PackedBytes<COUNT> words, const Sum (&sums)[COUNT],
                                                              float certain, const By &by, const Exactly &exactly) {
    constexpr bool TEST_AGAIN = decltype(by(0))::TEST_AGAIN;
    unsigned sure = 0;  // a bit for each number
    if constexpr (TEST_AGAIN) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            bool own = true;
            by(i).result(static_cast<float>(sums[i]), certain, own);
            sure |= (own ? 1u : 0u) << i;
        }
    }
#pragma unroll 1
    for (int which = 0; which < COUNT; which++) {
        if (TEST_AGAIN && sure >> which & 1) continue;
        Sum sum = sums[0];
#pragma unroll
        for (int i = 1; i < COUNT; i++) sum = i == which ? sums[i] : sum;
        const unsigned place = which % 4 * 8, byte = (exactly(which, static_cast<int>(sum)) & 255u) << place;
        const unsigned others = ~(255u << place);
#pragma unroll
        for (int i = 0; i < words.SIZE; i++) words.at[i] = i == which / 4 ? (words.at[i] & others) | byte : words.at[i];
    }
    return words;
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
