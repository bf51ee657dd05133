// sum_shares: the last step of split-K. Adds up the sums of the blocks that shared the channels of a tile, in a fixed
// order, and applies the epilogue.
//
// Threads   THREADS a block. Each computes LANES neighbouring filters of a pixel.
// Layout    sums[share][pixel of all images][filter], of four bytes.
// Limit     memory, mostly L2, which still holds the sums.
#include "amax.cuh"
#include "memory.cuh"

constexpr int THREADS = 256, LANES = cfg::K % 4 == 0 ? 4 : 1;

struct SumShares {
    Conv conv;
    const acc_t *sums;
    int count;  // of outputs
#ifdef AMAX
    Amax amax;
#endif
};

struct alignas(4 * LANES) Sums {
    acc_t at[LANES];
};

// The outputs of a thread, from the first one on.
__device__ __forceinline__ void add_shares(const SumShares &args, int first, Largest &largest) {
    const Conv &conv = args.conv;
    if (first >= args.count) return;
    Sums sums = *reinterpret_cast<const Sums *>(args.sums + first);
#pragma unroll
    for (int share = 1; share < cfg::SPLIT_K; share++) {
        const acc_t *from = args.sums + static_cast<long long>(share) * args.count + first;
        const Sums more = *reinterpret_cast<const Sums *>(from);
#pragma unroll
        for (int i = 0; i < LANES; i++) sums.at[i] += more.at[i];
    }
    const int pixel = first / cfg::K, row = pixel / conv.Q, n = row / conv.P;
#pragma unroll
    for (int i = 0; i < LANES; i++)
        store_output(conv, n, first - pixel * cfg::K + i, row - n * conv.P, pixel - row * conv.Q, sums.at[i],
                     largest);
}

extern "C" __global__ void __launch_bounds__(THREADS) sum_shares(const __grid_constant__ SumShares args) {
    const int first = (blockIdx.x * THREADS + threadIdx.x) * LANES;
    pdl_wait();
    Largest largest;
    add_shares(args, first, largest);
    largest.store(args);
}
