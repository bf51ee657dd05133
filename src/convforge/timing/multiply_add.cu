// multiply_add: the peak rate of float32 arithmetic: independent chains of FMAs in registers.
//
// Threads   a grid that fills the GPU. Each thread takes CHAINS numbers through `steps` FMAs.
// Limit     the FMA pipes.
constexpr int CHAINS = 8;

struct MultiplyAdd {
    float *values;  // CHAINS for each thread
    float factor, addend;
    int steps;
};

extern "C" __global__ void __launch_bounds__(256) multiply_add(const __grid_constant__ MultiplyAdd args) {
    float *own = args.values + (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * CHAINS;
    float chain[CHAINS];
    for (int i = 0; i < CHAINS; i++) chain[i] = own[i];
    for (int step = 0; step < args.steps; step++)
#pragma unroll
        for (int i = 0; i < CHAINS; i++) chain[i] = fmaf(chain[i], args.factor, args.addend);
    for (int i = 0; i < CHAINS; i++) own[i] = chain[i];
}
