// copy: what moves memory fastest: 16 bytes a load, each thread four of them at a time.
//
// Threads   a grid that fills the GPU, in steps of the whole grid.
// Limit     memory bandwidth, read and write together.
struct Copy {
    const float4 *source;
    float4 *target;
    long long count;  // of float4
};

extern "C" __global__ void __launch_bounds__(512) copy(const __grid_constant__ Copy args) {
    const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
    long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; i + 3 * step < args.count; i += 4 * step) {
        const float4 a = args.source[i], b = args.source[i + step];
        const float4 c = args.source[i + 2 * step], d = args.source[i + 3 * step];
        args.target[i] = a;
        args.target[i + step] = b;
        args.target[i + 2 * step] = c;
        args.target[i + 3 * step] = d;
    }
    for (; i < args.count; i += step) args.target[i] = args.source[i];
}
