// CUDA's arithmetic: C's functions, their overloads for float, and the intrinsics. Fast intrinsics are as exact as the
// functions that they replace.
#pragma once

extern "C" {
#define ONE(name) double name(double); float name##f(float);
#define TWO(name) double name(double, double); float name##f(float, float);
ONE(exp) ONE(exp2) ONE(expm1) ONE(log) ONE(log2) ONE(log10) ONE(log1p) ONE(sqrt) ONE(cbrt)
ONE(sin) ONE(cos) ONE(tan) ONE(asin) ONE(acos) ONE(atan) ONE(sinh) ONE(cosh) ONE(tanh) ONE(erf) ONE(erfc)
ONE(floor) ONE(ceil) ONE(trunc) ONE(round) ONE(rint) ONE(nearbyint) ONE(fabs)
TWO(pow) TWO(atan2) TWO(fmod) TWO(hypot) TWO(copysign) TWO(fmin) TWO(fmax)
double fma(double, double, double);
float fmaf(float, float, float);
double ldexp(double, int);
float ldexpf(float, int);
int abs(int);
int ilogb(double);
#undef ONE
#undef TWO
}

#define ONE(name) inline float name(float x) { return name##f(x); }
#define TWO(name) inline float name(float x, float y) { return name##f(x, y); }
ONE(exp) ONE(exp2) ONE(expm1) ONE(log) ONE(log2) ONE(log10) ONE(log1p) ONE(sqrt) ONE(cbrt)
ONE(sin) ONE(cos) ONE(tan) ONE(asin) ONE(acos) ONE(atan) ONE(sinh) ONE(cosh) ONE(tanh) ONE(erf) ONE(erfc)
ONE(floor) ONE(ceil) ONE(trunc) ONE(round) ONE(rint) ONE(nearbyint) ONE(fabs)
TWO(pow) TWO(atan2) TWO(fmod) TWO(hypot) TWO(copysign) TWO(fmin) TWO(fmax)
#undef ONE
#undef TWO
inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline float rsqrt(float x) { return 1 / sqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }

inline long long abs(long long x) { return x < 0 ? -x : x; }
inline float abs(float x) { return fabsf(x); }
inline double abs(double x) { return fabs(x); }
inline bool isnan(float x) { return x != x; }
inline bool isnan(double x) { return x != x; }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isinf(double x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }
inline bool isfinite(double x) { return __builtin_isfinite(x); }

// min and max with CUDA's overloads: an unsigned with a signed converts both to unsigned, and NaN loses against a
// number.
#define LEAST_AND_MOST(result, A, B)                                                                    \
    inline result min(A a, B b) { return static_cast<result>(a) < static_cast<result>(b) ? a : b; }     \
    inline result max(A a, B b) { return static_cast<result>(a) < static_cast<result>(b) ? b : a; }
LEAST_AND_MOST(int, int, int)
LEAST_AND_MOST(unsigned, unsigned, unsigned)
LEAST_AND_MOST(unsigned, int, unsigned)
LEAST_AND_MOST(unsigned, unsigned, int)
LEAST_AND_MOST(long, long, long)
LEAST_AND_MOST(unsigned long, unsigned long, unsigned long)
LEAST_AND_MOST(long long, long long, long long)
LEAST_AND_MOST(unsigned long long, unsigned long long, unsigned long long)
LEAST_AND_MOST(unsigned long long, long long, unsigned long long)
LEAST_AND_MOST(unsigned long long, unsigned long long, long long)
#undef LEAST_AND_MOST
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double max(double a, float b) { return fmax(a, b); }

// The bits of a number.
#define BITS_AS(to, from, name)                     \
    inline to name(from value) {                    \
        static_assert(sizeof(to) == sizeof(from));  \
        to bits;                                    \
        __builtin_memcpy(&bits, &value, sizeof(to)); \
        return bits;                                \
    }
BITS_AS(unsigned, float, __float_as_uint)
BITS_AS(int, float, __float_as_int)
BITS_AS(float, unsigned, __uint_as_float)
BITS_AS(float, int, __int_as_float)
BITS_AS(long long, double, __double_as_longlong)
BITS_AS(double, long long, __longlong_as_double)
#undef BITS_AS

// Intrinsics. Those with a rounding direction exist only for nearest, which is the host's mode. An inline assembler
// statement prevents the host's compiler from fusing __fmul_rn and a sum, as CUDA guarantees.
inline float emulator_rounded(float x) { __asm__("" : "+g"(x)); return x; }
inline double emulator_rounded(double x) { __asm__("" : "+g"(x)); return x; }
inline float __fadd_rn(float x, float y) { return emulator_rounded(emulator_rounded(x) + emulator_rounded(y)); }
inline float __fsub_rn(float x, float y) { return emulator_rounded(emulator_rounded(x) - emulator_rounded(y)); }
inline float __fmul_rn(float x, float y) { return emulator_rounded(x * y); }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frcp_rn(float x) { return 1 / x; }
inline double __dadd_rn(double x, double y) { return emulator_rounded(emulator_rounded(x) + emulator_rounded(y)); }
inline double __dsub_rn(double x, double y) { return emulator_rounded(emulator_rounded(x) - emulator_rounded(y)); }
inline double __dmul_rn(double x, double y) { return emulator_rounded(x * y); }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
inline float fdividef(float x, float y) { return x / y; }
inline float __fdividef(float x, float y) { return x / y; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }  // NaN gives 0

// Conversions to integers saturate, and NaN gives 0, as on the GPU.
inline int __float2int_rn(float x) {
    x = rintf(x);
    return x != x ? 0 : x >= 2147483648.0f ? 2147483647 : x < -2147483648.0f ? -2147483647 - 1 : static_cast<int>(x);
}
inline int __float2int_rz(float x) { return __float2int_rn(truncf(x)); }
inline int __float2int_rd(float x) { return __float2int_rn(floorf(x)); }
inline int __float2int_ru(float x) { return __float2int_rn(ceilf(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }

inline long long emulator_bits(double x) {
    long long bits;
    __builtin_memcpy(&bits, &x, 8);
    return bits;
}
inline int __double2hiint(double x) { return static_cast<int>(emulator_bits(x) >> 32); }
inline int __double2loint(double x) { return static_cast<int>(emulator_bits(x)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; bit++) reversed |= (x >> bit & 1u) << (31 - bit);
    return reversed;
}
inline unsigned __umulhi(unsigned x, unsigned y) { return static_cast<unsigned long long>(x) * y >> 32; }
inline int __mulhi(int x, int y) { return static_cast<long long>(x) * y >> 32; }
inline int __mul24(int x, int y) { return (x << 8 >> 8) * (y << 8 >> 8); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const unsigned long long bytes = static_cast<unsigned long long>(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned choice = selector >> 4 * i, byte = bytes >> 8 * (choice & 7) & 255;
        result |= (choice & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return result;
}
inline int __dp4a(int x, int y, int sum) {
    for (int i = 0; i < 4; i++) sum += static_cast<signed char>(x >> 8 * i) * static_cast<signed char>(y >> 8 * i);
    return sum;
}
inline unsigned __dp4a(unsigned x, unsigned y, unsigned sum) {
    for (int i = 0; i < 4; i++) sum += (x >> 8 * i & 255) * (y >> 8 * i & 255);
    return sum;
}

template <class T>
inline T __ldg(const T *at) { return *at; }
