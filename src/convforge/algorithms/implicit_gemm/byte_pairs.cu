// byte_pairs: writes weights of int16 from -255 to 255 as two bytes each, whose difference they are:
// w = floor(w / 2) - (-ceil(w / 2)). Both are from -128 to 127.
//
// Threads   one for each weight. Reads have the order of what is written, so they are coalesced if w is contiguous.
// Out       (2, K, C, R, S): first all -ceil(w / 2), then all floor(w / 2).
// Limit     memory
#include "memory.cuh"

struct BytePairs {
    const short *w;
    signed char *pairs;
    long long strides[4];  // of w, in elements, in the order k, c, r, s
    long long count;       // weights
    int C, R, S;
};

extern "C" __global__ void byte_pairs(const __grid_constant__ BytePairs args) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    pdl_wait();
    if (i >= args.count) return;
    const int s = static_cast<int>(i % args.S), r = static_cast<int>(i / args.S % args.R);
    const long long channel = i / args.S / args.R, k = channel / args.C, c = channel % args.C;
    const int w = args.w[k * args.strides[0] + c * args.strides[1] + r * args.strides[2] + s * args.strides[3]];
    const int lower = w >> 1;
    args.pairs[i] = static_cast<signed char>(lower - w);
    args.pairs[args.count + i] = static_cast<signed char>(lower);
}
