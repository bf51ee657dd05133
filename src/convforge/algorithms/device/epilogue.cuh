// The epilogue: out = activation(sum / DIVISOR * scale + bias + residual_scale * residual) / out_scale + out_zero_point,
// rounded to the output's type. It is applied in the registers that hold the sums, so a fused bias or activation causes
// no memory traffic of its own.
#pragma once
#include "conv.cuh"

enum Activation { IDENTITY, RELU, LEAKY_RELU, CLIPPED_RELU, SIGMOID, TANH, SILU, GELU };

constexpr bool HAS_EPILOGUE =
    cfg::DIVISOR != 1 || cfg::SCALE || cfg::BIAS || cfg::RESIDUAL || cfg::ACTIVATION != IDENTITY || cfg::OUT_SCALE ||
    cfg::OUT_ZERO_POINT;

// The activation. NaN stays NaN.
__device__ inline epilogue_t activated(epilogue_t y, epilogue_t alpha) {
    if constexpr (cfg::ACTIVATION == RELU) return y < 0 ? 0 : y;
    if constexpr (cfg::ACTIVATION == LEAKY_RELU) return y < 0 ? y * alpha : y;
    if constexpr (cfg::ACTIVATION == CLIPPED_RELU) return y < 0 ? 0 : (y > alpha ? alpha : y);
    if constexpr (cfg::ACTIVATION == SIGMOID) return 1 / (1 + exp(-y));
    if constexpr (cfg::ACTIVATION == TANH) return tanh(y);
    if constexpr (cfg::ACTIVATION == SILU) return y / (1 + exp(-y));
    if constexpr (cfg::ACTIVATION == GELU) return y * erfc(y * static_cast<epilogue_t>(-0.7071067811865476)) / 2;
    return y;
}

// Takes each value before the output's scale, and ignores it; amax.cuh has another.
struct Unseen {
    __device__ void operator()(epilogue_t) const {}
};

// The epilogue's value for a sum of output (n, k, p, q), before it is rounded to out_t.
template <class Seen = Unseen>
__device__ inline epilogue_t epilogue_value(const Conv &conv, int n, int k, int p, int q, acc_t sum,
                                            Seen &&seen = Seen()) {
    epilogue_t value = static_cast<epilogue_t>(sum);
    if constexpr (cfg::DIVISOR != 1) value /= cfg::DIVISOR;
    if constexpr (cfg::SCALE) value *= conv.scale[k * conv.scale_channels];
    if constexpr (cfg::BIAS) value += conv.bias[k];
    if constexpr (cfg::RESIDUAL) {
        const epilogue_t residual = as<epilogue_t>(conv.residual[offset_of(conv.residual_strides, n, k, p, q)]);
        value += conv.requantization.of_residual(residual);
    }
    value = activated(value, conv.alpha);
    seen(value);
    return conv.requantization.of_result(value);
}

// The same, rounded to out_t.
template <class Seen = Unseen>
__device__ inline out_t output_value(const Conv &conv, int n, int k, int p, int q, acc_t sum, Seen &&seen = Seen()) {
    if constexpr (!HAS_EPILOGUE) {
        seen(static_cast<epilogue_t>(sum));
        return stored<out_t>::of(sum);
    }
    return stored<out_t>::of(epilogue_value(conv, n, k, p, q, sum, seen));
}

// Applies the epilogue to a sum and stores it as output (n, k, p, q).
template <class Seen = Unseen>
__device__ inline void store_output(const Conv &conv, int n, int k, int p, int q, acc_t sum, Seen &&seen = Seen()) {
    conv.out[offset_of(conv.out_strides, n, k, p, q)] = output_value(conv, n, k, p, q, sum, seen);
}
