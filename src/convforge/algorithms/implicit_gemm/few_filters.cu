// few_filters: packs filters of 1 to 4 channels in the order of few_channels.cu (few_channels.cuh).
//
// Result    for each BLOCK_N filters, each step and each 16 filters: the fragments of 32 lanes.
// Threads   one for each lane's fragment of eight filters, 4 numbers, with zeros for numbers and filters that do not
//           exist.
// Halves    for split filters, blocks with y = 1 write the low halves, after the high ones.
// Limit     launch overhead, because filters of few channels are small.
#include "few_channels.cuh"
#include "filter.cuh"
#include "memory.cuh"

struct FewFilters {
    Filter filter;
    long long lows;  // distance from the high to the low halves
    Columns *packed;
};

extern "C" __global__ void few_filters(const __grid_constant__ FewFilters args) {
    constexpr int ACROSS = (cfg::K + cfg::BLOCK_N - 1) / cfg::BLOCK_N, COUNT = ACROSS * STEPS * (cfg::BLOCK_N / 8) * 32;
    const int i = blockIdx.x * cfg::THREADS + threadIdx.x, lane = i % 32;
    pdl_wait();
    if (i >= COUNT) return;
    const int eight = i / 32 % (cfg::BLOCK_N / 8), step = i / (4 * cfg::BLOCK_N) % STEPS,
              tile = i / (4 * cfg::BLOCK_N * STEPS);
    const int k = tile * cfg::BLOCK_N + column_at<IN_EIGHTS>(8 * eight + lane / 4);
    const w_t *const taps = args.filter.taps + blockIdx.y * args.lows;
    Vector<math_t, 4> factors;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const Pair pair = Pair::of_lane(step, j / 2, lane % 4);
        const int number = pair.first + j % 2;
        const bool there = j % 2 < pair.count && k < cfg::K;
        const int c = number % cfg::C, s = TAPS_ADJACENT ? number / cfg::C : pair.column();
        const w_t tap = there ? taps[offset_of(args.filter.strides, k, c, pair.row(), s)] : w_t{};
        factors.at[j] = factor_of(tap);
    }
    const int at = (((blockIdx.y * ACROSS + tile) * STEPS + step) * (cfg::BLOCK_N / 16) + eight / 2) * 32 + lane;
    unsigned(&words)[2] = args.packed[at].words[eight % 2];
    words[0] = factors.word.bits[0], words[1] = factors.word.bits[1];
}
