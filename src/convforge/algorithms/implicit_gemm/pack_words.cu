// pack_words: packs filters of bytes as words along K, with the filters innermost, flipped if the problem is a
// convolution in the mathematical sense.
//
// Threads   SIDE x ROWS a block. They read a square of SIDE words of SIDE filters, with neighbouring threads along the
//           words of a filter, and write it with neighbouring threads along the filters.
// Out       (KWords::DEPTH, K), with zeros in bytes that belong to no channel or tap (words.cuh).
// Shared    the square. Its rows are padded by one word, so that a column has no bank conflicts.
// Limit     memory: reads are bytes of neighbouring channels, whose lines neighbouring taps read again.
#include "types.cuh"
#include "memory.cuh"
#include "words.cuh"

constexpr int SIDE = 32, ROWS = 8;

struct PackWords {
    const unsigned char *w;  // bytes of either type
    unsigned *packed;
    long long strides[4];  // of w, in the order k, c, r, s
    int K, flip;
};

__device__ inline unsigned word_of(const PackWords &args, int k, int i) {
    const KWords at(i);
    const int r = args.flip ? cfg::R - 1 - at.r : at.r;
    unsigned word = 0;
#pragma unroll
    for (int b = 0; b < 4; b++) {
        const int s = at.tap(b), c = at.channel(b);
        if (!KWords::exists(s, c)) continue;
        const int seen = args.flip ? cfg::S - 1 - s : s;
        const unsigned byte = args.w[k * args.strides[0] + c * args.strides[1] + r * args.strides[2] + seen * args.strides[3]];
        word |= byte << 8 * b;
    }
    return word;
}

extern "C" __global__ void __launch_bounds__(SIDE *ROWS) pack_words(const __grid_constant__ PackWords args) {
    __shared__ unsigned square[SIDE][SIDE + 1];
    constexpr int ACROSS = (KWords::DEPTH + SIDE - 1) / SIDE;
    const int x = threadIdx.x, y = threadIdx.y;
    const int k0 = blockIdx.x / ACROSS * SIDE, first = blockIdx.x % ACROSS * SIDE;
    pdl_wait();
    for (int i = y; i < SIDE; i += ROWS)
        if (k0 + i < args.K && first + x < KWords::DEPTH) square[i][x] = word_of(args, k0 + i, first + x);
    __syncthreads();
    for (int i = y; i < SIDE; i += ROWS)
        if (k0 + x < args.K && first + i < KWords::DEPTH)
            args.packed[static_cast<long long>(first + i) * args.K + k0 + x] = square[x][i];
}
