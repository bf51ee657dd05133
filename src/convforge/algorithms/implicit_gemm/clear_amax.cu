// clear_amax: sets the largest absolute value of the results to 0, before the kernels of a call raise it (amax.cuh).
//
// Threads   one.
// Limit     the launch.
#include "memory.cuh"

struct ClearAmax {
    unsigned *largest;
};

extern "C" __global__ void __launch_bounds__(1) clear_amax(const __grid_constant__ ClearAmax args) {
    pdl_wait();
    *args.largest = 0;
}
