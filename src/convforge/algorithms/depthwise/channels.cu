// depthwise_channels: a thread computes a tile of outputs of a few neighbouring channels, in registers.
//
// Since direct_tiled: if channels are contiguous (NHWC), pixels are loaded in vectors of VEC channels. Rows
//           need no alignment, and neighbouring threads, in neighbouring channels, read neighbouring bytes. Each pixel
//           serves all outputs of the thread's tile whose windows contain it. There is no shared memory for pixels and
//           no barrier in the loop.
// Tile      of a thread: OUT_P x OUT_Q outputs of VEC channels. It needs ROWS x COLUMNS pixels of the image.
// Threads   (x, y, z) of BLOCK_C x BLOCK_Q x BLOCK_P compute vectors of channels, then tiles along q, then along p.
//           Tiles that share pixels are in one block, which finds them in L1.
// Grid      x: vectors of channels and columns of blocks; y: rows of blocks; z: images. Blocks loop over y and z in
//           steps of the grid.
// Filter    staged in shared memory by each block, with the taps of its BLOCK_K channels contiguous: the weights of VEC
//           channels are one load. For a small window (UNROLLED) the weights stay in registers. A larger window is
//           processed row by row, with each weight loaded from shared memory for OUT_Q * VEC FMAs.
// Borders   for a pixel outside the image, the edge pixel is loaded and ignored, so no load waits for a branch. A tile
//           inside the image, in an array with contiguous pixels, needs neither tests nor separate addresses.
// Multiplier K_GROUP outputs for each channel. With more than one, the pixels of a vector are loaded one by one.
// Limit     memory for small filters: a pixel is read (OUT_P + R - 1) (OUT_Q + S - 1) / (OUT_P OUT_Q) times, all but
//           the first from L1. From 7 x 7 on, loads of weights. There depthwise_planes is faster, in float16 only
//           beyond 7 x 7.
#include "epilogue.cuh"
#include "filter.cuh"
#include "memory.cuh"
#include "pixels.cuh"

constexpr int COLUMNS = (cfg::OUT_Q - 1) * cfg::STRIDE_W + cfg::DILATION_W * (cfg::S - 1) + 1;
constexpr int ROWS = (cfg::OUT_P - 1) * cfg::STRIDE_H + cfg::DILATION_H * (cfg::R - 1) + 1;
constexpr int VECTORS = cfg::K / cfg::VEC, BLOCKS_C = (VECTORS + cfg::BLOCK_C - 1) / cfg::BLOCK_C;
constexpr int WEIGHTS = cfg::VEC * sizeof(acc_t) > 16 ? 16 / sizeof(acc_t) : cfg::VEC;  // elements of a load of weights
constexpr int THREADS = cfg::BLOCK_C * cfg::BLOCK_Q * cfg::BLOCK_P, BLOCK_K = cfg::BLOCK_C * cfg::VEC;
constexpr int PITCH = (BLOCK_K + 2 * TAP_LOAD - 1) / TAP_LOAD * TAP_LOAD;  // padded: fewer bank conflicts

static_assert(cfg::K % cfg::VEC == 0, "vectors hold whole channels");
static_assert(THREADS >= 32 && THREADS <= 1024, "a block has 32 to 1024 threads");

struct Channels {
    Conv conv;
    Filter filter;
    int aligned_x, aligned_out;  // true if pixels and outputs allow vectors of VEC channels
    int dense;                   // true if pixels are also contiguous in both arrays
};

// The tile of a thread: image, first channel of the output, first output.
struct Tile {
    int n, k, p, q;
};

// The filters of a block.
struct Taps {
    alignas(16) acc_t at[cfg::R * cfg::S][PITCH];
};

// Stages the filters of BLOCK_K outputs from k on. A barrier must follow.
__device__ inline void stage(const Filter &filter, Taps &taps, int k) {
    const int thread = threadIdx.x + cfg::BLOCK_C * (threadIdx.y + cfg::BLOCK_Q * threadIdx.z);
    strided_loop<BLOCK_K * cfg::R * cfg::S, THREADS>(thread, [&](int at, int t) {
        const int i = at + t, slot = i / (cfg::R * cfg::S), tap = i % (cfg::R * cfg::S);
        taps.at[tap][slot] = given_tap(filter, min(k + slot, cfg::K - 1), 0, tap / cfg::S, tap % cfg::S);
    });
}

// Knowledge about a tile: its pixels allow no vectors; they do; or it is inside the image, with contiguous pixels.
enum Known { NOTHING, ALIGNED, INSIDE };

// Loads VEC channels of a pixel, for the outputs from channel k on.
template <Known KNOWN>
__device__ inline void load_pixel(const Conv &conv, acc_t (&values)[cfg::VEC], const x_t *pixel, int k) {
    if constexpr (KNOWN != NOTHING) {
        const auto vector = load_vector<cfg::VEC>(pixel);
#pragma unroll
        for (int e = 0; e < cfg::VEC; e++) values[e] = centred(conv, vector, e);
    } else {
#pragma unroll
        for (int e = 0; e < cfg::VEC; e++)
            values[e] = centred(
                conv, pixel[((k + e) / cfg::K_GROUP - k / cfg::K_GROUP) * static_cast<index_t>(conv.x_strides.c)]);
    }
}

template <Known KNOWN>
__device__ inline void add_products(const Conv &conv, const Taps &taps, acc_t (&sums)[cfg::OUT_P][cfg::OUT_Q][cfg::VEC],
                                    const Tile &tile) {
    const int h0 = tile.p * cfg::STRIDE_H - conv.top, w0 = tile.q * cfg::STRIDE_W - conv.left;
    constexpr bool WHOLE = KNOWN == INSIDE;
    const x_t *image = conv.x + offset_of(conv.x_strides, tile.n, tile.k / cfg::K_GROUP, WHOLE ? h0 : 0, WHOLE ? w0 : 0);
    index_t across[COLUMNS];
    bool there[COLUMNS];
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        if constexpr (WHOLE) {
            there[j] = true, across[j] = j * cfg::C;
        } else {
            const int w = inside(w0 + j, conv.W);
            there[j] = w >= 0, across[j] = max(w, 0) * static_cast<index_t>(conv.x_strides.w);
        }
    }
#pragma unroll(cfg::UNROLLED ? ROWS : 1)
    for (int i = 0; i < ROWS; i++) {
        const int h = WHOLE ? i : inside(h0 + i, conv.H);
        const x_t *line = image + max(h, 0) * static_cast<index_t>(conv.x_strides.h);
        acc_t row[COLUMNS][cfg::VEC];
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            load_pixel<KNOWN>(conv, row[j], line + across[j], tile.k);
#pragma unroll
            for (int e = 0; e < cfg::VEC; e++) row[j][e] = h >= 0 && there[j] ? row[j][e] : outside(conv);
        }
#pragma unroll
        for (int p = 0; p < cfg::OUT_P; p++) {
            // Row i of pixels is row r of the window of output row p.
            const int below = i - p * cfg::STRIDE_H, r = below / cfg::DILATION_H;
            if (below < 0 || below % cfg::DILATION_H != 0 || r >= cfg::R) continue;
#pragma unroll
            for (int s = 0; s < cfg::S; s++)
#pragma unroll
                for (int v = 0; v < cfg::VEC; v += WEIGHTS) {
                    const auto w = load_vector<WEIGHTS>(taps.at[r * cfg::S + s] + threadIdx.x * cfg::VEC + v);
#pragma unroll
                    for (int q = 0; q < cfg::OUT_Q; q++)
#pragma unroll
                        for (int e = 0; e < WEIGHTS; e++) {
                            acc_t &sum = sums[p][q][v + e];
                            sum = multiply_add(w.at[e], row[q * cfg::STRIDE_W + s * cfg::DILATION_W][v + e], sum);
                        }
                }
        }
    }
}

template <Known KNOWN>
__device__ inline void store(const Channels &args, const acc_t (&sums)[cfg::OUT_P][cfg::OUT_Q][cfg::VEC],
                             const Tile &tile) {
    const Conv &conv = args.conv;
    out_t *const first = conv.out + offset_of(conv.out_strides, tile.n, tile.k, tile.p, tile.q);
#pragma unroll
    for (int i = 0; i < cfg::OUT_P * cfg::OUT_Q; i++) {
        const int p = tile.p + i / cfg::OUT_Q, q = tile.q + i % cfg::OUT_Q;
        if (KNOWN != INSIDE && (p >= conv.P || q >= conv.Q)) continue;
        const acc_t(&sum)[cfg::VEC] = sums[i / cfg::OUT_Q][i % cfg::OUT_Q];
        if (KNOWN == INSIDE || args.aligned_out) {
            const index_t step_q = KNOWN == INSIDE ? cfg::K : conv.out_strides.w;
            out_t *const pixel =
                first + (i / cfg::OUT_Q * static_cast<index_t>(conv.out_strides.h) + i % cfg::OUT_Q * step_q);
            Vector<out_t, cfg::STORE> values;
#pragma unroll
            for (int v = 0; v < cfg::VEC; v += cfg::STORE) {
#pragma unroll
                for (int e = 0; e < cfg::STORE; e++)
                    values.at[e] = output_value(conv, tile.n, tile.k + v + e, p, q, sum[v + e]);
                store_vector(pixel + v, values);
            }
        } else {
#pragma unroll
            for (int e = 0; e < cfg::VEC; e++) store_output(conv, tile.n, tile.k + e, p, q, sum[e]);
        }
    }
}

template <Known KNOWN>
__device__ inline void compute(const Channels &args, const Taps &taps, const Tile &tile) {
    acc_t sums[cfg::OUT_P][cfg::OUT_Q][cfg::VEC] = {};
    add_products<KNOWN>(args.conv, taps, sums, tile);
    store<KNOWN>(args, sums, tile);
}

extern "C" __global__ void __launch_bounds__(THREADS, cfg::BLOCKS)
    depthwise_channels(const __grid_constant__ Channels args) {
    const Conv &conv = args.conv;
    const int vector = blockIdx.x % BLOCKS_C * cfg::BLOCK_C + threadIdx.x;
    const int q0 = blockIdx.x / BLOCKS_C * cfg::BLOCK_Q * cfg::OUT_Q, q = q0 + threadIdx.y * cfg::OUT_Q;
    // Uniform in a row of the block, so that a warp does not diverge: two divergent paths take longer than tests.
    const int left = q0 * cfg::STRIDE_W - conv.left,
              right = left + (cfg::BLOCK_Q - 1) * cfg::OUT_Q * cfg::STRIDE_W + COLUMNS;
    const bool columns_inside = left >= 0 && right <= conv.W && q0 + cfg::BLOCK_Q * cfg::OUT_Q <= conv.Q;
    __shared__ Taps taps;
    pdl_wait();
    stage(args.filter, taps, blockIdx.x % BLOCKS_C * BLOCK_K);
    __syncthreads();
    if (vector >= VECTORS || q >= conv.Q) return;
    for (int n = blockIdx.z; n < conv.N; n += gridDim.z)
        for (int p = (blockIdx.y * cfg::BLOCK_P + threadIdx.z) * cfg::OUT_P; p < conv.P;
             p += gridDim.y * cfg::BLOCK_P * cfg::OUT_P) {
            const Tile tile = {n, vector * cfg::VEC, p, q};
            const int h0 = p * cfg::STRIDE_H - conv.top;
            const bool rows_inside = h0 >= 0 && h0 + ROWS <= conv.H && p + cfg::OUT_P <= conv.P;
            if (cfg::K_GROUP == 1 && args.dense && columns_inside && rows_inside)
                compute<cfg::K_GROUP == 1 ? INSIDE : NOTHING>(args, taps, tile);
            else if (cfg::K_GROUP == 1 && args.aligned_x)
                compute<cfg::K_GROUP == 1 ? ALIGNED : NOTHING>(args, taps, tile);
            else
                compute<NOTHING>(args, taps, tile);
        }
}
