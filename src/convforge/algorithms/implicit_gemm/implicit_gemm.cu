// implicit_gemm: the product of im2col without its matrix: tiles of columns are gathered from the image when needed.
//
// Since im2col: a block gathers the entries of its own columns into shared memory. The image is read R * S
//           times, mostly from L2 and L1, and only the output is written.
// Product   out (K x NPQ) = weights (K x RSC) times columns (RSC x NPQ), for each group. Entries of a column are in the
//           order (r, s, c). So if BLOCK_K divides C_GROUP, a step has one tap: a thread then finds the pixel and tests
//           the border once a step, and only adds strides for the channels.
// Threads   WARPS_M x WARPS_N warps of LANES_M x LANES_N threads. A thread has THREAD_M x THREAD_N sums (gemm.cuh). For
//           the gather, neighbouring threads take neighbours in memory: pixels of a row in NCHW, channels in NHWC,
//           there several in one load.
// Tiles     two of BLOCK_M x BLOCK_K of the weights and of BLOCK_K x BLOCK_N of the columns. The loads of the next
//           tiles are issued before the products of the current ones. The data waits in registers, where pixels are
//           converted to acc_t.
// Weights   packed (R, S, C_GROUP, K): the filters are innermost.
// Any       stride, padding, border, dilation, groups, layout. The corner of each window is computed once a block.
// Limit     FMAs, minus the cost of the gather: a load and a few additions for each BLOCK_M products of a warp's
//           threads.
#include "border.cuh"
#include "gemm.cuh"
#include "memory.cuh"

using Warps = WarpTile<cfg::BLOCK_M, cfg::BLOCK_N, cfg::WARP_M, cfg::WARP_N, cfg::THREAD_M, cfg::THREAD_N>;
constexpr int THREADS = Warps::THREADS;

constexpr int DEPTH = cfg::R * cfg::S * cfg::C_GROUP;
constexpr bool ONE_TAP = cfg::C_GROUP % cfg::BLOCK_K == 0;
constexpr int PER = !ONE_TAP || !cfg::CHANNELS_LAST ? 1 : sizeof(x_t) > 4 ? 2 : 4;  // channels of a load

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

__device__ inline Corner corner_of(const Store &store, int group, int n) {
    const Conv &conv = store.conv;
    const Column column = column_at(store, n);
    return {offset_of(conv.x_strides, column.n, group * cfg::C_GROUP, 0, 0), column.p * cfg::STRIDE_H - conv.top,
            column.q * cfg::STRIDE_W - conv.left};
}

// Address of the first channel of the pixel that a column needs for a tap, or null outside the image.
__device__ inline const x_t *seen_by(const Conv &conv, const Corner &corner, int tap) {
    const int h = inside(corner.h + tap / cfg::S * cfg::DILATION_H, conv.H);
    const int w = inside(corner.w + tap % cfg::S * cfg::DILATION_W, conv.W);
    if (h < 0 || w < 0) return nullptr;
    return conv.x + (corner.image + h * static_cast<index_t>(conv.x_strides.h) +
                     w * static_cast<index_t>(conv.x_strides.w));
}

// A thread's part of a tile of columns, gathered from the image.
struct ColumnPart {
    using Parts = Share<cfg::BLOCK_N, cfg::BLOCK_K, THREADS, cfg::CHANNELS_LAST, PER>;
    math_t entries[Parts::COUNT][PER];

    __device__ void load(const Conv &conv, bool vectors, const Corner (&corners)[cfg::BLOCK_N], int k0) {
        const Parts share(threadIdx.x);
        const index_t channel = conv.x_strides.c;
#pragma unroll
        for (int i = 0; i < Parts::COUNT_X; i++) {
            const int x = share.x + i * Parts::STEP_X;
            if (x >= cfg::BLOCK_N) continue;
            const Corner corner = corners[x];
            const x_t *pixel = ONE_TAP ? seen_by(conv, corner, k0 / cfg::C_GROUP) : nullptr;
#pragma unroll
            for (int j = 0; j < Parts::COUNT_K; j++) {
                const int k = k0 + share.k + j * Parts::STEP_K;
                if (!share.has(i * Parts::STEP_X, j * Parts::STEP_K)) continue;
                if (!ONE_TAP && k < DEPTH) pixel = seen_by(conv, corner, k / cfg::C_GROUP);
                const int c = ONE_TAP ? k0 % cfg::C_GROUP + share.k + j * Parts::STEP_K : k % cfg::C_GROUP;
                math_t(&target)[PER] = entries[i * Parts::COUNT_K + j];
                const x_t *first = pixel + c * channel;
                if (pixel == nullptr || (!ONE_TAP && k >= DEPTH)) {
                    const math_t value = ONE_TAP || k < DEPTH ? outside(conv) : 0;
#pragma unroll
                    for (int v = 0; v < PER; v++) target[v] = value;
                } else if (PER > 1 && vectors) {
                    const auto several = load_vector<PER>(first);
#pragma unroll
                    for (int v = 0; v < PER; v++) target[v] = centred(conv, several.at[v]);
                } else {
#pragma unroll
                    for (int v = 0; v < PER; v++) target[v] = centred(conv, first[v * channel]);
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
            for (int v = 0; v < PER; v++) tile[share.k + dk + v][share.x + dx] = entries[i][v];
        }
    }
};

// Loads tiles of columns.
struct ColumnLoader {
    using Part = ColumnPart;
    const Conv &conv;
    const int &vectors;
    const Corner (&corners)[cfg::BLOCK_N];
    __device__ __forceinline__ void load(Part &part, int k0) const { part.load(conv, vectors, corners, k0); }
};

struct Implicit {
    Gemm product;  // its b is not used
    int vectors;   // true if PER channels at a multiple of PER are aligned for one load
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) implicit_gemm(const __grid_constant__ Implicit args) {
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
    const ColumnLoader columns = {conv, args.vectors, memory->corners};
    const Squares<cfg::THREAD_M, cfg::THREAD_N, Warps::LANES_M * 4, Warps::LANES_N * 4> multiply = {lane.m, lane.n};
    const SquaresStore<Warps::LANES_M * 4, Warps::LANES_N * 4> put = {product.store, product.M, product.N, tile, lane.m, lane.n};
    ::product(weights, columns, multiply, put, memory->a, memory->b, DEPTH);
}
