// Results of four neighbouring channels from sums of integers, one filter a channel (depthwise).
//
// FourFilters filters(conv, k);           scales and biases of channels k to k + 3
// FourChannels channels(conv, filters, taps);
//                                         these channels; `taps` are the sums of their weights
// channels.start[c]                       what a sum of stored pixels and weights begins with: it subtracts the zero
//                                         point, because pixels outside the image have stored values too
// channels.results<Out>(sums, j, sure);   bytes of output j of some, computed in float. `sure` becomes false if they may not
//                                         be those of `exactly`, and for other types
// channels.exactly(conv, sums, values, n, k, p, q);
//                                         the results of outputs along q in the epilogue's type
// store_four<ALIGNED>(conv, to, values);  stores them, by one instruction if they are aligned
#pragma once
#include "border.cuh"
#include "memory.cuh"
#include "rescaled.cuh"

constexpr int CHANNELS = 4;

// True if all sums are below 2^22: they start with the bits of the float 3 * 2^22, and are the distance from it.
constexpr bool FLOAT_BITS = RESCALED<out_t> && cfg::R * cfg::S * 255 * (limits<w_t>::low < 0 ? 128 : 255) < 1 << 22;
constexpr int START = FLOAT_BITS ? 0x4b400000 : 0;

// Scale and bias of channel k + c; beyond the last, of the last.
__device__ inline MultiplyAdd filter_of(const Conv &conv, int k, int c) { return {conv, min(k + c, cfg::K - 1)}; }

struct FourFilters {
    MultiplyAdd at[CHANNELS];

    __device__ FourFilters(const Conv &conv, int k)
        : at{filter_of(conv, k, 0), filter_of(conv, k, 1), filter_of(conv, k, 2), filter_of(conv, k, 3)} {}
};

struct FourChannels {
    int start[CHANNELS];
    Rescaling<ByteOr<out_t>, cfg::ACTIVATION == RELU> factors[CHANNELS];
    float certain;  // see Rescaling

    __device__ FourChannels(const Conv &conv, const FourFilters &filters, const int (&taps)[CHANNELS]) : certain(0.5f) {
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) {
            start[c] = START - static_cast<int>(static_cast<unsigned>(conv.zero) * static_cast<unsigned>(taps[c]));
            if constexpr (RESCALED<out_t>) 
                certain = fminf(certain, factors[c].set(filters.at[c].scale, filters.at[c].bias, FLOAT_BITS));
        }
    }

    __device__ static float whole(int sum) {
        if (!FLOAT_BITS) return static_cast<float>(sum);
        return float_of(static_cast<unsigned>(sum)) - float_of(static_cast<unsigned>(START));
    }

    // Bytes of output j in float. `sure` becomes false if they may not be those of `exactly`, and for other types.
    template <class Out, int COUNT>
    __device__ __forceinline__ Vector<Out, CHANNELS> results(const int (&sums)[CHANNELS][COUNT], int j, bool &sure) const {
        Vector<Out, CHANNELS> values;
        bool each = RESCALED<Out>;
        if constexpr (RESCALED<Out>) {
            unsigned bytes[CHANNELS];
#pragma unroll
            for (int c = 0; c < CHANNELS; c++) bytes[c] = factors[c].result(whole(sums[c][j]), certain, each);
            values = low_bytes(bytes).template as<Out>();
        }
        sure = sure & each;
        return values;
    }

    // Results of outputs (n, p, q), (n, p, q + 1), ... in the epilogue's type.
    template <class Out, int COUNT>
    __device__ static void exactly(const Conv &conv, const int (&sums)[CHANNELS][COUNT],
                                   Vector<Out, CHANNELS> (&values)[COUNT], int n, int k, int p, int q) {
        if constexpr (RESCALED<Out>) {
#pragma unroll
            for (int j = 0; j < COUNT; j++) values[j].word.bits = 0;
#pragma unroll 1
            for (int c = 0; c < CHANNELS; c++) {
                const MultiplyAdd by = filter_of(conv, k, c);
#pragma unroll
                for (int j = 0; j < COUNT; j++) {
                    const int sum = c < 2 ? (c == 0 ? sums[0][j] : sums[1][j]) : (c == 2 ? sums[2][j] : sums[3][j]);
                    const unsigned byte = rescaled_exactly<Out, cfg::ACTIVATION == RELU>(sum - START, by.scale, by.bias);
                    values[j].word.bits |= (byte & 255u) << 8 * c;
                }
            }
        } else {
#pragma unroll
            for (int j = 0; j < COUNT; j++)
#pragma unroll
                for (int c = 0; c < CHANNELS; c++)
                    if (q + j < conv.Q) values[j].at[c] = output_value(conv, n, k + c, p, q + j, sums[c][j]);
        }
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
