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
#include "memory.cuh"
#include "rescaled.cuh"

constexpr int CHANNELS = 4;

// True if all sums are below 2^22: they start with the bits of the float 3 * 2^22, and are the distance from it.
constexpr bool FLOAT_BITS = RESCALED<out_t> && cfg::R * cfg::S * 255 * (limits<w_t>::low < 0 ? 128 : 255) < 1 << 22;
constexpr int START = FLOAT_BITS ? 0x4b400000 : 0;

struct Sums {
    int at[CHANNELS];
};

struct FourChannels {
    int start[CHANNELS];
    RescaledFilters<out_t, CHANNELS> filters;

    __device__ FourChannels(const Conv &conv, const int (&taps)[CHANNELS], int k)
        : filters(conv, k, cfg::K - 1, FLOAT_BITS) {
#pragma unroll
        for (int c = 0; c < CHANNELS; c++)
            start[c] = START - static_cast<int>(static_cast<unsigned>(conv.zero) * static_cast<unsigned>(taps[c]));
    }

    __device__ static float whole(int sum) {
        if (!FLOAT_BITS) return static_cast<float>(sum);
        return float_of(static_cast<unsigned>(sum)) - float_of(static_cast<unsigned>(START));
    }

    // Bytes of an output in float. `sure` is false if they may not be those of `exactly`, and for other types.
    template <class Out>
    __device__ __forceinline__ Vector<Out, CHANNELS> results(const Conv &conv, const Sums &sums, bool &sure) const {
        Vector<Out, CHANNELS> values;
        sure = RESCALED<Out>;
        if constexpr (RESCALED<Out>) {
            float own[CHANNELS];
#pragma unroll
            for (int c = 0; c < CHANNELS; c++) own[c] = whole(sums.at[c]);
            values = filters.bytes_in_float(own, sure);
        }
        return values;
    }

    // Results of output (n, p, q) in the epilogue's type.
    template <class Out>
    __device__ Vector<Out, CHANNELS> exactly(const Conv &conv, const Sums &sums, int n, int k, int p, int q) const {
        Vector<Out, CHANNELS> values;
        if constexpr (RESCALED<Out>) {
            int own[CHANNELS];
#pragma unroll
            for (int c = 0; c < CHANNELS; c++) own[c] = sums.at[c] - START;
            values = filters.bytes_slowly(own);
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
