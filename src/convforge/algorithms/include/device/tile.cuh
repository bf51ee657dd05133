// What the kernels share in which a thread sums a small tile of outputs from rows of pixels in its registers.
//
// Tile      OUT_Q outputs wide, OUT_P high, OUT_K channels. Of the picture it takes ROWS x COLUMNS pixels.
// Run       RUN elements side by side in memory, one row of the window: CHUNK = 1 channel in NCHW, all C channels of
//           its pixels in NHWC where they are few. It begins SHIFT elements behind a multiple of LOAD elements.
// Weights   staged in shared memory by each block (see staged.cuh), or packed beforehand (see weights.cuh).
// Stores    STORE elements at once where the host finds rows so aligned: OUT_Q outputs of a channel side by side, or of
//           STORE_K channels where those lie innermost.
#pragma once
#include "border.cuh"
#include "ends.cuh"
#include "staged.cuh"
#include "vector.cuh"
#include "weights.cuh"

constexpr int COLUMNS = (OUT_Q - 1) * STRIDE_W + DILATION_W * (S - 1) + 1, RUN = COLUMNS * CHUNK;
constexpr int ROWS = (OUT_P - 1) * STRIDE_H + DILATION_H * (R - 1) + 1;
constexpr int LOADS = (SHIFT + RUN + LOAD - 1) / LOAD;
constexpr int TILES_K = (K_GROUP + OUT_K - 1) / OUT_K;

static_assert(OUT_Q * STRIDE_W * CHUNK % LOAD == 0, "all runs must lie alike against the vectors");
static_assert(OUT_Q * STORE_K % STORE == 0 && OUT_K % STORE_K == 0, "stores must fill whole vectors");

using Sums = acc_t[OUT_K][OUT_P][OUT_Q];

// The tile of a thread: picture, first output channel and input channel, first output.
struct Tile {
    int n, k, c, p, q;
};

// Row r of the taps of output k and channel c, c counted within the group.
__device__ inline void taps_of(acc_t (&taps)[S], const Conv &conv, const acc_t (&staged)[STAGED], int k, int c, int r) {
    if constexpr (STAGED_WEIGHTS) return staged_taps(taps, staged, k, c, r);
#pragma unroll
    for (int s = 0; s < S; s++) taps[s] = weight(conv, k, c, r, s);
}

// A row of the window, in vectors; one of which the window takes half or less comes one by one.
__device__ inline void load_run(const Conv &conv, acc_t (&row)[RUN], const x_t *run) {
#pragma unroll
    for (int v = 0; v < LOADS; v++) {
        const int first = v * LOAD - SHIFT;
        if (min(first + LOAD, RUN) - max(first, 0) > LOAD / 2) {
            const auto values = load_vector<LOAD>(run + first);
#pragma unroll
            for (int e = 0; e < LOAD; e++)
                if (first + e >= 0 && first + e < RUN) row[first + e] = centred(conv, values.at[e]);
        } else {
#pragma unroll
            for (int e = 0; e < LOAD; e++)
                if (first + e >= 0 && first + e < RUN) row[first + e] = centred(conv, run[first + e]);
        }
    }
}

// Add the products of row i of the window, of CHUNK channels from `c` on, counted within the group.
__device__ inline void add_row(const Conv &conv, const acc_t (&staged)[STAGED], Sums &sums, const acc_t (&row)[RUN],
                               int k0, int c, int i) {
#pragma unroll
    for (int p = 0; p < OUT_P; p++) {
        const int below = i - p * STRIDE_H, r = below / DILATION_H;  // row i of pixels is row r of p's window
        if (below < 0 || below % DILATION_H != 0 || r >= R) continue;
#pragma unroll
        for (int k = 0; k < OUT_K; k++)
#pragma unroll
            for (int ch = 0; ch < CHUNK; ch++) {
                acc_t taps[S];
                taps_of(taps, conv, staged, min(k0 + k, K - 1), c + ch, r);  // beyond: not stored
#pragma unroll
                for (int s = 0; s < S; s++)
#pragma unroll
                    for (int q = 0; q < OUT_Q; q++) {
                        const acc_t x = row[(q * STRIDE_W + s * DILATION_W) * CHUNK + ch];
                        sums[k][p][q] = multiply_add(taps[s], x, sums[k][p][q]);
                    }
            }
    }
}

__device__ inline void store_vectors(const Conv &conv, const Sums &sums, const Tile &tile) {
#pragma unroll
    for (int i = 0; i < OUT_K / STORE_K * OUT_P; i++) {
        const int k = i / OUT_P * STORE_K, p = i % OUT_P;
        if (K_GROUP % OUT_K && (tile.k + k) / K_GROUP != tile.k / K_GROUP) continue;  // beyond the group's last
        out_t *run = conv.out + place(conv.out_strides, tile.n, tile.k + k, tile.p + p, tile.q);
#pragma unroll
        for (int v = 0; v < OUT_Q * STORE_K; v += STORE) {
            Vector<out_t, STORE> values;
#pragma unroll
            for (int e = v; e < v + STORE; e++) {
                const int q = e / STORE_K, ch = k + e % STORE_K;
                values.at[e - v] = finished(conv, tile.n, tile.k + ch, tile.p + p, tile.q + q, sums[ch][p][q]);
            }
            store_vector(run + v, values);
        }
    }
}

__device__ inline void store_tested(const Conv &conv, const Sums &sums, const Tile &tile) {
#pragma unroll
    for (int k = 0; k < OUT_K; k++)
#pragma unroll
        for (int p = 0; p < OUT_P; p++)
#pragma unroll
            for (int q = 0; q < OUT_Q; q++)
                if ((tile.k + k) / K_GROUP == tile.k / K_GROUP && tile.p + p < conv.P && tile.q + q < conv.Q)
                    finish(conv, tile.n, tile.k + k, tile.p + p, tile.q + q, sums[k][p][q]);
}
