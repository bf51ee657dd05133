// depthwise_batch: the windows of a row of several images form a matrix, and a warp goes down one channel of all of
// them.
//
// Since depthwise_mma: if a plane has few windows a row, the 16 rows of a product can only be filled with
//           strips below each other, each of which repeats rows of its neighbour, or with tiles, which load every row
//           of pixels R times. But all images of a batch use the same filter. So the windows of one row of several
//           images, 16 in all, go down together: no row is loaded twice, and no row outside the image is multiplied.
// Window    the pixels of a row that eight outputs need, from an even number of columns before the plane on. If a row
//           has at most eight outputs and few enough pixels, it is the whole row (FIRST, STEPS).
// Warp      IMAGES planes of one channel. Each row of pixels is loaded once and multiplied by the banded matrices of
//           the R rows of the filter, which are in registers (see depthwise_mma). The products are added to R rows of
//           outputs, a ring of sums. Each row of pixels completes one row of outputs, which is stored while the next
//           row is multiplied. Lane 4 g + t has outputs 2 t and 2 t + 1 of windows g and g + 8.
// Sizes     H, W, P and Q are compile-time constants: a kernel is compiled for one size of planes. The loop over rows
//           is fully unrolled if that is not too long (ALL_ROWS).
// Threads   THREADS = 32 * CHANNELS, a warp for each channel. Warps do not wait for each other.
// Grid      one dimension: channels, then images.
// Pixels    of a plane are one run of memory. Planes are PLANE_STRIDE apart in shared memory, chosen so that loads of
//           windows have few bank conflicts. Columns outside the image are masked.
// Outputs   overwrite pixels that have been multiplied, or are stored after them (OUTPUTS), and are copied out as runs
//           too.
// Inf, NaN  times a zero of a matrix would reach outputs whose windows do not contain them. So outputs that are NaN are
//           recomputed from their own windows.
// Needs     zeros at the border, and no window entirely outside; rows of an even number of pixels, K = C, NCHW, sm_80;
//           outputs of 16 bits, because tensor cores truncate sums.
// Limit     memory; the tensor-core products take about the same time.
#include "border.cuh"
#include "epilogue.cuh"
#include "filter.cuh"
#include "memory.cuh"
#include "mma.cuh"

constexpr int THREADS = 32 * cfg::CHANNELS, WINDOWS = (cfg::Q - 1) / MMA_COLUMNS + 1,
              NEXT = MMA_COLUMNS * cfg::STRIDE_W;
constexpr int WINDOW = (cfg::R - 1) * cfg::DILATION_H;  // rows of pixels between an output's first and last
// Rows of the ring of sums, and the rows of pixels of one pass through it.
constexpr int RING = WINDOW / cfg::STRIDE_H + 2, PERIOD = RING * cfg::STRIDE_H;
constexpr int ALL_ROWS = cfg::H * cfg::R * cfg::STEPS <= 448 ? cfg::H : PERIOD;  // rows of pixels in unrolled code

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
    int aligned_x, aligned_out;  // true if vectors of FILL pixels and STORE outputs are aligned
};

// A warp's planes: channel k of `images` images from n on; and lane 4 g + t of it.
struct Planes {
    int n, k, images, g, t;
};

// Moves vectors of VECTOR numbers of a warp's planes, of LENGTH numbers each: move(image, offset in its plane).
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

// Copies the pixels of a warp's planes to shared memory.
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

// Copies a warp's filter unchanged. The loads of all taps are in flight together.
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

// Loads a lane's fragments of the matrices of all rows of the filter. Its column is output g of a window.
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

// Addresses of a lane's words of window m of a row. Words outside the row are masked, and another word of the row is
// read.
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

// Loads a lane's fragment of row h for windows g and g + 8.
__device__ inline void load_windows(unsigned (&a)[cfg::STEPS][4], const Window (&windows)[2], int h) {
#pragma unroll
    for (int step = 0; step < cfg::STEPS; step++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const Window &window = windows[e % 2];
            a[step][e] = load_vector<2>(window.from[step][e / 2] + h * cfg::W).word.bits & window.masks[step][e / 2];
        }
}

// The sum of an output from the pixels of its own window.
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

// A lane's outputs of a window, if there are any.
struct Two {
    int image, q;
    bool there;
};

__device__ inline Two two_of(const Planes &planes, int m) {
    const int image = m / WINDOWS, q = m % WINDOWS * MMA_COLUMNS + 2 * planes.t;
    return {image, q, image < planes.images && q < cfg::Q};
}

// Writes row p of a lane's outputs to shared memory.
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

// Computes all outputs of a warp. Returns true if a sum of the lane is Inf or NaN: only these times 0 are not 0.
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
            // Before the stores, because the compiler does not move loads across them.
            load_windows(next, windows, min(h + 1, cfg::H - 1));
#pragma unroll
            for (int step = 0; step < cfg::STEPS; step++)
#pragma unroll
                for (int r = cfg::R - 1; r >= 0; r--) {  // the sums that are completed are first
                    const int above = d + cfg::TOP - r * cfg::DILATION_H,
                              slot = (above + PERIOD) / cfg::STRIDE_H % RING;
                    if ((above + PERIOD) % cfg::STRIDE_H != 0) continue;
                    if (ALL_ROWS == cfg::H && (above < 0 || above / cfg::STRIDE_H >= cfg::P)) continue;
                    mma_halves<x_t>(sums[slot], a[step], b[r][step]);
                }
            const int above = d - 1 + cfg::TOP - WINDOW;  // of outputs that the previous row completed
            if ((above + PERIOD) % cfg::STRIDE_H == 0) {
                const int p = (h0 + above + PERIOD) / cfg::STRIDE_H - RING,
                          slot = (above + PERIOD) / cfg::STRIDE_H % RING;
                __syncwarp();  // all lanes have loaded the row, which outputs may overwrite
                if (p >= 0 && p < cfg::P) done(sums[slot], p);
                else if (ALL_ROWS != cfg::H) sums[slot][0] = sums[slot][1] = sums[slot][2] = sums[slot][3] = 0;
            }
        }
    // Outputs that have been stored.
    constexpr int WHOLE = (cfg::H - 2 + cfg::TOP - WINDOW + PERIOD) / cfg::STRIDE_H - RING + 1;
    __syncwarp();
#pragma unroll
    for (int p = WHOLE > 0 ? WHOLE : 0; p < cfg::P; p++) done(sums[p % RING], p);
    return odd != 0;
}

// Recomputes NaN outputs from their windows: a zero of a matrix times Inf or NaN can only give NaN.
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

// Copies the outputs from shared memory to global memory, like the pixels.
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
    copy_taps(taps, args.filter, planes);  // overlaps with the copies of the pixels
    __syncwarp();
    unsigned b[cfg::R][cfg::STEPS][2];
    load_taps(b, taps, planes);
    copy_async_wait();
    __syncwarp();
    if (__any_sync(0xffffffffu, walk(args, planes, b, pixels, outputs))) recompute(args, planes, outputs);
    __syncwarp();
    copy_outputs(args, outputs, planes);
}
