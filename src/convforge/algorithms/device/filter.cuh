// The filter: as given, staged in shared memory, prepared, or packed for products of all taps at once.
#pragma once
#include "conv.cuh"
#include "memory.cuh"

struct Filter {
    const w_t *taps;
    Strides strides;  // in the order K, C_GROUP, R, S; negative if the filter is flipped
};

// A tap as acc_t.
__device__ inline acc_t given_tap(const Filter &filter, int k, int c, int r, int s) {
    return as<acc_t>(filter.taps[offset_of(filter.strides, k, c, r, s)]);
}

// Staging: every block copies the filter to shared memory, as acc_t. No preparing launch is needed, so a call on a
// small image is a single launch. On a large image the copy overlaps with the work of other blocks. A row of taps is
// aligned to 16 bytes and read by the widest loads; all threads of a warp read the same address.
constexpr int TAP_LOAD = 16 / sizeof(acc_t), TAP_PITCH = (cfg::S + TAP_LOAD - 1) / TAP_LOAD * TAP_LOAD;
// Number of staged taps in shared memory; 1 if the filter is not staged.
template <bool STAGES>
constexpr int STAGED_TAPS = STAGES ? cfg::K *cfg::C_GROUP *cfg::R *TAP_PITCH : 1;

// Stages the filter. A barrier must follow.
template <int COUNT>
__device__ inline void stage(const Filter &filter, acc_t (&staged)[COUNT], int thread, int threads) {
    for (int i = thread; i < cfg::K * cfg::C_GROUP * cfg::R * cfg::S; i += threads) {
        const int s = i % cfg::S, r = i / cfg::S % cfg::R, c = i / (cfg::S * cfg::R) % cfg::C_GROUP,
                  k = i / (cfg::S * cfg::R * cfg::C_GROUP);
        staged[((k * cfg::C_GROUP + c) * cfg::R + r) * TAP_PITCH + s] = given_tap(filter, k, c, r, s);
    }
}

// Loads row r of the taps of output k and channel c of the group.
template <int COUNT>
__device__ inline void staged_taps(acc_t (&taps)[cfg::S], const acc_t (&staged)[COUNT], int k, int c, int r) {
    const acc_t *row = staged + ((k * cfg::C_GROUP + c) * cfg::R + r) * TAP_PITCH;
#pragma unroll
    for (int s = 0; s < TAP_PITCH; s += TAP_LOAD) {
        union {
            Quad quad;
            acc_t at[TAP_LOAD];
        } several = {load_shared16(row + s)};
#pragma unroll
        for (int v = 0; v < TAP_LOAD; v++)
            if (s + v < cfg::S) taps[s + v] = several.at[v];
    }
}

// Weight (k, c, r, s) of the prepared filter (K, C_GROUP, R, S), c within the group: from `constants` in constant
// memory if it FITS there, else from global memory. Constant memory broadcasts one number a cycle to a warp, and the
// FMA reads it as an operand, without a register.
template <bool FITS, int COUNT>
__device__ inline acc_t weight(const acc_t (&constants)[COUNT], const Conv &conv, int k, int c, int r, int s) {
    if constexpr (FITS) return constants[((k * cfg::C_GROUP + c) * cfg::R + r) * cfg::S + s];
    return conv.w[static_cast<index_t>(k) * (cfg::C_GROUP * cfg::R * cfg::S) + (c * cfg::R + r) * cfg::S + s];
}
template <bool FITS>
constexpr int CONSTANT_TAPS = FITS ? cfg::K *cfg::C_GROUP *cfg::R *cfg::S : 1;

// Order of the columns of a product that computes all taps of a few filters at once. tap_columns.cu packs the filters
// in this order and few_outputs.cu multiplies them. Column (r * S + s) * K + k of a pixel is its product with tap (r,
// s) of filter k, summed over all channels.
struct TapMatrix {
    static constexpr int COLUMNS = cfg::R * cfg::S * cfg::K;
    static constexpr int PRODUCTS = (COLUMNS + 7) / 8;     // products of 8 columns, for each 16 pixels
    static constexpr int STEPS = (cfg::C + 15) / 16;       // steps of 16 channels
    static constexpr int FACTORS = STEPS * PRODUCTS * 32;  // fragments of all lanes
    __device__ static int column(int r, int s, int k) { return (r * cfg::S + s) * cfg::K + k; }
};

// The fragment of 8 columns and 16 channels of a lane (mma.cuh).
struct alignas(8) TapFactors {
    unsigned words[2];
};
