// Bytes from the sums of a convolution of integers, for epilogues that are one multiply-add for each filter: computed in
// float where that certainly gives the result of double (bytes.cuh).
//
// RESCALED<Out>;                    true if results of type Out are computed in this way
// MultiplyAdd filter(conv, group, n);
//                                   scale and bias of filter n of a group; beyond the last, of the last
// rescale<Out>(conv, group, n, step, sums, by);
//                                   bytes from sums, of which number i belongs to filter n + i * step; by(i) returns what
//                                   rescaling_of made of its scale and bias
#pragma once
#include "bytes.cuh"
#include "epilogue.cuh"

// True if results, of type Out, are bytes, and integers times a scale plus a bias.
template <class Out>
constexpr bool RESCALED = sizeof(Out) == 1 && static_cast<acc_t>(1) / 2 == 0 && HAS_EPILOGUE && cfg::DIVISOR == 1 &&
                          !cfg::RESIDUAL && !cfg::OUT_SCALE && !cfg::OUT_ZERO_POINT &&
                          (cfg::ACTIVATION == IDENTITY || cfg::ACTIVATION == RELU);

// Scale and bias of a filter of a group.
struct MultiplyAdd {
    double scale, bias;
    __device__ MultiplyAdd(const Conv &conv, int group, int n) : scale(1), bias(0) {
        const int k = group * cfg::K_GROUP + min(n, cfg::K_GROUP - 1);
        if constexpr (cfg::SCALE) scale = conv.scale[k * conv.scale_channels];
        if constexpr (cfg::BIAS) bias = conv.bias[k];
    }
};

template <class Out, int COUNT, class By>
__device__ __forceinline__ Vector<Out, COUNT> rescale(const Conv &conv, int group, int n, int step,
                                                      const int (&sums)[COUNT], const By &by) {
    return rescaled<Out, cfg::ACTIVATION == RELU>(sums, by, [&](int i, int sum) {
        const MultiplyAdd filter(conv, group, n + i * step);
        return rescaled_exactly<Out, cfg::ACTIVATION == RELU>(sum, filter.scale, filter.bias);
    });
}
