// depthwise_dp4a: four products of bytes by one instruction (dp4a), of four neighbouring pixels of a channel.
//
// Since depthwise_channels: with pixels of one byte, multiply-adds and conversions are the limit. A product of words
//           (dp4a) adds four taps of a filter row at once. Channels are contiguous (NHWC), so four words of a pixel
//           each are turned into words of a channel each; windows between words are cut out by one instruction.
// Thread    four channels, OUT_Q neighbouring outputs. It goes down a strip of args.height rows of outputs. Each row of
//           pixels is loaded and turned once, and added to the RING rows of outputs whose windows contain it. A product
//           reads the sum of the row before, so sums move on by one row without moves.
// Loads     words of a pixel, AHEAD rows before they are used.
// Threads   (x, y) of BLOCK_C x BLOCK_T: x counts words of channels, y tiles, which are strips of OUT_Q columns, along
//           q, then p.
// Grid      x: words of channels, then blocks of tiles; y: images, over which blocks loop.
// Filter    four taps a word, in registers if they are few (KEPT), else in shared memory.
// Zero      a sum starts with minus the zero point times the taps, because pixels outside the image have stored values
//           too.
// Results   of bytes are computed in float where that certainly gives the same as double (four_channels.cuh).
// Limit     instructions: products, and those that make bytes of sums; registers for the sums
#include "border.cuh"
#include "filter.cuh"
#include "four_channels.cuh"
#include "memory.cuh"
#include "mma.cuh"
#include "prefetch.cuh"

constexpr int TAP_WORDS = (cfg::S + 3) / 4;                             // of a filter row
constexpr int SPAN_H = (cfg::R - 1) * cfg::DILATION_H + 1, SPAN_W = (cfg::S - 1) * cfg::DILATION_W + 1;
constexpr int COLUMNS = (cfg::OUT_Q - 1) * cfg::STRIDE_W + SPAN_W;      // pixels of a row that a thread needs
constexpr int PIXEL_WORDS = (COLUMNS + 3) / 4;                          // of a channel
constexpr int RING = (SPAN_H + cfg::STRIDE_H - 1) / cfg::STRIDE_H;      // rows of outputs whose windows span a row of pixels
constexpr int PITCH = CHANNELS * cfg::BLOCK_C;                          // words of taps
constexpr int THREADS = cfg::BLOCK_C * cfg::BLOCK_T, WORDS = cfg::K / CHANNELS;
constexpr int BLOCKS_C = (WORDS + cfg::BLOCK_C - 1) / cfg::BLOCK_C;
constexpr int AHEAD = cfg::STRIDE_H % 2 == 0 ? 2 : 1;                   // rows of pixels loaded before they are used
constexpr bool KEPT = cfg::R * TAP_WORDS <= 3;

static_assert(sizeof(x_t) == 1 && sizeof(w_t) == 1 && HAS_ZERO, "words hold four bytes of integers");
static_assert(cfg::K == cfg::C && cfg::GROUPS == cfg::C && cfg::K % CHANNELS == 0, "words hold whole channels");
static_assert(COLUMNS <= 32, "a word has a bit for each column");

struct Dp4a {
    Conv conv;
    Filter filter;
    Divisor across;              // tiles along q
    int tiles;                   // of an image
    int height;                  // rows of outputs of a strip
    int aligned_x, aligned_out;  // true if pixels and outputs allow vectors of four channels
    int dense;                   // true if pixels are also contiguous in both arrays
};

// The tile of a thread: image, first channel, first output, rows of outputs.
struct Tile {
    int n, k, p, q, rows;
};

// The filters of a block: word i of filter row r in [r * TAP_WORDS + i].
struct Taps {
    alignas(16) unsigned at[cfg::R * TAP_WORDS][PITCH];
};

using Pixels = unsigned[COLUMNS];  // words of a row

// Four words: a word of taps of four channels.
struct Four {
    unsigned at[CHANNELS];
};

__device__ inline unsigned byte_of(w_t tap) { return static_cast<unsigned char>(tap); }

// Stages the filters of a block. A barrier must follow.
__device__ inline void stage(const Filter &filter, Taps &taps, int first) {
    const int thread = threadIdx.x + cfg::BLOCK_C * threadIdx.y;
    strided_loop<cfg::R * TAP_WORDS * PITCH, THREADS>(thread, [&](int before, int after) {
        const int i = before + after;
        const int row = i / PITCH, r = row / TAP_WORDS, s = row % TAP_WORDS * 4, k = min(first + i % PITCH, cfg::K - 1);
        unsigned word = 0;
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (s + e < cfg::S) word |= byte_of(filter.taps[offset_of(filter.strides, k, 0, r, s + e)]) << 8 * e;
        taps.at[row][i % PITCH] = word;
    });
}

// The filters of a thread.
struct Filters {
    const Taps &taps;
    Four kept[KEPT ? cfg::R * TAP_WORDS : 1];

    __device__ explicit Filters(const Taps &all) : taps(all) {
        if constexpr (KEPT) {
#pragma unroll
            for (int i = 0; i < cfg::R * TAP_WORDS; i++) kept[i] = load(i);
        }
    }
    // Sums of the taps of each channel.
    __device__ void add_up(int (&sums)[CHANNELS]) const {
#pragma unroll(KEPT ? cfg::R * TAP_WORDS : 1)
        for (int i = 0; i < cfg::R * TAP_WORDS; i++) {
            const Four taps = word(i);
#pragma unroll
            for (int c = 0; c < CHANNELS; c++) sums[c] = dp4a<unsigned char, w_t>(0x01010101u, taps.at[c], sums[c]);
        }
    }
    __device__ Four load(int i) const {
        return *reinterpret_cast<const Four *>(taps.at[i] + CHANNELS * threadIdx.x);
    }
    // Word i of all rows.
    __device__ Four word(int i) const {
        if constexpr (KEPT) return kept[i];
        return load(i);
    }
};

// Knowledge about the arrays: none; pixels and outputs allow vectors; also, pixels are contiguous in both arrays.
enum Known { NOTHING, ALIGNED, DENSE };

// The pixels of a thread's columns in rows of the image.
template <Known KNOWN>
struct Source {
    static constexpr bool SHIFTED = cfg::BORDER != ZEROS && cfg::BORDER != CONSTANT;  // columns outside stand for others
    const Conv &conv;
    const x_t *image;  // the first channel of the tile's first column, or if SHIFTED of column 0
    index_t across[SHIFTED ? COLUMNS : 1];  // offsets of columns
    unsigned there;    // bit j: column j is in the image
    unsigned outside;  // the word of a pixel outside
    int first;         // the first row

    __device__ Source(const Dp4a &args, const Tile &tile) : conv(args.conv), there(0) {
        const int w0 = tile.q * cfg::STRIDE_W - conv.left;
        image = conv.x + offset_of(conv.x_strides, tile.n, tile.k, 0, SHIFTED ? 0 : w0);
        first = tile.p * cfg::STRIDE_H - conv.top;
        outside = static_cast<unsigned char>(stored<x_t>::of(conv.outside)) * 0x01010101u;
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            const int w = inside(w0 + j, conv.W);
            there |= (w >= 0 ? 1u : 0u) << j;
            if constexpr (SHIFTED) across[j] = max(w, 0) * static_cast<index_t>(conv.x_strides.w);
        }
    }

    __device__ unsigned pixel(const x_t *from) const {
        if (KNOWN != NOTHING) return load_vector<CHANNELS>(from).word.bits;
        unsigned word = 0;
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) {
            const unsigned char byte = static_cast<unsigned char>(from[c * static_cast<index_t>(conv.x_strides.c)]);
            word |= static_cast<unsigned>(byte) << 8 * c;
        }
        return word;
    }

    __device__ __forceinline__ void begin(Pixels (&rows)[AHEAD]) const {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) load(rows[i], i);
    }

    // Row i of those that the tile needs, or beyond.
    __device__ __forceinline__ void load(Pixels &row, int i) const {
        const int h = SHIFTED ? inside(first + i, conv.H) : first + i;
        const unsigned columns = static_cast<unsigned>(h) < static_cast<unsigned>(conv.H) ? there : 0;
        const x_t *const line = image + h * static_cast<index_t>(conv.x_strides.h);
        const index_t next = KNOWN == DENSE ? cfg::C : static_cast<index_t>(conv.x_strides.w);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            row[j] = outside;
            if (columns >> j & 1) row[j] = pixel(line + (SHIFTED ? across[SHIFTED ? j : 0] : j * next));
        }
    }
};

// Four pixels of each channel, from pixel `first` on, DILATION_W apart. Those beyond the last may be any.
struct Windows {
    static constexpr bool NEIGHBOURS = cfg::DILATION_W == 1;
    unsigned words[CHANNELS][NEIGHBOURS ? PIXEL_WORDS : 1];
    Pixels row;

    __device__ explicit Windows(const Pixels &of) {
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) row[j] = of[j];
        if constexpr (NEIGHBOURS) {
#pragma unroll
            for (int i = 0; i < PIXEL_WORDS; i++) {
                const Four four = turned(4 * i);
#pragma unroll
                for (int c = 0; c < CHANNELS; c++) words[c][i] = four.at[c];
            }
        }
    }
    // Turns four words of a pixel each into words of a channel each.
    __device__ Four turned(int first) const {
        unsigned pixels[4];
#pragma unroll
        for (int j = 0; j < 4; j++) pixels[j] = row[min(first + j * cfg::DILATION_W, COLUMNS - 1)];
        Four four;
        transpose_bytes(four.at, pixels[0], pixels[1], pixels[2], pixels[3]);
        return four;
    }
    // Words of neighbours are cut out of two words each.
    __device__ Four at(int first) const {
        if constexpr (!NEIGHBOURS) return turned(first);
        Four four;
        const int i = min(first / 4, PIXEL_WORDS - 1), next = min(i + 1, PIXEL_WORDS - 1), shift = first % 4;
#pragma unroll
        for (int c = 0; c < CHANNELS; c++)
            four.at[c] = shift == 0 ? words[c][i] : __byte_perm(words[c][i], words[c][next], 0x3210 + 0x1111 * shift);
        return four;
    }
};

// The outputs of a thread in a row.
using Row = int[CHANNELS][cfg::OUT_Q];

// Adds the products of row u of the pixels of a step to the sums of the rows of outputs whose windows contain it: of the
// newest, of the one before it, and so on. The first row begins the newest one, and each takes the sums that the one after
// it had.
__device__ __forceinline__ void add_products(const Filters &filters, const FourChannels &channels, Row (&sums)[RING],
                                             const Windows &windows, int u) {
#pragma unroll
    for (int i = 0; i < TAP_WORDS; i++) {
        Four pixels[cfg::OUT_Q];
#pragma unroll
        for (int q = 0; q < cfg::OUT_Q; q++) pixels[q] = windows.at(q * cfg::STRIDE_W + 4 * i * cfg::DILATION_W);
#pragma unroll
        for (int age = RING - 1; age >= 0; age--) {
            const int down = u + age * cfg::STRIDE_H, r = down / cfg::DILATION_H;
            const bool begins = u == 0 && i == 0, adds = down % cfg::DILATION_H == 0 && r < cfg::R;
            const Four taps = filters.word(adds ? r * TAP_WORDS + i : 0);
#pragma unroll
            for (int c = 0; c < CHANNELS; c++)
#pragma unroll
                for (int q = 0; q < cfg::OUT_Q; q++) {
                    int &sum = sums[age][c][q];
                    if (begins) sum = age > 0 ? sums[max(age - 1, 0)][c][q] : channels.start[c];
                    if (adds) sum = dp4a<x_t, w_t>(pixels[q].at[c], taps.at[c], sum);
                }
        }
    }
}

template <Known KNOWN>
__device__ __forceinline__ void store(const Conv &conv, const FourChannels &channels, const Row &sums, const Tile &tile,
                                      out_t *to, int p) {
    const index_t step = KNOWN == DENSE ? cfg::K : conv.out_strides.w;
    Vector<out_t, CHANNELS> values[cfg::OUT_Q];
    bool sure = true;
#pragma unroll
    for (int j = 0; j < cfg::OUT_Q; j++) values[j] = channels.results<out_t>(sums, j, sure);
    if (!sure) channels.exactly(conv, sums, values, tile.n, tile.k, p, tile.q);
#pragma unroll
    for (int j = 0; j < cfg::OUT_Q; j++)
        if (tile.q + j < conv.Q) store_four<KNOWN != NOTHING>(conv, to + j * step, values[j]);
}

// The strip of a tile, whose first AHEAD rows of pixels are loaded already.
template <Known KNOWN>
__device__ __forceinline__ void compute(const Dp4a &args, const Filters &filters, const FourChannels &channels,
                                        const Source<KNOWN> &source, Pixels (&rows)[AHEAD], const Tile &tile) {
    const Conv &conv = args.conv;
    out_t *to = conv.out + offset_of(conv.out_strides, tile.n, tile.k, tile.p, tile.q);
    Row sums[RING];
#pragma unroll
    for (int age = 0; age < RING; age++)
#pragma unroll
        for (int c = 0; c < CHANNELS; c++)
#pragma unroll
            for (int q = 0; q < cfg::OUT_Q; q++) sums[age][c][q] = 0;
#pragma unroll 1
    for (int p = 1 - RING; p < tile.rows; p++) {
#pragma unroll
        for (int u = 0; u < cfg::STRIDE_H; u++) {
            const Windows windows(rows[u % AHEAD]);
            source.load(rows[u % AHEAD], (p + RING - 1) * cfg::STRIDE_H + u + AHEAD);
            add_products(filters, channels, sums, windows, u);
        }
        if (p < 0) continue;
        store<KNOWN>(conv, channels, sums[RING - 1], tile, to, tile.p + p);
        to += conv.out_strides.h;
    }
}

// Asks for the pixels of a block's tiles of image n: a thread of each warp for a row, in all blocks of channels together.
__device__ inline void ask_for(const Dp4a &args, int n) {
    constexpr int WARPS = (THREADS + 31) / 32;
    const Conv &conv = args.conv;
    const int thread = threadIdx.x + cfg::BLOCK_C * threadIdx.y;
    if (thread % 32 != 0) return;
    int i = blockIdx.x / BLOCKS_C * cfg::BLOCK_T;
    for (const int end = min(i + cfg::BLOCK_T, args.tiles); i < end;) {
        const int strip = quotient(i, args.across), next = min(end, (strip + 1) * args.across.by);  // the strip's last tile
        const int p = strip * args.height, before = i - strip * args.across.by;
        const int w0 = before * cfg::OUT_Q * cfg::STRIDE_W - conv.left, from = max(w0, 0);
        const int pixels = min(w0 + ((next - i) * cfg::OUT_Q - 1) * cfg::STRIDE_W + SPAN_W, conv.W) - from;
        const int h0 = p * cfg::STRIDE_H - conv.top, rows = (min(args.height, conv.P - p) - 1) * cfg::STRIDE_H + SPAN_H;
#pragma unroll 1
        for (int h = max(h0, 0) + blockIdx.x % BLOCKS_C * WARPS + thread / 32; h < min(h0 + rows, conv.H);
             h += BLOCKS_C * WARPS)
            if (pixels > 0) prefetch_l2(conv.x + offset_of(conv.x_strides, n, 0, h, from), pixels * cfg::C);
        i = next;
    }
}

// The tile of a thread, of all images. Loads do not wait for each other: of pixels, filters, scales and biases.
template <Known KNOWN>
__device__ __forceinline__ void compute(const Dp4a &args, Taps &taps) {
    const Conv &conv = args.conv;
    const int block_c = blockIdx.x % BLOCKS_C * cfg::BLOCK_C, word = block_c + threadIdx.x;
    const int i = blockIdx.x / BLOCKS_C * cfg::BLOCK_T + threadIdx.y, strip = quotient(i, args.across);
    const int p = strip * args.height, q = (i - strip * args.across.by) * cfg::OUT_Q;
    const bool idle = word >= WORDS || i >= args.tiles;
    Tile tile = {static_cast<int>(blockIdx.y), word * CHANNELS, p, q, min(args.height, conv.P - p)};
    Pixels rows[AHEAD];
    if (KNOWN == DENSE) ask_for(args, tile.n);
    if (!idle) Source<KNOWN>(args, tile).begin(rows);
    const FourFilters scales(conv, word * CHANNELS);
    stage(args.filter, taps, block_c * CHANNELS);
    __syncthreads();
    if (idle) return;
    const Filters filters(taps);
    int sums[CHANNELS] = {};
    filters.add_up(sums);
    const FourChannels channels(conv, scales, sums);
    for (bool begun = true; tile.n < conv.N; tile.n += gridDim.y, begun = false) {
        const Source<KNOWN> source(args, tile);
        if (KNOWN == DENSE && !begun) ask_for(args, tile.n);
        if (!begun) source.begin(rows);
        compute<KNOWN>(args, filters, channels, source, rows, tile);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, cfg::BLOCKS) depthwise_dp4a(const __grid_constant__ Dp4a args) {
    __shared__ Taps taps;
    pdl_wait();
    if (args.dense) compute<DENSE>(args, taps);
    else if (args.aligned_x && args.aligned_out) compute<ALIGNED>(args, taps);
    else compute<NOTHING>(args, taps);
}
