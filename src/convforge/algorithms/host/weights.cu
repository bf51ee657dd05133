// pack_weights: converts the filter to acc_t, flips it if the problem is a convolution in the mathematical sense, and
// stores its axes in any order.
//
// The filter is a matrix of K rows and C_GROUP * R * S columns, in the order of w.
// Threads   32 x ROWS a block. They load a square of 32 x 32 weights, with neighbouring threads along a row, and store
//           it transposed if K_LAST, when outputs are contiguous in the packed filter.
// Shared    the square. Its rows are padded by one element, so that a column has no bank conflicts.
// Limit     memory: both sides are whole lines, except for the runs of taps that a packed order separates.
#include "memory.cuh"
#include "types.cuh"

constexpr int SIDE = 32, ROWS = 8;

struct Weights {
    const w_t *w;
    acc_t *packed;
    long long strides[4];         // of w, in elements, in the order k, c, r, s
    long long packed_strides[4];  // of packed
    int K, C_GROUP, R, S, flip;
};

// Offset of weight (k, column) in an array of these strides.
__device__ inline long long weight_at(const Weights &args, const long long (&strides)[4], int k, int column, bool flip) {
    int s = column % args.S, r = column / args.S % args.R;
    const int c = column / args.S / args.R;
    if (flip) {
        r = args.R - 1 - r;
        s = args.S - 1 - s;
    }
    return k * strides[0] + c * strides[1] + r * strides[2] + s * strides[3];
}

extern "C" __global__ void pack_weights(const __grid_constant__ Weights args) {
    __shared__ acc_t square[SIDE][SIDE + 1];
    const int columns = args.C_GROUP * args.R * args.S;
    const int across = (columns + SIDE - 1) / SIDE, x = threadIdx.x, y = threadIdx.y;
    const int k0 = blockIdx.x / across * SIDE, column0 = blockIdx.x % across * SIDE;
    pdl_wait();
    for (int i = y; i < SIDE; i += ROWS)
        if (k0 + i < args.K && column0 + x < columns)
            square[i][x] = stored<acc_t>::of(widen(args.w[weight_at(args, args.strides, k0 + i, column0 + x, args.flip)]));
    __syncthreads();
    for (int i = y; i < SIDE; i += ROWS) {
        const int k = k0 + (cfg::K_LAST ? x : i), column = column0 + (cfg::K_LAST ? i : x);
        if (k < args.K && column < columns)
            args.packed[weight_at(args, args.packed_strides, k, column, false)] = square[k - k0][column - column0];
    }
}
