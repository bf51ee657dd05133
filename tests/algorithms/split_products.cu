// split_products: sums of products as implicit_gemm_split takes them, by plain multiply-adds of halves. A thread has a row.
#include "device.cuh"
#include "split.cuh"

struct Products {
    const float *a, *b;
    float *sums;
    int rows;
};

// Tensor cores add 16 products at a time, and cut off what a float does not hold.
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
        for (int part = first; part < first + 32; part += 16) {
            double of_high = main, of_low = cross;
            for (int i = part; i < part + 16; i += 2) {
                unsigned a_high, a_low, b_high, b_low;
                split_pair(a[i] * x.up, a[i + 1] * x.up, a_high, a_low);
                split_pair(b[i] * w.up, b[i + 1] * w.up, b_high, b_low);
                for (int j = 0; j < 2; j++) {
                    const double high = half_of(a_high, j), other = half_of(b_high, j);
                    of_high += high * other;
                    of_low += high * half_of(b_low, j) + half_of(a_low, j) * other;
                }
            }
            main = cut_off(of_high), cross = cut_off(of_low);
        }
        sum = fmaf(main, x.down, sum);
    }
    args.sums[row] = fmaf(cross, x.down * (1 / LOW), sum) * w.down;
}
