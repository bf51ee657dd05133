// implicit_gemm_few_channels: implicit GEMM of 16-bit types and bytes for 1 to 4 channels, on tensor cores since Ampere.
//
// Since implicit_gemm_mma: with so few channels the columns matrix repeats each pixel up to R x S times, and
//           no 16 bytes of it are contiguous in memory. Here the part of the image that a tile of outputs needs, the
//           patch, is staged once in shared memory. Lanes read their fragments from it directly, and no matrix is
//           built.
// Tile      TILE_H x TILE_W outputs of one image, BLOCK_N filters. Persistent grid: a block computes tile after tile.
// Patch     rows of pixels, with the C numbers of each contiguous. Staging reads any layout and resolves the border, so
//           the products depend on neither.
// Patches   with PATCHES = 2, threads load the next tile's pixels between the products of this one, a few at a time,
//           and store them to the second patch, so nobody waits for memory. With PATCHES = 1, large patches fit.
// Order     see few_channels.cuh. 16 of K are eight pairs of numbers. A lane has two of them, and a list in shared
//           memory has their positions in the patch, relative to the first number of an output's window.
// Words     a pair at an odd position is not an aligned word. If there are such pairs, a second copy of the patch,
//           shifted by one number, has them as words.
// Filters   each block keeps its BLOCK_N filters as fragments: a 16-byte load brings those of 16 filters.
//           few_filters.cu has packed them, with zeros for numbers that do not exist.
// Masks     the last number of an odd run shares a word with a pixel outside the window. It is cleared, because Inf
//           times a zero of the filter would be NaN.
// Threads   warps of 16 FRAGMENTS outputs x WARP_N filters each. A fragment has 16 outputs of one row.
// Finish    filters, or outputs, are ordered so that the results of a lane are neighbours: in NHWC eight filters of an
//           output from four products, in NCHW a run of OUTPUT_RUN outputs of a filter. They are stored as one vector
//           (few_channels_results.cuh).
// Bytes     as x and w become numbers of 16 bits, which represent them and their differences from a zero point. Their sums
//           are below 2^24, so they are exact in floats. Results of bytes are computed in float where that certainly
//           gives the same as double (rescaled.cuh).
// SPLIT     implicit_gemm_split_few_channels: x, w and out are floats, split into two halves each (split.cuh). Blocks
//           split their patches (split_patch.cuh); split_filters.cu has split the filters.
// Limit     memory, mostly the output. With large filters, loads from shared memory. With SPLIT, tensor cores, which
//           compute three products for one.
#include "border.cuh"
#include "epilogue.cuh"
#include "few_channels.cuh"
#include "memory.cuh"
#include "rescaled.cuh"
#ifdef SPLIT
#include "border.cuh"
constexpr int HALVES = 2;  // of a number
static_assert(cfg::PATCHES == 1, "a patch is split when all of it is there");
#else
constexpr int HALVES = 1;
#endif

constexpr int ROW_FRAGMENTS = cfg::TILE_W / MMA_ROWS, WARPS_M = cfg::TILE_H * ROW_FRAGMENTS / cfg::FRAGMENTS;
constexpr int WARPS_N = cfg::BLOCK_N / cfg::WARP_N, THREADS = 32 * WARPS_M * WARPS_N;
constexpr int COLUMNS = cfg::WARP_N / MMA_COLUMNS;                 // products of a fragment for each 16 of K
constexpr int PARTS = (cfg::K + cfg::BLOCK_N - 1) / cfg::BLOCK_N;  // parts of the filters; a block has one
constexpr int STEPS_AT_ONCE = STEPS <= 24 ? STEPS : 8;  // straight-line code must fit in the instruction cache

// Rows of the patch, and pixels of a row, which are staged in pairs. A row begins at an even number.
constexpr int ROWS_SEEN = (cfg::TILE_H - 1) * cfg::STRIDE_H + (cfg::R - 1) * cfg::DILATION_H + 1;
constexpr int COLUMNS_SEEN = (cfg::TILE_W - 1) * cfg::STRIDE_W + (cfg::S - 1) * cfg::DILATION_W + 1,
              TWOS = (COLUMNS_SEEN + 1) / 2;
constexpr int PITCH = 2 * TWOS * cfg::C;
// If windows or runs begin at odd numbers too, there are two copies of the patch, in different banks.
constexpr bool ODD_OUTPUTS = cfg::STRIDE_W * cfg::C % 2 != 0,
               ODD_RUNS = !TAPS_ADJACENT && cfg::DILATION_W * cfg::C % 2 != 0;
constexpr int COPIES = ODD_OUTPUTS || ODD_RUNS ? 2 : 1, PARITIES = ODD_OUTPUTS ? 2 : 1;
constexpr int COPY = (ROWS_SEEN * PITCH / 2 + 1) / 32 * 32 + 48;  // words, with those after the last number

// Threads stage pairs of pixels of DOWN rows at once, ACROSS of a row. A thread has SEGMENTS pairs of the same row, so
// it computes its columns once a tile.
constexpr int SEGMENTS = (TWOS + THREADS - 1) / THREADS, ACROSS = (TWOS + SEGMENTS - 1) / SEGMENTS;
constexpr int DOWN = THREADS / ACROSS, PER_THREAD = (ROWS_SEEN * SEGMENTS + DOWN - 1) / DOWN;  // pairs of a thread
constexpr int TWOS_AT_ONCE = PER_THREAD < 4 ? PER_THREAD : 4;  // pairs that a thread loads before it stores them
// Pairs that a thread holds between products, for HELD_STEPS steps.
constexpr int MOST_HELD = 2, LEAST_HELD = (PER_THREAD + STEPS - 1) / STEPS;
constexpr int HELD = LEAST_HELD > MOST_HELD ? LEAST_HELD : PER_THREAD < MOST_HELD ? PER_THREAD : MOST_HELD;
constexpr int ROUNDS = (PER_THREAD + HELD - 1) / HELD, HELD_STEPS = STEPS / ROUNDS;

static_assert((HAS_ZERO || (sizeof(x_t) == 2 * HALVES && sizeof(w_t) == 2)) && sizeof(math_t) == 2,
              "products are of 16-bit numbers");
static_assert(cfg::GROUPS == 1, "all filters see the same channels");
static_assert(cfg::TILE_W % MMA_ROWS == 0 && cfg::TILE_H * ROW_FRAGMENTS % cfg::FRAGMENTS == 0,
              "warps cover the outputs exactly");
static_assert(ROW_FRAGMENTS % cfg::FRAGMENTS == 0 || cfg::FRAGMENTS % ROW_FRAGMENTS == 0,
              "warps have parts of rows, or rows");
static_assert(cfg::WARP_N % 16 == 0 && cfg::BLOCK_N % cfg::WARP_N == 0, "a load brings the factors of 16 filters");

struct FewChannels {
    Conv conv;
    const Columns *filters;
    int store_width;  // neighbouring results a store: 1, or 2 or 8 filters, or OUTPUT_RUN outputs
#ifdef SPLIT
    const float *scales;  // to undo the filters' scales; 0 for filters that cannot be split
    Strides w_strides;    // of conv.w, the filters as floats: filter, channel, row, column
    unsigned *redone;     // counts the tiles that are computed from floats
#endif
};

using WarpSums = float[cfg::FRAGMENTS][COLUMNS][4];
using Patch = unsigned[COPIES][COPY];
using Filters = Columns[HALVES][STEPS][cfg::BLOCK_N / 16][32];  // high halves, then low ones

// Positions in the patch of the words of a lane's two pairs of a step.
struct alignas(8) Words {
    int places[2];
};

struct Shared {
    Filters filters;
    Words words[PARITIES][STEPS][4];
    alignas(16) Patch patches[HALVES * cfg::PATCHES];
#ifdef SPLIT
    float down, scales[cfg::BLOCK_N];        // to undo the scales of the patch and of the filters
    unsigned largest[THREADS / 32][cfg::C];  // bits of the largest value of each channel in each warp's pixels
    int lost;                           // numbers of the patch that lose bits
#endif
};

// Position in the patch of the word of a pair, relative to the word that holds the window's first number as its
// `parity`-th one.
__device__ inline int place_of(const Pair &pair, int parity) {
    if (pair.count == 0) return 0;
    const int from =
        parity + pair.row() * cfg::DILATION_H * PITCH + pair.column() * cfg::DILATION_W * cfg::C + pair.first;
    return from % 2 * COPY + (from + 1) / 2;
}

__device__ inline void list_words(Shared &shared) {
    for (int i = threadIdx.x; i < STEPS * 4; i += THREADS)
#pragma unroll
        for (int parity = 0; parity < PARITIES; parity++)
#pragma unroll
            for (int word = 0; word < 2; word++)
                shared.words[parity][i / 4][i % 4].places[word] = place_of(Pair::of_lane(i / 4, word, i % 4), parity);
}

// Issues the copies of part `part` of the filters.
__device__ inline void keep_filters(Filters &filters, const Columns *from, int part) {
    constexpr int COUNT = sizeof(Filters) / sizeof(Columns) / HALVES;
    for (int i = threadIdx.x; i < HALVES * COUNT; i += THREADS)
        copy_async16(&filters[0][0][0][0] + i, from + (i / COUNT * PARTS + part) * COUNT + i % COUNT, true);
    copy_async_commit();
}

// A tile: its image and its first output.
struct Tile {
    int n, p, q;
};

// Two neighbouring pixels of a row of the patch, as loaded.
struct Two {
    x_t numbers[2 * cfg::C];
};
// The same as words of the patch.
using Pairs = Vector<math_t, 2>[cfg::C];

// The part of a tile's patch that a thread stages: pairs 0 to PER_THREAD - 1, of which the last may not exist. Unless
// `needed`, nothing is loaded.
struct Stager {
    const Conv &conv;
    const Tile tile;
    const bool needed;
    int w[SEGMENTS][2];  // columns of the image, or -1 for the border's value

    __device__ __forceinline__ Stager(const Conv &conv, const Tile &tile, bool needed)
        : conv(conv), tile(tile), needed(needed) {
#pragma unroll
        for (int i = 0; i < SEGMENTS; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {  // columns beyond the last repeat the last one
                const int column = min((threadIdx.x % ACROSS + i * ACROSS) * 2 + j, COLUMNS_SEEN - 1);
                w[i][j] = inside(tile.q * cfg::STRIDE_W - conv.left + column, conv.W);
            }
    }

    __device__ static int item(int i) { return threadIdx.x / ACROSS + i * DOWN; }  // over rows and segments

    __device__ __forceinline__ Two load(int i) const {
        const int row = min(item(i) / SEGMENTS, ROWS_SEEN - 1),
                  h = inside(tile.p * cfg::STRIDE_H - conv.top + row, conv.H);
        const index_t line = offset_of(conv.x_strides, tile.n, 0, h, 0), step = conv.x_strides.c;
        Two two;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int column = w[item(i) % SEGMENTS][j];
            const bool there = needed && h >= 0 && column >= 0;
            const x_t *from = conv.x + (line + column * static_cast<index_t>(conv.x_strides.w));
#pragma unroll
            for (int c = 0; c < cfg::C; c++)
                two.numbers[j * cfg::C + c] = cfg::BORDER == CONSTANT || HAS_ZERO ? stored<x_t>::of(conv.outside) : x_t{};
            if (!there) continue;
#pragma unroll
            for (int c = 0; c < cfg::C; c++)
                two.numbers[j * cfg::C + c] = cfg::CHANNELS_LAST && step == 1 ? from[c] : from[c * step];
        }
        return two;
    }

    __device__ bool exists(int i) const {
        const int column = threadIdx.x % ACROSS + item(i) % SEGMENTS * ACROSS;
        return threadIdx.x < ACROSS * DOWN && item(i) / SEGMENTS < ROWS_SEEN && column < TWOS;
    }

    // Index of its first word in the first copy of a patch.
    __device__ int first_word(int i) const {
        return item(i) / SEGMENTS * (PITCH / 2) + (threadIdx.x % ACROSS + item(i) % SEGMENTS * ACROSS) * cfg::C;
    }

    // Stores a pair of pixels: C words of the first copy. In the second copy, shifted by one number, C - 1 words and
    // halves of the words before and after.
    __device__ __forceinline__ void put(Patch &patch, int i, const Pairs &pairs) const {
        if (!exists(i)) return;
        const auto number = [&](int j) { return pairs[j / 2].at[j % 2]; };
#pragma unroll
        for (int j = 0; j < cfg::C; j++) patch[0][first_word(i) + j] = pairs[j].word.bits;
        if constexpr (COPIES == 2) {
            math_t *const shifted = reinterpret_cast<math_t *>(&patch[COPIES - 1][first_word(i)]);
            shifted[1] = number(0);
#pragma unroll
            for (int j = 1; j < cfg::C; j++) {
                Vector<math_t, 2> pair;
                pair.at[0] = number(2 * j - 1), pair.at[1] = number(2 * j);
                store_vector(shifted + 2 * j, pair);
            }
            shifted[2 * cfg::C] = number(2 * cfg::C - 1);
        }
    }
};

#ifndef SPLIT
// A loaded number as a factor; integers minus the zero point.
template <class T>
__device__ __forceinline__ math_t centred_factor(const Conv &conv, T number) {
    return factor_of(static_cast<int>(number) - static_cast<int>(conv.zero));
}
__device__ __forceinline__ math_t centred_factor(const Conv &, math_t number) { return number; }

__device__ __forceinline__ void put_two(Patch &patch, const Stager &stager, int i, const Two &two) {
    Pairs pairs;
#pragma unroll
    for (int j = 0; j < 2 * cfg::C; j++) pairs[j / 2].at[j % 2] = centred_factor(stager.conv, two.numbers[j]);
    stager.put(patch, i, pairs);
}

// Stages a whole patch.
__device__ inline void stage_patch(Patch &patch, const Conv &conv, const Tile &tile) {
    const Stager stager(conv, tile, true);
#pragma unroll 1
    for (int first = 0; first < PER_THREAD; first += TWOS_AT_ONCE) {
        Two twos[TWOS_AT_ONCE];
#pragma unroll
        for (int j = 0; j < TWOS_AT_ONCE; j++) twos[j] = stager.load(first + j);
#pragma unroll
        for (int j = 0; j < TWOS_AT_ONCE; j++) put_two(patch, stager, first + j, twos[j]);
    }
}

// Stages a patch between the products of another one: before its steps, and after the last one.
struct NextPatch {
    Patch &patch;
    const Stager stager;
    Two held[HELD];

    __device__ __forceinline__ void before(int step) {
        if (cfg::PATCHES == 1 || step % HELD_STEPS || step / HELD_STEPS >= ROUNDS) return;
        if (step > 0) put(step / HELD_STEPS - 1);
#pragma unroll
        for (int j = 0; j < HELD; j++) held[j] = stager.load(step / HELD_STEPS * HELD + j);
    }

    __device__ __forceinline__ void put(int round) {
#pragma unroll
        for (int j = 0; j < HELD; j++) put_two(patch, stager, round * HELD + j, held[j]);
    }

    __device__ __forceinline__ void after() {
        if (cfg::PATCHES > 1) put(ROUNDS - 1);
    }
};
#endif

// Row and column of fragment i of a tile. Offsets from a warp's first fragment to its others depend on i alone, because
// a warp has parts of a row or whole rows, so they are compile-time constants.
__device__ constexpr int row_of(int i) { return i / ROW_FRAGMENTS; }
__device__ constexpr int column_of(int i) { return i % ROW_FRAGMENTS * MMA_ROWS; }

// Outputs of a lane in a row of its warp, in runs; the position of output i of lane 0, relative to which lane g's are
// shifted.
constexpr int LANE_OUTPUTS = 2 * (cfg::FRAGMENTS < ROW_FRAGMENTS ? cfg::FRAGMENTS : ROW_FRAGMENTS);
static_assert(LANE_OUTPUTS % cfg::OUTPUT_RUN == 0 && cfg::OUTPUT_RUN * sizeof(out_t) <= 16,
              "a lane has whole runs, stored as one");
__device__ constexpr int output_of(int i) { return i / cfg::OUTPUT_RUN * (8 * cfg::OUTPUT_RUN) + i % cfg::OUTPUT_RUN; }

// Loads a lane's fragments of pixels for a step. `pixels` is the address of the first number of the lane's first
// window, or of the word before; `words` are the lane's in the first step. If windows begin at even and odd numbers, a
// lane with runs needs both kinds of words.
__device__ __forceinline__ void load_pixels(unsigned (&a)[cfg::FRAGMENTS][4], const unsigned *pixels,
                                            const Words *words, int step) {
    constexpr int KINDS = ODD_OUTPUTS && cfg::OUTPUT_RUN > 1 ? 2 : 1;
    Words places[KINDS];
#pragma unroll
    for (int kind = 0; kind < KINDS; kind++) places[kind] = words[(kind * STEPS + step) * 4];
#pragma unroll
    for (int word = 0; word < 4; word++) {
        const int pair = step * STEP_PAIRS + word / 2 * 4 + static_cast<int>(threadIdx.x % 4);
        const unsigned mask = pair < WHOLE ? ~0u : pair < PAIRS ? 0xffffu : 0u;  // numbers that exist
#pragma unroll
        for (int i = 0; i < cfg::FRAGMENTS; i++) {
            const int from = row_of(i) * cfg::STRIDE_H * PITCH +
                             output_of((2 * i + word % 2) % LANE_OUTPUTS) * cfg::STRIDE_W * cfg::C;
            a[i][word] = pixels[from / 2 + places[from % 2 * (KINDS - 1)].places[word / 2]];
            if (step >= WHOLE_STEPS) a[i][word] &= mask;
        }
    }
}

#ifndef SPLIT
// Adds up a warp's sums. `filters` are the lane's fragments of the warp's first filters in the first step.
__device__ __forceinline__ void multiply_patch(WarpSums &sums, const unsigned *pixels, const Words *words,
                                               const Columns *filters, NextPatch &next) {
#pragma unroll STEPS_AT_ONCE
    for (int step = 0; step < STEPS; step++) {
        next.before(step);
        unsigned a[cfg::FRAGMENTS][4];
        load_pixels(a, pixels, words, step);
#pragma unroll
        for (int j = 0; j < COLUMNS / 2; j++) {
            const Columns b = filters[(step * (cfg::BLOCK_N / 16) + j) * 32];
#pragma unroll
            for (int i = 0; i < cfg::FRAGMENTS; i++) {
                mma_halves<math_t>(sums[i][2 * j], a[i], b.words[0]);
                mma_halves<math_t>(sums[i][2 * j + 1], a[i], b.words[1]);
            }
        }
    }
    next.after();
}
#else
#include "split_patch.cuh"
#endif
#include "few_channels_results.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, cfg::BLOCKS)
    implicit_gemm_few_channels(const __grid_constant__ FewChannels args) {
    DYNAMIC_SHARED(Shared, shared);
    const Conv &conv = args.conv;
    const index_t across = (conv.Q + cfg::TILE_W - 1) / cfg::TILE_W, down = (conv.P + cfg::TILE_H - 1) / cfg::TILE_H;
    const index_t tiles = conv.N * down * across, stride = gridDim.x / PARTS;
    const auto tile_of = [&](index_t i) -> Tile {
        const index_t strip = i / across;
        return {static_cast<int>(strip / down), static_cast<int>(strip % down) * cfg::TILE_H,
                static_cast<int>(i % across) * cfg::TILE_W};
    };
    // The shuffle tells the compiler that the warp index is uniform in a warp.
    const int lane = threadIdx.x % 32, warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    const int fragment = warp / WARPS_N * cfg::FRAGMENTS;
    const int tile_n = blockIdx.x % PARTS * cfg::BLOCK_N, warp_n = warp % WARPS_N * cfg::WARP_N;
    const int row = row_of(fragment), column = column_of(fragment);  // of the warp's first output in a tile
    const int first = row * cfg::STRIDE_H * PITCH + (column + lane / 4 * cfg::OUTPUT_RUN) * cfg::STRIDE_W * cfg::C;
    const Words *const words = &shared->words[ODD_OUTPUTS ? first % 2 : 0][0][lane % 4];
    const Columns *const filters = &shared->filters[0][0][warp_n / 16][lane];
    index_t i = blockIdx.x / PARTS;
    list_words(*shared);
    pdl_wait();
    keep_filters(shared->filters, args.filters, blockIdx.x % PARTS);
#ifdef SPLIT
    const bool some_plain = keep_scales(*shared, args, tile_n);
#else
    if (cfg::PATCHES > 1 && i < tiles) stage_patch(shared->patches[0], conv, tile_of(i));
#endif
    copy_async_wait();
    for (int now = 0; i < tiles; i += stride, now = (now + 1) % cfg::PATCHES) {
        const Tile tile = tile_of(i), own = {tile.n, tile.p + row, tile.q + column};
        __syncthreads();  // filters, lists and the patch are complete; all have read the patch before
        WarpSums sums = {};
#ifdef SPLIT
        stage_halves(*shared, conv, tile);
        __syncthreads();  // the halves are complete
        multiply_halves_of_patch(sums, &shared->patches[0][0][first / 2], words, filters);
        unscale(sums, *shared, warp_n);
#else
        if (cfg::PATCHES == 1) {
            stage_patch(shared->patches[0], conv, tile);
            __syncthreads();  // the only patch is complete
        }
        NextPatch next = {shared->patches[(now + 1) % cfg::PATCHES],
                          Stager(conv, tile_of(i + stride), i + stride < tiles)};
        multiply_patch(sums, &shared->patches[now][0][first / 2], words, filters, next);
#endif
        if constexpr (cfg::OUTPUT_RUN > 1) finish_outputs<out_t>(args, own, tile_n + warp_n, sums);
        else if constexpr (RESCALED<out_t>) rescale_filters<out_t>(args, own, tile_n + warp_n, sums);
        else finish_filters<out_t>(args, own, tile_n + warp_n, sums);
#ifdef SPLIT
        if (some_plain || is_lost(*shared)) store_plain_sums(args, *shared, tile, tile_n);
#endif
    }
}
