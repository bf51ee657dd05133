// direct_tiled: a thread computes a small tile of outputs from rows of pixels in registers.
//
// Since direct_shared: the window is in registers, so there is no barrier and no second load. It slides down
//           the image: a row is loaded once, in vectors of up to 16 bytes, and serves every output row whose window
//           contains it. Only the few columns of the halo are loaded by two threads, the second time from L1.
// Tile      of a thread: OUT_Q outputs wide, OUT_P high, OUT_K channels. It needs ROWS x COLUMNS pixels of the image.
// Threads   thread (x, y) of a block of BLOCK_X x BLOCK_Y computes outputs from q0 = (blockIdx.x * BLOCK_X + x) * OUT_Q
//           and from p0 = (blockIdx.y * BLOCK_Y + y) * OUT_P on.
// Grid      blocks loop over y and z (image, group, tile of channels) in steps of the grid.
// Run       RUN contiguous elements are one row of the window: one channel in NCHW (CHUNK = 1), all C channels of its
//           pixels in NHWC if C is small. The left padding decides how a run is aligned to LOAD elements, so the host
//           passes SHIFT at compile time: a run begins SHIFT elements after a multiple of LOAD.
// Weights   staged in shared memory by each block, or packed beforehand (filter.cuh). A staged filter needs no earlier
//           launch, so this launch can overlap the one before it (PDL).
// Vectors   LOAD elements a load and STORE a store, if rows have this alignment and the tile with its vectors is inside
//           the image; then nothing is tested. Otherwise pixels and outputs are tested and moved one by one.
// Registers the compiler limits registers so that BLOCKS blocks fit on an SM. With fewer threads, each has more loads
//           in flight.
// Needs     OUT_Q * STRIDE_W * CHUNK is a multiple of LOAD, so that the runs of all threads have the same alignment.
// Limit     memory: each pixel is read once from DRAM and ROWS / (OUT_P * STRIDE_H) times from L1 or L2. Larger
//           filters: FMA.
#include "epilogue.cuh"
#include "filter.cuh"
#include "memory.cuh"
#include "pixels.cuh"

__constant__ acc_t weights[CONSTANT_TAPS<cfg::CONSTANT_WEIGHTS>];  // if the filter fits

constexpr int COLUMNS = (cfg::OUT_Q - 1) * cfg::STRIDE_W + cfg::DILATION_W * (cfg::S - 1) + 1,
              RUN = COLUMNS * cfg::CHUNK;
constexpr int ROWS = (cfg::OUT_P - 1) * cfg::STRIDE_H + cfg::DILATION_H * (cfg::R - 1) + 1;
constexpr int LOADS = (cfg::SHIFT + RUN + cfg::LOAD - 1) / cfg::LOAD;
constexpr int TILES_K = (cfg::K_GROUP + cfg::OUT_K - 1) / cfg::OUT_K;

// Loops are unrolled while the code stays small. The criterion is the number of FMAs, of one slice of channels and of
// all. Tested loads need registers for their addresses, so fewer are in flight. If blocks of several tiles of channels
// share an SM, each reads its own weights, and smaller code runs more evenly.
constexpr int PRODUCTS = cfg::OUT_K * cfg::OUT_P * cfg::OUT_Q * cfg::R * cfg::S * cfg::CHUNK;
constexpr int UNROLL_C =
    PRODUCTS * (cfg::C_GROUP / cfg::CHUNK) <= (TILES_K > 1 ? 1024 : 1536) ? cfg::C_GROUP / cfg::CHUNK : 1;
constexpr int UNROLL_ROWS = PRODUCTS <= 1536 ? ROWS : 1, UNROLL_TESTED = RUN * ROWS <= 32 ? ROWS : 1;
// A small image is all border and has few threads, which have registers to spare.
constexpr int THREADS = cfg::BLOCK_X * cfg::BLOCK_Y;
constexpr bool IS_SMALL = RUN * ROWS * (cfg::C_GROUP / cfg::CHUNK) <= 48 && THREADS * cfg::BLOCKS <= 512;
constexpr int UNROLL_TESTED_C = IS_SMALL ? cfg::C_GROUP / cfg::CHUNK : 1;
// If few channels serve many outputs, nearly all instructions are products. Then the products occur once in the code,
// after either way of loading, which first loads the whole window of a channel. This halves the compile time and keeps
// the code in the instruction cache.
constexpr bool ONE_BODY = cfg::OUT_K >= 8 && cfg::CHUNK == 1 && cfg::C_GROUP > 1 && cfg::C_GROUP <= 4 &&
                          ROWS *RUN <= 72 && sizeof(x_t) >= 4;
constexpr int HELD = ONE_BODY ? ROWS : 1;  // rows loaded together

static_assert(THREADS >= 32 && THREADS <= 1024, "a block has 32 to 1024 threads");
static_assert(cfg::OUT_Q * cfg::STRIDE_W * cfg::CHUNK % cfg::LOAD == 0, "all runs must lie alike against the vectors");
static_assert(cfg::OUT_Q * cfg::STORE_K % cfg::STORE == 0 && cfg::OUT_K % cfg::STORE_K == 0,
              "stores must fill whole vectors");

struct Tiled {
    Conv conv;
    Filter filter;  // if weights are staged
    int aligned_x, aligned_out;  // true if rows allow vectors of LOAD and STORE elements
};

// The tile of a thread: image, first output channel, first input channel, first output.
struct Tile {
    int n, k, c, p, q;
};

// Loads row r of the taps of output k and channel c of the group.
__device__ inline void taps_of(acc_t (&taps)[cfg::S], const Conv &conv,
                               const acc_t (&staged)[STAGED_TAPS<cfg::STAGED_WEIGHTS>], int k, int c, int r) {
    if constexpr (cfg::STAGED_WEIGHTS) return staged_taps(taps, staged, k, c, r);
#pragma unroll
    for (int s = 0; s < cfg::S; s++) taps[s] = weight<cfg::CONSTANT_WEIGHTS>(weights, conv, k, c, r, s);
}

// Loads a row of the window inside the image. A vector of which the window needs half or less is loaded element by
// element.
__device__ inline void load_inside(const Conv &conv, acc_t (&row)[RUN], const x_t *run) {
#pragma unroll
    for (int v = 0; v < LOADS; v++) {
        const int first = v * cfg::LOAD - cfg::SHIFT;
        if (min(first + cfg::LOAD, RUN) - max(first, 0) > cfg::LOAD / 2) {
            const auto values = load_vector<cfg::LOAD>(run + first);
#pragma unroll
            for (int e = 0; e < cfg::LOAD; e++)
                if (first + e >= 0 && first + e < RUN) row[first + e] = centred(conv, values, e);
        } else {
#pragma unroll
            for (int e = 0; e < cfg::LOAD; e++)
                if (first + e >= 0 && first + e < RUN) row[first + e] = centred(conv, run[first + e]);
        }
    }
}

// Loads a row that crosses the border or is not aligned. `h` and `columns` are positions in the image, or -1 for none.
__device__ inline void load_tested(const Conv &conv, acc_t (&row)[RUN], const x_t *plane, int h,
                                   const int (&columns)[COLUMNS]) {
    const index_t step_c = conv.x_strides.c, step_h = conv.x_strides.h, step_w = conv.x_strides.w;
    const x_t *line = plane + max(h, 0) * step_h;
#pragma unroll
    for (int e = 0; e < RUN; e++) {
        const int w = columns[e / cfg::CHUNK];
        row[e] = h < 0 || w < 0 ? outside(conv) : centred(conv, line[w * step_w + e % cfg::CHUNK * step_c]);
    }
}

// Position of a window: inside the image with aligned rows; to be tested pixel by pixel; or decided at run time.
enum Where { INSIDE, TESTED, EITHER };

// Adds the products of all channels.
template <Where WHERE>
__device__ inline void add_products(const Conv &conv, const acc_t (&staged)[STAGED_TAPS<cfg::STAGED_WEIGHTS>],
                                    acc_t (&sums)[cfg::OUT_K][cfg::OUT_P][cfg::OUT_Q], const Tile &tile,
                                    bool found_inside) {
    const bool is_inside = WHERE == EITHER ? found_inside : WHERE == INSIDE;
    const int h0 = tile.p * cfg::STRIDE_H - conv.top, w0 = tile.q * cfg::STRIDE_W - conv.left;
    const x_t *plane = conv.x + offset_of(conv.x_strides, tile.n, tile.c, is_inside ? h0 : 0, is_inside ? w0 : 0);
    int columns[COLUMNS];
    if constexpr (WHERE != INSIDE)
        for (int i = 0; i < COLUMNS; i++) columns[i] = inside(w0 + i, conv.W);
#pragma unroll(WHERE == TESTED ? UNROLL_TESTED_C : UNROLL_C)
    for (int c = 0; c < cfg::C_GROUP; c += cfg::CHUNK, plane += cfg::CHUNK * conv.x_strides.c)
#pragma unroll(WHERE == TESTED ? UNROLL_TESTED : UNROLL_ROWS)
        for (int first = 0; first < ROWS; first += HELD) {
            acc_t rows[HELD][RUN];
            if (is_inside)
#pragma unroll
                for (int j = 0; j < HELD; j++)
                    load_inside(conv, rows[j], plane + (first + j) * static_cast<index_t>(conv.x_strides.h));
            else
#pragma unroll
                for (int j = 0; j < HELD; j++)
                    load_tested(conv, rows[j], plane, inside(h0 + first + j, conv.H), columns);
#pragma unroll
            for (int i = first; i < first + HELD; i++)
#pragma unroll
                for (int p = 0; p < cfg::OUT_P; p++) {
                    // Row i of pixels is row r of the window of output row p.
                    const int below = i - p * cfg::STRIDE_H, r = below / cfg::DILATION_H;
                    if (below < 0 || below % cfg::DILATION_H != 0 || r >= cfg::R) continue;
#pragma unroll
                    for (int k = 0; k < cfg::OUT_K; k++)
#pragma unroll
                        for (int ch = 0; ch < cfg::CHUNK; ch++) {
                            acc_t taps[cfg::S];
                            taps_of(taps, conv, staged, min(tile.k + k, cfg::K - 1), c + ch, r);  // beyond: not stored
#pragma unroll
                            for (int s = 0; s < cfg::S; s++)
#pragma unroll
                                for (int q = 0; q < cfg::OUT_Q; q++) {
                                    const acc_t x =
                                        rows[i - first][(q * cfg::STRIDE_W + s * cfg::DILATION_W) * cfg::CHUNK + ch];
                                    sums[k][p][q] = multiply_add(taps[s], x, sums[k][p][q]);
                                }
                        }
                }
        }
}

// Stores vectors: OUT_Q contiguous outputs of a channel, or OUT_Q pixels of STORE_K channels if channels are innermost.
__device__ inline void store_vectors(const Conv &conv, const acc_t (&sums)[cfg::OUT_K][cfg::OUT_P][cfg::OUT_Q],
                                     const Tile &tile) {
#pragma unroll
    for (int i = 0; i < cfg::OUT_K / cfg::STORE_K * cfg::OUT_P; i++) {
        const int k = i / cfg::OUT_P * cfg::STORE_K, p = i % cfg::OUT_P;
        // Beyond the last channel of the group.
        if (cfg::K_GROUP % cfg::OUT_K && (tile.k + k) / cfg::K_GROUP != tile.k / cfg::K_GROUP) continue;
        out_t *run = conv.out + offset_of(conv.out_strides, tile.n, tile.k + k, tile.p + p, tile.q);
#pragma unroll
        for (int v = 0; v < cfg::OUT_Q * cfg::STORE_K; v += cfg::STORE) {
            Vector<out_t, cfg::STORE> values;
#pragma unroll
            for (int e = v; e < v + cfg::STORE; e++) {
                const int q = e / cfg::STORE_K, ch = k + e % cfg::STORE_K;
                values.at[e - v] = output_value(conv, tile.n, tile.k + ch, tile.p + p, tile.q + q, sums[ch][p][q]);
            }
            store_vector(run + v, values);
        }
    }
}

__device__ inline void store_tested(const Conv &conv, const acc_t (&sums)[cfg::OUT_K][cfg::OUT_P][cfg::OUT_Q],
                                    const Tile &tile) {
#pragma unroll
    for (int k = 0; k < cfg::OUT_K; k++)
#pragma unroll
        for (int p = 0; p < cfg::OUT_P; p++)
#pragma unroll
            for (int q = 0; q < cfg::OUT_Q; q++)
                if ((tile.k + k) / cfg::K_GROUP == tile.k / cfg::K_GROUP && tile.p + p < conv.P && tile.q + q < conv.Q)
                    store_output(conv, tile.n, tile.k + k, tile.p + p, tile.q + q, sums[k][p][q]);
}

extern "C" __global__ void __launch_bounds__(THREADS, cfg::BLOCKS) direct_tiled(const __grid_constant__ Tiled args) {
    const Conv &conv = args.conv;
    __shared__ __align__(16) acc_t staged[STAGED_TAPS<cfg::STAGED_WEIGHTS>];
    if constexpr (cfg::STAGED_WEIGHTS) {
        pdl_wait();
        stage(args.filter, staged, threadIdx.y * cfg::BLOCK_X + threadIdx.x, THREADS);
        __syncthreads();
    }
    const int q = (blockIdx.x * cfg::BLOCK_X + threadIdx.x) * cfg::OUT_Q;
    // The first and last vectors of the block. They are the same for all threads of a row, so a warp does not diverge.
    const int first = (blockIdx.x * cfg::BLOCK_X * cfg::OUT_Q * cfg::STRIDE_W - conv.left) * cfg::CHUNK - cfg::SHIFT;
    const int last = first + (cfg::BLOCK_X - 1) * cfg::OUT_Q * cfg::STRIDE_W * cfg::CHUNK + LOADS * cfg::LOAD;
    const bool columns_inside =
        first >= 0 && last <= conv.W * cfg::CHUNK && (blockIdx.x + 1) * cfg::BLOCK_X * cfg::OUT_Q <= conv.Q;
    const long long planes = static_cast<long long>(conv.N) * (cfg::GROUPS * TILES_K);
    const int step_p = gridDim.y * cfg::BLOCK_Y * cfg::OUT_P;
    if (q >= conv.Q) return;
    for (long long plane = blockIdx.z; plane < planes; plane += gridDim.z) {
        const int n = plane / (cfg::GROUPS * TILES_K), part = plane % (cfg::GROUPS * TILES_K), g = part / TILES_K;
        Tile tile = {n, g * cfg::K_GROUP + part % TILES_K * cfg::OUT_K, g * cfg::C_GROUP, 0, q};
        for (tile.p = (blockIdx.y * cfg::BLOCK_Y + threadIdx.y) * cfg::OUT_P; tile.p < conv.P; tile.p += step_p) {
            const int h0 = tile.p * cfg::STRIDE_H - conv.top;
            const bool rows_inside = h0 >= 0 && h0 + ROWS <= conv.H && tile.p + cfg::OUT_P <= conv.P;
            acc_t sums[cfg::OUT_K][cfg::OUT_P][cfg::OUT_Q] = {};
            const bool is_inside = args.aligned_x && columns_inside && rows_inside;
            if constexpr (ONE_BODY)
                add_products<EITHER>(conv, staged, sums, tile, is_inside);
            else if (is_inside)
                add_products<INSIDE>(conv, staged, sums, tile, true);
            else
                add_products<TESTED>(conv, staged, sums, tile, false);
            if (args.aligned_out && columns_inside && rows_inside)
                store_vectors(conv, sums, tile);
            else
                store_tested(conv, sums, tile);
        }
    }
}
