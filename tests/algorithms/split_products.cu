// split_products: sums of products as implicit_gemm_split takes them, by plain multiply-adds of halves. A thread has a row.
#include "device.cuh"
#include "split.cuh"

struct Products {
    const float *a, *b;
    float *sums;
    int rows;
};

// Tensor cores keep a few bits more than a float has, and cut off; floats that are cut off are worse.
__device__ inline float cut_off(double sum) {
    const float nearest = static_cast<float>(sum);
    return fabs(static_cast<double>(nearest)) > fabs(sum) ? float_of(bits_of(nearest) - 1) : nearest;
}

__device__ inline float half_of(unsigned pair, int i) {
    return widen(half_t{static_cast<unsigned short>(pair >> 16 * i)});
}

extern "C" __global__ void split_products(const __grid_constant__ Products args) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    const float *a = args.a + row * COUNT, *b = args.b + row * COUNT;
    float of_a = 0, of_b = 0, sum = 0, cross = 0;
    for (int i = 0; i < COUNT; i++) of_a = largest_of(of_a, a[i]), of_b = largest_of(of_b, b[i]);
    const Scale x = scale_of(of_a, SHIFT), w = scale_of(of_b, -SHIFT);
    for (int first = 0; first < COUNT; first += 32) {
        float main = 0;
        for (int i = first; i < first + 32; i += 2) {
            unsigned a_high, a_low, b_high, b_low;
            split_pair(a[i] * x.up, a[i + 1] * x.up, a_high, a_low);
            split_pair(b[i] * w.up, b[i + 1] * w.up, b_high, b_low);
            for (int j = 0; j < 2; j++) {
                const double ah = half_of(a_high, j), al = half_of(a_low, j), bh = half_of(b_high, j), bl = half_of(b_low, j);
                main = cut_off(main + ah * bh);
                cross = cut_off(cross + (ah * bl + al * bh));
            }
        }
        sum = fmaf(main, x.down, sum);
    }
    args.sums[row] = fmaf(cross, x.down * (1 / LOW), sum) * w.down;
}
