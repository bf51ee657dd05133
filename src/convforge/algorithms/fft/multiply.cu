// fft_multiply: products[i, k] = sum over the channels c of k's group of spectra[i, c] * conj(filters[k, c]).
//
// The conjugate makes it a cross-correlation. Each frequency is a separate matrix product: (tiles x C_GROUP) by
// (C_GROUP x K_GROUP) complex numbers.
// Threads   THREADS a block, with neighbouring frequencies. A thread computes one frequency of TILE_T tiles and TILE_K
//           outputs: in a step of c it loads TILE_T + TILE_K numbers for TILE_T * TILE_K products.
// Grid      one dimension: frequencies, then outputs and groups, then tiles.
// In place  if every filter has one channel, products may be spectra: each is read before it is written, by the same
//           thread.
// Limit     memory or L2 for few channels (C_GROUP * K_GROUP below about 16), else FMA and L1.
#include "fft.cuh"

constexpr int THREADS = 128, K_PARTS = (cfg::K_GROUP + cfg::TILE_K - 1) / cfg::TILE_K;

struct Multiply {
    const Complex *spectra, *filters;  // (count, groups * C_GROUP, frequencies) and (groups * K_GROUP, C_GROUP, ...)
    Complex *products;                 // (count, groups * K_GROUP, frequencies)
    int frequencies, count, groups;
};

// sum += a * conj(b)
__device__ inline void add_product(Complex &sum, const Complex &a, const Complex &b) {
    sum.re = multiply_add(a.re, b.re, multiply_add(a.im, b.im, sum.re));
    sum.im = multiply_add(a.im, b.re, multiply_add(-a.re, b.im, sum.im));
}

extern "C" __global__ void __launch_bounds__(THREADS) fft_multiply(const __grid_constant__ Multiply args) {
    const unsigned parts = (args.frequencies + THREADS - 1) / THREADS, over_k = args.groups * K_PARTS;
    const unsigned part = blockIdx.x % parts, rest = blockIdx.x / parts;
    const int i0 = rest / over_k * cfg::TILE_T;
    const int group = rest % over_k / K_PARTS, k0 = rest % K_PARTS * cfg::TILE_K, f = part * THREADS + threadIdx.x;
    if (f >= args.frequencies) return;
    const long long step = args.frequencies;
    const Complex *spectra[cfg::TILE_T], *filters[cfg::TILE_K];
#pragma unroll
    for (int t = 0; t < cfg::TILE_T; t++)  // beyond the last tile the last one is repeated
        spectra[t] = args.spectra + (min(i0 + t, args.count - 1) * args.groups + group) * (cfg::C_GROUP * step) + f;
#pragma unroll
    for (int k = 0; k < cfg::TILE_K; k++)
        filters[k] = args.filters + (group * cfg::K_GROUP + min(k0 + k, cfg::K_GROUP - 1)) * (cfg::C_GROUP * step) + f;
    Complex sums[cfg::TILE_T][cfg::TILE_K] = {};
#pragma unroll(cfg::C_GROUP < 4 ? cfg::C_GROUP : 2)
    for (int c = 0; c < cfg::C_GROUP; c++) {
        Complex b[cfg::TILE_K];
#pragma unroll
        for (int k = 0; k < cfg::TILE_K; k++) b[k] = filters[k][c * step];
#pragma unroll
        for (int t = 0; t < cfg::TILE_T; t++) {
            const Complex a = spectra[t][c * step];
#pragma unroll
            for (int k = 0; k < cfg::TILE_K; k++) add_product(sums[t][k], a, b[k]);
        }
    }
#pragma unroll
    for (int t = 0; t < cfg::TILE_T; t++)
#pragma unroll
        for (int k = 0; k < cfg::TILE_K; k++)
            if (i0 + t < args.count && k0 + k < cfg::K_GROUP)
                args.products[(((i0 + t) * args.groups + group) * cfg::K_GROUP + k0 + k) * step + f] = sums[t][k];
}
