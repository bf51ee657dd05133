// tap_columns: packs a few filters as columns of a product, one for each tap, in the order of few_outputs.cu.
//
// Result    for each 16 channels and each 8 columns (filter.cuh): the fragments of 32 lanes. Two versions: for blocks
//           that go down, and with the rows of the filters reversed for blocks that go up.
// Threads   one for each lane's fragment of eight columns, 4 numbers, with zeros for channels and columns that do not
//           exist.
// Limit     launch overhead, because the filters are small.
#include "filter.cuh"
#include "memory.cuh"

constexpr int STEPS = TapMatrix::STEPS, PRODUCTS = TapMatrix::PRODUCTS, FACTORS = TapMatrix::FACTORS;

struct TapColumns {
    Filter filter;
    TapFactors *packed;
};

extern "C" __global__ void tap_columns(const __grid_constant__ TapColumns args) {
    const int i = blockIdx.x * cfg::THREADS + threadIdx.x, lane = i % 32;
    pdl_wait();
    if (i >= 2 * FACTORS) return;
    const int column = i / 32 % PRODUCTS * 8 + lane / 4, step = i / (32 * PRODUCTS) % STEPS;
    const int k = column % cfg::K, s = column / cfg::K % cfg::S, row = column / (cfg::K * cfg::S),
              r = i < FACTORS ? row : cfg::R - 1 - row;
    Vector<w_t, 4> factors;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int c = step * 16 + j / 2 * 8 + lane % 4 * 2 + j % 2;
        const bool there = column < TapMatrix::COLUMNS && c < cfg::C;
        factors.at[j] = there ? args.filter.taps[offset_of(args.filter.strides, k, c, r, s)] : w_t{};
    }
    args.packed[i].words[0] = factors.word.bits[0];
    args.packed[i].words[1] = factors.word.bits[1];
}
