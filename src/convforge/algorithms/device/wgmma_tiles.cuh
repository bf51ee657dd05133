// Shared parts of the implicit GEMMs on wgmma.cuh: out (NPQ x K) = columns (NPQ x RSC) times weights (RSC x K), in
// steps of one tap and a row of ROW_BYTES of channels, by tiles of BLOCK_PIXELS x BLOCK_FILTERS outputs. Persistent
// grid: a block computes tile after tile. All filters of a tile belong to one group.
//
// Constants of the host: PATCH, FILTERS_ON_M, PING_PONG, BY_PIXELS, ROWS_64, BLOCK_N; FILTER_STAGES, RESIDENT;
// ROW_BYTES; NUMBER_BYTES, the size of a factor; HALVES, the number of arrays of filters; PASSES.
// FILTERS_ON_M   filters are the operand with 64 rows a product and pixels that with BLOCK_N; else the reverse
// PING_PONG      the two warpgroups alternate, with a tile each; else they share every tile, each with half of the rows
//                of 64, or, BY_PIXELS, with BLOCK_N pixels of its own and all filters
// PATCH          a tile is 8 outputs wide; the pixels of all taps of 64 channels are loaded once, as a patch with halo
//                and a tap is an offset into it. With a stride, a patch is loaded as several phases (PHASES). Otherwise
//                the pixels of each tap are loaded separately, in im2col mode
// RESIDENT       all filters stay in shared memory; else they are loaded for each tile, in a ring of FILTER_STAGES
// PAIRS_FILTERS  two blocks, a cluster, compute tiles of other pixels with the same filters in step: each loads half
//                of a stage of filters for both (multicast), and a stage is free when both have read it
// PAIRS_PIXELS   the same for pixels in im2col mode: the two blocks have different filters
// SPLIT_K        this number of blocks share the channels of a tile, if there are few tiles. Each stores its sums to an
//                array of its own, and sum_shares.cu adds them up
// PASSES         2: all slices of a tile are multiplied twice, with the filters of two planes
//
// place_of(tiling, tile);         the first output of a tile
// output_of(conv, tiling, place, pixel);
//                                 image, row and column of a pixel of a tile
// forward(conv, output);          advances by 8 pixels of the tile
// store_sums(...);                threads store 64 rows of sums, in any layout, through the epilogue
// load_filters(...);              one thread loads filters into their ring, ahead of the products
// load_windows(...);              one thread loads the pixels of a tap, in im2col mode
// tap_offset(tap);                offset in a patch of the first pixel of a tap, in bytes
#pragma once
#include "conv.cuh"
#include "epilogue.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int ROW_CHANNELS = cfg::ROW_BYTES / cfg::NUMBER_BYTES;
constexpr int ALL_SLICES = (cfg::C_GROUP + ROW_CHANNELS - 1) / ROW_CHANNELS;
constexpr int TAPS = cfg::R * cfg::S, SLICES = (ALL_SLICES + cfg::SPLIT_K - 1) / cfg::SPLIT_K;
constexpr int STEPS = TAPS * SLICES * cfg::PASSES;
constexpr int SHARE_CHANNELS = SLICES * ROW_CHANNELS;
// The first channel of a slice of a share, and its pass. Slices are counted from the first pass to the last.
__device__ constexpr int channel_of(int slice) { return (cfg::PASSES == 1 ? slice : slice % SLICES) * ROW_CHANNELS; }
__device__ constexpr int pass_of(int slice) { return cfg::PASSES == 1 ? 0 : slice / SLICES; }
static_assert(cfg::SPLIT_K == 1 || cfg::GROUPS == 1, "a share's last channels would be those of the next group");
constexpr int TAPS_OF_STAGE = cfg::PATCH ? TAPS : 1;  // taps for each stage of pixels
// Taps in unrolled code: code for all 81 taps of a 9x9 filter would compile for a minute.
constexpr int TAPS_AT_ONCE = TAPS <= 9 ? TAPS : 3;
constexpr int STAGES_OF_TILE = STEPS / TAPS_OF_STAGE;
// Products of a row, each of 32 bytes. If one row has all channels of a group, only these are multiplied.
constexpr int PRODUCT_BYTES = 32, LONGEST = ALL_SLICES > 1 ? cfg::ROW_BYTES : cfg::C_GROUP *cfg::NUMBER_BYTES;
constexpr int PRODUCTS = (LONGEST + PRODUCT_BYTES - 1) / PRODUCT_BYTES;

constexpr int GROUPS_OF_TILE = cfg::PING_PONG ? 1 : 2;  // warpgroups that share a tile
static_assert(!cfg::BY_PIXELS || (cfg::FILTERS_ON_M && !cfg::PING_PONG), "pixels are shared where they are columns");
constexpr int BLOCK_M = 64 * cfg::ROWS_64 * (cfg::BY_PIXELS ? 1 : GROUPS_OF_TILE),
              COLUMNS = cfg::BLOCK_N * (cfg::BY_PIXELS ? 2 : 1);
constexpr int BLOCK_PIXELS = cfg::FILTERS_ON_M ? COLUMNS : BLOCK_M,
              BLOCK_FILTERS = cfg::FILTERS_ON_M ? BLOCK_M : cfg::BLOCK_N;

constexpr int TILE_W = 8, TILE_H = BLOCK_PIXELS / TILE_W;
// With a stride, a patch consists of phases: every STRIDE_W-th pixel of every STRIDE_H-th row, stored separately. A tap
// reads one phase, as with stride 1. All phases that some tap needs are loaded.
constexpr int REACH_W = (cfg::S - 1) * cfg::DILATION_W, REACH_H = (cfg::R - 1) * cfg::DILATION_H;
constexpr int PHASES_W = REACH_W < cfg::STRIDE_W ? REACH_W + 1 : cfg::STRIDE_W,
              PHASES_H = REACH_H < cfg::STRIDE_H ? REACH_H + 1 : cfg::STRIDE_H;
constexpr int PHASES = cfg::PATCH ? PHASES_W * PHASES_H : 1;
constexpr int PATCH_W = TILE_W + REACH_W / cfg::STRIDE_W, PATCH_H = TILE_H + REACH_H / cfg::STRIDE_H;
constexpr int PHASE_ROWS = cfg::PATCH ? PATCH_W * PATCH_H : BLOCK_PIXELS, PIXEL_ROWS = PHASES * PHASE_ROWS;
constexpr int PHASE_BYTES = (PHASE_ROWS * cfg::ROW_BYTES + 1023) / 1024 * 1024, PIXEL_BYTES = PHASES * PHASE_BYTES;
constexpr int FILTER_BYTES = cfg::HALVES * BLOCK_FILTERS * cfg::ROW_BYTES;
constexpr int EIGHT_ROWS = 8 * cfg::ROW_BYTES, PIXEL_PITCH = cfg::PATCH ? PATCH_W * cfg::ROW_BYTES : EIGHT_ROWS;

constexpr int WARPGROUP = 128, CONSUMERS = 2;

constexpr bool PAIRED = cfg::PAIRS_FILTERS || cfg::PAIRS_PIXELS;
constexpr int OF_CLUSTER = PAIRED ? 2 : 1;  // blocks of a cluster
constexpr int CLUSTER_FILTERS = BLOCK_FILTERS * (cfg::PAIRS_PIXELS ? 2 : 1);
static_assert(!PAIRED || !cfg::RESIDENT, "filters that stay are brought once");
static_assert(!cfg::PAIRS_PIXELS || !cfg::PATCH, "a patch comes once for all taps");

struct Tiling {
    int tiles;
    Divisor tiles_k, across, down;  // tiles along the filters; tiles of an image along its rows and columns
    Divisor P, Q;
};

struct Place {
    int k, c, first;  // filter; channel; linear index of the pixel in all images
    int share;        // of split-K
    int q, p, n;
    __device__ int end() const {
        return cfg::GROUPS == 1 ? cfg::K : c / cfg::C_GROUP * cfg::K_GROUP + cfg::K_GROUP;
    }  // end of the group's filters
};

// Splits a linear index into image, row and column.
__device__ inline void decompose(int number, const Divisor &rows, const Divisor &columns, int &n, int &p, int &q) {
    const int row = quotient(number, columns);
    q = number - row * columns.by;
    n = quotient(row, rows);
    p = row - n * rows.by;
}

// The first filter of a tile, the first channel of its group and share, and its share. The last filters of a pair may
// be outside the group.
__device__ inline void filters_of(const Tiling &tiling, int tile, int &k, int &c, int &share) {
    constexpr int OF_GROUP = (cfg::K_GROUP + CLUSTER_FILTERS - 1) / CLUSTER_FILTERS;
    const int all = tile / OF_CLUSTER;
    int i = all - quotient(all, tiling.tiles_k) * tiling.tiles_k.by;
    share = cfg::SPLIT_K == 1 ? 0 : i / OF_GROUP;
    if (cfg::SPLIT_K > 1) i -= share * OF_GROUP;
    const int group = cfg::GROUPS == 1 ? 0 : i / OF_GROUP;
    k = group * cfg::K_GROUP + (i - group * OF_GROUP) * CLUSTER_FILTERS;
    if (cfg::PAIRS_PIXELS) k += tile % OF_CLUSTER * BLOCK_FILTERS;
    c = group * cfg::C_GROUP + share * SHARE_CHANNELS;
}

__device__ inline Place place_of(const Tiling &tiling, int tile) {
    int t = quotient(tile / OF_CLUSTER, tiling.tiles_k);
    if (cfg::PAIRS_FILTERS) t = t * OF_CLUSTER + tile % OF_CLUSTER;  // may be beyond the last tile
    Place at{0, 0, t * BLOCK_PIXELS, 0};
    filters_of(tiling, tile, at.k, at.c, at.share);
    if (cfg::PATCH) {
        decompose(t, tiling.down, tiling.across, at.n, at.p, at.q);
        at.p *= TILE_H, at.q *= TILE_W;
    } else {
        decompose(at.first, tiling.P, tiling.Q, at.n, at.p, at.q);
    }
    return at;
}

struct Output {
    int n, p, q;
    bool there;
};

__device__ inline Output output_of(const Conv &conv, const Tiling &tiling, const Place &at, int pixel) {
    Output out{at.n, at.p + pixel / TILE_W, at.q + pixel % TILE_W, true};
    if (!cfg::PATCH) decompose(at.first + pixel, tiling.P, tiling.Q, out.n, out.p, out.q);
    out.there = out.p < conv.P && out.q < conv.Q && out.n < conv.N;
    return out;
}

// Advances by 8 pixels of the tile.
__device__ inline void forward(const Conv &conv, Output &out) {
    if constexpr (cfg::PATCH) {
        out.p++;
        out.there = out.there && out.p < conv.P;
    } else {
        for (out.q += TILE_W; out.q >= conv.Q; out.q -= conv.Q)
            if (++out.p == conv.P) out.p = 0, out.n++;
        out.there = out.n < conv.N;
    }
}

// Address of the results of a share.
__device__ inline out_t *results_of(const Conv &conv, const Place &at) {
    if (cfg::SPLIT_K == 1) return conv.out;
    return conv.out + static_cast<long long>(at.share) * conv.N * conv.P * conv.Q * cfg::K;
}

template <class T, int COUNT>
struct alignas(COUNT * sizeof(T)) Neighbours {
    T at[COUNT];
};

// Stores the sums of a thread: two of 64 rows, 8 apart, and two columns of each 8; `row` and `column` are the first
// ones. `store_width` neighbours of the output may be stored as one vector: 1, 2, or, of 16 bits, 4.
template <class Seen = Unseen>
__device__ inline void store_sums(const Conv &conv, const Tiling &tiling, const Place &at, const acc_t (&sums)[SUMS],
                                  int row, int column, int store_width, Seen &&seen = Seen()) {
    const index_t of_k = conv.out_strides.c;
    const int end = at.end();
    out_t *const results = results_of(conv, at);
    if constexpr (cfg::FILTERS_ON_M) {
        constexpr int AT_ONCE = !cfg::OUT_CHANNELS_LAST && sizeof(out_t) == 2 ? 2 : 1;  // groups of eight columns
        Output outs[AT_ONCE][2] = {{output_of(conv, tiling, at, column), output_of(conv, tiling, at, column + 1)}};
#pragma unroll
        for (int j = 0; j < SUMS / 4; j += AT_ONCE) {
#pragma unroll
            for (int r = 1; r < AT_ONCE; r++)
#pragma unroll
                for (int i = 0; i < 2; i++) outs[r][i] = outs[r - 1][i], forward(conv, outs[r][i]);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int k = at.k + row + 8 * half;
                Neighbours<out_t, 2> pairs[AT_ONCE]{};
                out_t *to[AT_ONCE];
#pragma unroll
                for (int r = 0; r < AT_ONCE; r++) {
                    to[r] = results + offset_of(conv.out_strides, outs[r][0].n, k, outs[r][0].p, outs[r][0].q);
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const Output &out = outs[r][i];
                        const acc_t sum = sums[4 * (j + r) + 2 * half + i];
                        if (out.there && k < end) pairs[r].at[i] = output_value(conv, out.n, k, out.p, out.q, sum, seen);
                    }
                }
                if constexpr (AT_ONCE == 2) {
                    if (store_width == 4) {  // two lanes exchange pairs: each stores four pixels
                        const bool odd = threadIdx.x % 2;
                        const unsigned first = reinterpret_cast<const unsigned &>(pairs[0]);
                        const unsigned second = reinterpret_cast<const unsigned &>(pairs[AT_ONCE - 1]);
                        const unsigned others = __shfl_xor_sync(0xffffffffu, odd ? first : second, 1);
                        const uint2 four = odd ? make_uint2(others, second) : make_uint2(first, others);
                        out_t *from = odd ? to[AT_ONCE - 1] - 2 : to[0];
                        const bool there = odd ? outs[AT_ONCE - 1][0].there : outs[0][0].there;
                        if (there && k < end) *reinterpret_cast<uint2 *>(from) = four;
                        continue;
                    }
                }
#pragma unroll
                for (int r = 0; r < AT_ONCE; r++) {
                    if (k >= end) continue;
                    if (!cfg::OUT_CHANNELS_LAST && store_width >= 2) {
                        if (outs[r][0].there) *reinterpret_cast<Neighbours<out_t, 2> *>(to[r]) = pairs[r];
                        continue;
                    }
                    const Output &next = outs[r][1];
                    if (outs[r][0].there) *to[r] = pairs[r].at[0];
                    if (next.there) results[offset_of(conv.out_strides, next.n, k, next.p, next.q)] = pairs[r].at[1];
                }
            }
#pragma unroll
            for (int i = 0; i < 2; i++) outs[0][i] = outs[AT_ONCE - 1][i], forward(conv, outs[0][i]);
        }
    } else {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const Output out = output_of(conv, tiling, at, row + 8 * half);
            out_t *to = results + offset_of(conv.out_strides, out.n, at.k + column, out.p, out.q);
#pragma unroll
            for (int j = 0; j < SUMS / 4; j++) {
                Neighbours<out_t, 2> pair{};
                const int k = at.k + column + 8 * j;
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (out.there && k + i < end)
                        pair.at[i] = output_value(conv, out.n, k + i, out.p, out.q, sums[4 * j + 2 * half + i], seen);
                out_t *here = to + 8 * j * of_k;
                if (cfg::OUT_CHANNELS_LAST && store_width >= 2 && out.there && k + 1 < end) {
                    *reinterpret_cast<Neighbours<out_t, 2> *>(here) = pair;
                } else {
                    if (out.there && k < end) here[0] = pair.at[0];
                    if (out.there && k + 1 < end) here[of_k] = pair.at[1];
                }
            }
        }
    }
}

__device__ constexpr int tap_offset(int tap) {
    const int down = tap / cfg::S * cfg::DILATION_H, right = tap % cfg::S * cfg::DILATION_W;
    const int phase = down % cfg::STRIDE_H * PHASES_W + right % cfg::STRIDE_W;
    return cfg::PATCH ? phase * PHASE_BYTES + (down / cfg::STRIDE_H * PATCH_W + right / cfg::STRIDE_W) * cfg::ROW_BYTES
                      : 0;
}

__device__ inline void load_filters(const TensorMap &map, const Tiling &tiling, unsigned char (*filters)[FILTER_BYTES],
                                     unsigned long long *there, unsigned long long *read) {
    Ring<cfg::FILTER_STAGES> ring{0, 1};
    // Half of the filters, or, if they are split, the high or the low halves.
    const int half = cfg::PAIRS_FILTERS ? cluster_rank() : 0;
    for (int tile = blockIdx.x; tile < tiling.tiles; tile += gridDim.x) {
        int k, c, share;
        filters_of(tiling, tile, k, c, share);
        for (int step = 0; step < STEPS; step++, ring.next()) {
            mbarrier_wait(&read[ring.stage], ring.parity);
            mbarrier_expect_tx(&there[ring.stage], FILTER_BYTES);
            const int channel = share * SHARE_CHANNELS + channel_of(step / TAPS), tap = step % TAPS;
            const int plane = pass_of(step / TAPS);
            if (cfg::PAIRS_FILTERS) {
                const int first = k + (cfg::HALVES == 1 ? half * BLOCK_FILTERS / 2 : 0);
                tma_load_multicast(3, filters[ring.stage] + half * FILTER_BYTES / 2, map, channel, tap, first,
                            cfg::HALVES == 1 ? plane : half, &there[ring.stage]);
            } else tma_load(filters[ring.stage], map, channel, tap, k, plane, &there[ring.stage]);
        }
        if (cfg::RESIDENT) return;
    }
}

// Position of the first pixel of the first tap that a block loads for a tile: of all pixels, or in a pair of half of
// them.
struct Windows {
    int w, h, n;
};

__device__ inline Windows windows_of(const Conv &conv, const Tiling &tiling, const Place &at) {
    int q = at.q, p = at.p, n = at.n;
    if (cfg::PAIRS_PIXELS) decompose(at.first + cluster_rank() * BLOCK_PIXELS / 2, tiling.P, tiling.Q, n, p, q);
    return {q * cfg::STRIDE_W - conv.left, p * cfg::STRIDE_H - conv.top, n};
}

__device__ inline void load_windows(unsigned char *to, const TensorMap &map, int c, const Windows &from, int tap,
                                     unsigned long long *there) {
    const int right = tap % cfg::S * cfg::DILATION_W, down = tap / cfg::S * cfg::DILATION_H;
    if (cfg::PAIRS_PIXELS)
        tma_load_im2col_multicast(3, to + cluster_rank() * BLOCK_PIXELS / 2 * cfg::ROW_BYTES, map, c, from.w, from.h, from.n,
                       right, down, there);
    else tma_load_im2col(to, map, c, from.w, from.h, from.n, right, down, there);
}
