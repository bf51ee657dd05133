// depthwise_mma: a row of the filter is a matrix of 16-bit numbers, by which a tensor core multiplies 16 windows.
//
// Since depthwise_rows: with 16-bit pixels, FMAs and conversions are the limit. Eight neighbouring outputs
//           need SPAN neighbouring pixels of a row. These pixels times a Toeplitz matrix, which has the taps of the
//           filter row once for each output, shifted by STRIDE_W rows, give the row's contribution. Most of the matrix
//           is zeros.
// Window    the pixels of a row that eight outputs need, from an even number of columns before the plane's first on.
// Tiles     of 16 windows, in the order of a plane's outputs. A warp processes TILES tiles at a time, row by row of the
//           filter. The PLANE_WARPS warps of a plane take alternate tiles.
// Walk      for small filters (WALK), a warp instead goes down the plane, with the matrices of all R rows of the filter
//           in registers. Its 16 windows are strips beside and below each other, of args.height rows of outputs. Each
//           row of pixels is loaded once and added to R rows of outputs, a ring of sums, of which it completes one.
// Threads   THREADS = 32 * PLANE_WARPS * PLANES. Lane 4 g + t has outputs 2 t and 2 t + 1 of windows g and g + 8.
// Grid      one dimension, PLANES neighbouring planes a block.
// Pixels    planes are padded with zeros in shared memory, so that no window is tested. The zeros are written before
//           pdl_wait. Rows are args.pitch apart, chosen so that loads of windows have few bank conflicts.
// Taps      each row of the filter is padded with zeros too, in a line of LINE numbers, from which lanes load their
//           fragments of the matrix.
// Outputs   are stored from registers: eight windows are 128 bytes if rows are whole windows.
// Inf, NaN  times a zero of the matrix would reach outputs whose windows do not contain them. So outputs that are not
//           finite are recomputed from their own windows.
// Needs     zeros at the border, rows of an even number of pixels, K = C, NCHW, sm_80, all planes of a block in shared
//           memory; outputs of 16 bits, because tensor cores truncate sums.
// Limit     memory up to about 7 x 7 with WALK; else loads from shared memory, four of windows for each product.
#include "border.cuh"
#include "conv.cuh"
#include "epilogue.cuh"
#include "filter.cuh"
#include "memory.cuh"
#include "mma.cuh"

constexpr int PLANE_THREADS = 32 * cfg::PLANE_WARPS, THREADS = PLANE_THREADS * cfg::PLANES;
constexpr int SPAN = cfg::LEAD + (MMA_COLUMNS - 1) * cfg::STRIDE_W + (cfg::S - 1) * cfg::DILATION_W + 1;
constexpr int STEPS = (SPAN + MMA_HALVES - 1) / MMA_HALVES;
constexpr int BEFORE = cfg::LEAD + (MMA_COLUMNS - 1) * cfg::STRIDE_W;  // zeros before the taps of a line
constexpr int LINE = (BEFORE - cfg::LEAD + MMA_HALVES * STEPS + 7) / 8 * 8;

static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(cfg::BORDER == ZEROS && cfg::K == cfg::C, "zeros stand outside, and an output has a plane of its own");
static_assert(sizeof(x_t) == 2 && sizeof(w_t) == 2 && sizeof(out_t) == 2, "numbers are of 16 bits");
static_assert(cfg::FILL % 2 == 0 && cfg::FILL <= 8, "copies are of 4, 8 or 16 bytes");
static_assert(!cfg::WALK || (cfg::STRIDE_H == 1 && cfg::DILATION_H == 1), "each row of pixels is one of R windows");

struct Mma {
    Conv conv;
    Filter filter;
    Divisor windows, across;  // windows of a row of outputs, vectors of a row of pixels
    int tiles;                // of a plane
    int strips, height;       // strips of a warp below each other; rows of outputs of a strip
    int pitch, plane;         // elements from row to row and from plane to plane in shared memory
    int first;                // position of a plane's first pixel
    int aligned_x, aligned_out;  // true if vectors of FILL pixels and of two outputs are aligned
};

// A plane, as seen by a lane of one of its warps.
struct Plane {
    int n, k;
    x_t *pixels, *lines;  // its first pixel, and the first line of its filter, in shared memory
    int warp, g, t;     // the warp of the plane, and lane 4 g + t of it
};

// Writes zeros to all of the block's shared memory for planes and lines.
__device__ inline void clear(const Mma &args, x_t *held) {
    const Vector<x_t, 8> zeros = {};
    for (int i = threadIdx.x; i < cfg::PLANES * (cfg::R * LINE + args.plane) / 8; i += THREADS)
        store_vector(held + 8 * i, zeros);
}

__device__ inline void copy_fill(x_t *to, const x_t *from) {
    if constexpr (cfg::FILL == 8) copy_async16_l2_128b(to, from, true);
    else copy_async<cfg::FILL * sizeof(x_t)>(to, from, true);
}

__device__ inline void copy_pixels(const Mma &args, const Plane &plane) {
    const Conv &conv = args.conv;
    const int u = threadIdx.x % PLANE_THREADS;
    const x_t *const from = conv.x + offset_of(conv.x_strides, plane.n, plane.k, 0, 0);
    if (args.aligned_x) {
#pragma unroll 4
        for (int i = u; i < conv.H * args.across.by; i += PLANE_THREADS) {
            const int h = quotient(i, args.across), w = (i - h * args.across.by) * cfg::FILL;
            copy_fill(plane.pixels + (h * args.pitch + w), from + (h * static_cast<index_t>(conv.x_strides.h) + w));
        }
    } else {
        for (int i = u; i < conv.H * conv.W; i += PLANE_THREADS) {
            const int h = i / conv.W, w = i - h * conv.W;
            plane.pixels[h * args.pitch + w] = from[offset_of(conv.x_strides, 0, 0, h, w)];
        }
    }
}

__device__ inline void copy_taps(const Filter &filter, const Plane &plane) {
    for (int i = threadIdx.x % PLANE_THREADS; i < cfg::R * cfg::S; i += PLANE_THREADS) {
        const int r = i / cfg::S, s = i % cfg::S;
        const w_t tap = filter.taps[offset_of(filter.strides, plane.k, 0, r, s)];
        plane.lines[r * LINE + BEFORE + s * cfg::DILATION_W].bits = tap.bits;
    }
}

// Loads a lane's fragment of the matrix of row r of the filter. Its column is output g of a window.
__device__ inline void load_taps(unsigned (&b)[STEPS][2], const Plane &plane, int r) {
    const x_t *const column = plane.lines + (r * LINE + BEFORE - cfg::LEAD + 2 * plane.t - plane.g * cfg::STRIDE_W);
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const x_t *const two = column + (MMA_HALVES * step + 8 * half);  // the first may be odd
            b[step][half] = two[0].bits | static_cast<unsigned>(two[1].bits) << 16;
        }
}

// Address of a lane's first pixels in the window of outputs (p, 8 i) and its neighbours.
__device__ inline const x_t *window_at(const Mma &args, const Plane &plane, int p, int i) {
    const int w = i * (MMA_COLUMNS * cfg::STRIDE_W) - args.conv.left - cfg::LEAD + 2 * plane.t;
    return plane.pixels + ((p * cfg::STRIDE_H - args.conv.top) * args.pitch + w);
}

// Loads a lane's fragment of windows g and g + 8.
__device__ inline void load_windows(unsigned (&a)[4], const x_t *first, const x_t *second, int step) {
#pragma unroll
    for (int e = 0; e < 4; e++)
        a[e] = load_vector<2>((e % 2 == 0 ? first : second) + (MMA_HALVES * step + 8 * (e / 2))).word.bits;
}

// The sum of an output from its own window.
__device__ inline acc_t sum_of(const Mma &args, const Plane &plane, int p, int q) {
    const int h = p * cfg::STRIDE_H - args.conv.top, w = q * cfg::STRIDE_W - args.conv.left;
    const x_t *const window = plane.pixels + (h * args.pitch + w);
    acc_t sum = 0;
#pragma unroll 1
    for (int r = 0; r < cfg::R; r++)
#pragma unroll 1
        for (int s = 0; s < cfg::S * cfg::DILATION_W; s += cfg::DILATION_W) {
            const acc_t tap = as<acc_t>(plane.lines[r * LINE + BEFORE + s]);
            sum = multiply_add(tap, as<acc_t>(window[r * cfg::DILATION_H * args.pitch + s]), sum);
        }
    return sum;
}

// True if any of a lane's sums is Inf or NaN: only these minus themselves are not 0.
__device__ inline bool has_odd(const acc_t (&sums)[4]) {
    const acc_t all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    return all - all != 0;
}

// A lane's outputs of a window: (p, q) and (p, q + 1); none if p is negative.
struct Two {
    int p, q;
};

// Recomputes a lane's sums from their windows.
__device__ inline void recompute(const Mma &args, const Plane &plane, acc_t (&sums)[4], Two first, Two second) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const Two at = i < 2 ? first : second;
        if (at.p >= 0 && at.q + i % 2 < args.conv.Q) sums[i] = sum_of(args, plane, at.p, at.q + i % 2);
    }
}

// Stores a lane's outputs of a window at `to`.
__device__ inline void store_two(const Mma &args, const Plane &plane, out_t *to, Two at, acc_t first, acc_t second) {
    const Conv &conv = args.conv;
    if (args.aligned_out) {
        Vector<out_t, 2> values;
        values.at[0] = output_value(conv, plane.n, plane.k, at.p, at.q, first);
        values.at[1] = output_value(conv, plane.n, plane.k, at.p, at.q + 1, second);
        store_vector(to, values);
    } else {
        to[0] = output_value(conv, plane.n, plane.k, at.p, at.q, first);
        if (at.q + 1 < conv.Q) to[conv.out_strides.w] = output_value(conv, plane.n, plane.k, at.p, at.q + 1, second);
    }
}

// Adds the products of TILES tiles, PLANE_WARPS apart.
__device__ inline void add_products(const Mma &args, const Plane &plane, acc_t (&sums)[cfg::TILES][4], int tile) {
    const x_t *from[cfg::TILES][2];
#pragma unroll
    for (int i = 0; i < cfg::TILES; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int m = (tile + i * cfg::PLANE_WARPS) * MMA_ROWS + 8 * half + plane.g;
            const int window = min(m, args.windows.by * args.conv.P - 1), p = quotient(window, args.windows);
            from[i][half] = window_at(args, plane, p, window - p * args.windows.by);
        }
#pragma unroll(cfg::R <= 7 ? cfg::R : 1)
    for (int r = 0; r < cfg::R; r++) {
        unsigned b[STEPS][2];
        load_taps(b, plane, r);
#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int i = 0; i < cfg::TILES; i++) {
                unsigned a[4];
                load_windows(a, from[i][0], from[i][1], step);
                mma_halves<math_t>(sums[i], a, b[step]);
            }
#pragma unroll
        for (int i = 0; i < cfg::TILES; i++)
            from[i][0] += cfg::DILATION_H * args.pitch, from[i][1] += cfg::DILATION_H * args.pitch;
    }
}

// A lane's outputs of window m of a plane.
__device__ inline Two two_of(const Mma &args, const Plane &plane, int m) {
    const int p = quotient(m, args.windows), q = (m - p * args.windows.by) * MMA_COLUMNS + 2 * plane.t;
    return {p < args.conv.P && q < args.conv.Q ? p : -1, q};
}

__device__ inline void store_tile(const Mma &args, const Plane &plane, acc_t (&sums)[4], int tile) {
    const Conv &conv = args.conv;
    const int m = tile * MMA_ROWS + plane.g;
    const Two at[2] = {two_of(args, plane, m), two_of(args, plane, m + 8)};
    if (has_odd(sums)) recompute(args, plane, sums, at[0], at[1]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (at[half].p < 0) continue;
        out_t *const to = conv.out + offset_of(conv.out_strides, plane.n, plane.k, at[half].p, at[half].q);
        store_two(args, plane, to, at[half], sums[2 * half], sums[2 * half + 1]);
    }
}

// Computes all outputs of a warp's tiles.
__device__ inline void take_tiles(const Mma &args, const Plane &plane) {
    for (int tile = plane.warp; tile < args.tiles; tile += cfg::PLANE_WARPS * cfg::TILES) {
        acc_t sums[cfg::TILES][4] = {};
        add_products(args, plane, sums, tile);
#pragma unroll
        for (int i = 0; i < cfg::TILES; i++) store_tile(args, plane, sums[i], tile + i * cfg::PLANE_WARPS);
        __syncwarp();  // mma needs all lanes of a warp
    }
}

// WALK: a lane's part of the strip of a window.
struct Strip {
    const x_t *from;
    out_t *to;       // R - 1 rows before the first output: a row of pixels completes the output row R - 1 rows earlier
    int p, q, rows;  // the first output, and the number of output rows
};

__device__ inline Strip strip_of(const Mma &args, const Plane &plane, int m) {
    const Conv &conv = args.conv;
    const int strip = quotient(m, args.windows), window = m - strip * args.windows.by;
    const int p = strip < args.strips ? (plane.warp * args.strips + strip) * args.height : 0;
    const int q = window * MMA_COLUMNS + 2 * plane.t;
    const int rows = strip < args.strips && q < conv.Q ? min(args.height, conv.P - p) : 0;
    out_t *const to = conv.out + offset_of(conv.out_strides, plane.n, plane.k, p - (cfg::R - 1), q);
    return {window_at(args, plane, p, window), to, p, q, rows};
}

__device__ inline Two two_at(const Strip &strip, int row) {
    return {0 <= row && row < strip.rows ? strip.p + row : -1, strip.q};
}

// Stores a row of both strips if they have it, and advances to the next one.
__device__ inline void store_row(const Mma &args, const Plane &plane, Strip (&strips)[2], acc_t (&sums)[4], int row) {
    if (has_odd(sums)) recompute(args, plane, sums, two_at(strips[0], row), two_at(strips[1], row));
#pragma unroll
    for (int half = 0; half < 2; half++) {
        Strip &strip = strips[half];
        if (0 <= row && row < strip.rows)
            store_two(args, plane, strip.to, {strip.p + row, strip.q}, sums[2 * half], sums[2 * half + 1]);
        strip.to += args.conv.out_strides.h;
        strip.from += args.pitch;
        sums[2 * half] = sums[2 * half + 1] = acc_t(0);
    }
}

// Computes all outputs of a warp's strips.
__device__ inline void walk(const Mma &args, const Plane &plane) {
    unsigned b[cfg::R][STEPS][2];
#pragma unroll
    for (int r = 0; r < cfg::R; r++) load_taps(b[r], plane, r);
    Strip strips[2] = {strip_of(args, plane, plane.g), strip_of(args, plane, plane.g + 8)};
    acc_t sums[cfg::R][4] = {};
#pragma unroll 1
    for (int row = 1 - cfg::R; row < args.height; row += cfg::R)
#pragma unroll
        for (int d = 0; d < cfg::R; d++) {
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                unsigned a[4];
                load_windows(a, strips[0].from, strips[1].from, step);
#pragma unroll
                for (int r = 0; r < cfg::R; r++)
                    mma_halves<math_t>(sums[(d - r + cfg::R) % cfg::R], a, b[r][step]);
            }
            store_row(args, plane, strips, sums[(d + 1) % cfg::R], row + d);
            __syncwarp();  // mma needs all lanes of a warp
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, cfg::BLOCKS) depthwise_mma(const __grid_constant__ Mma args) {
    DYNAMIC_SHARED(x_t, held);
    const int lane = threadIdx.x % 32, slot = threadIdx.x / PLANE_THREADS;
    const long long at = static_cast<long long>(blockIdx.x) * cfg::PLANES + slot;
    const int n = static_cast<int>(at / cfg::K), k = static_cast<int>(at - static_cast<long long>(n) * cfg::K);
    x_t *const pixels = held + (cfg::PLANES * cfg::R * LINE + slot * args.plane + args.first);
    const Plane plane = {n, k, pixels, held + slot * (cfg::R * LINE), threadIdx.x / 32 % cfg::PLANE_WARPS, lane / 4, lane % 4};
    clear(args, held);
    __syncthreads();  // zeros are written
    pdl_wait();
    if (n < args.conv.N) {
        copy_pixels(args, plane);
        copy_async_commit();
        copy_taps(args.filter, plane);  // overlaps with the copies of the pixels
    }
    copy_async_wait();
    __syncthreads();  // pixels and taps have landed
    if (n >= args.conv.N) return;
    if constexpr (cfg::WALK) walk(args, plane);
    else take_tiles(args, plane);
}
