// The largest absolute value of the results, before the output's scale: from it, training in 8-bit floats chooses scales.
//
// Largest largest;                    collects values of a thread; does nothing without AMAX
// epilogue_value(..., largest);       and the other functions of epilogue.cuh give it each value
// largest.store(args);                all lanes of a warp: raises args.amax, which clear_amax.cu sets to 0 before
//
// Absolute values of floats are ordered as their bits are, and NaN is above infinity. So the maximum is one of integers,
// and does not depend on the order of the warps.
#pragma once
#include "epilogue.cuh"

#ifdef AMAX
constexpr bool HAS_AMAX = true;

struct Amax {
    unsigned *largest;  // bits of a float
    float scale;        // positive; multiplies the value
};

struct Largest {
    unsigned bits = 0;
    __device__ __forceinline__ void operator()(float value) { bits = max(bits, bits_of(value) & 0x7fffffffu); }
    template <class Args> __device__ __forceinline__ void store(const Args &args) const {
        const unsigned most = __reduce_max_sync(0xffffffffu, bits);
        if (threadIdx.x % 32 == 0)
            atomicMax(args.amax.largest, bits_of(float_of(most) * args.amax.scale) & 0x7fffffffu);
    }
};
#else
constexpr bool HAS_AMAX = false;

struct Largest {
    __device__ __forceinline__ void operator()(epilogue_t) const {}
    template <class Args> __device__ __forceinline__ void store(const Args &) const {}
};
#endif
