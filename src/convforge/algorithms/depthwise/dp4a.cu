// depthwise_dp4a: four products of bytes by one instruction (dp4a), of four neighbouring pixels of a channel.
//
// Since depthwise_channels: with pixels of one byte, multiply-adds and conversions are the limit. A product of words
//           (dp4a) adds four taps of a filter row at once. Channels are contiguous (NHWC), so four words of a pixel
//           each are turned into words of a channel each; windows between words are cut out by one instruction.
// Thread    four channels, OUT_Q neighbouring outputs. It goes down a strip of args.height rows of outputs. Each row of
//           pixels is loaded and turned once, and added to the RING rows of outputs whose windows contain it.
// Loads     words of a pixel, AHEAD rows before they are used.
// Threads   (x, y) of BLOCK_C x BLOCK_T: x counts words of channels, y tiles, which are strips of OUT_Q columns, along
//           q, then p.
// Grid      x: words of channels, then blocks of tiles; y: images, over which blocks loop.
// Filter    four taps a word, in registers if they are few (KEPT), else in shared memory.
// Zero      a sum starts with minus the zero point times the taps, because pixels outside the image have stored values
//           too.
// Results   of bytes are computed in float where that certainly gives the same as double (four_channels.cuh).
// Limit     memory with 3 x 3 taps; then products, and registers for the sums.
#include "border.cuh"
#include "filter.cuh"
#include "four_channels.cuh"
#include "memory.cuh"
#include "mma.cuh"

constexpr int TAP_WORDS = (cfg::S + 3) / 4;                             // of a filter row
constexpr int COLUMNS = (cfg::OUT_Q - 1) * cfg::STRIDE_W + cfg::S;      // pixels of a row that a thread needs
constexpr int PIXEL_WORDS = (COLUMNS + 3) / 4;                          // of a channel
constexpr int RING = (cfg::R + cfg::STRIDE_H - 1) / cfg::STRIDE_H;      // rows of outputs that use a row of pixels
constexpr int PITCH = CHANNELS * cfg::BLOCK_C;                          // words of taps
constexpr int THREADS = cfg::BLOCK_C * cfg::BLOCK_T, WORDS = cfg::K / CHANNELS;
constexpr int BLOCKS_C = (WORDS + cfg::BLOCK_C - 1) / cfg::BLOCK_C;
constexpr bool KEPT = cfg::R * TAP_WORDS <= 3;
// Steps that the loop over rows repeats, a row of outputs each: registers are numbered at compile time.
constexpr int STEPS = RING * cfg::STRIDE_H % cfg::AHEAD == 0 ? RING : RING * cfg::AHEAD;

static_assert(sizeof(x_t) == 1 && sizeof(w_t) == 1 && HAS_ZERO, "words hold four bytes of integers");
static_assert(cfg::K == cfg::C && cfg::GROUPS == cfg::C && cfg::K % CHANNELS == 0, "words hold whole channels");
static_assert(cfg::DILATION_H == 1 && cfg::DILATION_W == 1, "taps of a word are neighbours");
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

// Four words: of pixels, or of channels.
struct Four {
    unsigned at[CHANNELS];
};

__device__ inline unsigned byte_of(w_t tap) { return static_cast<unsigned char>(tap); }

// Stages the filters of a block. A barrier must follow.
__device__ inline void stage(const Filter &filter, Taps &taps, int first) {
    const int thread = threadIdx.x + cfg::BLOCK_C * threadIdx.y;
    for (int i = thread; i < cfg::R * TAP_WORDS * PITCH; i += THREADS) {
        const int row = i / PITCH, r = row / TAP_WORDS, s = row % TAP_WORDS * 4, k = min(first + i % PITCH, cfg::K - 1);
        unsigned word = 0;
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (s + e < cfg::S) word |= byte_of(filter.taps[offset_of(filter.strides, k, 0, r, s + e)]) << 8 * e;
        taps.at[row][i % PITCH] = word;
    }
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

// Knowledge about a tile: none; pixels and outputs allow vectors; also, columns are in the image and pixels contiguous.
enum Known { NOTHING, ALIGNED, INSIDE };

// The pixels of a thread's columns in rows of the image.
template <Known KNOWN>
struct Source {
    // True if columns outside stand for others.
    static constexpr bool SHIFTED = KNOWN != INSIDE && cfg::BORDER != ZEROS && cfg::BORDER != CONSTANT;
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
        if constexpr (KNOWN != INSIDE) {
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                const int w = inside(w0 + j, conv.W);
                there |= (w >= 0 ? 1u : 0u) << j;
                if constexpr (SHIFTED) across[j] = max(w, 0) * static_cast<index_t>(conv.x_strides.w);
            }
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

    // Row i of those that the tile needs.
    __device__ __forceinline__ void load(unsigned (&row)[COLUMNS], int i) const {
        const int h = inside(first + i, conv.H);
        const x_t *const line = image + max(h, 0) * static_cast<index_t>(conv.x_strides.h);
        const index_t next = KNOWN == INSIDE ? cfg::C : static_cast<index_t>(conv.x_strides.w);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            row[j] = outside;
            const index_t step = SHIFTED ? across[SHIFTED ? j : 0] : j * next;
            if (h >= 0 && (KNOWN == INSIDE || there >> j & 1)) row[j] = pixel(line + step);
        }
    }
};

// Turns four pixels of four channels, of which COUNT are needed, into a word for each channel. The bytes of the others
// may be anything.
template <int COUNT>
__device__ inline void turn(const unsigned (&row)[COLUMNS], int first, unsigned (&turned)[CHANNELS][PIXEL_WORDS],
                            int to) {
    unsigned columns[CHANNELS], pixels[4];
#pragma unroll
    for (int i = 0; i < 4; i++) pixels[i] = row[first + min(i, COUNT - 1)];
    transpose_bytes(columns, pixels[0], pixels[1], pixels[2], pixels[3]);
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) turned[c][to] = columns[c];
}

// Four pixels of a channel from pixel `first` on.
__device__ inline unsigned window(const unsigned (&words)[PIXEL_WORDS], int first) {
    const int i = first / 4, shift = first % 4;
    if (i >= PIXEL_WORDS) return 0;  // beyond the taps
    if (shift == 0) return words[i];
    return __byte_perm(words[i], words[i + 1 < PIXEL_WORDS ? i + 1 : i], 0x3210 + 0x1111 * shift);
}

// The outputs of a thread in a row.
using Row = int[CHANNELS][cfg::OUT_Q];

// Adds the products of a row of pixels with rows u, u + STRIDE_H, ... of the filters to the sums of rows of outputs: of
// the last one, of the one before it, and so on. `last` is the last one's place in the ring.
__device__ __forceinline__ void add_products(const Filters &filters, Row (&sums)[RING], const unsigned (&row)[COLUMNS],
                                             int u, int last) {
    unsigned turned[CHANNELS][PIXEL_WORDS];
#pragma unroll
    for (int i = 0; i < COLUMNS / 4; i++) turn<4>(row, 4 * i, turned, i);
    if constexpr (COLUMNS % 4 != 0) turn<COLUMNS % 4>(row, COLUMNS / 4 * 4, turned, COLUMNS / 4);
#pragma unroll
    for (int i = 0; i < TAP_WORDS; i++) {
        unsigned windows[CHANNELS][cfg::OUT_Q];
#pragma unroll
        for (int c = 0; c < CHANNELS; c++)
#pragma unroll
            for (int q = 0; q < cfg::OUT_Q; q++) windows[c][q] = window(turned[c], q * cfg::STRIDE_W + 4 * i);
#pragma unroll
        for (int age = 0; age < RING; age++) {
            const int r = u + age * cfg::STRIDE_H;
            if (r >= cfg::R) continue;
            const Four taps = filters.word(r * TAP_WORDS + i);
#pragma unroll
            for (int c = 0; c < CHANNELS; c++)
#pragma unroll
                for (int q = 0; q < cfg::OUT_Q; q++) {
                    int &sum = sums[(last - age + RING) % RING][c][q];
                    sum = dp4a<x_t, w_t>(windows[c][q], taps.at[c], sum);
                }
        }
    }
}

template <Known KNOWN>
__device__ __forceinline__ void store(const Conv &conv, const FourChannels &channels, const Row &sums, const Tile &tile,
                                      out_t *to, int p) {
    const index_t step = KNOWN == INSIDE ? cfg::K : conv.out_strides.w;
#pragma unroll
    for (int j = 0; j < cfg::OUT_Q; j++) {
        if (KNOWN != INSIDE && tile.q + j >= conv.Q) break;
        const Sums four = {sums[0][j], sums[1][j], sums[2][j], sums[3][j]};
        bool sure;
        Vector<out_t, CHANNELS> values = channels.results<out_t>(conv, four, sure);
        if (!sure) values = channels.exactly<out_t>(conv, four, tile.n, tile.k, p, tile.q + j);
        store_four<KNOWN != NOTHING>(conv, to + j * step, values);
    }
}

template <Known KNOWN>
__device__ inline void compute(const Dp4a &args, const Filters &filters, const FourChannels &channels,
                               const Tile &tile) {
    const Conv &conv = args.conv;
    const Source<KNOWN> source(args, tile);
    const int steps = tile.rows + RING - 1, last = (tile.rows - 1) * cfg::STRIDE_H + cfg::R - 1;
    out_t *to = conv.out + offset_of(conv.out_strides, tile.n, tile.k, tile.p, tile.q);
    unsigned rows[cfg::AHEAD][COLUMNS];
#pragma unroll
    for (int i = 0; i < cfg::AHEAD; i++) source.load(rows[i], min(i, last));
    Row sums[RING];
#pragma unroll 1
    for (int step = 0; step < steps; step += STEPS)
#pragma unroll
        for (int d = 0; d < STEPS; d++) {
            if (step + d >= steps) break;
#pragma unroll
            for (int c = 0; c < CHANNELS; c++)
#pragma unroll
                for (int q = 0; q < cfg::OUT_Q; q++) sums[d % RING][c][q] = channels.start[c];
#pragma unroll
            for (int u = 0; u < cfg::STRIDE_H; u++) {
                const int ahead = (d * cfg::STRIDE_H + u) % cfg::AHEAD;
                unsigned row[COLUMNS];
#pragma unroll
                for (int j = 0; j < COLUMNS; j++) row[j] = rows[ahead][j];
                source.load(rows[ahead], min((step + d) * cfg::STRIDE_H + u + cfg::AHEAD, last));
                add_products(filters, sums, row, u, d % RING);
            }
            const int p = step + d - (RING - 1);
            if (p < 0) continue;
            store<KNOWN>(conv, channels, sums[(d + 1) % RING], tile, to, tile.p + p);
            to += conv.out_strides.h;
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, cfg::BLOCKS) depthwise_dp4a(const __grid_constant__ Dp4a args) {
    const Conv &conv = args.conv;
    const int block_c = blockIdx.x % BLOCKS_C * cfg::BLOCK_C, word = block_c + threadIdx.x;
    const int i = blockIdx.x / BLOCKS_C * cfg::BLOCK_T + threadIdx.y, strip = quotient(i, args.across);
    const int p = strip * args.height, q = (i - strip * args.across.by) * cfg::OUT_Q;
    __shared__ Taps taps;
    pdl_wait();
    stage(args.filter, taps, block_c * CHANNELS);
    __syncthreads();
    if (word >= WORDS || i >= args.tiles) return;
    const Filters filters(taps);
    int sums[CHANNELS] = {};
    filters.add_up(sums);
    const FourChannels channels(conv, sums, word * CHANNELS);
    const int left = q * cfg::STRIDE_W - conv.left;
    const bool inside = args.dense && left >= 0 && left + COLUMNS <= conv.W && q + cfg::OUT_Q <= conv.Q;
    for (int n = blockIdx.y; n < conv.N; n += gridDim.y) {
        const Tile tile = {n, word * CHANNELS, p, q, min(args.height, conv.P - p)};
        if (inside) compute<INSIDE>(args, filters, channels, tile);
        else if (args.aligned_x && args.aligned_out) compute<ALIGNED>(args, filters, channels, tile);
        else compute<NOTHING>(args, filters, channels, tile);
    }
}
