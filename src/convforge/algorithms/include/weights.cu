// pack_weights: the filter as kernels want it: cast to the type of the sums, flipped where the problem is a convolution
// in the mathematical sense, its axes in any order.
//
// Threads   one a weight, in the order that it is written in.
// Limit     launch latency: filters are small.
#include "types.cuh"

struct Weights {
    const w_t *w;
    acc_t *packed;
    long long strides[4];         // of w, in elements, in the order k, c, r, s
    long long packed_strides[4];  // of packed
    int K, C_GROUP, R, S, flip;
};

extern "C" __global__ void pack_weights(const __grid_constant__ Weights args) {
    const long long count = static_cast<long long>(args.K) * args.C_GROUP * args.R * args.S;
    const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
    for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        const int s = i % args.S, r = i / args.S % args.R;
        const long long kc = i / args.S / args.R;
        const int c = kc % args.C_GROUP, k = kc / args.C_GROUP;
        const int from_r = args.flip ? args.R - 1 - r : r, from_s = args.flip ? args.S - 1 - s : s;
        args.packed[k * args.packed_strides[0] + c * args.packed_strides[1] + r * args.packed_strides[2] +
                    s * args.packed_strides[3]] =
            stored<acc_t>::of(widen(args.w[k * args.strides[0] + c * args.strides[1] + from_r * args.strides[2] + from_s * args.strides[3]]));
    }
}
