// The filter: as its user gave it, staged in shared memory, prepared, and packed for products of all taps at once.
#pragma once
#include "conv.cuh"
#include "memory.cuh"

struct Filter {
    const w_t *taps;
    Strides strides;  // in the order K, C_GROUP, R, S; negative where the filter is flipped
};

// A tap in the type that sums are taken in.
__device__ inline acc_t given_tap(const Filter &filter, int k, int c, int r, int s) {
    return as<acc_t>(filter.taps[offset_of(filter.strides, k, c, r, s)]);
}

// Staged: every block brings the filter to shared memory, in the type of the sums. No other launch has to come first, so
// that a call on a small image is one launch; on a large one no block waits for it long, as others work meanwhile. A row
// of taps begins at 16 bytes and is read by loads as wide as it is, the same for all threads of a warp.
constexpr int TAP_LOAD = 16 / sizeof(acc_t), TAP_PITCH = (cfg::S + TAP_LOAD - 1) / TAP_LOAD * TAP_LOAD;
// Its taps in shared memory, where it is staged at all.
template <bool STAGES>
constexpr int STAGED_TAPS = STAGES ? cfg::K *cfg::C_GROUP *cfg::R *TAP_PITCH : 1;

// Bring the filter; a barrier has to follow.
template <int COUNT>
__device__ inline void stage(const Filter &filter, acc_t (&staged)[COUNT], int thread, int threads) {
    for (int i = thread; i < cfg::K * cfg::C_GROUP * cfg::R * cfg::S; i += threads) {
        const int s = i % cfg::S, r = i / cfg::S % cfg::R, c = i / (cfg::S * cfg::R) % cfg::C_GROUP,
                  k = i / (cfg::S * cfg::R * cfg::C_GROUP);
        staged[((k * cfg::C_GROUP + c) * cfg::R + r) * TAP_PITCH + s] = given_tap(filter, k, c, r, s);
    }
}

// Row r of the taps of output k and channel c, c counted within the group.
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

// Weight (k, c, r, s), c counted within the group, of the prepared filter, (K, C_GROUP, R, S): from `constants`, in constant
// memory, where it FITS there, else from global memory. Constant memory gives one number a cycle to a whole warp, and the
// multiply-add takes it from there itself, without a register.
template <bool FITS, int COUNT>
__device__ inline acc_t weight(const acc_t (&constants)[COUNT], const Conv &conv, int k, int c, int r, int s) {
    if constexpr (FITS) return constants[((k * cfg::C_GROUP + c) * cfg::R + r) * cfg::S + s];
    return conv.w[static_cast<index_t>(k) * (cfg::C_GROUP * cfg::R * cfg::S) + (c * cfg::R + r) * cfg::S + s];
}
template <bool FITS>
constexpr int CONSTANT_TAPS = FITS ? cfg::K *cfg::C_GROUP *cfg::R *cfg::S : 1;

// The order of the columns of a product that computes all taps of a few filters at once: tap_columns.cu packs the filters
// so, and few_outputs.cu multiplies them. Column (r * S + s) * K + k of a pixel is its product with tap (r, s) of filter k,
// over all channels.
struct TapMatrix {
    static constexpr int COLUMNS = cfg::R * cfg::S * cfg::K;
    static constexpr int PRODUCTS = (COLUMNS + 7) / 8;     // of 8 columns, for each 16 pixels
    static constexpr int STEPS = (cfg::C + 15) / 16;       // of 16 channels
    static constexpr int FACTORS = STEPS * PRODUCTS * 32;  // of all lanes
    __device__ static int column(int r, int s, int k) { return (r * cfg::S + s) * cfg::K + k; }
};

// The factors of 8 columns for 16 channels, as a lane holds them (mma.cuh).
struct alignas(8) TapFactors {
    unsigned words[2];
};
