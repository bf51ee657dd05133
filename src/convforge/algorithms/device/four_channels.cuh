// Results of four neighbouring channels from sums of integers, one filter a channel (depthwise).
//
// FourChannels channels(conv, taps, k);   channels k to k + 3; `taps` are the sums of their weights
// channels.start[c]                       what a sum of stored pixels and weights begins with: it subtracts the zero
//                                         point, because pixels outside the image have stored values too
// channels.results<Out>(conv, sums, sure);
//                                         bytes of an output, computed in float. `sure` is false if they may not be
//                                         those of `exactly`, and for other types
// channels.exactly<Out>(conv, sums, n, k, p, q);
//                                         the results of an output in the epilogue's type
// store_four<ALIGNED>(conv, to, values);  stores them, by one instruction if they are aligned
#pragma once
#include "border.cuh"
#include "byte_factors.cuh"
#include "memory.cuh"

constexpr int CHANNELS = 4;

// True if all sums are below 2^22: they start with the bits of ONES, and are the distance from it of a float.
constexpr bool FLOAT_BITS = RESCALED<out_t> && cfg::R * cfg::S * 255 * (limits<w_t>::low < 0 ? 128 : 255) < 1 << 22;
constexpr int START = FLOAT_BITS ? 0x4b400000 : 0;

struct Sums {
    int at[CHANNELS];
};

struct FourChannels {
    int start[CHANNELS];
    Factors factors[RESCALED<out_t> ? CHANNELS : 1];
    float certain;  // see Factors

    __device__ FourChannels(const Conv &conv, const int (&taps)[CHANNELS], int k) : certain(0.5f) {
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) {
            start[c] = START - static_cast<int>(static_cast<unsigned>(conv.zero) * static_cast<unsigned>(taps[c]));
            if constexpr (RESCALED<out_t>) certain = fminf(certain, factors[c].set(filter(conv, k, c), FLOAT_BITS));
        }
    }

    // Scale and bias of channel k + c; beyond the last, of the last.
    __device__ static MultiplyAdd filter(const Conv &conv, int k, int c) { return {conv, min(k + c, cfg::K - 1), 0}; }

    __device__ static float whole(int sum) {
        return FLOAT_BITS ? float_of(static_cast<unsigned>(sum)) - ONES : static_cast<float>(sum);
    }

    // Bytes of an output in float. `sure` is false if they may not be those of `exactly`, and for other types.
    template <class Out>
    __device__ __forceinline__ Vector<Out, CHANNELS> results(const Conv &conv, const Sums &sums, bool &sure) const {
        Vector<Out, CHANNELS> values;
        sure = RESCALED<Out>;
        if constexpr (RESCALED<Out>) {
            unsigned bytes[CHANNELS];
#pragma unroll
            for (int c = 0; c < CHANNELS; c++) bytes[c] = factors[c].result(whole(sums.at[c]), certain, sure);
            values.word.bits =
                __byte_perm(__byte_perm(bytes[0], bytes[1], 0x0040), __byte_perm(bytes[2], bytes[3], 0x0040), 0x5410);
        }
        return values;
    }

    // Results of output (n, p, q) in the epilogue's type.
    template <class Out>
    __device__ static Vector<Out, CHANNELS> exactly(const Conv &conv, const Sums &sums, int n, int k, int p, int q) {
        Vector<Out, CHANNELS> values;
        if constexpr (RESCALED<Out>) {
            unsigned word = 0;
#pragma unroll 1
            for (int c = 0; c < CHANNELS; c++) {
                const int sum = c < 2 ? (c == 0 ? sums.at[0] : sums.at[1]) : (c == 2 ? sums.at[2] : sums.at[3]);
                const MultiplyAdd by = filter(conv, k, c);
                const unsigned byte = rescaled_exactly<Out, cfg::ACTIVATION == RELU>(sum - START, by.scale, by.bias);
                word |= (byte & 255u) << 8 * c;
            }
            values.word.bits = word;
        } else {
#pragma unroll
            for (int c = 0; c < CHANNELS; c++) values.at[c] = output_value(conv, n, k + c, p, q, sums.at[c]);
        }
        return values;
    }
};

template <bool ALIGNED>
__device__ __forceinline__ void store_four(const Conv &conv, out_t *to, const Vector<out_t, CHANNELS> &values) {
    if constexpr (ALIGNED) {
        store_vector(to, values);
    } else {
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) to[c * static_cast<index_t>(conv.out_strides.c)] = values.at[c];
    }
}
