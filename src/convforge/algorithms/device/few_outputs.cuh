// The order of the columns of a product that computes all taps of a few filters at once: see few_outputs.cu.
//
// Column (r * S + s) * K + k of a pixel is its product with tap (r, s) of filter k, over all channels. tap_columns.cu packs
// the filters so, and few_outputs.cu multiplies them.
#pragma once
#include "conv.cuh"

constexpr int TAP_COLUMNS = R * S * K;
constexpr int PRODUCTS = (TAP_COLUMNS + 7) / 8;  // of 8 columns, for each 16 pixels
constexpr int STEPS = (C + 15) / 16;             // of 16 channels

// The factors of 8 columns for 16 channels, as a lane holds them (mma.cuh).
struct alignas(8) TapFactors {
    unsigned words[2];
};
constexpr int FACTORS = STEPS * PRODUCTS * 32;  // of all lanes

__device__ inline int column_of_tap(int r, int s, int k) { return (r * S + s) * K + k; }
