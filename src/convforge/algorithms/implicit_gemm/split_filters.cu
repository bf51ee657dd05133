// split_filters: splits each filter into two 16-bit filters with a scale of its own (split.cuh), with contiguous
// channels. If the filters may change before they are used (KEEPS), it also keeps them as floats in the same order.
//
// Threads   a block for each filter. It reads contiguous elements of w, taps of a channel or channels of a tap. Then
//           warps process the taps, lanes neighbouring channels.
// Shared    the filter, if it fits (IS_HELD), so that it is read from memory once. The taps of a channel have an odd
//           stride, so that neighbouring channels are in different banks.
// Layout    halves[half][k][tap][c], c up to CHANNELS, a multiple of 8, with zeros beyond C; plain[k][tap][c];
//           scales[k], the factor of the sums of this filter's products.
// Range     scales[k] is 0 if the halves lose accuracy: the filter has Inf, NaN or numbers out of range, or all numbers
//           of one of its taps, or of one of its channels, are so small relative to the largest that they lose bits. An
//           output may be the sum of those alone, so it is computed from the floats. A filter of one tap has one number
//           of each channel, and among millions of random numbers some are that small. So a filter of one tap is
//           computed from its floats if some channel is that small in all NEIGHBOURS filters around it, or if more than
//           a quarter of its numbers are.
// Limit     memory.
#include "memory.cuh"
#include "split.cuh"

constexpr int WARPS = cfg::THREADS / 32, TAPS = cfg::R * cfg::S, PITCH = TAPS | 1;
constexpr int MOST_LOST = 4;  // a filter may lose bits in one number of so many

struct SplitFilters {
    const float *w;
    float *plain;
    unsigned *halves;  // pairs of them
    float *scales;
    unsigned *redone;      // number of tiles that the convolution computes from floats: zero so far
    long long strides[4];  // of w, in elements, in the order k, c, r, s
    int K, flip;
};

__device__ inline float given(const SplitFilters &args, int k, int c, int tap) {
    const int r = tap / cfg::S, s = tap % cfg::S;
    return args.w[k * args.strides[0] + c * args.strides[1] + r * args.strides[2] + s * args.strides[3]];
}

__device__ inline float weight(const SplitFilters &args, const float *held, int c, int tap) {
    if (c >= cfg::C) return 0;
    if (args.flip) tap = TAPS - 1 - tap;
    return cfg::IS_HELD ? held[c * PITCH + tap] : given(args, blockIdx.x, c, tap);
}

// The largest number of a line for the search of the smallest line; lines of zeros do not count.
__device__ inline float unless_zero(float largest) { return largest == 0 ? 3.402823466e38f : largest; }

__device__ inline float largest_of_lanes(float most) {
    for (int lanes = 16; lanes > 0; lanes /= 2) most = largest_of(most, __shfl_xor_sync(0xffffffffu, most, lanes));
    return most;
}

// True if an output may be a sum of only numbers that lose bits, for a filter of one tap that has such numbers.
__device__ inline bool loses_outputs(const SplitFilters &args, const float *held, float up) {
    __shared__ float ups[cfg::NEIGHBOURS];  // scales of neighbouring filters of the same group, this one included
    __shared__ int balance;            // above 0 if too many numbers lose bits
    const int k = blockIdx.x, in_group = k % cfg::K_GROUP, before = in_group % cfg::NEIGHBOURS;
    const int count = min(cfg::NEIGHBOURS, cfg::K_GROUP - (in_group - before));
    if (threadIdx.x == 0) balance = 0;
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < count; i += WARPS) {
        float most = 0;
        for (int c = threadIdx.x % 32; c < cfg::C; c += 32) most = largest_of(most, given(args, k - before + i, c, 0));
        most = largest_of_lanes(most);
        if (threadIdx.x % 32 == 0) ups[i] = scale_of(most, 0).up;
    }
    __syncthreads();
    bool lost = false;
    int lose = 0;
#pragma unroll 1
    for (int c = threadIdx.x; c < cfg::C; c += cfg::THREADS) {
        const float own = fabsf(weight(args, held, c, 0));
        if (own == 0) continue;
        const bool keeps = own * up >= IN_FULL;
        lose += keeps ? -1 : MOST_LOST - 1;
        bool kept = keeps;
#pragma unroll 1
        for (int i = 0; i < count && !kept; i++) kept = fabsf(given(args, k - before + i, c, 0)) * ups[i] >= IN_FULL;
        lost |= !kept;
    }
    atomicAdd(&balance, lose);
    return __syncthreads_or(lost) || balance > 0;
}

extern "C" __global__ void __launch_bounds__(cfg::THREADS) split_filters(const __grid_constant__ SplitFilters args) {
    __shared__ float largest_of_warp[WARPS], least_of_warp[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = blockIdx.x;
    pdl_wait();
    DYNAMIC_SHARED(float, held);
    if (cfg::IS_HELD) {
        const bool channels_last = args.strides[1] == 1;  // channels are contiguous
#pragma unroll 8
        for (int i = threadIdx.x; i < cfg::C * TAPS; i += cfg::THREADS) {
            const int c = channels_last ? i % cfg::C : i / TAPS, tap = channels_last ? i / cfg::C : i % TAPS;
            held[c * PITCH + tap] = given(args, k, c, tap);
        }
        __syncthreads();
    }
    float largest = 0, least = unless_zero(0);  // of all numbers; of the largest numbers of the lines
    for (int tap = warp; tap < TAPS; tap += WARPS) {
        float most = 0;
        for (int c = lane; c < cfg::C; c += 32) most = largest_of(most, weight(args, held, c, tap));
        most = largest_of_lanes(most);
        largest = largest_of(largest, most);
        least = fminf(least, unless_zero(most));
    }
    for (int c = threadIdx.x; c < cfg::C; c += cfg::THREADS) {
        float most = 0;
        for (int tap = 0; tap < TAPS; tap++) most = largest_of(most, weight(args, held, c, tap));
        least = fminf(least, unless_zero(most));
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) least = fminf(least, __shfl_xor_sync(0xffffffffu, least, lanes));
    if (lane == 0) largest_of_warp[warp] = largest, least_of_warp[warp] = least;
    __syncthreads();
    for (int i = 0; i < WARPS; i++) {
        largest = largest_of(largest, largest_of_warp[i]);
        least = fminf(least, least_of_warp[i]);
    }
    const bool tiny = largest > 0 && largest < SMALLEST;
    const Scale scale = scale_of(tiny ? SMALLEST : largest, -SHIFT);
    bool plain = !tiny && (cannot_split(largest) || least * scale.up < IN_FULL);
    if (TAPS == 1 && plain && !cannot_split(largest)) plain = loses_outputs(args, held, scale.up);
    if (threadIdx.x == 0) args.scales[k] = plain ? 0 : scale.down;
    if (threadIdx.x == 0 && k == 0) *args.redone = 0;
    for (int tap = warp; tap < TAPS; tap += WARPS) {
        const long long row = static_cast<long long>(k) * TAPS + tap, rows = static_cast<long long>(args.K) * TAPS;
        for (int c = 2 * lane; c < cfg::CHANNELS; c += 64) {
            const float a = weight(args, held, c, tap), b = weight(args, held, c + 1, tap);
            unsigned high, low;
            split_pair(a * scale.up, b * scale.up, high, low);
            args.halves[(row * cfg::CHANNELS + c) / 2] = high;
            args.halves[((rows + row) * cfg::CHANNELS + c) / 2] = low;
            if (cfg::KEEPS && c < cfg::C) args.plain[row * cfg::C + c] = a;
            if (cfg::KEEPS && c + 1 < cfg::C) args.plain[row * cfg::C + c + 1] = b;
        }
    }
}
