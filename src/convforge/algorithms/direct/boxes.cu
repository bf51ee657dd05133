// direct_boxes: the production kernel for images on Hopper. The TMA loads the next tiles of the image to shared memory
// while a block computes.
//
// Since direct_tiled: L2 limits direct_tiled, because every block loads its halo again. Here the tile of a
//           block is larger, because shared memory holds it instead of registers. Loads in flight need no registers:
//           one thread issues a copy of a whole box of pixels with its halo (tma.cuh). Pixels outside the image become
//           zero without a test.
// Tile      of a thread: OUT_Q outputs wide, OUT_P high, OUT_K channels, from rows of the box, which it loads in
//           vectors. Of a block: TILE_P x TILE_Q outputs, from one box.
// Threads   thread x + LANES * y computes outputs x * OUT_Q and on, y * OUT_P and on, of the block's tile.
// Grid      persistent: as many blocks as run at once. Block i computes tiles i, i + gridDim.x, ...; tiles are numbered
//           along columns, rows, tiles of channels, slices and images.
// Stages    boxes of a block that are loaded or in flight. When all threads have read a box, the box STAGES tiles ahead
//           replaces it.
// Slice     C_SLICE channels of a box and the K_SLICE outputs that use them: those of a group in NCHW, all of them in
//           NHWC. A box has PLANES planes; CHUNK channels are contiguous in each.
// Run       as in direct_tiled: RUN contiguous elements are one row of the window. It begins SHIFT elements after a
//           multiple of ALIGNMENT, where boxes begin, so the host passes SHIFT at compile time.
// Alignment each row of a box begins at a multiple of ALIGNMENT elements, in memory and in shared memory: a line of L2
//           if rows of the image allow it. The TMA requests each line of L2 that a row touches, and requests it twice
//           if the row crosses a line of shared memory within it. These requests were the limit.
// Shares    with one output channel, each thread loads only its own vectors of a run and receives the rest from its
//           neighbours in the warp (SHARES). Without this, runs overlap and shared memory is read up to three times.
// Border    zeros come with the box. For other borders all threads write the values into the box after it has landed
//           (FILLED), only in tiles at the edge.
// Weights   staged in shared memory (filter.cuh), and kept in registers if they are few.
// Bytes     if pixels and weights are bytes, one instruction computes four products (DP4A, see mma.cuh).
// Vectors   STORE elements a store, if rows of the output have this alignment.
// Needs     sm_90; rows that are multiples of 16 bytes; LANES * OUT_Q * STRIDE_W * CHUNK elements are a multiple of 16
//           bytes.
// Limit     memory: each pixel is read once from DRAM, and the halo of a block's tile from L2. Small images: memory
//           latency, because a block has few tiles. Larger filters: FMA.
#include "conv.cuh"
#include "epilogue.cuh"
#include "filter.cuh"
#include "memory.cuh"
#include "mma.cuh"
#include "pixels.cuh"
#include "tma.cuh"

constexpr int TILE_P = cfg::STRIPS * cfg::OUT_P, TILE_Q = cfg::LANES * cfg::OUT_Q, THREADS = cfg::STRIPS * cfg::LANES;
constexpr int C_SLICE = cfg::C / cfg::SLICES, K_SLICE = cfg::K / cfg::SLICES, PLANES = C_SLICE / cfg::CHUNK;
constexpr int TILES_K = (K_SLICE + cfg::OUT_K - 1) / cfg::OUT_K;

// A row of a box: SHIFT elements, then WIDTH pixels that windows need, rounded up to a multiple of ALIGNMENT elements.
constexpr int WIDE = 16 / sizeof(x_t), WIDTH = (TILE_Q - 1) * cfg::STRIDE_W + cfg::DILATION_W * (cfg::S - 1) + 1;
constexpr int BOX_W = (cfg::SHIFT + WIDTH * cfg::CHUNK + cfg::ALIGNMENT - 1) / cfg::ALIGNMENT * cfg::ALIGNMENT;
constexpr int BOX_H = (TILE_P - 1) * cfg::STRIDE_H + cfg::DILATION_H * (cfg::R - 1) + 1;

constexpr int RUN = ((cfg::OUT_Q - 1) * cfg::STRIDE_W + cfg::DILATION_W * (cfg::S - 1) + 1) * cfg::CHUNK;
constexpr int ROWS = (cfg::OUT_P - 1) * cfg::STRIDE_H + cfg::DILATION_H * (cfg::R - 1) + 1;
constexpr int LOADS = (cfg::SHIFT + RUN + cfg::LOAD - 1) / cfg::LOAD;

// With SHARES: elements of a run before the thread's own vectors, elements of its own vectors, and lanes that share a
// row.
constexpr int BEFORE_OWN = (cfg::LOAD - cfg::SHIFT % cfg::LOAD) % cfg::LOAD,
              OWN = cfg::OUT_Q * cfg::STRIDE_W * cfg::CHUNK, ROW_LANES = cfg::LANES < 32 ? cfg::LANES : 32;

// Loops are unrolled while the code stays small. The criterion is the number of FMAs, of a plane and of all planes.
constexpr int PRODUCTS = cfg::OUT_K * cfg::OUT_P * cfg::OUT_Q * cfg::R * cfg::S * (cfg::CHUNK > 1 ? cfg::C_GROUP : 1);
constexpr int UNROLL_PLANES = PRODUCTS * PLANES <= 1536 ? PLANES : 1, UNROLL_ROWS = PRODUCTS <= 1536 ? ROWS : 1;
// True if a thread keeps the taps of a plane in registers.
constexpr bool HOLDS = cfg::OUT_K * (cfg::CHUNK > 1 ? cfg::C_GROUP : 1) * cfg::R * cfg::S <= 32;

// DP4A: words of a vector, words of a row of the window from its first vector on, and packed taps.
constexpr int LOAD_WORDS = cfg::DP4A ? cfg::LOAD / 4 : 1,
              WORDS = cfg::DP4A ? (LOADS - cfg::SHIFT / cfg::LOAD) * LOAD_WORDS : 1;
constexpr int BEFORE = cfg::SHIFT % cfg::LOAD;
using Dp4aTaps = TapWords<cfg::R, cfg::STRIDE_H>;
constexpr int PACKED_TAPS = cfg::DP4A ? cfg::K * cfg::C_GROUP * Dp4aTaps::PLACES * cfg::S : 1;
constexpr bool HOLDS_DP4A =
    cfg::DP4A && cfg::OUT_K * (cfg::CHUNK > 1 ? cfg::C_GROUP : 1) * Dp4aTaps::PLACES * cfg::S <= 32;

// True if sums are stored as saturated bytes, four at a time, without an epilogue.
constexpr bool SATURATES = cfg::DP4A && sizeof(out_t) == 1 && cfg::STORE % 4 == 0 && !HAS_EPILOGUE;

static_assert(THREADS >= 32 && THREADS <= 1024, "a block has 32 to 1024 threads");
static_assert(cfg::OUT_Q * cfg::STRIDE_W * cfg::CHUNK % cfg::LOAD == 0, "all runs must lie alike against the vectors");
static_assert(TILE_Q * cfg::STRIDE_W * cfg::CHUNK % WIDE == 0, "all boxes must begin at a multiple of 16 bytes");
static_assert(cfg::OUT_Q * cfg::STORE_K % cfg::STORE == 0 && cfg::OUT_K % cfg::STORE_K == 0,
              "stores must fill whole vectors");
static_assert(cfg::SLICES == cfg::GROUPS || cfg::OUT_K == cfg::K,
              "where groups share a box, a thread has all outputs of a pixel");
static_assert(!cfg::SHARES || THREADS % 32 == 0 && 32 % ROW_LANES == 0 && cfg::LANES % ROW_LANES == 0,
              "where threads share, a warp has whole parts of rows");
static_assert(!cfg::SHARES || cfg::CHUNK == 1 && RUN <= BEFORE_OWN + 2 * OWN,
              "a run reaches no further than one neighbour");

struct Boxes {
    TensorMap map;
    Conv conv;
    Filter filter;
    int tiles;
    Divisor across, down;  // tiles of a plane of outputs along q and p
    int aligned_out;       // true if rows of the output allow vectors of STORE elements
};

struct alignas(128) Box {
    x_t at[PLANES][BOX_H][BOX_W];
};

// A block's tile: image, slice, first output channel, first output.
struct Tile {
    int n, slice, k, p, q;
};

__device__ inline Tile tile_of(const Boxes &args, int i) {
    const int rest = quotient(i, args.across), plane = quotient(rest, args.down), part = plane / TILES_K;
    const int slice = part % cfg::SLICES;
    return {part / cfg::SLICES, slice, slice * K_SLICE + plane % TILES_K * cfg::OUT_K,
            (rest - plane * args.down.by) * TILE_P, (i - rest * args.across.by) * TILE_Q};
}

// Issues the copy of the box of tile i, if there is one.
__device__ inline void load(const Boxes &args, Box &box, unsigned long long *bar, int i) {
    if (i >= args.tiles) return;
    const Tile tile = tile_of(args, i);
    const int h0 = tile.p * cfg::STRIDE_H - args.conv.top, w0 = tile.q * cfg::STRIDE_W - args.conv.left;
    mbarrier_expect_tx(bar, sizeof(x_t) * PLANES * BOX_H * BOX_W);
    tma_load(&box, args.map, (w0 * cfg::CHUNK - cfg::SHIFT) / cfg::UNIT, h0,
             (tile.n * cfg::SLICES + tile.slice) * PLANES, bar);
}

// Writes element e of row i of a plane of a box: the value that the border has there, or the pixel itself.
__device__ inline void fill_cell(const Conv &conv, Box &box, const Tile &tile, int plane, int i, int e) {
    const int h = inside(tile.p * cfg::STRIDE_H - conv.top + i, conv.H), ch = e % cfg::CHUNK;
    const int w = inside(tile.q * cfg::STRIDE_W - conv.left + e / cfg::CHUNK, conv.W);
    x_t value = stored<x_t>::of(conv.outside);
    if (h >= 0 && w >= 0)
        value = conv.x[offset_of(conv.x_strides, tile.n, tile.slice * C_SLICE + plane * cfg::CHUNK + ch, h, w)];
    box.at[plane][i][cfg::SHIFT + e] = value;
}

// Writes the border values that outputs need: whole rows above and below the image, then both ends of the rows between.
__device__ inline void fill_outside(const Conv &conv, Box &box, const Tile &tile) {
    const int h0 = tile.p * cfg::STRIDE_H - conv.top, w0 = tile.q * cfg::STRIDE_W - conv.left;
    const int height = min(BOX_H, (conv.P - 1 - tile.p) * cfg::STRIDE_H + cfg::DILATION_H * (cfg::R - 1) + 1);
    const int width = min(WIDTH, (conv.Q - 1 - tile.q) * cfg::STRIDE_W + cfg::DILATION_W * (cfg::S - 1) + 1);
    if (h0 >= 0 && h0 + height <= conv.H && w0 >= 0 && w0 + width <= conv.W) return;  // the same for all threads
    const int above = min(max(-h0, 0), height), below = min(max(h0 + height - conv.H, 0), height - above);
    const int left = min(max(-w0, 0), width), right = min(max(w0 + width - conv.W, 0), width - left);
    const int whole = width * cfg::CHUNK, ends = (left + right) * cfg::CHUNK, rows = height - above - below;
#pragma unroll 1
    for (int i = threadIdx.x; i < (above + below) * whole * PLANES; i += THREADS) {
        const int row = i / whole % (above + below), plane = i / whole / (above + below);
        fill_cell(conv, box, tile, plane, row < above ? row : row + rows, i % whole);
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < ends * rows * PLANES; i += THREADS) {
        const int e = i % ends, row = i / ends % rows, plane = i / ends / rows;
        fill_cell(conv, box, tile, plane, above + row, e < left * cfg::CHUNK ? e : e + whole - ends);
    }
    fence_proxy_async();
    __syncthreads();
}

// Loads a row of the window. A vector of which the window needs half or less is loaded element by element.
__device__ inline void load_run(const Conv &conv, acc_t (&row)[RUN], const x_t *line) {
#pragma unroll
    for (int v = 0; v < LOADS; v++) {
        const int first = v * cfg::LOAD - cfg::SHIFT;
        if (min(first + cfg::LOAD, RUN) - max(first, 0) > cfg::LOAD / 2) {
            const auto values = load_vector<cfg::LOAD>(line + v * cfg::LOAD);
#pragma unroll
            for (int e = 0; e < cfg::LOAD; e++)
                if (first + e >= 0 && first + e < RUN) row[first + e] = centred(conv, values, e);
        } else {
#pragma unroll
            for (int e = 0; e < cfg::LOAD; e++)
                if (first + e >= 0 && first + e < RUN) row[first + e] = centred(conv, line[v * cfg::LOAD + e]);
        }
    }
}

// As load_run, but each thread loads only its own vectors and receives the rest of the run from its neighbours. The
// first and last lanes of a row in a warp have no neighbour on one side and load that part.
__device__ inline void share_run(const Conv &conv, acc_t (&row)[RUN], const x_t *line, int x) {
    acc_t own[OWN];
#pragma unroll
    for (int v = 0; v < OWN; v += cfg::LOAD) {
        const auto values = load_vector<cfg::LOAD>(line + cfg::SHIFT + BEFORE_OWN + v);
#pragma unroll
        for (int e = 0; e < cfg::LOAD; e++) own[v + e] = centred(conv, values, e);
    }
#pragma unroll
    for (int e = 0; e < RUN; e++) {
        const int at = e - BEFORE_OWN;
        if (at < 0) {
            row[e] = __shfl_up_sync(0xffffffffu, own[at + OWN], 1, ROW_LANES);
            if (x % ROW_LANES == 0) row[e] = centred(conv, line[cfg::SHIFT + e]);
        } else if (at < OWN) {
            row[e] = own[at];
        } else {
            row[e] = __shfl_down_sync(0xffffffffu, own[at - OWN], 1, ROW_LANES);
            if (x % ROW_LANES == ROW_LANES - 1) row[e] = centred(conv, line[cfg::SHIFT + e]);
        }
    }
}

// Loads row r of the taps of the tile's output k and of channel ch of a plane.
__device__ inline void taps_of(acc_t (&taps)[cfg::S], const acc_t (&staged)[STAGED_TAPS<cfg::STAGED_WEIGHTS>],
                               const Tile &tile, int k, int plane, int ch, int r) {
    // Sums beyond the last output channel are not stored.
    staged_taps(taps, staged, min(tile.k + k, cfg::K - 1), (plane * cfg::CHUNK + ch) % cfg::C_GROUP, r);
}

// Adds the products of all channels. x and y are the thread's position in the block.
__device__ inline void add_products(const Conv &conv, const Box &box,
                                    const acc_t (&staged)[STAGED_TAPS<cfg::STAGED_WEIGHTS>],
                                    acc_t (&sums)[cfg::OUT_K][cfg::OUT_P][cfg::OUT_Q], const Tile &tile, int x, int y) {
#pragma unroll(UNROLL_PLANES)
    for (int plane = 0; plane < PLANES; plane++) {
        acc_t held[HOLDS ? cfg::OUT_K : 1][HOLDS ? cfg::CHUNK : 1][HOLDS ? cfg::R : 1][cfg::S];
        if constexpr (HOLDS)
#pragma unroll
            for (int k = 0; k < cfg::OUT_K; k++)
#pragma unroll
                for (int ch = 0; ch < cfg::CHUNK; ch++)
#pragma unroll
                    for (int r = 0; r < cfg::R; r++)
                        if (ch / cfg::C_GROUP == k / cfg::K_GROUP)
                            taps_of(held[k][ch][r], staged, tile, k, plane, ch, r);
#pragma unroll(UNROLL_ROWS)
        for (int i = 0; i < ROWS; i++) {
            acc_t row[RUN];
            const x_t *const line =
                box.at[plane][y * cfg::OUT_P * cfg::STRIDE_H + i] + x * cfg::OUT_Q * cfg::STRIDE_W * cfg::CHUNK;
            if constexpr (cfg::SHARES) share_run(conv, row, line, x);
            else
                load_run(conv, row, line);
#pragma unroll
            for (int p = 0; p < cfg::OUT_P; p++) {
                // Row i of pixels is row r of the window of output row p.
                const int below = i - p * cfg::STRIDE_H, r = below / cfg::DILATION_H;
                if (below < 0 || below % cfg::DILATION_H != 0 || r >= cfg::R) continue;
#pragma unroll
                for (int k = 0; k < cfg::OUT_K; k++)
#pragma unroll
                    for (int ch = 0; ch < cfg::CHUNK; ch++) {
                        if (ch / cfg::C_GROUP != k / cfg::K_GROUP) continue;  // of another group
                        acc_t taps[cfg::S];
                        if constexpr (!HOLDS) taps_of(taps, staged, tile, k, plane, ch, r);
#pragma unroll
                        for (int s = 0; s < cfg::S; s++)
#pragma unroll
                            for (int q = 0; q < cfg::OUT_Q; q++) {
                                const acc_t tap = HOLDS ? held[HOLDS ? k : 0][HOLDS ? ch : 0][HOLDS ? r : 0][s] : taps[s];
                                const acc_t pixel = row[(q * cfg::STRIDE_W + s * cfg::DILATION_W) * cfg::CHUNK + ch];
                                sums[k][p][q] = multiply_add(tap, pixel, sums[k][p][q]);
                            }
                    }
            }
        }
    }
}

// Packs the staged taps for dp4a(), for output k and channel c and for every position of a word in the window.
template <class Sum>
__device__ inline void pack_taps(unsigned (&packed)[PACKED_TAPS], const Sum (&staged)[STAGED_TAPS<cfg::STAGED_WEIGHTS>],
                                 int thread) {
    for (int i = thread; i < PACKED_TAPS; i += THREADS) {
        const int s = i % cfg::S, turn = i / cfg::S % Dp4aTaps::PLACES, filter = i / (cfg::S * Dp4aTaps::PLACES);
        packed[i] = Dp4aTaps::column(staged + filter * cfg::R * TAP_PITCH + s, TAP_PITCH, Dp4aTaps::FIRST + turn);
    }
}

// As add_products, for bytes: transposes four rows at a time to columns of four pixels.
template <class X, class W, class Sum>
__device__ inline void add_dp4a(const Box &box, const unsigned (&packed)[PACKED_TAPS],
                                Sum (&sums)[cfg::OUT_K][cfg::OUT_P][cfg::OUT_Q], const Tile &tile, int x, int y) {
    constexpr int ALL_WORDS = (ROWS + Dp4aTaps::BASE - 1) / Dp4aTaps::BASE, KEPT = HOLDS_DP4A ? cfg::OUT_K : 1,
                  KEPT_CH = HOLDS_DP4A ? cfg::CHUNK : 1;
#pragma unroll(UNROLL_PLANES)
    for (int plane = 0; plane < PLANES; plane++) {
        unsigned held[KEPT][KEPT_CH][HOLDS_DP4A ? Dp4aTaps::PLACES : 1][cfg::S];
        const auto taps_at = [&](int k, int ch) {
            return packed + (min(tile.k + k, cfg::K - 1) * cfg::C_GROUP + (plane * cfg::CHUNK + ch) % cfg::C_GROUP) *
                                (Dp4aTaps::PLACES * cfg::S);
        };
        if constexpr (HOLDS_DP4A) {
#pragma unroll
            for (int i = 0; i < cfg::OUT_K * cfg::CHUNK * Dp4aTaps::PLACES * cfg::S; i++) {
                const int k = i / (cfg::CHUNK * Dp4aTaps::PLACES * cfg::S),
                          ch = i / (Dp4aTaps::PLACES * cfg::S) % cfg::CHUNK, place = i % (Dp4aTaps::PLACES * cfg::S);
                if (ch / cfg::C_GROUP == k / cfg::K_GROUP)
                    held[k][ch][place / cfg::S][place % cfg::S] = taps_at(k, ch)[place];
            }
        }
#pragma unroll(UNROLL_ROWS == 1 ? 1 : ALL_WORDS)
        for (int i = 0; i < ALL_WORDS; i++) {
            const int b = i * Dp4aTaps::BASE;
            unsigned rows[4][WORDS];
#pragma unroll
            for (int j = 0; j < 4; j++) {  // the last word may cross the end of the window, where taps are zero
                const x_t *line = box.at[plane][y * cfg::OUT_P * cfg::STRIDE_H + min(b + j, ROWS - 1)];
                const auto *from =
                    reinterpret_cast<const unsigned *>(line + x * cfg::OUT_Q * cfg::STRIDE_W * cfg::CHUNK);
#pragma unroll
                for (int v = 0; v < WORDS; v += LOAD_WORDS) {
                    const auto values = load_vector<LOAD_WORDS>(from + cfg::SHIFT / cfg::LOAD * LOAD_WORDS + v);
#pragma unroll
                    for (int e = 0; e < LOAD_WORDS; e++) rows[j][v + e] = values.at[e];
                }
            }
            unsigned columns[WORDS][4];
#pragma unroll
            for (int v = 0; v < WORDS; v++) transpose_bytes(columns[v], rows[0][v], rows[1][v], rows[2][v], rows[3][v]);
#pragma unroll
            for (int p = 0; p < cfg::OUT_P; p++) {
                if (!Dp4aTaps::takes(p, b)) continue;
                const int place = b - p * cfg::STRIDE_H - Dp4aTaps::FIRST;
#pragma unroll
                for (int k = 0; k < cfg::OUT_K; k++)
#pragma unroll
                    for (int ch = 0; ch < cfg::CHUNK; ch++) {
                        if (ch / cfg::C_GROUP != k / cfg::K_GROUP) continue;  // not of its group
#pragma unroll
                        for (int s = 0; s < cfg::S; s++) {
                            const unsigned taps =
                                HOLDS_DP4A ? held[HOLDS_DP4A ? k : 0][HOLDS_DP4A ? ch : 0][HOLDS_DP4A ? place : 0][s]
                                           : taps_at(k, ch)[place * cfg::S + s];
#pragma unroll
                            for (int q = 0; q < cfg::OUT_Q; q++) {
                                const int e = BEFORE + (q * cfg::STRIDE_W + s * cfg::DILATION_W) * cfg::CHUNK + ch;
                                sums[k][p][q] = dp4a<X, W>(columns[e / 4][e % 4], taps, sums[k][p][q]);
                            }
                        }
                    }
            }
        }
    }
}

// Stores row i of outputs from (p, q) on, of STORE_K channels from k on, in vectors that begin at `run`.
__device__ inline void store_vectors(const Conv &conv, const acc_t (&sums)[cfg::OUT_K][cfg::OUT_P][cfg::OUT_Q],
                                     const Tile &tile, int k, int i, int p, int q, out_t *run) {
#pragma unroll
    for (int v = 0; v < cfg::OUT_Q * cfg::STORE_K; v += cfg::STORE) {
        Vector<out_t, cfg::STORE> values;
        [[maybe_unused]] int whole[cfg::STORE];
#pragma unroll
        for (int e = v; e < v + cfg::STORE; e++) {
            const int at = e / cfg::STORE_K, ch = k + e % cfg::STORE_K;
            if constexpr (SATURATES)
                whole[e - v] = sums[ch][i][at];
            else
                values.at[e - v] = output_value(conv, tile.n, tile.k + ch, p, q + at, sums[ch][i][at]);
        }
        if constexpr (SATURATES) values = saturated<out_t>(whole);
        store_vector(run + v, values);
    }
}

// Stores the thread's outputs from (p, q) on: in vectors if the whole row, or the whole tile of the thread, exists.
__device__ inline void store(const Boxes &args, const acc_t (&sums)[cfg::OUT_K][cfg::OUT_P][cfg::OUT_Q],
                             const Tile &tile, int p, int q) {
    const Conv &conv = args.conv;
    const bool in_vectors = args.aligned_out && q + cfg::OUT_Q <= conv.Q;
    if (in_vectors && p + cfg::OUT_P <= conv.P && K_SLICE % cfg::OUT_K == 0) {
        out_t *const first = conv.out + offset_of(conv.out_strides, tile.n, tile.k, p, q);
        const index_t step_k = conv.out_strides.c, step_p = conv.out_strides.h;
#pragma unroll
        for (int j = 0; j < cfg::OUT_K / cfg::STORE_K * cfg::OUT_P; j++) {
            const int k = j / cfg::OUT_P * cfg::STORE_K, row = j % cfg::OUT_P;
            store_vectors(conv, sums, tile, k, row, p + row, q, first + (k * step_k + row * step_p));
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < cfg::OUT_K / cfg::STORE_K * cfg::OUT_P; j++) {
        const int k = j / cfg::OUT_P * cfg::STORE_K, row = j % cfg::OUT_P;
        if (K_SLICE % cfg::OUT_K && tile.k + k >= (tile.slice + 1) * K_SLICE) continue;  // beyond the slice
        if (p + row >= conv.P) continue;
        if (K_SLICE % cfg::OUT_K && in_vectors) {
            out_t *const run = conv.out + offset_of(conv.out_strides, tile.n, tile.k + k, p + row, q);
            store_vectors(conv, sums, tile, k, row, p + row, q, run);
        } else {
#pragma unroll
            for (int e = 0; e < cfg::OUT_Q * cfg::STORE_K; e++) {
                const int at = e / cfg::STORE_K, ch = k + e % cfg::STORE_K;
                if (q + at < conv.Q) store_output(conv, tile.n, tile.k + ch, p + row, q + at, sums[ch][row][at]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, cfg::BLOCKS) direct_boxes(const __grid_constant__ Boxes args) {
    TMA_SHARED(Box, boxes);
    __shared__ __align__(16) acc_t staged[STAGED_TAPS<cfg::STAGED_WEIGHTS>];
    __shared__ unsigned packed[PACKED_TAPS];
    __shared__ __align__(8) unsigned long long bars[cfg::STAGES];
    const int x = threadIdx.x % cfg::LANES, y = threadIdx.x / cfg::LANES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < cfg::STAGES; i++) mbarrier_init(bars + i);
        mbarrier_init_fence();
        prefetch_tensormap(args.map);
    }
    pdl_wait();
    if (threadIdx.x == 0)
        for (int i = 0; i < cfg::STAGES; i++) load(args, boxes[i], bars + i, blockIdx.x + i * gridDim.x);
    stage(args.filter, staged, threadIdx.x, THREADS);
    __syncthreads();
    if constexpr (cfg::DP4A) {
        pack_taps(packed, staged, threadIdx.x);
        __syncthreads();
    }
    int now = 0;
    unsigned parity = 0;
    for (int i = blockIdx.x; i < args.tiles; i += gridDim.x) {
        const Tile tile = tile_of(args, i);
        mbarrier_wait(bars + now, parity);
        if constexpr (cfg::FILLED) fill_outside(args.conv, boxes[now], tile);
        acc_t sums[cfg::OUT_K][cfg::OUT_P][cfg::OUT_Q] = {};
        if constexpr (cfg::DP4A) add_dp4a<x_t, w_t>(boxes[now], packed, sums, tile, x, y);
        else
            add_products(args.conv, boxes[now], staged, sums, tile, x, y);
        __syncthreads();  // all have read the box
        if (threadIdx.x == 0) load(args, boxes[now], bars + now, i + cfg::STAGES * gridDim.x);
        store(args, sums, tile, tile.p + y * cfg::OUT_P, tile.q + x * cfg::OUT_Q);
        if (++now == cfg::STAGES) now = 0, parity ^= 1;
    }
}
