// Order of the numbers of a window with few channels, as few_channels.cu multiplies them.
//
// A run is the part of a window in one row: S x C contiguous numbers, or with dilation the C numbers of one tap. Runs
// are cut into pairs of numbers; the last numbers of odd runs follow after all pairs. 16 of K are eight pairs, of which
// lane 4 * g + t has pairs t and t + 4.
#pragma once
#include "conv.cuh"
#include "mma.cuh"

// Runs of the filter, of RUN numbers each. Of the PAIRS pairs, the first WHOLE have two numbers of a run.
constexpr bool TAPS_ADJACENT = cfg::DILATION_W == 1;
constexpr int RUN = TAPS_ADJACENT ? cfg::S * cfg::C : cfg::C, RUNS = TAPS_ADJACENT ? cfg::R : cfg::R * cfg::S;
constexpr int WHOLE = RUNS * (RUN / 2), PAIRS = WHOLE + RUNS * (RUN % 2), STEP_PAIRS = MMA_HALVES / 2;
constexpr int STEPS = (PAIRS + STEP_PAIRS - 1) / STEP_PAIRS, WHOLE_STEPS = WHOLE / STEP_PAIRS;

// True if the results of a lane in four products are eight neighbouring filters.
constexpr bool IN_EIGHTS = !cfg::ALONG_Q && sizeof(out_t) <= 2 && cfg::WARP_N % 32 == 0;

// Fragments of a lane for two groups of eight filters and 16 of K.
struct alignas(16) Columns {
    unsigned words[2][2];
};

// A number as a factor; integers become 16-bit floats.
template <class T>
__device__ __forceinline__ math_t factor_of(T number) { return stored<math_t>::of(static_cast<float>(number)); }
template <>
__device__ __forceinline__ math_t factor_of<math_t>(math_t number) { return number; }

// A pair of numbers: its run, the index of its first number in the run, and its size: zero, one or two.
struct Pair {
    int run, first, count;

    // Pair number `i`.
    __device__ explicit Pair(int i) {
        constexpr int OF_RUN = RUN > 1 ? RUN / 2 : 1;
        run = i < WHOLE ? i / OF_RUN : i - WHOLE, first = i < WHOLE ? i % OF_RUN * 2 : RUN - 1;
        count = i < WHOLE ? 2 : i < PAIRS ? 1 : 0;
    }
    __device__ static Pair of_lane(int step, int word, int t) { return Pair(step * STEP_PAIRS + 4 * word + t); }

    // Row and column of the run's first tap.
    __device__ int row() const { return TAPS_ADJACENT ? run : run / cfg::S; }
    __device__ int column() const { return TAPS_ADJACENT ? 0 : run % cfg::S; }
};
