// implicit_gemm_few_channels: implicit GEMM of 16-bit types for 1 to 4 channels, on tensor cores since Ampere.
//
// Since implicit_gemm_mma: with so few channels the columns matrix repeats each pixel up to R x S times, and no 16
//           bytes of it are neighbours in memory. Here the part of the image that a tile of outputs sees is staged once
//           in shared memory, and lanes read their factors from it directly. No matrix is built.
// Tile      TILE_H x TILE_W outputs of one image, BLOCK_N filters. A block takes tile after tile (persistent grid).
// Patch     what the tile sees, as pixels of PIXEL numbers (4 or 2): the channels of a position and, where C is 1 or 2,
//           those of the FOLD - 1 positions below it, DILATION_H apart. Where C is 3 the fourth number is zero. Staging
//           reads any layout and resolves the border, so the products know neither.
// Order     16 of K are TAPS neighbouring taps of a row of the filter (of FOLD rows where pixels have several), and the
//           numbers of each pixel. A lane's factors are so words of two numbers of a pixel, whatever stride and
//           dilation are, at offsets that are compile-time constants. The patch has the first two numbers of all
//           pixels, then the others (planes). A load of 8 bytes would need a move for each word: tensor cores take the
//           two words of a pixel from registers that are not neighbours.
// Filters   each block keeps its BLOCK_N filters in the order in which lanes hold factors: a load of 16 bytes brings
//           the factors of 16 filters. Taps, channels and filters that do not exist are zeros.
// Masks     a tap beyond the filter reads a pixel that the output does not see. It is cleared, because Inf times a zero
//           of the filter would be NaN.
// Threads   warps of 16 FRAGMENTS outputs x WARP_N filters each. A fragment is 16 outputs side by side in one row.
// Finish    NHWC: eight neighbouring filters of an output are one store. NCHW: the sums of 16 outputs x 16 filters are
//           transposed in registers, and eight neighbouring outputs of a filter are one store.
// Limit     memory, most of which is the result; with large filters the loads from shared memory.
#include "border.cuh"
#include "ends.cuh"
#include "given.cuh"
#include "mma.cuh"
#include "transpose.cuh"
#include "vector.cuh"

constexpr int EIGHT = 8;  // 16-bit numbers of 16 bytes
constexpr int ROW_FRAGMENTS = TILE_W / MMA_ROWS, WARPS_M = TILE_H * ROW_FRAGMENTS / FRAGMENTS;
constexpr int WARPS_N = BLOCK_N / WARP_N, THREADS = 32 * WARPS_M * WARPS_N;
constexpr int COLUMNS = WARP_N / MMA_COLUMNS;  // products of a fragment for each 16 of K
constexpr int FOLD = PIXEL / C, TAPS = MMA_HALVES / PIXEL;
constexpr int ROW_STEPS = (R + FOLD - 1) / FOLD, TAP_STEPS = (S + TAPS - 1) / TAPS, STEPS = ROW_STEPS * TAP_STEPS;

// Rows of the patch, and columns that outputs see; a row has room for the taps beyond the filter.
constexpr int ROWS_SEEN = (TILE_H - 1) * STRIDE_H + (ROW_STEPS - 1) * FOLD * DILATION_H + 1;
constexpr int COLUMNS_SEEN = (TILE_W - 1) * STRIDE_W + (S - 1) * DILATION_W + 1;
constexpr int PITCH = (TILE_W - 1) * STRIDE_W + (TAP_STEPS * TAPS - 1) * DILATION_W + 1;

// Straight-line code for at most so many steps at once: the first level cache of instructions is small.
constexpr int STEPS_AT_ONCE = 24;
constexpr int TAP_STEPS_AT_ONCE = TAP_STEPS < STEPS_AT_ONCE ? TAP_STEPS : STEPS_AT_ONCE;
constexpr int ROW_STEPS_AT_ONCE = STEPS <= STEPS_AT_ONCE ? ROW_STEPS : (STEPS_AT_ONCE + TAP_STEPS - 1) / TAP_STEPS;
constexpr int PIXELS_AT_ONCE = 4;  // that a thread loads before it stores them

static_assert(sizeof(x_t) == 2 && sizeof(w_t) == 2 && sizeof(math_t) == 2, "products are of 16-bit numbers");
static_assert(GROUPS == 1 && C <= PIXEL && (PIXEL == 2 || PIXEL == 4), "a pixel holds all channels of a position");
static_assert(TILE_W % MMA_ROWS == 0 && TILE_H * ROW_FRAGMENTS % FRAGMENTS == 0, "warps cover the outputs exactly");
static_assert(ROW_FRAGMENTS % FRAGMENTS == 0 || FRAGMENTS % ROW_FRAGMENTS == 0, "warps have parts of rows, or rows");
static_assert(WARP_N % 16 == 0 && BLOCK_N % WARP_N == 0, "a load brings the factors of 16 filters");

struct FewChannels {
    Conv conv;
    Filter filter;
    int together;  // so many neighbouring results may be stored as one: 1, 2 or 8
};

constexpr int WORDS = PIXEL / 2, PLANE = ROWS_SEEN * PITCH;  // of a pixel; words of a plane of the patch
using WarpSums = float[FRAGMENTS][COLUMNS][4];

// Factors of two groups of eight filters for 16 of K, as a lane holds them.
struct alignas(16) Columns {
    unsigned words[2][2];
};

struct Shared {
    Columns filters[STEPS][BLOCK_N / 16][32];
    unsigned patch[WORDS][PLANE];
};

// The number of a pixel, and its tap within a step, that element `half` of word `word` of a lane's factors is.
__device__ constexpr int number_of(int word, int half) { return PIXEL == 4 ? 2 * word + half : half; }
__device__ constexpr int tap_of(int word, int t) { return PIXEL == 4 ? t : t + 4 * word; }

// Write the block's filters, which begin at filter n0, in the order of factors. Unsigned numbers are divided by shifts.
__device__ inline void keep_filters(Shared &shared, const Filter &filter, int n0) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll 4
    for (unsigned i = threadIdx.x; i < STEPS * BLOCK_N * 4; i += THREADS) {
        const unsigned eight = i / 32 % 2, column = i / 64 % (BLOCK_N / 16), step = i / (64 * (BLOCK_N / 16));
        const unsigned first_r = step / TAP_STEPS * FOLD, first_s = step % TAP_STEPS * TAPS;
        const int k = n0 + 16 * column + 8 * eight + lane / 4;
        Vector<math_t, 4> factors;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int number = number_of(j / 2, j % 2), fold = number / C;
            const int r = first_r + fold, s = first_s + tap_of(j / 2, lane % 4);
            const bool there = fold < FOLD && r < R && s < S && k < K;
            factors.at[j] = there ? filter.taps[place(filter.strides, k, number % C, r, s)] : math_t{};
        }
        unsigned(&words)[2] = shared.filters[step][column][lane].words[eight];
        words[0] = factors.word.bits[0], words[1] = factors.word.bits[1];
    }
}

// A tile: its picture and its first output.
struct Tile {
    int n, p, q;
};

// Numbers of a pixel of the patch.
struct Pixel {
    Vector<math_t, 2> words[WORDS];
};

// Pixel i of the patch: the channels of FOLD positions, each inside the picture or as the border has it.
__device__ inline Pixel pixel_of(const Conv &conv, const Tile &tile, int i) {
    const int row = i / COLUMNS_SEEN, h = tile.p * STRIDE_H - conv.top + row;
    const int w = inside(tile.q * STRIDE_W - conv.left + i % COLUMNS_SEEN, conv.W);
    Pixel pixel;
#pragma unroll
    for (int j = 0; j < WORDS; j++) pixel.words[j].word = {};
#pragma unroll
    for (int fold = 0; fold < FOLD; fold++) {
        const int at = inside(h + fold * DILATION_H, conv.H);
        const bool there = at >= 0 && w >= 0;
        const x_t *from = conv.x + place(conv.x_strides, tile.n, 0, at, w);
#pragma unroll
        for (int c = 0; c < C; c++) {
            x_t &number = pixel.words[(fold * C + c) / 2].at[(fold * C + c) % 2];
            if (there) number = from[c * static_cast<index_t>(conv.x_strides.c)];
            else if (BORDER == CONSTANT) number = stored<x_t>::of(conv.outside);
        }
    }
    return pixel;
}

__device__ inline void stage_patch(Shared &shared, const Conv &conv, const Tile &tile) {
    constexpr int COUNT = ROWS_SEEN * COLUMNS_SEEN;
#pragma unroll 1
    for (int first = threadIdx.x; first < COUNT; first += PIXELS_AT_ONCE * THREADS) {
        Pixel pixels[PIXELS_AT_ONCE];
#pragma unroll
        for (int j = 0; j < PIXELS_AT_ONCE; j++)
            pixels[j] = pixel_of(conv, tile, min(first + j * THREADS, COUNT - 1));
#pragma unroll
        for (int j = 0; j < PIXELS_AT_ONCE; j++) {
            const int i = first + j * THREADS, at = i / COLUMNS_SEEN * PITCH + i % COLUMNS_SEEN;
#pragma unroll
            for (int word = 0; word < WORDS; word++)
                if (i < COUNT) shared.patch[word][at] = pixels[j].words[word].word.bits;
        }
    }
}

// Row and column of fragment i of a tile. From a warp's first fragment to its others they change by those of i alone,
// because a warp has parts of a row or whole rows: these differences are compile-time constants.
__device__ constexpr int row_of(int i) { return i / ROW_FRAGMENTS; }
__device__ constexpr int column_of(int i) { return i % ROW_FRAGMENTS * MMA_ROWS; }

// Whether a step's last taps or last rows are beyond the filter.
constexpr bool TAPS_BEYOND = S % TAPS != 0, ROWS_BEYOND = R % FOLD != 0;

// The bits of word `word` whose rows are in the filter, in the last step along its rows.
__device__ constexpr unsigned row_mask(int word) {
    return (number_of(word, 0) / C < R - (ROW_STEPS - 1) * FOLD ? 0xffffu : 0u) |
           (number_of(word, 1) / C < R - (ROW_STEPS - 1) * FOLD ? 0xffff0000u : 0u);
}

// Add up a warp's sums. `pixels` is where the lane's first tap of output g of the warp's first fragment is, `filters`
// where the lane's factors of the warp's first filters are.
__device__ __forceinline__ void multiply_patch(WarpSums &sums, const unsigned *pixels, const Columns *filters) {
    constexpr int NEXT_WORD = PIXEL == 4 ? PLANE : 4 * DILATION_W;  // the other word of a lane's factors of an output
    const int t = threadIdx.x % 4;
    unsigned tap_mask[2];  // of the last step along a row
#pragma unroll
    for (int word = 0; word < 2; word++) tap_mask[word] = tap_of(word, t) < S - (TAP_STEPS - 1) * TAPS ? ~0u : 0u;
#pragma unroll ROW_STEPS_AT_ONCE
    for (int row = 0; row < ROW_STEPS; row++) {
#pragma unroll TAP_STEPS_AT_ONCE
        for (int step = 0; step < TAP_STEPS; step++) {
            const unsigned *const from = pixels + (row * FOLD * DILATION_H * PITCH + step * TAPS * DILATION_W);
            unsigned a[FRAGMENTS][4];
#pragma unroll
            for (int i = 0; i < FRAGMENTS; i++) {
                const unsigned *const own = from + (row_of(i) * STRIDE_H * PITCH + column_of(i) * STRIDE_W);
#pragma unroll
                for (int word = 0; word < 4; word++) {
                    a[i][word] = own[word % 2 * 8 * STRIDE_W + word / 2 * NEXT_WORD];
                    if (TAPS_BEYOND && step == TAP_STEPS - 1) a[i][word] &= tap_mask[word / 2];
                    if (ROWS_BEYOND && row == ROW_STEPS - 1) a[i][word] &= row_mask(word / 2);
                }
            }
#pragma unroll
            for (int j = 0; j < COLUMNS / 2; j++) {
                const Columns b = filters[((row * TAP_STEPS + step) * (BLOCK_N / 16) + j) * 32];
#pragma unroll
                for (int i = 0; i < FRAGMENTS; i++) {
                    multiply_halves<math_t>(sums[i][2 * j], a[i], b.words[0]);
                    multiply_halves<math_t>(sums[i][2 * j + 1], a[i], b.words[1]);
                }
            }
        }
    }
}

// Results of a lane: of output g, then of output g + 8 of a fragment, two neighbouring filters each of GROUP products.
constexpr int GROUP = !ALONG_Q && COLUMNS % 4 == 0 ? 4 : 2;
template <class Out>
using Results = Vector<Out, 2>[2][GROUP];

// Results of the fragment whose first output is `at`, from filter k on. Those that do not exist are computed too where
// the epilogue reads nothing for them, because a test costs more; nobody stores them.
template <class Out>
__device__ __forceinline__ void finish_group(Results<Out> &results, const Conv &conv, const Tile &at, int k,
                                             const float (*sums)[4]) {
    constexpr bool ANY_FILTER = !(SCALE || BIAS || RESIDUAL) || K % BLOCK_N == 0, ANY_OUTPUT = !RESIDUAL;
#pragma unroll
    for (int i = 0; i < 2 * GROUP; i++) {
        const int upper = i / GROUP, q = at.q + 8 * upper + threadIdx.x % 32 / 4;
        const int own = k + 8 * (i % GROUP) + 2 * (threadIdx.x % 4);
        const float *pair = sums[i % GROUP] + 2 * upper;
        Vector<Out, 2> &result = results[upper][i % GROUP];
        result.word = {};
        const bool there = ANY_OUTPUT || q < conv.Q;
        if (there && (ANY_FILTER || own < K)) result.at[0] = finished(conv, at.n, own, at.p, q, pair[0]);
        if (there && (ANY_FILTER || own + 1 < K)) result.at[1] = finished(conv, at.n, own + 1, at.p, q, pair[1]);
    }
}

// Store a group: of an output eight neighbouring filters (NHWC).
template <class Out>
__device__ __forceinline__ void store_eight_filters(const Conv &conv, const Tile &at, int k,
                                                    const Results<Out> &results) {
    k += threadIdx.x % 4 * EIGHT;
#pragma unroll
    for (int upper = 0; upper < 2; upper++) {
        const int q = at.q + 8 * upper + threadIdx.x % 32 / 4;
        Vector<Out, EIGHT> eight;
#pragma unroll
        for (int v = 0; v < 4; v++) eight.word.bits[v] = results[upper][v].word.bits;
        turn_lanes(eight.word.bits);
        if (q < conv.Q && k < K) store_vector(conv.out + place(conv.out_strides, at.n, 0, at.p, q) + k, eight);
    }
}

// Of a filter eight or two neighbouring outputs (NCHW). A transposed matrix gives a lane outputs 2 t and 2 t + 1 of
// filter g; two times two matrices, eight outputs of a filter.
template <class Out>
__device__ __forceinline__ void store_outputs(const FewChannels &args, const Tile &at, int k,
                                              const Results<Out> &results) {
    const Conv &conv = args.conv;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    Vector<Out, EIGHT> eight;
#pragma unroll
    for (int v = 0; v < 4; v++) eight.word.bits[v] = turn_matrix(results[v % 2][v / 2].word.bits);
    if (args.together == EIGHT) {
        turn_lanes(eight.word.bits);
        const int own = k + 8 * (t / 2) + g, q = at.q + 8 * (t % 2);
        if (own < K && q < conv.Q) store_vector(conv.out + place(conv.out_strides, at.n, own, at.p, q), eight);
        return;
    }
#pragma unroll
    for (int v = 0; v < 4; v++) {
        const int own = k + 8 * (v / 2) + g, q = at.q + 8 * (v % 2) + 2 * t;
        Vector<Out, 2> pair;
        pair.word.bits = eight.word.bits[v];
        if (own < K && q < conv.Q) store_vector(conv.out + place(conv.out_strides, at.n, own, at.p, q), pair);
    }
}

// Of an output two neighbouring filters (NHWC), or one result at a time.
template <class Out>
__device__ __forceinline__ void store_few(const FewChannels &args, const Tile &at, int k, const Results<Out> &results) {
    const Conv &conv = args.conv;
#pragma unroll
    for (int i = 0; i < 2 * GROUP; i++) {
        const int upper = i / GROUP, q = at.q + 8 * upper + threadIdx.x % 32 / 4;
        const int own = k + 8 * (i % GROUP) + 2 * (threadIdx.x % 4);
        if (q >= conv.Q || own >= K) continue;
        const Vector<Out, 2> &pair = results[upper][i % GROUP];
        Out *const to = conv.out + place(conv.out_strides, at.n, own, at.p, q);
        if (!ALONG_Q && args.together > 1) {
            store_vector(to, pair);
            continue;
        }
        to[0] = pair.at[0];
        if (own + 1 < K) to[static_cast<index_t>(conv.out_strides.c)] = pair.at[1];
    }
}

template <class Out>
__device__ __forceinline__ void finish_sums(const FewChannels &args, const Tile &tile, int n0, const WarpSums &sums) {
#pragma unroll
    for (int i = 0; i < FRAGMENTS * COLUMNS / GROUP; i++) {
        const int fragment = i / (COLUMNS / GROUP), column = i % (COLUMNS / GROUP) * GROUP, k = n0 + 8 * column;
        const Tile at = {tile.n, tile.p + row_of(fragment), tile.q + column_of(fragment)};
        if (at.p >= args.conv.P || at.q >= args.conv.Q) continue;
        Results<Out> results;
        finish_group<Out>(results, args.conv, at, k, sums[fragment] + column);
        if constexpr (sizeof(Out) == 2 && (ALONG_Q || GROUP == 4)) {
            if (args.together > (ALONG_Q ? 1 : 2)) {
                if constexpr (ALONG_Q) store_outputs<Out>(args, at, k, results);
                else store_eight_filters<Out>(args.conv, at, k, results);
                continue;
            }
        }
        store_few<Out>(args, at, k, results);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) implicit_gemm_few_channels(
    const __grid_constant__ FewChannels args) {
    DYNAMIC_SHARED(Shared, shared);
    constexpr unsigned ACROSS = (K + BLOCK_N - 1) / BLOCK_N;
    const Conv &conv = args.conv;
    const index_t across = (conv.Q + TILE_W - 1) / TILE_W, down = (conv.P + TILE_H - 1) / TILE_H;
    const index_t tiles = conv.N * down * across;
    // The shuffle tells the compiler that all lanes of a warp have one number, so that it need not bring them together.
    const int lane = threadIdx.x % 32, warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    const int fragment = warp / WARPS_N * FRAGMENTS;
    const int tile_n = blockIdx.x % ACROSS * BLOCK_N, warp_n = warp % WARPS_N * WARP_N;
    const int row = row_of(fragment), column = column_of(fragment);  // of the warp's first output in a tile
    const unsigned *const pixels =
        shared->patch[0] + (row * STRIDE_H * PITCH + (column + lane / 4) * STRIDE_W + lane % 4 * DILATION_W);
    wait_for_earlier();
    keep_filters(*shared, args.filter, tile_n);
    for (index_t i = blockIdx.x / ACROSS; i < tiles; i += gridDim.x / ACROSS) {
        const index_t strip = i / across;
        const Tile tile = {static_cast<int>(strip / down), static_cast<int>(strip % down) * TILE_H,
                           static_cast<int>(i % across) * TILE_W};
        __syncthreads();  // all have read the last tile's patch
        stage_patch(*shared, conv, tile);
        __syncthreads();  // the patch is complete, and so are the filters
        WarpSums sums = {};
        multiply_patch(sums, pixels, &shared->filters[0][warp_n / 16][lane]);
        finish_sums<out_t>(args, {tile.n, tile.p + row, tile.q + column}, tile_n + warp_n, sums);
    }
}
