// copy: the copy bandwidth of the GPU: 16 bytes a thread, and one thread for each element.
//
// Threads   thread i of the grid copies element i. Blocks start in order, so accesses in flight are close together in
//           memory. A persistent grid with a loop is slower.
// Launches  in a row overlap (PDL), like those of the kernels that are compared with it.
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
