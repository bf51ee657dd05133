// Fourier transforms: complex numbers, small transforms in a thread's registers, and overlap-save tiles in memory.
#pragma once
#include "types.cuh"

struct alignas(2 * sizeof(acc_t)) Complex {
    acc_t re, im;
};

__device__ inline Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
__device__ inline Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
__device__ inline Complex conjugate(Complex a) { return {a.re, -a.im}; }
__device__ inline Complex operator*(Complex a, Complex b) {
    return {multiply_add(a.re, b.re, -a.im * b.im), multiply_add(a.re, b.im, a.im * b.re)};
}

// cos(2 pi k / 16) for k = 0 ... 8.
__device__ constexpr double cosine(int k) {
    return k > 4    ? -cosine(8 - k)
           : k == 0 ? 1
           : k == 1 ? 0.92387953251128675613
           : k == 2 ? 0.70710678118654752440
           : k == 3 ? 0.38268343236508977173
                    : 0;
}

// z times exp(-2 pi i k / 16), or BACK: exp(2 pi i k / 16), for k = 0 ... 7.
template <bool BACK>
__device__ inline Complex twiddled(Complex z, int k) {
    if (k == 0) return z;
    const acc_t c = cosine(k), s = BACK ? -cosine(k < 4 ? 4 - k : k - 4) : cosine(k < 4 ? 4 - k : k - 4);
    if (k == 4) return {s * z.im, -s * z.re};  // s is 1 or -1
    return {multiply_add(z.re, c, z.im * s), multiply_add(z.im, c, -z.re * s)};
}

// Transforms N numbers, N = 1, 2, 4, 8, 16, in natural order: halves of even and odd numbers (Cooley and Tukey, An
// algorithm for the machine calculation of complex Fourier series, 1965). All indices are compile-time constants.
template <int N, bool BACK>
__device__ inline void dft(Complex (&v)[N]) {
    static_assert(N <= 16 && (N & (N - 1)) == 0, "powers of two up to 16");
    if constexpr (N > 1) {
        Complex even[N / 2], odd[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            even[i] = v[2 * i];
            odd[i] = v[2 * i + 1];
        }
        dft<N / 2, BACK>(even);
        dft<N / 2, BACK>(odd);
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const Complex other = twiddled<BACK>(odd[i], i * (16 / N));
            v[i] = even[i] + other;
            v[i + N / 2] = even[i] - other;
        }
    }
}

// A chunk of overlap-save tiles in memory: (count, channels, size_h, pitch) numbers, `count` tiles of the batch from
// `first` on. All sizes are run-time arguments, so a new size of image or transform compiles nothing.
struct Tiles {
    acc_t *data;
    int first;           // tile of the batch: images, then rows of tiles, then tiles of a row
    int channel;         // first channel, or output channel
    int channels;        // of each tile
    int size_h, pitch;   // rows of a tile; numbers of a row
    int tile_p, tile_q;  // outputs of a tile
    int across, down;    // tiles of an image
};

// The image of a tile, and its first output.
struct Corner {
    int n, p, q;
};

__device__ inline Corner corner_of(const Tiles &tiles, int i) {
    const unsigned tile = tiles.first + i, row = tile / tiles.across, n = row / tiles.down;
    return {static_cast<int>(n), static_cast<int>((row - n * tiles.down) * tiles.tile_p),
            static_cast<int>((tile - row * tiles.across) * tiles.tile_q)};
}

// Work of a block of a kernel over tiles: INTERLEAVED channels from c on of tile i, a box of pixels from (row, column)
// on.
struct Box {
    int i, c, row, column;
};

template <int ROWS, int COLUMNS, int INTERLEAVED>
__device__ inline Box box_of(const Tiles &tiles, int rows, int columns) {
    const unsigned across = (columns + COLUMNS - 1) / COLUMNS, down = (rows + ROWS - 1) / ROWS;
    const unsigned group = blockIdx.x / (across * down), part = blockIdx.x - group * (across * down);
    const unsigned groups = (tiles.channels + INTERLEAVED - 1) / INTERLEAVED, i = group / groups, y = part / across;
    return {static_cast<int>(i), static_cast<int>((group - i * groups) * INTERLEAVED), static_cast<int>(y * ROWS),
            static_cast<int>((part - y * across) * COLUMNS)};
}

// Address of a row of channel c of tile i, with c counted from the chunk's first.
__device__ inline acc_t *row_of(const Tiles &tiles, int i, int c, int row) {
    return tiles.data + ((static_cast<long long>(i) * tiles.channels + c) * tiles.size_h + row) * tiles.pitch;
}
