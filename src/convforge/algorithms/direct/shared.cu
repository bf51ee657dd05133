// direct_shared: a block copies its part of the image to shared memory, and takes all taps from there.
//
// Since direct_constant: the tile, with the halo that the filter reaches beyond it, is read from global memory once a
//           block; borders are dealt with while it is copied, so that taps test nothing; a thread has several outputs.
// Tile      BLOCK_X outputs wide, BLOCK_Y * PER_P high, TILE_K channels deep. Of the image it takes TILE_H x TILE_W
//           pixels of TILE_C channels at a time: the sums wait in registers while the next slice of channels comes in.
// Threads   thread (x, y) takes outputs q = blockIdx.x * BLOCK_X + x, p = (blockIdx.y * BLOCK_Y + y) * PER_P + i, for i
//           below PER_P, of TILE_K channels. Neighbours in x read neighbouring words: no two threads of a warp meet in
//           a bank while STRIDE_W is odd; at stride 2, two do.
// Registers BLOCKS blocks share an SM's.
// Grid      blocks along y and z (image, group, tile of channels) go on in steps of the grid.
// Needs     TILE_C * TILE_H * TILE_W numbers of the sums' type in shared memory: the host sizes and checks it.
// Limit     two barriers a slice, and every element goes through the load unit three times: from global memory, to
//           shared memory, and from there. At 3 x 3 the last is (PER_P + 2) / PER_P * 3 loads for nine multiply-adds.
#include "border.cuh"
#include "epilogue.cuh"
#include "filter.cuh"
#include "memory.cuh"

__constant__ acc_t weights[CONSTANT_TAPS<cfg::CONSTANT_WEIGHTS>];  // where the filter fits there

constexpr int THREADS = cfg::BLOCK_X * cfg::BLOCK_Y;
constexpr int TILE_P = cfg::BLOCK_Y * cfg::PER_P, TILES_K = (cfg::K_GROUP + cfg::TILE_K - 1) / cfg::TILE_K;
constexpr int TILE_H = (TILE_P - 1) * cfg::STRIDE_H + cfg::DILATION_H * (cfg::R - 1) + 1;
constexpr int TILE_W = (cfg::BLOCK_X - 1) * cfg::STRIDE_W + cfg::DILATION_W * (cfg::S - 1) + 1;

// Unrolled as far as the code stays small: by the multiply-adds of a channel.
constexpr int PRODUCTS = cfg::R * cfg::S * cfg::TILE_K * cfg::PER_P;
constexpr int UNROLL_C = PRODUCTS * cfg::TILE_C <= 512 ? cfg::TILE_C : 1, UNROLL_R = PRODUCTS <= 512 ? cfg::R : 1;
constexpr int UNROLL_S = cfg::S <= 16 ? cfg::S : 1;

static_assert(THREADS >= 32 && THREADS <= 1024, "a block has 32 to 1024 threads");

struct Shared {
    Conv conv;
};

// Whether the last slice has fewer channels. Loops over a slice then have TILE_C turns with a test in each: unrolled by
// 3, 5, 15 or 17, a loop with min(TILE_C, C_GROUP - c) turns always takes them all in the code that NVRTC 13.0 to 13.5
// makes for sm_75 to sm_90, and so reads and adds what lies beyond the last channel.
constexpr bool RAGGED = cfg::C_GROUP % cfg::TILE_C != 0;

// Where a slice of channels of the image begins, and how many channels it has.
struct Slice {
    int n, c, h, w, channels;
};

// A row of the image in memory: the pixels of one channel, or of all channels of the slice.
constexpr int INTERLEAVED = cfg::CHANNELS_LAST ? cfg::TILE_C : 1, ROW = TILE_W * INTERLEAVED;

// Copy element `e` of row `h`, from channel `plane` of the slice on.
template <bool INSIDE>
__device__ inline void copy_element(const Conv &conv, acc_t *tile, const x_t *corner, const Slice &from, int plane,
                                    int h, int e) {
    const int w = e / INTERLEAVED, c = plane + e % INTERLEAVED;
    if (cfg::CHANNELS_LAST && RAGGED && c >= from.channels) return;
    tile[(c * TILE_H + h) * TILE_W + w] = INSIDE ? centred(conv, corner[offset_of(conv.x_strides, 0, c, h, w)])
                                                 : pixel(conv, from.n, from.c + c, from.h + h, from.w + w);
}

// Copy a slice, with what stands outside of the image where it is not INSIDE. A row of threads takes rows of it,
// BLOCK_X neighbours at a time; the few columns that are left over are shared out among all threads.
template <bool INSIDE>
__device__ inline void fill_tile(const Conv &conv, acc_t *tile, const Slice &from) {
    constexpr int LEFT = ROW % cfg::BLOCK_X, WHOLE = ROW - LEFT;
    const x_t *corner = conv.x + offset_of(conv.x_strides, from.n, from.c, INSIDE ? from.h : 0, INSIDE ? from.w : 0);
#pragma unroll(UNROLL_C)
    for (int plane = 0; plane < cfg::TILE_C; plane += INTERLEAVED) {
        if (plane >= from.channels) continue;  // as a bound of the loop NVRTC gets it wrong: see RAGGED
#pragma unroll(INSIDE ? 16 : 1)
        for (int y = 0; y < TILE_H; y += cfg::BLOCK_Y)
#pragma unroll(INSIDE ? 4 : 1)
            for (int x = 0; x < WHOLE; x += cfg::BLOCK_X)
                if (y + cfg::BLOCK_Y <= TILE_H || y + threadIdx.y < TILE_H)
                    copy_element<INSIDE>(conv, tile, corner, from, plane, y + threadIdx.y, x + threadIdx.x);
        if constexpr (LEFT > 0)
            for (int i = threadIdx.y * cfg::BLOCK_X + threadIdx.x; i < TILE_H * LEFT; i += THREADS)
                copy_element<INSIDE>(conv, tile, corner, from, plane, i / LEFT, WHOLE + i % LEFT);
    }
}

// Add the products of `channels` channels, from c of the group on, to the sums of output channels k and on.
__device__ inline void add_products(const Conv &conv, const acc_t *tile, acc_t (&sums)[cfg::TILE_K][cfg::PER_P],
                                    int channels, int c, int k) {
    const acc_t *corner = tile + threadIdx.y * cfg::PER_P * cfg::STRIDE_H * TILE_W + threadIdx.x * cfg::STRIDE_W;
#pragma unroll UNROLL_C
    for (int i = 0; i < cfg::TILE_C; i++, corner += TILE_H * TILE_W) {
        if (i >= channels) continue;
#pragma unroll UNROLL_R
        for (int r = 0; r < cfg::R; r++)
#pragma unroll UNROLL_S
            for (int s = 0; s < cfg::S; s++)
#pragma unroll
                for (int j = 0; j < cfg::TILE_K; j++) {
                    // Beyond the last: not stored.
                    const acc_t w = weight<cfg::CONSTANT_WEIGHTS>(weights, conv, min(k + j, cfg::K - 1), c + i, r, s);
#pragma unroll
                    for (int p = 0; p < cfg::PER_P; p++)
                        sums[j][p] = multiply_add(
                            w, corner[(p * cfg::STRIDE_H + r * cfg::DILATION_H) * TILE_W + s * cfg::DILATION_W],
                            sums[j][p]);
                }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, cfg::BLOCKS) direct_shared(const __grid_constant__ Shared args) {
    DYNAMIC_SHARED(acc_t, tile);
    const Conv &conv = args.conv;
    const int q0 = blockIdx.x * cfg::BLOCK_X, q = q0 + threadIdx.x;
    const long long planes = static_cast<long long>(conv.N) * (cfg::GROUPS * TILES_K);
    for (long long plane = blockIdx.z; plane < planes; plane += gridDim.z) {
        const int n = plane / (cfg::GROUPS * TILES_K), part = plane % (cfg::GROUPS * TILES_K);
        const int g = part / TILES_K, k = g * cfg::K_GROUP + part % TILES_K * cfg::TILE_K,
                  w0 = q0 * cfg::STRIDE_W - conv.left;
        for (int p0 = blockIdx.y * TILE_P; p0 < conv.P; p0 += gridDim.y * TILE_P) {
            const int h0 = p0 * cfg::STRIDE_H - conv.top;
            const bool inside = h0 >= 0 && w0 >= 0 && h0 + TILE_H <= conv.H && w0 + TILE_W <= conv.W;
            acc_t sums[cfg::TILE_K][cfg::PER_P] = {};
            for (int c = 0; c < cfg::C_GROUP; c += cfg::TILE_C) {
                const int channels = RAGGED ? min(cfg::TILE_C, cfg::C_GROUP - c) : cfg::TILE_C;
                const Slice slice = {n, g * cfg::C_GROUP + c, h0, w0, channels};
                __syncthreads();  // the slice before is no longer read
                if (inside)
                    fill_tile<true>(conv, tile, slice);
                else
                    fill_tile<false>(conv, tile, slice);
                __syncthreads();
                add_products(conv, tile, sums, channels, c, k);
            }
#pragma unroll
            for (int j = 0; j < cfg::TILE_K; j++)
#pragma unroll
                for (int i = 0; i < cfg::PER_P; i++) {
                    const int p = p0 + threadIdx.y * cfg::PER_P + i;
                    if (k + j < (g + 1) * cfg::K_GROUP && p < conv.P && q < conv.Q)
                        store_output(conv, n, k + j, p, q, sums[j][i]);
                }
        }
    }
}
