// The filter as its user gave it: every block brings it to shared memory, in the type of the sums.
//
// No other launch has to come first, so that a call on a small picture is one launch; on a large one no block waits for
// it long, as others work meanwhile. A row of taps begins at 16 bytes and is read by loads as wide as it is, the same
// for all threads of a warp. STAGED_WEIGHTS comes from the host.
#pragma once
#include "device.cuh"
#include "given.cuh"
#include "vector.cuh"

constexpr int TAP_LOAD = 16 / sizeof(acc_t), TAP_PITCH = (S + TAP_LOAD - 1) / TAP_LOAD * TAP_LOAD;
constexpr int STAGED = STAGED_WEIGHTS ? K * C_GROUP * R * TAP_PITCH : 1;

// Bring the filter; a barrier has to follow.
__device__ inline void stage(const Filter &filter, acc_t (&staged)[STAGED], int thread, int threads) {
    for (int i = thread; i < K * C_GROUP * R * S; i += threads) {
        const int s = i % S, r = i / S % R, c = i / (S * R) % C_GROUP, k = i / (S * R * C_GROUP);
        staged[((k * C_GROUP + c) * R + r) * TAP_PITCH + s] = given_tap(filter, k, c, r, s);
    }
}

// Row r of the taps of output k and channel c, c counted within the group.
__device__ inline void staged_taps(acc_t (&taps)[S], const acc_t (&staged)[STAGED], int k, int c, int r) {
    const acc_t *row = staged + ((k * C_GROUP + c) * R + r) * TAP_PITCH;
#pragma unroll
    for (int s = 0; s < TAP_PITCH; s += TAP_LOAD) {
        union {
            Quad quad;
            acc_t at[TAP_LOAD];
        } several = {read_here(row + s)};
#pragma unroll
        for (int v = 0; v < TAP_LOAD; v++)
            if (s + v < S) taps[s + v] = several.at[v];
    }
}
