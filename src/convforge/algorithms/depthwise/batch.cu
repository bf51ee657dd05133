// depthwise_batch: windows of a row of several images are a matrix, and a warp goes down one channel of all of them.
//
// Since depthwise_mma: a plane of few windows a row fills the 16 rows of a product only with strips below each other,
//           each of which begins with rows that its neighbour has, or with tiles, which load every row of pixels R times.
//           But all images of a batch see the same filter. So the windows beside each other of one row, of as many
//           images as make up 16, go down together: no row is loaded twice, and none outside the image multiplied.
// Window    the pixels of a row that eight outputs see, from an even number of columns before the plane on; where a row
//           has no more than eight outputs, and few enough pixels, the row itself (FIRST, STEPS).
// Warp      IMAGES planes of one channel. A row of their pixels is loaded once, multiplied by the banded matrices of
//           the R rows of the filter, which its registers hold (see depthwise_mma), and so added to as many rows of
//           outputs: a ring of sums. One is whole after each row of pixels, and stored while the next is multiplied.
//           Lane 4 g + t has outputs 2 t and 2 t + 1 of windows g and g + 8.
// Sizes     H, W, P and Q are compile-time constants: a kernel is made for one size of planes, and goes down them without
//           a loop where that is not too long (ALL_ROWS).
// Threads   THREADS = 32 * CHANNELS, a warp a channel; warps do not wait for each other.
// Grid      blocks in one dimension: channels, then images.
// Pixels    of a plane are one run of memory. The images' planes lie PLANE_STRIDE in shared memory, such that the windows of a
//           load meet in few banks. Columns outside the image are masked.
// Outputs   take the place of pixels that have been multiplied, or one behind them (OUTPUTS), and leave as runs too.
// Inf, NaN  times a zero of a matrix would reach outputs that do not see them. So outputs that are a NaN are taken again,
//           from their own windows alone, in memory.
// Needs     zeros outside, of which no window is full; rows of an even number of pixels, K = C, NCHW, sm_80; outputs of
//           16 bits, as tensor cores cut sums off where others round them.
// Limit     memory, beside which the tensor cores' products of all blocks stand at about the same time.
#include "border.cuh"
#include "epilogue.cuh"
#include "filter.cuh"
#include "memory.cuh"
#include "mma.cuh"

constexpr int THREADS = 32 * cfg::CHANNELS, WINDOWS = (cfg::Q - 1) / MMA_COLUMNS + 1,
              NEXT = MMA_COLUMNS * cfg::STRIDE_W;
constexpr int WINDOW = (cfg::R - 1) * cfg::DILATION_H;  // rows of pixels below an output's first
// Rows of sums, and of pixels for all of these.
constexpr int RING = WINDOW / cfg::STRIDE_H + 2, PERIOD = RING * cfg::STRIDE_H;
constexpr int ALL_ROWS = cfg::H * cfg::R * cfg::STEPS <= 448 ? cfg::H : PERIOD;  // rows of pixels that are unrolled

static_assert(THREADS <= 1024 && cfg::IMAGES * WINDOWS <= MMA_ROWS, "a warp has 16 windows");
static_assert(cfg::BORDER == ZEROS && cfg::K == cfg::C, "zeros stand outside, and an output has a plane of its own");
static_assert(sizeof(x_t) == 2 && sizeof(w_t) == 2 && sizeof(out_t) == 2, "numbers are of 16 bits");
static_assert(cfg::W % 2 == 0 && cfg::FIRST % 2 == 0 && cfg::PLANE_STRIDE % 8 == 0,
              "pixels are loaded by two, and copied by eight");
static_assert(cfg::TOP <= WINDOW && (cfg::P - 1) * cfg::STRIDE_H - cfg::TOP < cfg::H,
              "every output sees a row of pixels");

struct Batch {
    Conv conv;
    Filter filter;
    int aligned_x, aligned_out;  // whether runs lie as one, and vectors of FILL pixels and STORE outputs may be moved
};

// A warp's planes: channel k of images n and on, as many as `images`; and lane 4 g + t of it.
struct Planes {
    int n, k, images, g, t;
};

// Move vectors of VECTOR numbers of a warp's planes, of LENGTH each: move(image, place in its plane).
template <int LENGTH, int VECTOR, class Move>
__device__ inline void move_planes(int images, Move move) {
    constexpr int VECTORS = LENGTH / VECTOR;
    const int lane = threadIdx.x % 32;
    const auto vector = [&](int i) {
        const int image = i / VECTORS;
        move(image, (i - image * VECTORS) * VECTOR);
    };
    if (images == cfg::IMAGES) {
        strided_loop<cfg::IMAGES * VECTORS, 32>(lane, [&](int at, int t) { vector(at + t); });
    } else {
#pragma unroll 1
        for (int i = lane; i < images * VECTORS; i += 32) vector(i);
    }
}

// Bring the pixels of a warp's planes.
__device__ inline void copy_pixels(const Batch &args, x_t *to, const Planes &planes) {
    const Conv &conv = args.conv;
    if (cfg::FILL > 1 && args.aligned_x) {
        const x_t *const from = conv.x + offset_of(conv.x_strides, planes.n, planes.k, 0, 0);
        const index_t next = static_cast<index_t>(conv.x_strides.n);
        move_planes<cfg::H * cfg::W, cfg::FILL>(planes.images, [&](int image, int e) {
            x_t *const target = to + image * cfg::PLANE_STRIDE + e;
            if constexpr (cfg::FILL == 8) copy_async16_l2_128b(target, from + (image * next + e), true);
            else if constexpr (cfg::FILL > 1)
                copy_async<cfg::FILL * sizeof(x_t)>(target, from + (image * next + e), true);
        });
    } else {
        move_planes<cfg::H * cfg::W, 1>(planes.images, [&](int image, int e) {
            const int h = e / cfg::W;
            to[image * cfg::PLANE_STRIDE + e] =
                conv.x[offset_of(conv.x_strides, planes.n + image, planes.k, h, e - h * cfg::W)];
        });
    }
}

// Bring a warp's filter, as it is given: all taps are under way together.
__device__ inline void copy_taps(w_t *to, const Filter &filter, const Planes &planes) {
    constexpr int TWIDDLES = (cfg::R * cfg::S - 1) / 32 + 1;
    const int lane = 4 * planes.g + planes.t;
    w_t taps[TWIDDLES];
#pragma unroll
    for (int turn = 0; turn < TWIDDLES; turn++) {
        const int i = min(32 * turn + lane, cfg::R * cfg::S - 1), r = i / cfg::S;
        taps[turn] = filter.taps[offset_of(filter.strides, planes.k, 0, r, i - r * cfg::S)];
    }
#pragma unroll
    for (int turn = 0; turn < TWIDDLES; turn++)
        if (const int i = 32 * turn + lane; i < cfg::R * cfg::S) to[i] = taps[turn];
}

// What a lane holds of the matrices of all rows of the filter: its column is output g of a window.
__device__ inline void load_taps(unsigned (&b)[cfg::R][cfg::STEPS][2], const w_t *taps, const Planes &planes) {
#pragma unroll
    for (int step = 0; step < cfg::STEPS; step++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int j = MMA_HALVES * step + 8 * half + 2 * planes.t + e;  // of the window
                const int below = cfg::FIRST + j + cfg::LEFT - planes.g * cfg::STRIDE_W, s = below / cfg::DILATION_W;
                const bool there = below >= 0 && s * cfg::DILATION_W == below && s < cfg::S;
#pragma unroll
                for (int r = 0; r < cfg::R; r++) {
                    const unsigned bits = there ? taps[r * cfg::S + s].bits : 0;
                    b[r][step][half] = e == 0 ? bits : b[r][step][half] | bits << 16;
                }
            }
}

// Where a lane's words of window m of a row lie; words outside the row are masked, and another of the row read instead.
struct Window {
    const x_t *from[cfg::STEPS][2];
    unsigned masks[cfg::STEPS][2];
};

__device__ inline Window window_of(const x_t *pixels, const Planes &planes, int m) {
    const int image = min(m / WINDOWS, planes.images - 1), first = cfg::FIRST + m % WINDOWS * NEXT + 2 * planes.t;
    Window window;
#pragma unroll
    for (int step = 0; step < cfg::STEPS; step++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int w = first + MMA_HALVES * step + 8 * half;
            window.from[step][half] = pixels + (image * cfg::PLANE_STRIDE + min(max(w, 0), cfg::W - 2));
            window.masks[step][half] = 0 <= w && w < cfg::W ? 0xffffffffu : 0;
        }
    return window;
}

// What a lane holds of row h of windows g and g + 8.
__device__ inline void load_windows(unsigned (&a)[cfg::STEPS][4], const Window (&windows)[2], int h) {
#pragma unroll
    for (int step = 0; step < cfg::STEPS; step++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const Window &window = windows[e % 2];
            a[step][e] = load_vector<2>(window.from[step][e / 2] + h * cfg::W).word.bits & window.masks[step][e / 2];
        }
}

// The sum of an output from the pixels of its own window alone.
__device__ inline acc_t sum_of(const Batch &args, int n, int k, int p, int q) {
    acc_t sum = 0;
#pragma unroll 1
    for (int r = 0; r < cfg::R; r++)
#pragma unroll 1
        for (int s = 0; s < cfg::S; s++) {
            const int h = p * cfg::STRIDE_H + r * cfg::DILATION_H - cfg::TOP,
                      w = q * cfg::STRIDE_W + s * cfg::DILATION_W - cfg::LEFT;
            if (inside(h, cfg::H) >= 0 && inside(w, cfg::W) >= 0)
                sum = multiply_add(given_tap(args.filter, k, 0, r, s), pixel(args.conv, n, k, h, w), sum);
        }
    return sum;
}

// Where a lane's outputs of a window go, and whether there are any.
struct Two {
    int image, q;
    bool there;
};

__device__ inline Two two_of(const Planes &planes, int m) {
    const int image = m / WINDOWS, q = m % WINDOWS * MMA_COLUMNS + 2 * planes.t;
    return {image, q, image < planes.images && q < cfg::Q};
}

// Leave row p of a lane's outputs in shared memory.
__device__ inline void store_row(const Batch &args, const Planes &planes, out_t *outputs, const Two (&twos)[2],
                                 acc_t (&sums)[4], int p) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const Two &two = twos[half];
        if (two.there) {
            const int n = planes.n + two.image;
            out_t *const to = outputs + (two.image * cfg::OUT_PLANE_STRIDE + p * cfg::Q + two.q);
            Vector<out_t, 2> values;
            values.at[0] = output_value(args.conv, n, planes.k, p, two.q, sums[2 * half]);
            values.at[1] = output_value(args.conv, n, planes.k, p, min(two.q + 1, cfg::Q - 1), sums[2 * half + 1]);
            if constexpr (cfg::Q % 2 == 0) {
                store_vector(to, values);
            } else {
                to[0] = values.at[0];
                if (two.q + 1 < cfg::Q) to[1] = values.at[1];
            }
        }
        sums[2 * half] = sums[2 * half + 1] = 0;
    }
}

// All outputs of a warp; true where some sum of the lane is an Inf or a NaN, which alone times 0 are not 0.
__device__ inline bool walk(const Batch &args, const Planes &planes, const unsigned (&b)[cfg::R][cfg::STEPS][2],
                            const x_t *pixels, out_t *outputs) {
    const Window windows[2] = {window_of(pixels, planes, planes.g), window_of(pixels, planes, planes.g + 8)};
    const Two twos[2] = {two_of(planes, planes.g), two_of(planes, planes.g + 8)};
    acc_t sums[RING][4] = {}, odd = 0;
    const auto done = [&](acc_t (&row)[4], int p) {
        const acc_t all = (row[0] + row[1]) + (row[2] + row[3]);
        odd = multiply_add(all, acc_t(0), odd);
        store_row(args, planes, outputs, twos, row, p);
    };
    unsigned next[cfg::STEPS][4];
    load_windows(next, windows, 0);
#pragma unroll 1
    for (int h0 = 0; h0 < cfg::H; h0 += ALL_ROWS)
#pragma unroll
        for (int d = 0; d < ALL_ROWS; d++) {
            const int h = h0 + d;
            if (cfg::H % ALL_ROWS != 0 && h >= cfg::H) break;
            unsigned a[cfg::STEPS][4];
#pragma unroll
            for (int step = 0; step < cfg::STEPS; step++)
#pragma unroll
                for (int e = 0; e < 4; e++) a[step][e] = next[step][e];
            // Ahead of stores, which the compiler keeps behind loads.
            load_windows(next, windows, min(h + 1, cfg::H - 1));
#pragma unroll
            for (int step = 0; step < cfg::STEPS; step++)
#pragma unroll
                for (int r = cfg::R - 1; r >= 0; r--) {  // the sums that will be whole are first
                    const int above = d + cfg::TOP - r * cfg::DILATION_H,
                              slot = (above + PERIOD) / cfg::STRIDE_H % RING;
                    if ((above + PERIOD) % cfg::STRIDE_H != 0) continue;
                    if (ALL_ROWS == cfg::H && (above < 0 || above / cfg::STRIDE_H >= cfg::P)) continue;
                    mma_halves<x_t>(sums[slot], a[step], b[r][step]);
                }
            const int above = d - 1 + cfg::TOP - WINDOW;  // of the outputs whose last row of pixels was the one before
            if ((above + PERIOD) % cfg::STRIDE_H == 0) {
                const int p = (h0 + above + PERIOD) / cfg::STRIDE_H - RING,
                          slot = (above + PERIOD) / cfg::STRIDE_H % RING;
                __syncwarp();  // all have loaded the row, whose place outputs may take
                if (p >= 0 && p < cfg::P) done(sums[slot], p);
                else if (ALL_ROWS != cfg::H) sums[slot][0] = sums[slot][1] = sums[slot][2] = sums[slot][3] = 0;
            }
        }
    // Outputs that are stored.
    constexpr int WHOLE = (cfg::H - 2 + cfg::TOP - WINDOW + PERIOD) / cfg::STRIDE_H - RING + 1;
    __syncwarp();
#pragma unroll
    for (int p = WHOLE > 0 ? WHOLE : 0; p < cfg::P; p++) done(sums[p % RING], p);
    return odd != 0;
}

// Take outputs that are a NaN again, from their windows alone: a zero of a matrix times an Inf or a NaN makes no other.
__device__ inline void recompute(const Batch &args, const Planes &planes, out_t *outputs) {
    __syncwarp();  // all outputs are written
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < planes.images * cfg::P * cfg::Q; i += 32) {
        const int image = i / (cfg::P * cfg::Q), at = i - image * (cfg::P * cfg::Q), p = at / cfg::Q,
                  q = at - p * cfg::Q, n = planes.n + image;
        out_t *const output = outputs + (image * cfg::OUT_PLANE_STRIDE + at);
        const acc_t value = as<acc_t>(*output);
        if (value != value) *output = output_value(args.conv, n, planes.k, p, q, sum_of(args, n, planes.k, p, q));
    }
}

// Move the outputs from shared memory to their places, as the pixels came.
__device__ inline void copy_outputs(const Batch &args, const out_t *outputs, const Planes &planes) {
    const Conv &conv = args.conv;
    if (cfg::STORE > 1 && args.aligned_out) {
        out_t *const to = conv.out + offset_of(conv.out_strides, planes.n, planes.k, 0, 0);
        const index_t next = static_cast<index_t>(conv.out_strides.n);
        move_planes<cfg::P * cfg::Q, cfg::STORE>(planes.images, [&](int image, int e) {
            store_vector(to + (image * next + e), load_vector<cfg::STORE>(outputs + (image * cfg::OUT_PLANE_STRIDE + e)));
        });
    } else {
        move_planes<cfg::P * cfg::Q, 1>(planes.images, [&](int image, int e) {
            const int p = e / cfg::Q, n = planes.n + image;
            conv.out[offset_of(conv.out_strides, n, planes.k, p, e - p * cfg::Q)] = outputs[image * cfg::OUT_PLANE_STRIDE + e];
        });
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, cfg::BLOCKS) depthwise_batch(const __grid_constant__ Batch args) {
    DYNAMIC_SHARED(x_t, held);
    constexpr int TILES_K = (cfg::K - 1) / cfg::CHANNELS + 1;
    const int lane = threadIdx.x % 32, slot = threadIdx.x / 32;
    const int part = blockIdx.x / TILES_K, n = part * cfg::IMAGES,
              k = (blockIdx.x - part * TILES_K) * cfg::CHANNELS + slot;
    const Planes planes = {n, k, min(cfg::IMAGES, args.conv.N - n), lane / 4, lane % 4};
    x_t *const pixels = held + slot * cfg::ROOM;
    out_t *const outputs = reinterpret_cast<out_t *>(pixels + cfg::OUTPUTS);
    w_t *const taps = reinterpret_cast<w_t *>(pixels + cfg::TAPS);
    pdl_wait();
    if (k >= cfg::K) return;
    copy_pixels(args, pixels, planes);
    copy_async_commit();
    copy_taps(taps, args.filter, planes);  // while the pixels are under way
    __syncwarp();
    unsigned b[cfg::R][cfg::STEPS][2];
    load_taps(b, taps, planes);
    copy_async_wait();
    __syncwarp();
    if (__any_sync(0xffffffffu, walk(args, planes, b, pixels, outputs))) recompute(args, planes, outputs);
    __syncwarp();
    copy_outputs(args, outputs, planes);
}
