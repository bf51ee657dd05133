// fft_fused: one block gathers, transforms, multiplies, transforms back and stores tiles, in shared memory.
//
// Since fft: its five steps are one kernel, and no tile is written to memory: a pixel is read with its halo,
//           an output is written. For filters that see one channel each.
// Pair      a block processes two tiles of a plane as the real and the imaginary part of SIZE x SIZE complex numbers.
//           The filter is real, so each part is filtered separately by the complex transforms.
// Transform of SIZE = A * B numbers in two stages, each in place, by threads that hold A or B numbers in registers.
//           Outer: the A numbers a * B + n of a line, for each n, are transformed, and result k is multiplied by the
//           twiddle factor exp(-2 pi i n k / SIZE). Inner: B neighbours are transformed. So frequency k + A * m ends at
//           position k * B + m. It is not reordered: the filter's spectrum has the same order, and the inverse begins
//           with it.
// Order     columns, then rows; inverse: rows, then columns. The first outer stage reads the image, and the last one
//           stores outputs. The inner stage of rows multiplies and begins the inverse, in registers.
// Threads   THREADS a block. In stages of columns, lanes are along a row, in stages of rows along a column. With rows
//           of SIZE + 1 numbers neither has bank conflicts. Pixels, spectra (stored transposed) and outputs are whole
//           lines.
// Grid      one dimension: pairs of a plane, then output channels, then images.
// Limit     shared memory, 12 passes over a block's numbers, and FMA: 10 log2(SIZE) operations a number for each
//           direction. Halos: with 128 x 128 numbers a 31 x 31 filter leaves 98 x 98 outputs.
#include "border.cuh"
#include "epilogue.cuh"
#include "fft.cuh"
#include "memory.cuh"

constexpr int SIZE = cfg::A * cfg::B, PITCH = SIZE + 1;

// Twiddle factors exp(-2 pi i j / SIZE), j = 0 ... SIZE - 1. All lanes of a warp read the same one.
__constant__ Complex twiddles[SIZE] = {TWIDDLES};

struct Fused {
    Conv conv;
    const Complex *spectra;  // (K, SIZE, SIZE), transposed: columns of a row are contiguous
    int tile_p, tile_q;      // outputs of a tile
    int across, tiles;       // tiles of a row and of a plane
    int span_h, span_w;      // pixels that a tile reads; the rest of it is zeros
};

struct Spectra {
    const acc_t *w;  // (K, 1, R, S) in cross-correlation order
    Complex *spectra;
};

// An outer stage of all lines: numbers are ALONG apart, lines ACROSS.
template <int ALONG, int ACROSS, bool BACK>
__device__ inline void outer(Complex *tile) {
    __syncthreads();  // the stage before this outer one is done
    for (int item = threadIdx.x; item < SIZE * cfg::B; item += cfg::THREADS) {
        const int n = item / SIZE;
        Complex *line = tile + (item % SIZE * ACROSS + n * ALONG), v[cfg::A];
#pragma unroll
        for (int a = 0; a < cfg::A; a++) v[a] = line[a * (cfg::B * ALONG)];
        dft<cfg::A, BACK>(v);
#pragma unroll
        for (int a = 0; a < cfg::A; a++) line[a * (cfg::B * ALONG)] = BACK ? v[a] : v[a] * twiddles[n * a];
    }
}

// An inner stage of all lines.
template <int ALONG, int ACROSS, bool BACK>
__device__ inline void inner(Complex *tile) {
    __syncthreads();  // the stage before this inner one is done
    for (int item = threadIdx.x; item < SIZE * cfg::A; item += cfg::THREADS) {
        const int k = item / SIZE;
        Complex *line = tile + (item % SIZE * ACROSS + k * (cfg::B * ALONG)), v[cfg::B];
#pragma unroll
        for (int b = 0; b < cfg::B; b++) v[b] = line[b * ALONG];
        dft<cfg::B, BACK>(v);
#pragma unroll
        for (int b = 0; b < cfg::B; b++) line[b * ALONG] = BACK ? v[b] * conjugate(twiddles[k * b]) : v[b];
    }
}

// The first output of a tile. Beyond the last tile, it is below the image.
struct TileOutput {
    int p, q;
};

__device__ inline TileOutput corner_of(const Fused &args, int tile) {
    const int row = tile / args.across;
    return {row * args.tile_p, (tile - row * args.across) * args.tile_q};
}

// Pixel (row, column) of a tile.
__device__ inline acc_t number(const Fused &args, const TileOutput &corner, int n, int c, int row, int column) {
    const Conv &conv = args.conv;
    if (row >= args.span_h || column >= args.span_w) return 0;
    return pixel(conv, n, c, corner.p * cfg::STRIDE_H - conv.top + row, corner.q * cfg::STRIDE_W - conv.left + column);
}

// Stores the output whose sum is at (row, column) of a tile, if there is one.
__device__ inline void keep(const Fused &args, const TileOutput &corner, int n, int k, int row, int column, acc_t sum) {
    if (row % cfg::STRIDE_H != 0 || column % cfg::STRIDE_W != 0) return;
    const int i = row / cfg::STRIDE_H, j = column / cfg::STRIDE_W, p = corner.p + i, q = corner.q + j;
    if (i < args.tile_p && j < args.tile_q && p < args.conv.P && q < args.conv.Q) store_output(args.conv, n, k, p, q, sum);
}

extern "C" __global__ void __launch_bounds__(cfg::THREADS) fft_fused(const __grid_constant__ Fused args) {
    DYNAMIC_SHARED(Complex, tile);
    const unsigned pairs = (args.tiles + 1) / 2, plane = blockIdx.x / pairs, pair = blockIdx.x - plane * pairs;
    const int n = plane / cfg::K, k = plane % cfg::K, c = k / cfg::K_GROUP;
    const TileOutput first = corner_of(args, 2 * pair), second = corner_of(args, 2 * pair + 1);
    for (int item = threadIdx.x; item < SIZE * cfg::B; item += cfg::THREADS) {
        const int column = item % SIZE, row = item / SIZE;
        Complex v[cfg::A];
#pragma unroll
        for (int a = 0; a < cfg::A; a++)
            v[a] = {number(args, first, n, c, row + a * cfg::B, column),
                    number(args, second, n, c, row + a * cfg::B, column)};
        dft<cfg::A, false>(v);
#pragma unroll
        for (int a = 0; a < cfg::A; a++) tile[(row + a * cfg::B) * PITCH + column] = v[a] * twiddles[row * a];
    }
    inner<PITCH, 1, false>(tile);
    outer<1, PITCH, false>(tile);
    __syncthreads();  // the outer stage of rows is done
    for (int item = threadIdx.x; item < SIZE * cfg::A; item += cfg::THREADS) {
        const int row = item % SIZE, i = item / SIZE;
        const Complex *spectrum = args.spectra + ((static_cast<long long>(k) * SIZE + i * cfg::B) * SIZE + row);
        Complex *line = tile + (row * PITCH + i * cfg::B), v[cfg::B];
#pragma unroll
        for (int b = 0; b < cfg::B; b++) v[b] = line[b];
        dft<cfg::B, false>(v);
#pragma unroll
        for (int b = 0; b < cfg::B; b++) v[b] = v[b] * conjugate(spectrum[b * SIZE]);
        dft<cfg::B, true>(v);
#pragma unroll
        for (int b = 0; b < cfg::B; b++) line[b] = v[b] * conjugate(twiddles[i * b]);
    }
    outer<1, PITCH, true>(tile);
    inner<PITCH, 1, true>(tile);
    __syncthreads();  // the inner stage of columns is done
    for (int item = threadIdx.x; item < SIZE * cfg::B; item += cfg::THREADS) {
        const int column = item % SIZE, row = item / SIZE;
        Complex v[cfg::A];
#pragma unroll
        for (int a = 0; a < cfg::A; a++) v[a] = tile[(row + a * cfg::B) * PITCH + column];
        dft<cfg::A, true>(v);
#pragma unroll
        for (int a = 0; a < cfg::A; a++) {
            keep(args, first, n, k, row + a * cfg::B, column, v[a].re);
            keep(args, second, n, k, row + a * cfg::B, column, v[a].im);
        }
    }
}

// Transforms a filter by the same stages, divided by the number of points, by which transform and inverse multiply.
extern "C" __global__ void __launch_bounds__(cfg::THREADS) fft_spectra(const __grid_constant__ Spectra args) {
    DYNAMIC_SHARED(Complex, tile);
    const acc_t *w = args.w + static_cast<long long>(blockIdx.x) * (cfg::R * cfg::S);
    for (int item = threadIdx.x; item < SIZE * SIZE; item += cfg::THREADS) {
        const int row = item / SIZE, column = item % SIZE, r = row / cfg::DILATION_H, s = column / cfg::DILATION_W;
        const bool tap = r < cfg::R && s < cfg::S && r * cfg::DILATION_H == row && s * cfg::DILATION_W == column;
        tile[row * PITCH + column] = {tap ? w[r * cfg::S + s] : 0, 0};
    }
    outer<PITCH, 1, false>(tile);
    inner<PITCH, 1, false>(tile);
    outer<1, PITCH, false>(tile);
    inner<1, PITCH, false>(tile);
    __syncthreads();  // the spectrum is complete
    Complex *spectrum = args.spectra + static_cast<long long>(blockIdx.x) * (SIZE * SIZE);
    for (int item = threadIdx.x; item < SIZE * SIZE; item += cfg::THREADS) {
        const Complex value = tile[item % SIZE * PITCH + item / SIZE];
        spectrum[item] = {value.re / (SIZE * SIZE), value.im / (SIZE * SIZE)};
    }
}
