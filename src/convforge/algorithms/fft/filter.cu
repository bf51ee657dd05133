// fft_filter: expands every filter to a tile for the transform: spread by the dilation, zeros elsewhere.
//
// Scale     weights are divided by the number of points, because the transform and its inverse multiply by it.
// Threads   THREADS a block, for that many neighbouring numbers of one filter's tile.
// Grid      one dimension: parts of a tile, then filters (k, c).
// Flip      a convolution in the mathematical sense reverses the filter's rows and columns.
// Limit     memory: the writes of K * C_GROUP tiles. Weights are read once from DRAM, then from L1.
#include "types.cuh"

constexpr int THREADS = 256;

struct Filter {
    const w_t *w;
    acc_t *tiles;          // (K, C_GROUP, size_h, pitch)
    long long strides[4];  // of w, in elements, in the order k, c, r, s
    acc_t scale;
    int size_h, pitch, flip;
};

extern "C" __global__ void __launch_bounds__(THREADS) fft_filter(const __grid_constant__ Filter args) {
    const int numbers = args.size_h * args.pitch, parts = (numbers + THREADS - 1) / THREADS;
    const int plane = blockIdx.x / parts, at = (blockIdx.x - plane * parts) * THREADS + threadIdx.x;
    if (at >= numbers) return;
    const int i = at / args.pitch, j = at % args.pitch;
    int r = i / cfg::DILATION_H, s = j / cfg::DILATION_W;
    acc_t value = 0;
    if (r < cfg::R && s < cfg::S && r * cfg::DILATION_H == i && s * cfg::DILATION_W == j) {
        if (args.flip) {
            r = cfg::R - 1 - r;
            s = cfg::S - 1 - s;
        }
        const int k = plane / cfg::C_GROUP, c = plane % cfg::C_GROUP;
        value = as<acc_t>(args.w[k * args.strides[0] + c * args.strides[1] + r * args.strides[2] + s * args.strides[3]]);
    }
    args.tiles[static_cast<long long>(plane) * numbers + at] = value * args.scale;
}
