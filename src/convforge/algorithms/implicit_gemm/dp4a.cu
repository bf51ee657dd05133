// implicit_gemm_dp4a: implicit GEMM of 8-bit integers by dp4a, on any GPU since Pascal (sm_61).
//
// Since implicit_gemm: a number of a tile is a word of four bytes along K (words.cuh), so that one instruction adds four
//           products, a load has four channels, and tiles are a quarter as large.
// Threads   WarpTile divides the tile of BLOCK_M filters x BLOCK_N pixels: a warp has WARP_M x WARP_N of it, a thread
//           THREAD_M x THREAD_N, in squares of 4 x 4.
// Columns   gathered from the image: 16 bytes or a word at once where channels are contiguous and aligned (NHWC), else
//           byte by byte, put together by __byte_perm. Neighbouring threads take neighbours in memory: pixels of a row,
//           or channels (K_MAJOR).
// Weights   packed (KWords::DEPTH, K) by pack_words.cu: the filters are innermost.
// Outside   the image, the word of the stored value of the padding, which is the zero point for a border of zeros. So
//           all taps of every window are multiplied, and the zero point of x is one number for each filter:
//           sum of (x - zero) w = sum of x w - zero * (sum of w).
// Bytes     as results are computed in float where that is exact, if the epilogue is a multiply-add (rescaled.cuh).
// Tiles     two of each operand, as in implicit_gemm; the loads of the next ones wait in registers.
// Any       stride, padding, border, dilation, groups, layout, and types of x and w.
// Limit     dp4a, minus the cost of the gather for each BLOCK_M products of a warp's threads. With few filters a group,
//           rows of tiles beyond K_GROUP are wasted.
#include "mma.cuh"
#include "types.cuh"

// A product of GEMM's tiles: words of weights and of pixels.
__device__ inline int multiply_add(unsigned taps, unsigned pixels, int sum) { return dp4a<x_t, w_t>(pixels, taps, sum); }

#include "border.cuh"
#include "gemm.cuh"
#include "memory.cuh"
#include "rescaled.cuh"
#include "words.cuh"

using Warps = WarpTile<cfg::BLOCK_M, cfg::BLOCK_N, cfg::WARP_M, cfg::WARP_N, cfg::THREAD_M, cfg::THREAD_N>;
constexpr int THREADS = Warps::THREADS;

constexpr int DEPTH = KWords::DEPTH;
constexpr bool K_MAJOR = cfg::CHANNELS_LAST && KWords::WORDS >= 4;  // neighbouring threads take words of a pixel
constexpr int PER = cfg::WHOLE_WORDS && K_MAJOR && KWords::WORDS % 4 == 0 ? 4 : 1;  // words of a load
constexpr bool ONE_TAP = KWords::WORDS % cfg::BLOCK_K == 0;                     // all words of a step are of one tap

// The corner of the window of a column.
struct Corner {
    index_t image;  // offset of the first channel of the group
    int h, w;
};

struct Memory {
    math_t a[2][cfg::BLOCK_K][Warps::PITCH_A], b[2][cfg::BLOCK_K][Warps::PITCH_B];
    Corner corners[cfg::BLOCK_N];
};
static_assert(sizeof(Memory) <= cfg::SHARED_BYTES, "the host asks for the shared memory that a block uses");

struct Dp4a {
    Gemm product;     // its b is not used
    const int *zero;  // zero point of x times the sum of the weights, for each filter; null without a zero point
};

__device__ inline Corner corner_of(const Store &store, int group, int n) {
    const Conv &conv = store.conv;
    const Column column = column_at(store, n);
    return {offset_of(conv.x_strides, column.n, group * cfg::C_GROUP, 0, 0), column.p * cfg::STRIDE_H - conv.top,
            column.q * cfg::STRIDE_W - conv.left};
}

// Address of the first channel of the pixel that a column needs for a tap, or null outside the image.
__device__ inline const x_t *pixel_of(const Conv &conv, const Corner &corner, int r, int s) {
    const int h = inside(corner.h + r * cfg::DILATION_H, conv.H), w = inside(corner.w + s * cfg::DILATION_W, conv.W);
    if (h < 0 || w < 0) return nullptr;
    return conv.x + (corner.image + h * static_cast<index_t>(conv.x_strides.h) + w * static_cast<index_t>(conv.x_strides.w));
}

// A word from the bytes that were loaded for it, or the word that was loaded.
template <int BYTES>
__device__ inline unsigned joined(const unsigned (&bytes)[BYTES]) {
    if constexpr (BYTES == 1) return bytes[0];
    const unsigned low = __byte_perm(bytes[0], bytes[1], 0x0040);
    return __byte_perm(low, BYTES == 3 ? bytes[BYTES - 1] : __byte_perm(bytes[2], bytes[BYTES - 1], 0x0040), 0x5410);
}

__device__ inline unsigned byte_at(const x_t *from) { return *reinterpret_cast<const unsigned char *>(from); }

// The stored value outside the image, in all four bytes.
__device__ inline unsigned outside_word(const Conv &conv) {
    return static_cast<unsigned char>(conv.outside) * 0x01010101u;
}

// A thread's part of a tile of columns, gathered from the image: words, or bytes that become words when they are stored
// in the tile, because an instruction that joins them waits for their loads.
struct ColumnPart {
    using Parts = Share<cfg::BLOCK_N, cfg::BLOCK_K, THREADS, K_MAJOR, PER>;
    static constexpr int BYTES = cfg::WHOLE_WORDS ? 1 : cfg::C_GROUP == 3 ? 3 : 4;  // loads of a word
    unsigned loads[Parts::COUNT][PER][BYTES];

    // Words of one tap, from channel c on. `pixel` is null outside the image.
    __device__ __forceinline__ static void load_channels(unsigned (&to)[PER][BYTES], const Conv &conv, const x_t *pixel, int c) {
        if constexpr (cfg::WHOLE_WORDS) {
            Vector<unsigned, PER> several;
#pragma unroll
            for (int v = 0; v < PER; v++) several.at[v] = outside_word(conv);
            if (pixel != nullptr) several = load_vector<PER>(reinterpret_cast<const unsigned *>(pixel + c));
#pragma unroll
            for (int v = 0; v < PER; v++) to[v][0] = several.at[v];
        } else {
            const index_t step = conv.x_strides.c;
#pragma unroll
            for (int b = 0; b < BYTES; b++)  // a byte without a channel has weight 0
                to[0][b] = pixel != nullptr && KWords::exists(0, c + b) ? byte_at(pixel + (c + b) * step) : conv.outside;
        }
    }

    // A word of several taps.
    __device__ __forceinline__ static void load_taps(unsigned (&to)[BYTES], const Conv &conv, const Corner &corner, const KWords &at) {
        const index_t step = conv.x_strides.c;
#pragma unroll
        for (int t = 0; t < KWords::TAPS; t++) {
            const int s = at.s + t;
            const x_t *pixel = KWords::exists(s, 0) ? pixel_of(conv, corner, at.r, s) : nullptr;
#pragma unroll
            for (int c = 0; c < KWords::CHANNELS; c++)
                to[t * KWords::CHANNELS + c] = pixel != nullptr ? byte_at(pixel + c * step) : conv.outside;
        }
    }

    __device__ void load(const Conv &conv, const Corner (&corners)[cfg::BLOCK_N], int k0) {
        const Parts share(threadIdx.x);
#pragma unroll
        for (int i = 0; i < Parts::COUNT_X; i++) {
            const int x = share.x + i * Parts::STEP_X;
            if (x >= cfg::BLOCK_N) continue;
            const Corner corner = corners[x];
            const KWords first(k0);
            const x_t *pixel = ONE_TAP ? pixel_of(conv, corner, first.r, first.s) : nullptr;
#pragma unroll
            for (int j = 0; j < Parts::COUNT_K; j++) {
                if (!share.has(i * Parts::STEP_X, j * Parts::STEP_K)) continue;
                const int k = share.k + j * Parts::STEP_K;
                auto &to = loads[i * Parts::COUNT_K + j];
                if constexpr (ONE_TAP) {
                    load_channels(to, conv, pixel, first.c + 4 * k);
                } else {  // words beyond the last one have weight 0: they repeat it
                    const KWords at(min(k0 + k, DEPTH - PER));
                    if constexpr (KWords::TAPS > 1) load_taps(to[0], conv, corner, at);
                    else load_channels(to, conv, pixel_of(conv, corner, at.r, at.s), at.c);
                }
            }
        }
    }

    __device__ void store(math_t (&tile)[cfg::BLOCK_K][Warps::PITCH_B]) const {
        const Parts share(threadIdx.x);
#pragma unroll
        for (int i = 0; i < Parts::COUNT; i++) {
            const int dx = i / Parts::COUNT_K * Parts::STEP_X, dk = i % Parts::COUNT_K * Parts::STEP_K;
            if (!share.has(dx, dk)) continue;
#pragma unroll
            for (int v = 0; v < PER; v++) tile[share.k + dk + v][share.x + dx] = joined(loads[i][v]);
        }
    }
};

// Loads tiles of columns.
struct ColumnLoader {
    using Part = ColumnPart;
    const Conv &conv;
    const Corner (&corners)[cfg::BLOCK_N];
    __device__ __forceinline__ void load(Part &part, int k0) const { part.load(conv, corners, k0); }
};

// Stores a thread's squares of sums as bytes, for RESCALED results. The rows are filters.
template <class Out, int STEP_M, int STEP_N, int ROWS, int COLUMNS>
__device__ inline void put_bytes(const Store &store, int M, int N, int group, int m0, int n0, const int (&sums)[ROWS][COLUMNS]) {
    const Conv &conv = store.conv;
    const int first_k = group * cfg::K_GROUP;
    const index_t step = row_step(store);
#pragma unroll
    for (int i = 0; i < ROWS; i += 4) {
        const int m = m0 + i / 4 * STEP_M;
        if (m >= M) continue;
        const RescaledFilters<Out, 4> filters(conv, first_k + m, first_k + cfg::K_GROUP - 1, false);
#pragma unroll
        for (int j = 0; j < COLUMNS; j += 4) {
            const int n = n0 + j / 4 * STEP_N;
            if (n >= N) continue;
            Column at = column_at(store, n);
            out_t *starts[4];
#pragma unroll
            for (int v = 0; v < 4; v++) {
                starts[v] = start(store, group, at);
                at = after(store, at);
            }
            const bool vectors = store.vectors && m + 4 <= M && n + 4 <= N;
#pragma unroll
            for (int u = 0; u < 4; u++) {  // four filters of a pixel, or four pixels of a filter
                int own[4];
#pragma unroll
                for (int v = 0; v < 4; v++) own[v] = cfg::C_M_MAJOR ? sums[i + v][j + u] : sums[i + u][j + v];
                const int first = cfg::C_M_MAJOR ? m : m + u;
                const auto bytes = filters.template bytes<cfg::C_M_MAJOR>(cfg::C_M_MAJOR ? 0 : u, own);
                if (vectors) {
                    store_vector(cfg::C_M_MAJOR ? starts[u] + m : starts[0] + first * step, bytes);
                    continue;
                }
#pragma unroll
                for (int v = 0; v < 4; v++) {
                    const int row = cfg::C_M_MAJOR ? m + v : first, column = cfg::C_M_MAJOR ? u : v;
                    if (row < M && n + column < N) starts[column][row * step] = bytes.at[v];
                }
            }
        }
    }
}

// Subtracts the zero point, and stores the squares of a thread that begin at row m and column n of the block's tile.
template <class Out, int STEP_M, int STEP_N>
struct Finish {
    const Dp4a &args;
    const Tile &tile;
    const int &m, &n;
    template <int ROWS, int COLUMNS>
    __device__ __forceinline__ void operator()(int (&sums)[ROWS][COLUMNS]) const {
        const Gemm &product = args.product;
        const int m0 = tile.m + m, n0 = tile.n + n;
        if constexpr (cfg::ZERO_POINT) {
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                const int row = min(m0 + i / 4 * STEP_M + i % 4, product.M - 1);
                const int zero = args.zero[tile.group * cfg::K_GROUP + row];
#pragma unroll
                for (int j = 0; j < COLUMNS; j++) sums[i][j] -= zero;
            }
        }
        if constexpr (RESCALED<Out>)
            put_bytes<Out, STEP_M, STEP_N>(product.store, product.M, product.N, tile.group, m0, n0, sums);
        else
            put_squares(product.store, product.M, product.N, tile.group, m0, n0, STEP_M, STEP_N, sums);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) implicit_gemm_dp4a(const __grid_constant__ Dp4a args) {
    DYNAMIC_SHARED(Memory, memory);
    const Gemm &product = args.product;
    const Conv &conv = product.store.conv;
    const Tile tile = tile_of(product);
    const Operand a = of_group(product.a, tile.group);
    const Warps::Lane lane = Warps::lane_of(threadIdx.x);
    pdl_wait();
    for (int n = threadIdx.x; n < cfg::BLOCK_N; n += THREADS)  // columns beyond the last repeat the last one
        memory->corners[n] = corner_of(product.store, tile.group, min(tile.n + n, product.N - 1));
    __syncthreads();
    const MatrixLoader<cfg::BLOCK_M, cfg::BLOCK_K, THREADS, false> weights = {a, tile.m, product.M, DEPTH};
    const ColumnLoader columns = {conv, memory->corners};
    const Squares<cfg::THREAD_M, cfg::THREAD_N, Warps::LANES_M * 4, Warps::LANES_N * 4> multiply = {lane.m, lane.n};
    const Finish<out_t, Warps::LANES_M * 4, Warps::LANES_N * 4> finish = {args, tile, lane.m, lane.n};
    ::product(weights, columns, multiply, finish, memory->a, memory->b, DEPTH);
}
