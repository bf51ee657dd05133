// The numbers that a filter of few channels sees, in the order in which few_channels.cu multiplies them.
//
// A run is what a row of the filter sees, S x C numbers side by side; with dilation, the C numbers of one tap. Runs are cut
// into pairs of numbers, and the last numbers of odd runs come behind all pairs. 16 of K are eight pairs, of which lane
// 4 * g + t has pairs t and t + 4.
#pragma once
#include "conv.cuh"
#include "mma.cuh"

// Runs of the filter, RUN numbers each; pairs of numbers, the first WHOLE of which are two of a run.
constexpr bool TAPS_ADJACENT = cfg::DILATION_W == 1;
constexpr int RUN = TAPS_ADJACENT ? cfg::S * cfg::C : cfg::C, RUNS = TAPS_ADJACENT ? cfg::R : cfg::R * cfg::S;
constexpr int WHOLE = RUNS * (RUN / 2), PAIRS = WHOLE + RUNS * (RUN % 2), STEP_PAIRS = MMA_HALVES / 2;
constexpr int STEPS = (PAIRS + STEP_PAIRS - 1) / STEP_PAIRS, WHOLE_STEPS = WHOLE / STEP_PAIRS;

// Whether the results of a lane in four products are eight neighbouring filters.
constexpr bool IN_EIGHTS = !cfg::ALONG_Q && sizeof(out_t) == 2 && cfg::WARP_N % 32 == 0;

// Factors of two groups of eight filters for 16 of K, as a lane holds them.
struct alignas(16) Columns {
    unsigned words[2][2];
};

// A pair of numbers: its run, its first number in that, and how many there are: none, one or two.
struct Pair {
    int run, first, count;

    // Pair `i` of all.
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
