// depthwise_rows: a block holds whole planes, a thread a whole row of one. Nothing is read twice, and zeros are not
// multiplied.
//
// Since depthwise_planes: on small planes its tiles consist mostly of halos and borders. Here whole planes
//           are copied as they are in memory, 16 bytes at a time, even if rows are not aligned. A thread computes a row
//           of outputs. It holds the W pixels of a row of the plane in registers, all that its outputs need of this
//           row. Products with a border of zeros are known at compile time along the row and are left out.
// Sizes     H, W, P and Q are compile-time constants: a kernel is compiled for one size of planes.
// Threads   THREADS = PLANES * PLANE_THREADS. The threads of a plane are neighbours and compute OUT_P rows of outputs
//           each: a row of pixels is loaded and converted once for all of these rows.
// Grid      one dimension, PLANES neighbouring planes a block.
// Filters   are loaded while the copies of pixels are in flight. A thread issues the loads of all taps of a filter row
//           before it waits.
// Pixels    rows are PITCH apart if they are whole vectors (an odd number of vectors, so that threads have no bank
//           conflicts); else, PITCH = 0, as in memory. A load has LOAD pixels.
// Outputs   overwrite the pixels once all threads are done, and are copied out in vectors, like the pixels.
// Order     loops go over rows of the filter, so that the threads of a plane use the same one; or, if the filter is
//           higher than the plane, over rows of the plane (BY_PIXELS), with filter rows an odd number of vectors apart.
// Balance   7 x 7 on 56 x 56 of float32: a row takes 14 loads of pixels, 2 of weights and 380 FMAs. In cycles of an SM:
//           95 for FMAs against 58 for shared memory.
// Needs     all planes of a block in shared memory, a row and its sums in registers.
// Limit     memory up to about 7 x 7, while other blocks of the SM compute; FMA beyond.
#include "border.cuh"
#include "epilogue.cuh"
#include "filter.cuh"
#include "memory.cuh"
#include "pixels.cuh"

constexpr int PLANE_THREADS = (cfg::P - 1) / cfg::OUT_P + 1, THREADS = cfg::PLANES * PLANE_THREADS, WEIGHT_LOAD = 16 / sizeof(acc_t);
// Rows of pixels that a thread's outputs need.
constexpr int WINDOW = (cfg::OUT_P - 1) * cfg::STRIDE_H + (cfg::R - 1) * cfg::DILATION_H + 1;
// Columns of a row that they need, from LEFT columns before it on.
constexpr int SPAN = (cfg::Q - 1) * cfg::STRIDE_W + (cfg::S - 1) * cfg::DILATION_W + 1;
constexpr int PIXELS = cfg::H * cfg::W, OUTPUTS = cfg::P * cfg::Q;  // of a plane
// Pitches in shared memory.
constexpr int X_ROW = cfg::PITCH > 0 ? cfg::PITCH : cfg::W, OUT_ROW = cfg::OUT_PITCH > 0 ? cfg::OUT_PITCH : cfg::Q;
constexpr bool UNROLLED = cfg::R * cfg::S * cfg::Q <= 1024;

static_assert(THREADS <= 1024, "a block has at most 1024 threads");
constexpr bool COPIES = CAN_COPY<cfg::RAW, cfg::FILL>;  // true if asynchronous copies of vectors are possible
static_assert(cfg::RAW && cfg::K == cfg::C, "planes lie as they are stored, and an output has one of its own");
static_assert((cfg::PITCH == 0 || cfg::W % cfg::FILL == 0) && (cfg::OUT_PITCH == 0 || cfg::Q % cfg::STORE == 0),
              "rows are whole vectors");

struct Rows {
    Conv conv;
    Filter filter;
    int aligned_x, aligned_out;  // true if vectors of FILL pixels and STORE outputs are aligned
};

// Offset of vector at + t of a block's planes in shared memory, with `at` a multiple of THREADS. Planes are contiguous,
// or padded row by row. If possible, the part that depends on t is the same for all vectors of a thread.
template <int COLUMNS, int ROW, int VECTOR>
__device__ constexpr int place_of_vector(int at, int t) {
    constexpr int ACROSS = COLUMNS == ROW ? 1 : COLUMNS / VECTOR, NEXT = COLUMNS == ROW ? VECTOR : ROW;
    const int i = THREADS % ACROSS == 0 ? t : at + t, offset = THREADS % ACROSS == 0 ? at / ACROSS * NEXT : 0;
    return offset + (i / ACROSS * NEXT + i % ACROSS * VECTOR);
}

// Moves the first `count` of COUNT vectors: number at + t by move(at, t).
template <int COUNT, class Move>
__device__ inline void move_vectors(int count, Move move) {
    const int t = threadIdx.x;
    if (count == COUNT) {
        strided_loop<COUNT, THREADS>(t, move);
    } else {
#pragma unroll 1
        for (int at = 0; at + t < count; at += THREADS) move(at, t);
    }
}

// Copies the planes from `first` on to shared memory.
__device__ inline void copy_pixels(const Rows &args, x_t *to, int first, int planes) {
    const Conv &conv = args.conv;
    if (COPIES && args.aligned_x) {
        const int count = planes * PIXELS / cfg::FILL, n = first / cfg::K, k = first - n * cfg::K;
        const x_t *const from = conv.x + offset_of(conv.x_strides, n, k, 0, 0);
        move_vectors<cfg::PLANES * PIXELS / cfg::FILL>(count, [&](int at, int t) {
            const x_t *const source = from + t * cfg::FILL + at * cfg::FILL;
            x_t *const target = to + place_of_vector<cfg::W, X_ROW, cfg::FILL>(at, t);
            if constexpr (cfg::FILL * sizeof(x_t) == 16) copy_async16_l2_128b(target, source, true);
            else if constexpr (COPIES) copy_async<cfg::FILL * sizeof(x_t)>(target, source, true);
        });
        if constexpr (PIXELS % cfg::FILL != 0) {  // the incomplete last vector of the last plane
#pragma unroll 1
            for (int i = count * cfg::FILL + threadIdx.x; i < planes * PIXELS; i += THREADS) to[i] = from[i];
        }
    } else {
#pragma unroll 1
        for (int i = threadIdx.x; i < planes * PIXELS; i += THREADS) {
            const int row = i / cfg::W, w = i % cfg::W, plane = first + row / cfg::H;
            to[row * X_ROW + w] = conv.x[offset_of(conv.x_strides, plane / cfg::K, plane % cfg::K, row % cfg::H, w)];
        }
    }
}

// Loads the filter of a thread's plane: rows `row`, row + PLANE_THREADS, ... The loads of a row are in flight together.
__device__ inline void copy_filter(const Filter &filter, acc_t *to, int k, int row) {
#pragma unroll 1
    for (int r = row; r < cfg::R; r += PLANE_THREADS) {
        Vector<acc_t, WEIGHT_LOAD> taps[(cfg::S - 1) / WEIGHT_LOAD + 1] = {};
#pragma unroll
        for (int s = 0; s < cfg::S; s++) taps[s / WEIGHT_LOAD].at[s % WEIGHT_LOAD] = given_tap(filter, k, 0, r, s);
#pragma unroll
        for (int s = 0; s < cfg::S; s += WEIGHT_LOAD)
            store_vector(to + (r * cfg::FILTER_PITCH + s), taps[s / WEIGHT_LOAD]);
    }
}

// True if column j of a row, counted from LEFT columns before it, is a column of zeros.
__device__ constexpr bool is_zero(int j) { return BLANK && (j < cfg::LEFT || j >= cfg::LEFT + cfg::W); }

// Loads row h of a plane and the border values beside it. h < 0 is a row outside.
__device__ inline void load_row(const Conv &conv, acc_t (&row)[SPAN], const x_t *plane, int h) {
    const x_t *const pixels = plane + max(h, 0) * X_ROW;
#pragma unroll
    for (int v = 0; v < cfg::W; v += cfg::LOAD) {
        const auto values = load_vector<cfg::LOAD>(pixels + v);
#pragma unroll
        for (int e = 0; e < cfg::LOAD; e++)
            if (cfg::LEFT + v + e < SPAN) row[cfg::LEFT + v + e] = centred(conv, values.at[e]);
    }
    if constexpr (!BLANK) {
#pragma unroll
        for (int j = 0; j < SPAN; j++) {
            if (j >= cfg::LEFT && j < cfg::LEFT + cfg::W) continue;
            const int w = inside(j - cfg::LEFT, cfg::W);
            row[j] = w < 0 ? outside(conv) : centred(conv, pixels[w]);
        }
        if (h < 0)
#pragma unroll
            for (int j = 0; j < SPAN; j++) row[j] = outside(conv);
    }
}

// Adds the products of a row of pixels and row r of the filter.
__device__ inline void add_row(acc_t (&sums)[cfg::Q], const acc_t (&row)[SPAN], const acc_t *filter, int r) {
#pragma unroll
    for (int s0 = 0; s0 < cfg::S; s0 += WEIGHT_LOAD) {
        const auto weights = load_vector<WEIGHT_LOAD>(filter + (r * cfg::FILTER_PITCH + s0));
#pragma unroll
        for (int s = s0; s < s0 + WEIGHT_LOAD && s < cfg::S; s++)
#pragma unroll
            for (int q = 0; q < cfg::Q; q++)
                if (const int j = q * cfg::STRIDE_W + s * cfg::DILATION_W; !is_zero(j))
                    sums[q] = multiply_add(weights.at[s - s0], row[j], sums[q]);
    }
}

// The row of the filter for a row of pixels `below` rows below the window's first, or negative for none.
__device__ constexpr int tap_row(int below) {
    const int r = below / cfg::DILATION_H;
    return r * cfg::DILATION_H == below && r < cfg::R ? r : -1;
}

// Computes rows p to p + OUT_P - 1 of a plane's outputs.
__device__ inline void add_products(const Conv &conv, acc_t (&sums)[cfg::OUT_P][cfg::Q], const x_t *plane,
                                    const acc_t *filter, int p) {
    constexpr int STEP = cfg::OUT_P == 1 ? cfg::DILATION_H : 1;
    const int h0 = p * cfg::STRIDE_H - conv.top;
    acc_t row[SPAN];
#pragma unroll(UNROLLED ? WINDOW : 1)
    for (int i = 0; i < (cfg::BY_PIXELS ? cfg::H : WINDOW); i += cfg::BY_PIXELS ? 1 : STEP) {
        const int h = cfg::BY_PIXELS ? i : inside(h0 + i, cfg::H), below = cfg::BY_PIXELS ? i - h0 : i;
        if (BLANK && h < 0) continue;
        load_row(conv, row, plane, h);
#pragma unroll
        for (int o = 0; o < cfg::OUT_P; o++)
            if (const int r = tap_row(below - o * cfg::STRIDE_H); r >= 0) add_row(sums[o], row, filter, r);
    }
}

// Writes the outputs of row p to shared memory.
__device__ inline void store_row(const Conv &conv, const acc_t (&sums)[cfg::Q], out_t *to, int n, int k, int p) {
    // Outputs of one store: rows begin at whole vectors.
    constexpr int STORE_WIDTH = cfg::OUT_PITCH > 0 ? cfg::STORE : 1;
#pragma unroll
    for (int q = 0; q < cfg::Q; q += STORE_WIDTH) {
        Vector<out_t, STORE_WIDTH> values;
#pragma unroll
        for (int e = 0; e < STORE_WIDTH; e++) values.at[e] = output_value(conv, n, k, p, q + e, sums[q + e]);
        store_vector(to + q, values);
    }
}

// Copies the outputs from shared memory to global memory, like the pixels.
__device__ inline void copy_outputs(const Rows &args, const out_t *outputs, int first, int planes) {
    const Conv &conv = args.conv;
    if (cfg::STORE > 1 && args.aligned_out) {
        const int count = planes * OUTPUTS / cfg::STORE, n = first / cfg::K, k = first - n * cfg::K;
        out_t *const to = conv.out + offset_of(conv.out_strides, n, k, 0, 0);
        move_vectors<cfg::PLANES * OUTPUTS / cfg::STORE>(count, [&](int at, int t) {
            const out_t *const source = outputs + place_of_vector<cfg::Q, OUT_ROW, cfg::STORE>(at, t);
            store_vector(to + t * cfg::STORE + at * cfg::STORE, load_vector<cfg::STORE>(source));
        });
        if constexpr (OUTPUTS % cfg::STORE != 0) {
#pragma unroll 1
            for (int i = count * cfg::STORE + threadIdx.x; i < planes * OUTPUTS; i += THREADS) to[i] = outputs[i];
        }
    } else {
#pragma unroll 1
        for (int i = threadIdx.x; i < planes * OUTPUTS; i += THREADS) {
            const int row = i / cfg::Q, q = i % cfg::Q, plane = first + row / cfg::P;
            conv.out[offset_of(conv.out_strides, plane / cfg::K, plane % cfg::K, row % cfg::P, q)] =
                outputs[row * OUT_ROW + q];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, cfg::BLOCKS) depthwise_rows(const __grid_constant__ Rows args) {
    DYNAMIC_SHARED(x_t, pixels);
    const Conv &conv = args.conv;
    const int t = threadIdx.x, slot = t / PLANE_THREADS, row = t - slot * PLANE_THREADS;
    const long long first = static_cast<long long>(blockIdx.x) * cfg::PLANES,
                    left = static_cast<long long>(conv.N) * cfg::K - first;
    const int planes = left < cfg::PLANES ? static_cast<int>(left) : cfg::PLANES;
    const int plane = static_cast<int>(first) + slot, n = plane / cfg::K, k = plane - n * cfg::K;
    acc_t *const filter = reinterpret_cast<acc_t *>(pixels + cfg::ROOM) + slot * cfg::FILTER;
    pdl_wait();
    copy_pixels(args, pixels, static_cast<int>(first), planes);
    copy_async_commit();
    copy_filter(args.filter, filter, k, row);  // overlaps with the copies; planes that do not exist use another filter
    copy_async_wait();
    __syncthreads();
    acc_t sums[cfg::OUT_P][cfg::Q] = {};
    if (slot < planes) add_products(conv, sums, pixels + slot * cfg::H * X_ROW, filter, row * cfg::OUT_P);
    __syncthreads();  // pixels are no longer read
    out_t *const outputs = reinterpret_cast<out_t *>(pixels);
#pragma unroll
    for (int o = 0; o < cfg::OUT_P; o++)
        if (const int p = row * cfg::OUT_P + o; slot < planes && p < cfg::P)
            store_row(conv, sums[o], outputs + (slot * cfg::P + p) * OUT_ROW, n, k, p);
    __syncthreads();
    copy_outputs(args, outputs, static_cast<int>(first), planes);
}
