// direct_shared: a block copies its tile of the image to shared memory and reads all taps from there.
//
// Since direct_constant: a block reads the tile and its halo from global memory once. The copy resolves the
//           border, so that taps test nothing. A thread computes several outputs.
// Tile      of outputs: BLOCK_X wide, BLOCK_Y * PER_P high, TILE_K channels deep. Of the image: TILE_H x TILE_W pixels
//           of TILE_C channels at a time. The sums stay in registers while the next slice of channels is copied.
// Threads   thread (x, y) computes outputs q = blockIdx.x * BLOCK_X + x, p = (blockIdx.y * BLOCK_Y + y) * PER_P + i,
//           for i below PER_P, of TILE_K channels. Neighbours in x read neighbouring words. If STRIDE_W is odd, a warp
//           has no bank conflicts; at stride 2 they are two-way.
// Registers the compiler limits registers so that BLOCKS blocks fit on an SM.
// Grid      blocks loop over y and z (image, group, tile of channels) in steps of the grid.
// Needs     TILE_C * TILE_H * TILE_W numbers of acc_t in shared memory. The host computes and checks the size.
// Limit     two barriers for each slice. Every element passes the load/store unit three times: from global memory, to
//           shared memory, and from shared memory. For a 3 x 3 filter the last are (PER_P + 2) / PER_P * 3 loads for
//           nine FMAs.
#include "border.cuh"
#include "epilogue.cuh"
#include "filter.cuh"
#include "memory.cuh"

__constant__ acc_t weights[CONSTANT_TAPS<cfg::CONSTANT_WEIGHTS>];  // if the filter fits

constexpr int THREADS = cfg::BLOCK_X * cfg::BLOCK_Y;
constexpr int TILE_P = cfg::BLOCK_Y * cfg::PER_P, TILES_K = (cfg::K_GROUP + cfg::TILE_K - 1) / cfg::TILE_K;
constexpr int TILE_H = (TILE_P - 1) * cfg::STRIDE_H + cfg::DILATION_H * (cfg::R - 1) + 1;
constexpr int TILE_W = (cfg::BLOCK_X - 1) * cfg::STRIDE_W + cfg::DILATION_W * (cfg::S - 1) + 1;

// Loops are unrolled while the code stays small. The criterion is the number of FMAs of a channel.
constexpr int PRODUCTS = cfg::R * cfg::S * cfg::TILE_K * cfg::PER_P;
constexpr int UNROLL_C = PRODUCTS * cfg::TILE_C <= 512 ? cfg::TILE_C : 1, UNROLL_R = PRODUCTS <= 512 ? cfg::R : 1;
constexpr int UNROLL_S = cfg::S <= 16 ? cfg::S : 1;

static_assert(THREADS >= 32 && THREADS <= 1024, "a block has 32 to 1024 threads");

struct Shared {
    Conv conv;
};

// True if the last slice has fewer channels. Loops over a slice then run TILE_C times with a test in each iteration. A
// loop with min(TILE_C, C_GROUP - c) iterations, unrolled by 3, 5, 15 or 17, is miscompiled by NVRTC 13.0 to 13.5 for
// sm_75 to sm_90: it always runs TILE_C times and reads and adds values beyond the last channel.
constexpr bool RAGGED = cfg::C_GROUP % cfg::TILE_C != 0;

// First element of a slice of channels of the image, and the number of its channels.
struct Slice {
    int n, c, h, w, channels;
};

// A row of the image in memory: the pixels of one channel (NCHW), or of all channels of the slice (NHWC).
constexpr int INTERLEAVED = cfg::CHANNELS_LAST ? cfg::TILE_C : 1, ROW = TILE_W * INTERLEAVED;

// Copies element `e` of row `h`, from channel `plane` of the slice on.
template <bool INSIDE>
__device__ inline void copy_element(const Conv &conv, acc_t *tile, const x_t *corner, const Slice &from, int plane,
                                    int h, int e) {
    const int w = e / INTERLEAVED, c = plane + e % INTERLEAVED;
    if (cfg::CHANNELS_LAST && RAGGED && c >= from.channels) return;
    tile[(c * TILE_H + h) * TILE_W + w] = INSIDE ? centred(conv, corner[offset_of(conv.x_strides, 0, c, h, w)])
                                                 : pixel(conv, from.n, from.c + c, from.h + h, from.w + w);
}

// Copies a slice. Unless INSIDE, it also writes the values of the border. Each row of threads copies rows of the slice,
// BLOCK_X neighbours at a time; all threads share the few columns that remain.
template <bool INSIDE>
__device__ inline void fill_tile(const Conv &conv, acc_t *tile, const Slice &from) {
    constexpr int LEFT = ROW % cfg::BLOCK_X, WHOLE = ROW - LEFT;
    const x_t *corner = conv.x + offset_of(conv.x_strides, from.n, from.c, INSIDE ? from.h : 0, INSIDE ? from.w : 0);
#pragma unroll(UNROLL_C)
    for (int plane = 0; plane < cfg::TILE_C; plane += INTERLEAVED) {
        if (plane >= from.channels) continue;  // NVRTC miscompiles this test as a bound of the loop: see RAGGED
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

// Adds the products of `channels` channels, from channel c of the group on, to the sums of TILE_K output channels from
// k on.
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
                    // Sums beyond the last output channel are not stored.
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
