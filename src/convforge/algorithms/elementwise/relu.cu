// relu: the larger of each element and zero. NaN is copied bit by bit.
//
// Vectors   WIDTH elements, 16 bytes, a load and a store. A thread has VECTORS of them in flight before it stores the
//           first. Those of a block are contiguous, RUN of them; the VECTORS ones of a thread are THREADS apart.
// Threads   THREADS a block. Block b computes runs b, b + gridDim.x, ..., so a grid may be smaller than the array.
// Rest      elements before the first and after the last whole vector of the output are processed one by one. So is
//           every element if x and the output have different alignment, or if their elements are not contiguous.
// In place  x may be the output: a thread reads an element before it writes it, and no other thread reads it.
// Index     64 bits, which costs little relative to the loads.
// Limit     memory: each element is read once and written once.
#include "memory.cuh"

constexpr int WIDTH = 16 / sizeof(x_t), RUN = cfg::THREADS * cfg::VECTORS;

static_assert(cfg::THREADS >= 32 && cfg::THREADS <= 1024, "a block has 32 to 1024 threads");

struct Relu {
    const x_t *x;
    x_t *out;
    long long x_step, out_step;  // from an element to the next
    long long size;              // elements
    long long head, vectors;     // elements before the first vector, and how many vectors there are
};

__device__ inline x_t rectified(x_t value) { return widen(value) < 0 ? x_t{} : value; }

extern "C" __global__ void __launch_bounds__(cfg::THREADS) relu(const __grid_constant__ Relu args) {
    const x_t *x = args.x + args.head;
    x_t *out = args.out + args.head;
    for (long long run = blockIdx.x; run * RUN < args.vectors; run += gridDim.x) {
        const long long first = run * RUN + threadIdx.x;
        Vector<x_t, WIDTH> values[cfg::VECTORS];
#pragma unroll
        for (int v = 0; v < cfg::VECTORS; v++)
            if (first + v * cfg::THREADS < args.vectors)
                values[v] = load_vector<WIDTH>(x + (first + v * cfg::THREADS) * WIDTH);
#pragma unroll
        for (int v = 0; v < cfg::VECTORS; v++) {
            if (first + v * cfg::THREADS >= args.vectors) continue;
#pragma unroll
            for (int e = 0; e < WIDTH; e++) values[v].at[e] = rectified(values[v].at[e]);
            store_vector(out + (first + v * cfg::THREADS) * WIDTH, values[v]);
        }
    }
    const long long behind = args.vectors * WIDTH, step = static_cast<long long>(gridDim.x) * cfg::THREADS;
    long long i = static_cast<long long>(blockIdx.x) * cfg::THREADS + threadIdx.x;
    for (; i < args.size - behind; i += step) {
        const long long place = i < args.head ? i : i + behind;
        args.out[place * args.out_step] = rectified(args.x[place * args.x_step]);
    }
}
