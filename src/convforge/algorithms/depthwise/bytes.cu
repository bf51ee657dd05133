// depthwise_bytes: filters of bytes as diagonal matrices on tensor cores.
//
// Since depthwise_dp4a: it is limited by instructions. A tensor core multiplies 16 x 32 bytes by 32 x 8 in one
//           instruction: 16 pixels by a matrix that has two taps of 16 channels on its diagonals, for 8 of the
//           channels. Fifteen of sixteen factors are zeros, and the product still takes less time than other
//           instructions need.
// Product   of eight columns of two rows of outputs. A row of the first matrix: an output's pixel at one tap, 16
//           channels, then its pixel at the next tap. Column n of product j is channel 4 * (n / 2) + 2 * j + n % 2 of
//           the 16, so that a lane has four neighbouring channels.
// Tile      of a block: TILE_P x TILE_Q outputs of GROUPS_C groups of 16 channels. Its pixels are in shared memory,
//           channels contiguous, PITCH bytes from pixel to pixel: ldmatrix reads eight pixels without bank conflicts.
// Threads   PARTS warps a group of channels. A warp has its group's matrices in registers. It takes every PARTS-th unit
//           of eight columns and goes down in it. Lane 4 g + t has channels 4 t to 4 t + 3 of column g, in two rows.
// Grid      persistent: a block keeps its channels and takes every args.step-th tile of all images. It copies the
//           pixels of the next tile while it computes one.
// Borders   pixels outside the image are written to shared memory with their value, so no product is tested.
// Zero      a sum starts with minus the zero point times the taps, which a product with ones adds up.
// Results   of bytes are computed in float where that certainly gives the same as double (four_channels.cuh).
// Needs     sm_80; NHWC; as many outputs as channels, in whole words of four.
// Limit     memory with 3 x 3 taps and, nearly, 5 x 5; then tensor cores.
#include "filter.cuh"
#include "four_channels.cuh"
#include "mma.cuh"

constexpr int GROUP = 16;                         // channels of a product
constexpr int TAPS = cfg::R * cfg::S, PAIRS = (TAPS + 1) / 2;
constexpr int ROWS = (cfg::TILE_P - 1) * cfg::STRIDE_H + (cfg::R - 1) * cfg::DILATION_H + 1;     // of pixels of a tile
constexpr int COLUMNS = (cfg::TILE_Q - 1) * cfg::STRIDE_W + (cfg::S - 1) * cfg::DILATION_W + 1;
constexpr int BLOCK_K = GROUP * cfg::GROUPS_C, BLOCKS_C = (cfg::K + BLOCK_K - 1) / BLOCK_K;
constexpr int PITCH = (cfg::GROUPS_C | 1) * GROUP, LINE = COLUMNS * PITCH;  // bytes between pixels, rows
constexpr int THREADS = 32 * cfg::GROUPS_C * cfg::PARTS, UNIT = 8, UNITS = cfg::TILE_Q / UNIT;
constexpr int AT_ONCE = cfg::TILE_P % 4 == 0 && PAIRS <= 13 ? 2 : 1;  // pairs of rows that a warp computes at once
constexpr int PIECES = BLOCK_K / cfg::FILL;  // copies of a pixel
// A thread copies SHARE rows of a column: all threads take part.
constexpr int COPYING = THREADS / (COLUMNS * PIECES), SHARES = COPYING < 1 ? 1 : COPYING < ROWS ? COPYING : ROWS;
constexpr int SHARE = (ROWS + SHARES - 1) / SHARES;

static_assert(sizeof(x_t) == 1 && sizeof(w_t) == 1 && HAS_ZERO, "factors are bytes of integers");
static_assert(cfg::K == cfg::C && cfg::GROUPS == cfg::C && cfg::K % CHANNELS == 0, "words hold whole channels");
static_assert(cfg::K % cfg::FILL == 0, "copies hold whole channels of an image");
static_assert(cfg::TILE_Q % UNIT == 0 && cfg::TILE_P % 2 == 0, "products have eight columns of two rows");
static_assert(THREADS <= 1024, "a block has at most 1024 threads");

struct Bytes {
    Conv conv;
    Filter filter;
    Divisor across, down;        // tiles along q and p
    int tiles, step;             // tiles of all images; blocks that have the same channels
    int aligned_x, aligned_out;  // true if pixels allow copies of FILL bytes, and outputs vectors of four channels
};

// The tile of a block: image, first channel, first output.
struct Tile {
    int n, k, p, q;
};

__device__ inline Tile tile_at(const Bytes &args, int i, int k) {
    const int strip = quotient(i, args.across), n = quotient(strip, args.down);
    return {n, k, (strip - n * args.down.by) * cfg::TILE_P, (i - strip * args.across.by) * cfg::TILE_Q};
}

// Copies the pixels of a tile to shared memory; ALIGNED: asynchronously, in pieces of FILL bytes.
template <bool ALIGNED>
__device__ inline void copy_pixels(const Bytes &args, unsigned char *pixels, const Tile &tile) {
    const Conv &conv = args.conv;
    const int h0 = tile.p * cfg::STRIDE_H - conv.top, w0 = tile.q * cfg::STRIDE_W - conv.left;
    const unsigned outside = static_cast<unsigned char>(stored<x_t>::of(conv.outside)) * 0x01010101u;
    for (int i = threadIdx.x; i < COLUMNS * PIECES * SHARES; i += THREADS) {
        const int column = i / PIECES % COLUMNS, c = i % PIECES * cfg::FILL, w = inside(w0 + column, conv.W);
        const int first = i / (COLUMNS * PIECES) * SHARE, last = min(first + SHARE, ROWS);
        const bool there = w >= 0 && tile.k + c < cfg::K;
        unsigned char *to = pixels + first * LINE + column * PITCH + c;
        const x_t *const from = conv.x + offset_of(conv.x_strides, tile.n, there ? tile.k + c : 0, 0, max(w, 0));
#pragma unroll 4
        for (int row = first; row < last; row++, to += LINE) {
            const int h = inside(h0 + row, conv.H);
            const x_t *const pixel = from + max(h, 0) * static_cast<index_t>(conv.x_strides.h);
            if (!there || h < 0) {
                Vector<unsigned, cfg::FILL / 4> words;
#pragma unroll
                for (int e = 0; e < cfg::FILL / 4; e++) words.at[e] = outside;
                store_vector(reinterpret_cast<unsigned *>(to), words);
            } else if constexpr (ALIGNED) {
                copy_async<cfg::FILL>(to, pixel);
            } else {
#pragma unroll 1
                for (int e = 0; e < cfg::FILL; e++) to[e] = pixel[e * static_cast<index_t>(conv.x_strides.c)];
            }
        }
    }
}

// The words that are not zero of the matrices of two taps: at[j][h] of column g is of product j and of tap h, whose
// channels are half h of the 32 rows.
struct alignas(16) Pair {
    unsigned at[2][2];
};
struct Matrices {
    Pair of[cfg::GROUPS_C][PAIRS][MMA_COLUMNS];
};

// Writes the matrices of a block, whose first channel is k. A barrier must follow.
__device__ inline void write_matrices(const Filter &filter, Matrices &matrices, int k) {
    for (int i = threadIdx.x; i < cfg::GROUPS_C * PAIRS * MMA_COLUMNS; i += THREADS) {
        const int column = i % MMA_COLUMNS, pair = i / MMA_COLUMNS % PAIRS, group = i / (MMA_COLUMNS * PAIRS);
        Pair words;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int byte = e / 2 * 2 + column % 2, tap = 2 * pair + e % 2;
            const int channel = k + group * GROUP + column / 2 * 4 + byte;
            unsigned word = 0;
            if (tap < TAPS && channel < cfg::K)
                word = static_cast<unsigned char>(
                    filter.taps[offset_of(filter.strides, channel, 0, tap / cfg::S, tap % cfg::S)]);
            words.at[e / 2][e % 2] = word << 8 * byte;
        }
        matrices.of[group][pair][column] = words;
    }
}

// The matrices of a lane, in registers.
struct Taps {
    Pair of[PAIRS];

    // A lane's words hold channels 4 t to 4 t + 3 of column g. Only one of them may be on the diagonal.
    __device__ Taps(const Matrices &matrices, int group) {
        const int lane = threadIdx.x % 32, column = lane / 4;
        const bool diagonal = lane % 4 == column / 2;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) of[i] = diagonal ? matrices.of[group][i][column] : Pair{};
    }

    // Adds the products of all taps; load(i, a) loads the pixels of pair i of taps.
    template <class Load>
    __device__ __forceinline__ void multiply(int (&sums)[2][4], const Load &load) const {
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            unsigned a[4];
            load(i, a);
#pragma unroll
            for (int j = 0; j < 2; j++) mma_bytes<x_t, w_t>(sums[j], a, of[i].at[j], sums[j]);
        }
    }
};

// The sums of the taps of a lane's channels.
__device__ inline FourChannels channels_of(const Conv &conv, const Taps &taps, int k) {
    int sums[2][4] = {};
    if (conv.zero != 0)
        taps.multiply(sums, [](int, unsigned(&a)[4]) { a[0] = a[1] = a[2] = a[3] = 0x01010101u; });
    const int of_taps[CHANNELS] = {sums[0][0], sums[0][1], sums[1][0], sums[1][1]};
    return {conv, of_taps, k};
}

// Offset of a tap from an output's first pixel.
__device__ inline int tap_at(int tap) {
    tap = min(tap, TAPS - 1);
    return tap / cfg::S * (cfg::DILATION_H * LINE) + tap % cfg::S * (cfg::DILATION_W * PITCH);
}

// Computes a warp's outputs of a tile; ALIGNED: stored as vectors.
template <bool ALIGNED>
__device__ __forceinline__ void compute(const Bytes &args, const unsigned char *pixels, const Taps &taps,
                                        const FourChannels &channels, const Tile &tile) {
    const Conv &conv = args.conv;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp % cfg::GROUPS_C;
    const int k = tile.k + group * GROUP + lane % 4 * CHANNELS, rows = min(cfg::TILE_P, conv.P - tile.p);
    int at[PAIRS];  // lanes 16 and on load the pixels of the pairs' second taps
#pragma unroll
    for (int i = 0; i < PAIRS; i++) at[i] = lane < 16 ? tap_at(2 * i) : tap_at(2 * i + 1);
#pragma unroll 1
    for (int unit = warp / cfg::GROUPS_C; unit < UNITS; unit += cfg::PARTS) {
        const int q = tile.q + unit * UNIT + lane / 4;
        const bool there = q < conv.Q && k < cfg::K;
        const unsigned char *window = pixels + ((unit * UNIT + lane % 8) * (cfg::STRIDE_W * PITCH) +
                                                lane / 8 % 2 * (cfg::STRIDE_H * LINE) + group * GROUP);
        out_t *to = conv.out + (there ? offset_of(conv.out_strides, tile.n, k, tile.p, q) : 0);
        int left = rows;
#pragma unroll 1
        for (; left > 0; left -= 2 * AT_ONCE) {
            int sums[AT_ONCE][2][4];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
#pragma unroll
                for (int e = 0; e < 8; e++) sums[i][e / 4][e % 4] = channels.start[e / 4 * 2 + e % 2];
                taps.multiply(sums[i], [&](int pair, unsigned(&a)[4]) { ldmatrix<false>(a, window + at[pair]); });
                window += 2 * cfg::STRIDE_H * LINE;
            }
            // Rows have no branches between them, so that their instructions overlap.
            Vector<out_t, CHANNELS> values[2 * AT_ONCE];
            bool sure[2 * AT_ONCE], all_sure = true;
            const auto four = [&](int row) {
                const int(&of)[2][4] = sums[row / 2];
                return Sums{{of[0][row % 2 * 2], of[0][row % 2 * 2 + 1], of[1][row % 2 * 2], of[1][row % 2 * 2 + 1]}};
            };
#pragma unroll
            for (int row = 0; row < 2 * AT_ONCE; row++) {
                values[row] = channels.results<out_t>(conv, four(row), sure[row]);
                all_sure = all_sure & sure[row];
            }
            const int p = tile.p + rows - left;
            if (!all_sure) {
#pragma unroll
                for (int row = 0; row < 2 * AT_ONCE; row++)
                    if (!sure[row] && there && row < left)
                        values[row] = channels.exactly<out_t>(conv, four(row), tile.n, k, p + row, q);
            }
#pragma unroll
            for (int row = 0; row < 2 * AT_ONCE; row++) {
                if (there && row < left) store_four<ALIGNED>(conv, to, values[row]);
                to += conv.out_strides.h;
            }
            __syncwarp();  // mma needs all lanes of a warp
        }
    }
}

template <bool ALIGNED>
__device__ __forceinline__ void run(const Bytes &args, unsigned char *held, Matrices &matrices) {
    const int group = threadIdx.x / 32 % cfg::GROUPS_C, block_k = blockIdx.x % BLOCKS_C * BLOCK_K;
    int i = blockIdx.x / BLOCKS_C, stage = 0;
    copy_pixels<ALIGNED>(args, held, tile_at(args, i, block_k));
    copy_async_commit();
    write_matrices(args.filter, matrices, block_k);  // overlaps with the copies
    __syncthreads();                                 // matrices are written
    const Taps taps(matrices, group);
    const FourChannels channels = channels_of(args.conv, taps, block_k + group * GROUP + threadIdx.x % 4 * CHANNELS);
#pragma unroll 1
    for (; i < args.tiles; i += args.step, stage ^= 1) {
        copy_async_wait();
        __syncthreads();  // pixels have landed, and those of the last tile have been used
        const int next = i + args.step;
        if (next < args.tiles)
            copy_pixels<ALIGNED>(args, held + (stage ^ 1) * (ROWS * LINE), tile_at(args, next, block_k));
        copy_async_commit();
        compute<ALIGNED>(args, held + stage * (ROWS * LINE), taps, channels, tile_at(args, i, block_k));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, cfg::BLOCKS) depthwise_bytes(const __grid_constant__ Bytes args) {
    DYNAMIC_SHARED(unsigned char, held);
    __shared__ Matrices matrices;
    pdl_wait();
    if (args.aligned_x && args.aligned_out) run<true>(args, held, matrices);
    else run<false>(args, held, matrices);
}
