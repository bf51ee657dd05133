// Bytes from the sums of a convolution of integers, for epilogues that are one multiply-add for each filter: computed
// in float where that certainly gives the result of double (bytes.cuh).
//
// RESCALED<Out>;                    true if results of type Out are computed in this way
// RescaledFilters<Out, COUNT> filters(conv, k, last, exact);
//                                   filters k, k + 1, ... of the output; beyond filter `last`, that one. `exact`:
//                                   sums are below 2^24
// filters.bytes<STEP>(first, sums); results of sums, of which number i belongs to filter k + first + i * STEP
// filters.bytes_in_float(sums, sure), filters.bytes_slowly(sums);
//                                   its two parts, for a sum of each filter: the second is needed if `sure` is false
#pragma once
#include "bytes.cuh"
#include "epilogue.cuh"

// True if results, of type Out, are bytes, and integers times a scale plus a bias.
template <class Out>
constexpr bool RESCALED = sizeof(Out) == 1 && static_cast<acc_t>(1) / 2 == 0 && HAS_EPILOGUE && cfg::DIVISOR == 1 &&
                          !cfg::RESIDUAL && !cfg::OUT_SCALE && !cfg::OUT_ZERO_POINT &&
                          (cfg::ACTIVATION == IDENTITY || cfg::ACTIVATION == RELU);

// Scale and bias of filter k.
struct MultiplyAdd {
    double scale, bias;
    __device__ MultiplyAdd(const Conv &conv, int k) : scale(1), bias(0) {
        if constexpr (cfg::SCALE) scale = conv.scale[k * conv.scale_channels];
        if constexpr (cfg::BIAS) bias = conv.bias[k];
    }
};

// A type of bytes in place of other types, for which there is nothing to compute.
template <bool RESCALES, class T> struct ByteOf { using type = signed char; };
template <class T> struct ByteOf<true, T> { using type = T; };
template <class T> using ByteOr = typename ByteOf<RESCALED<T>, T>::type;

template <class Out, int COUNT>
struct RescaledFilters {
    static constexpr bool RECTIFIED = cfg::ACTIVATION == RELU;
    const Conv *conv;
    int k, last;
    Rescaling<ByteOr<Out>, RECTIFIED> factors[COUNT];
    float certain;  // of all filters, as registers are few

    __device__ __forceinline__ RescaledFilters(const Conv &of, int first, int end, bool exact) {
        if constexpr (RESCALED<Out>) {
            conv = &of, k = first, last = end, certain = 0.5f;
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                const MultiplyAdd by = filter(i);
                certain = fminf(certain, factors[i].set(by.scale, by.bias, exact));
            }
        }
    }

    __device__ MultiplyAdd filter(int i) const { return {*conv, min(k + i, last)}; }

    template <int STEP, int SIZE, class Sum>
    __device__ __forceinline__ Vector<Out, SIZE> bytes(int first, const Sum (&sums)[SIZE]) const {
        const auto by = [&](int i) { return factors[first + i * STEP]; };
        bool sure;
        PackedBytes<SIZE> words = rescaled_in_float(sums, certain, by, sure);
        if (!sure)  // seldom
            words = rescaled_slowly(words, sums, certain, by,
                                    [&](int i, int sum) { return exactly(first + i * STEP, sum); });
        return words.template as<Out>();
    }

    __device__ __forceinline__ Vector<Out, COUNT> bytes_in_float(const float (&sums)[COUNT], bool &sure) const {
        return rescaled_in_float(sums, certain, [&](int i) { return factors[i]; }, sure).template as<Out>();
    }
    __device__ __forceinline__ Vector<Out, COUNT> bytes_slowly(const int (&sums)[COUNT]) const {
        const auto by = [&](int i) { return factors[i]; };
        bool sure;
        PackedBytes<COUNT> words = {};
        if constexpr (decltype(by(0))::TEST_AGAIN) words = rescaled_in_float(sums, certain, by, sure);
        const auto exact = [&](int i, int sum) { return exactly(i, sum); };
        return rescaled_slowly(words, sums, certain, by, exact).template as<Out>();
    }

    // The result of a sum of filter number i, in double.
    __device__ unsigned exactly(int i, int sum) const {
        const MultiplyAdd by = filter(i);
        return rescaled_exactly<Out, RECTIFIED>(sum, by.scale, by.bias);
    }
};
