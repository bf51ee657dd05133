// Pixels from vectors of them, in the type that sums are taken in. Small unsigned integers become floats without a
// conversion: they are the last bits of 2^23, from which 2^23 is taken.
#pragma once
#include "border.cuh"
#include "vector.cuh"

template <class T> constexpr bool IS_SMALL_UNSIGNED = false;
template <> constexpr bool IS_SMALL_UNSIGNED<unsigned char> = true;
template <> constexpr bool IS_SMALL_UNSIGNED<unsigned short> = true;

// Element e of a vector, less the zero point where there is one.
template <int COUNT>
__device__ inline acc_t centred(const Conv &conv, const Vector<x_t, COUNT> &values, int e) {
    constexpr bool IN_FLOATS = !HAS_ZERO && sizeof(acc_t) == 4;
    if constexpr (IN_FLOATS && IS_SMALL_UNSIGNED<x_t> && COUNT * sizeof(x_t) % 4 == 0) {
        const union {
            Vector<x_t, COUNT> vector;
            unsigned words[COUNT * sizeof(x_t) / 4];
        } both = {values};
        const int byte = e * sizeof(x_t);
        const unsigned selector = sizeof(x_t) == 1 ? 0x7440 + byte % 4 : 0x7410 + byte % 4 * 0x11;
        return float_of(__byte_perm(both.words[byte / 4], 0x4b000000u, selector)) - 8388608.0f;
    }
    return centred(conv, values.at[e]);
}
