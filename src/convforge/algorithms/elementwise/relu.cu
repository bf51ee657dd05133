// relu: the larger of each element and zero; NaN stays NaN, bit by bit.
//
// Vectors   WIDTH elements, 16 bytes, a load and a store. A thread has VECTORS of them on their way before it stores
//           the first; those of a block lie side by side, RUN of them, thread t's VECTORS ones THREADS apart.
// Threads   THREADS a block; block b takes runs b, b + gridDim.x, ... So a grid may be smaller than the array.
// Rest      what lies before the first whole vector of the output and behind its last goes one by one. So does every
//           element where x and the output do not lie alike against 16 bytes, or their elements not side by side.
// In place  x may be the output itself: a thread reads an element before it writes it, and no other thread reads it.
// Index     64 bits: the few additions are nothing beside the loads.
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
