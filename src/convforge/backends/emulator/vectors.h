// CUDA's vector types, aligned as CUDA aligns them: one load or store of up to 16 bytes.
#pragma once

#define VECTORS(type, name, align2, align4)                                             \
    struct __align__(align2) name##2 { type x, y; };                                    \
    struct name##3 { type x, y, z; };                                                   \
    struct __align__(align4) name##4 { type x, y, z, w; };                              \
    inline name##2 make_##name##2(type x, type y) { return {x, y}; }                    \
    inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }         \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }

VECTORS(signed char, char, 2, 4)
VECTORS(unsigned char, uchar, 2, 4)
VECTORS(short, short, 4, 8)
VECTORS(unsigned short, ushort, 4, 8)
VECTORS(int, int, 8, 16)
VECTORS(float, float, 8, 16)
VECTORS(long long, longlong, 16, 16)
VECTORS(double, double, 16, 16)
#undef VECTORS

// uint3 is also the type of threadIdx.
struct __align__(8) uint2 { unsigned x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
