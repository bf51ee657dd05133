// What implicit GEMMs on wgmma.cuh share: out (NPQ x K) = columns (NPQ x RSC) times weights (RSC x K), in steps of one
// tap and 64 channels, by tiles of BLOCK_PIXELS x BLOCK_FILTERS outputs. A block takes tile after tile.
//
// The host says: PATCH, FILTERS_ON_M, PING_PONG, ROWS_64, BLOCK_N; FILTER_STAGES, RESIDENT, and HALVES, the arrays of
// 16 bits that filters are made of.
// FILTERS_ON_M   filters are the operand of 64 rows a product and pixels that of BLOCK_N; else the other way round.
// PING_PONG      the two warpgroups take turns with a tile each; else they share every tile.
// PATCH          a tile is 8 outputs wide; the pixels that all its taps see come once for 64 channels, as a patch with
//                halo, and a tap is an offset into it. Else each tap's pixels come by themselves, in im2col mode.
// RESIDENT       all filters stay in shared memory; else they come again for each tile, in a ring of FILTER_STAGES.
//
// place_of(tiling, tile);         where a tile begins
// output_of(conv, tiling, place, pixel);
//                                 picture, row and column of one of a tile's pixels
// forward(conv, output);          on by 8 of the tile's pixels
// bring_filters(...);             one thread asks for filters, ahead of the products in their ring
// tap_offset(tap);                where in a patch the first pixel is that a tap sees, in bytes
#pragma once
#include "divide.cuh"
#include "ends.cuh"
#include "tensor_copies.cuh"
#include "wgmma.cuh"

constexpr int ROW_BYTES = 128, ROW_CHANNELS = 64, STEP_BYTES = 32;   // of a row; of 16 channels within it
constexpr int TAPS = R * S, SLICES = (C + ROW_CHANNELS - 1) / ROW_CHANNELS, STEPS = TAPS * SLICES;
constexpr int TAPS_OF_STAGE = PATCH ? TAPS : 1;  // that a stage of pixels serves
constexpr int STAGES_OF_TILE = STEPS / TAPS_OF_STAGE;

constexpr int GROUPS_OF_TILE = PING_PONG ? 1 : 2;  // warpgroups that share a tile
constexpr int BLOCK_M = 64 * ROWS_64 * GROUPS_OF_TILE;
constexpr int BLOCK_PIXELS = FILTERS_ON_M ? BLOCK_N : BLOCK_M, BLOCK_FILTERS = FILTERS_ON_M ? BLOCK_M : BLOCK_N;

constexpr int TILE_W = 8, TILE_H = BLOCK_PIXELS / TILE_W;
constexpr int PATCH_W = TILE_W + (S - 1) * DILATION_W, PATCH_H = TILE_H + (R - 1) * DILATION_H;
constexpr int PIXEL_ROWS = PATCH ? PATCH_W * PATCH_H : BLOCK_PIXELS;
constexpr int PIXEL_BYTES = (PIXEL_ROWS * ROW_BYTES + 1023) / 1024 * 1024;
constexpr int FILTER_BYTES = HALVES * BLOCK_FILTERS * ROW_BYTES;
constexpr int EIGHT_ROWS = 8 * ROW_BYTES, PIXEL_PITCH = PATCH ? PATCH_W * ROW_BYTES : EIGHT_ROWS;

constexpr int WARPGROUP = 128, CONSUMERS = 2;

struct Tiling {
    int tiles;
    Divisor tiles_k, across, down;  // along the filters; of a picture, along its rows and columns
    Divisor P, Q;
};

struct Place {
    int k, first;  // filter; pixel of all pictures, counted on
    int q, p, n;
};

// Picture, row and column of a number that counts them on.
__device__ inline void taken_apart(int number, const Divisor &rows, const Divisor &columns, int &n, int &p, int &q) {
    const int row = quotient(number, columns);
    q = number - row * columns.by;
    n = quotient(row, rows);
    p = row - n * rows.by;
}

__device__ inline Place place_of(const Tiling &tiling, int tile) {
    const int t = quotient(tile, tiling.tiles_k);
    Place at{(tile - t * tiling.tiles_k.by) * BLOCK_FILTERS, t * BLOCK_PIXELS};
    if (PATCH) {
        taken_apart(t, tiling.down, tiling.across, at.n, at.p, at.q);
        at.p *= TILE_H, at.q *= TILE_W;
    } else {
        taken_apart(at.first, tiling.P, tiling.Q, at.n, at.p, at.q);
    }
    return at;
}

struct Output {
    int n, p, q;
    bool there;
};

__device__ inline Output output_of(const Conv &conv, const Tiling &tiling, const Place &at, int pixel) {
    Output out{at.n, at.p + pixel / TILE_W, at.q + pixel % TILE_W, true};
    if (!PATCH) taken_apart(at.first + pixel, tiling.P, tiling.Q, out.n, out.p, out.q);
    out.there = out.p < conv.P && out.q < conv.Q && out.n < conv.N;
    return out;
}

// On by 8 pixels of the tile.
__device__ inline void forward(const Conv &conv, Output &out) {
    if constexpr (PATCH) {
        out.p++;
        out.there = out.there && out.p < conv.P;
    } else {
        for (out.q += TILE_W; out.q >= conv.Q; out.q -= conv.Q)
            if (++out.p == conv.P) out.p = 0, out.n++;
        out.there = out.n < conv.N;
    }
}

__device__ constexpr int tap_offset(int tap) {
    return PATCH ? (tap / S * DILATION_H * PATCH_W + tap % S * DILATION_W) * ROW_BYTES : 0;
}

__device__ inline void bring_filters(const Map &map, const Tiling &tiling, unsigned char (*filters)[FILTER_BYTES],
                                     unsigned long long *there, unsigned long long *read) {
    Ring<FILTER_STAGES> ring{0, 1};
    for (int tile = blockIdx.x; tile < tiling.tiles; tile += gridDim.x) {
        const int k = (tile - quotient(tile, tiling.tiles_k) * tiling.tiles_k.by) * BLOCK_FILTERS;
        for (int step = 0; step < STEPS; step++, ring.next()) {
            await_bytes(&read[ring.stage], ring.parity);
            expect_bytes(&there[ring.stage], FILTER_BYTES);
            copy_box(filters[ring.stage], map, step / TAPS * ROW_CHANNELS, step % TAPS, k, 0, &there[ring.stage]);
        }
        if (RESIDENT) return;
    }
}
