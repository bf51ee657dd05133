// copy: what moves memory fastest: 16 bytes a thread, and as many threads as that takes.
//
// Threads   thread i of the grid moves element i. Blocks start in order, so what is under way at any time lies close
//           together in memory; a grid that just fills the GPU and goes on in steps is slower.
// Launches  in a row begin early, as the kernels' own do that are held against it.
// Limit     memory bandwidth, read and write together.
#include "memory.cuh"

struct Copy {
    const float4 *source;
    float4 *target;
    long long count;  // of float4
};

extern "C" __global__ void __launch_bounds__(256) copy(const __grid_constant__ Copy args) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    pdl_wait();
    if (i < args.count) args.target[i] = args.source[i];
}
