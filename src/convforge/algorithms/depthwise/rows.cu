// depthwise_rows: a block holds whole planes, a thread a whole row of one: nothing is read twice, zeros are not multiplied.
//
// Since depthwise_planes: small planes leave its tiles little but halos, and borders. Here a block's planes come as they
//           lie in memory, 16 bytes at a time, though no row may begin at such a multiple. A thread takes a row of
//           outputs: the W pixels of a row of the plane are in its registers, and with them all that its outputs want
//           of it. Which products fall on a border of zeros is known at compile time along the row; these are left out.
// Sizes     H, W, P and Q are compile-time constants: a kernel is made for one size of planes.
// Threads   THREADS = PLANES * P, a plane's beside each other.
// Grid      blocks in one dimension, PLANES neighbouring planes each.
// Pixels    PITCH apart from row to row where rows are whole vectors (PITCH is an odd number of them, so that threads
//           meet in no bank); else, PITCH = 0, as in memory. LOAD pixels are one load.
// Outputs   take the pixels' place once all are done, and leave from there in vectors, as the pixels came.
// Order     rows of the filter, where threads of a plane want the same one; or, where the filter is higher than the
//           plane, rows of the plane (BY_PIXELS), of which each wants another row of the filter, an odd number of
//           vectors apart.
// Balance   7 x 7 over 56 x 56 of float32: a row takes 14 loads of pixels, 2 of weights and 380 multiply-adds. In cycles
//           of a multiprocessor: 95 of multiply-adds beside 58 of shared memory.
// Needs     all planes of a block in shared memory, a row and its sums in registers.
// Limit     memory up to about 7 x 7, which the block that computes shares with those that wait for pixels; FMA beyond.
#include "border.cuh"
#include "device.cuh"
#include "ends.cuh"
#include "given.cuh"
#include "held.cuh"
#include "lines.cuh"
#include "vector.cuh"

constexpr int THREADS = PLANES * P, WEIGHT_LOAD = 16 / sizeof(acc_t);
constexpr int SPAN = (Q - 1) * STRIDE_W + (S - 1) * DILATION_W + 1;  // of a row, from LEFT columns before it on
constexpr int PIXELS = H * W, OUTPUTS = P * Q;                                         // of a plane
constexpr int X_ROW = PITCH > 0 ? PITCH : W, OUT_ROW = OUT_PITCH > 0 ? OUT_PITCH : Q;  // of shared memory
constexpr bool UNROLLED = R * S * Q <= 1024;

static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(RAW && K == C, "planes lie as they are stored, and an output has one of its own");
static_assert((PITCH == 0 || W % FILL == 0) && (OUT_PITCH == 0 || Q % STORE == 0), "rows are whole vectors");

struct Rows {
    Conv conv;
    Filter filter;
    int aligned_x, aligned_out;  // whether vectors of FILL pixels and STORE outputs may be moved
};

// Bring the planes from `first` on.
__device__ inline void copy_pixels(const Rows &args, x_t *to, int first, int planes) {
    const Conv &conv = args.conv;
    const int t = threadIdx.x;
    if (COPIES && args.aligned_x) {
        // Where rows are whole vectors they go one by one; else planes follow each other in memory, and rows do too.
        constexpr int ACROSS = PITCH > 0 ? W / FILL : 1;
        const int count = planes * PIXELS / FILL;
        const int n = first / K, k = first - n * K;
        const x_t *const from = conv.x + place(conv.x_strides, n, k, 0, 0);
#pragma unroll 4
        for (int i = t; i < count; i += THREADS) {
            const x_t *const source = from + static_cast<index_t>(i) * FILL;
            x_t *const target = to + (PITCH > 0 ? i / ACROSS * PITCH + i % ACROSS * FILL : i * FILL);
            if constexpr (FILL * sizeof(x_t) == 16) copy_of_line16(target, source, true);
            else if constexpr (COPIES) copy_async<FILL * sizeof(x_t)>(target, source, true);
        }
        if constexpr (PITCH == 0) {  // what is left of the last plane
            const int left = planes * PIXELS - count * FILL;
            if (t < left) to[count * FILL + t] = from[static_cast<index_t>(count) * FILL + t];
        }
    } else {
        for (int i = t; i < planes * PIXELS; i += THREADS) {
            const int row = i / W, w = i % W, plane = first + row / H;
            to[row * X_ROW + w] = conv.x[place(conv.x_strides, plane / K, plane % K, row % H, w)];
        }
    }
}

__device__ inline void copy_filters(const Filter &filter, acc_t *to, int first, int planes) {
#pragma unroll
    for (int i = threadIdx.x; i < PLANES * R * S; i += THREADS) {
        const int slot = i / (R * S), tap = i % (R * S), r = tap / S, s = tap % S;
        if (slot < planes) to[slot * FILTER + r * FILTER_PITCH + s] = given_tap(filter, (first + slot) % K, 0, r, s);
    }
}

// Whether column j of a row, counted from LEFT columns before it, is one of zeros.
__device__ constexpr bool is_zero(int j) { return BLANK && (j < LEFT || j >= LEFT + W); }

// Load row h of a plane with what stands beside it; h < 0 is a row of what stands outside.
__device__ inline void load_row(const Conv &conv, acc_t (&row)[SPAN], const x_t *plane, int h) {
    const x_t *const pixels = plane + max(h, 0) * X_ROW;
#pragma unroll
    for (int v = 0; v < W; v += LOAD) {
        const auto values = load_vector<LOAD>(pixels + v);
#pragma unroll
        for (int e = 0; e < LOAD; e++)
            if (LEFT + v + e < SPAN) row[LEFT + v + e] = centred(conv, values.at[e]);
    }
    if constexpr (!BLANK) {
#pragma unroll
        for (int j = 0; j < SPAN; j++) {
            if (j >= LEFT && j < LEFT + W) continue;
            const int w = inside(j - LEFT, W);
            row[j] = w < 0 ? outside(conv) : centred(conv, pixels[w]);
        }
        if (h < 0)
#pragma unroll
            for (int j = 0; j < SPAN; j++) row[j] = outside(conv);
    }
}

// Add the products of a row of pixels and row r of the filter.
__device__ inline void add_row(acc_t (&sums)[Q], const acc_t (&row)[SPAN], const acc_t *filter, int r) {
#pragma unroll
    for (int s0 = 0; s0 < S; s0 += WEIGHT_LOAD) {
        const auto weights = load_vector<WEIGHT_LOAD>(filter + (r * FILTER_PITCH + s0));
#pragma unroll
        for (int s = s0; s < s0 + WEIGHT_LOAD && s < S; s++)
#pragma unroll
            for (int q = 0; q < Q; q++)
                if (const int j = q * STRIDE_W + s * DILATION_W; !is_zero(j))
                    sums[q] = multiply_add(weights.at[s - s0], row[j], sums[q]);
    }
}

// All products of row p of a plane's outputs.
__device__ inline void add_products(const Conv &conv, acc_t (&sums)[Q], const x_t *plane, const acc_t *filter,
                                    int p) {
    const int h0 = p * STRIDE_H - conv.top;
    acc_t row[SPAN];
    if constexpr (BY_PIXELS) {
#pragma unroll 1
        for (int h = 0; h < H; h++) {
            const int below = h - h0, r = below / DILATION_H;
            if (below < 0 || r * DILATION_H != below || r >= R) continue;
            load_row(conv, row, plane, h);
            add_row(sums, row, filter, r);
        }
    } else {
#pragma unroll(UNROLLED ? R : 1)
        for (int r = 0; r < R; r++) {
            const int h = inside(h0 + r * DILATION_H, H);
            if (BLANK && h < 0) continue;
            load_row(conv, row, plane, h);
            add_row(sums, row, filter, r);
        }
    }
}

// Leave the outputs of row p in shared memory.
__device__ inline void store_row(const Conv &conv, const acc_t (&sums)[Q], out_t *to, int n, int k, int p) {
    constexpr int NEAR = OUT_PITCH > 0 ? STORE : 1;  // outputs that are stored together: rows begin at whole vectors
#pragma unroll
    for (int q = 0; q < Q; q += NEAR) {
        Vector<out_t, NEAR> values;
#pragma unroll
        for (int e = 0; e < NEAR; e++) values.at[e] = finished(conv, n, k, p, q + e, sums[q + e]);
        store_vector(to + q, values);
    }
}

// Move the outputs from shared memory to their places, as the pixels came.
__device__ inline void copy_outputs(const Rows &args, const out_t *outputs, int first, int planes) {
    const Conv &conv = args.conv;
    const int t = threadIdx.x;
    if (STORE > 1 && args.aligned_out) {
        const int n = first / K, k = first - n * K;
        out_t *const to = conv.out + place(conv.out_strides, n, k, 0, 0);
        constexpr int ACROSS = OUT_PITCH > 0 ? Q / STORE : 1;
        const int count = planes * OUTPUTS / STORE;
#pragma unroll 4
        for (int i = t; i < count; i += THREADS) {
            const out_t *const from = outputs + (OUT_PITCH > 0 ? i / ACROSS * OUT_PITCH + i % ACROSS * STORE : i * STORE);
            store_vector(to + static_cast<index_t>(i) * STORE, load_vector<STORE>(from));
        }
        if constexpr (OUT_PITCH == 0) {
            const int left = planes * OUTPUTS - count * STORE;
            if (t < left) to[static_cast<index_t>(count) * STORE + t] = outputs[count * STORE + t];
        }
    } else {
        for (int i = t; i < planes * OUTPUTS; i += THREADS) {
            const int row = i / Q, q = i % Q, plane = first + row / P;
            conv.out[place(conv.out_strides, plane / K, plane % K, row % P, q)] = outputs[row * OUT_ROW + q];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) depthwise_rows(const __grid_constant__ Rows args) {
    DYNAMIC_SHARED(x_t, pixels);
    const Conv &conv = args.conv;
    acc_t *const filters = reinterpret_cast<acc_t *>(pixels + ROOM);
    const int t = threadIdx.x, slot = t / P, p = t % P;
    const long long first = static_cast<long long>(blockIdx.x) * PLANES, left = static_cast<long long>(conv.N) * K - first;
    const int planes = left < PLANES ? static_cast<int>(left) : PLANES;
    wait_for_earlier();
    copy_pixels(args, pixels, static_cast<int>(first), planes);
    copy_async_commit();
    copy_filters(args.filter, filters, static_cast<int>(first), planes);  // while the pixels are under way
    copy_async_wait();
    __syncthreads();
    acc_t sums[Q] = {};
    if (slot < planes) add_products(conv, sums, pixels + slot * H * X_ROW, filters + slot * FILTER, p);
    __syncthreads();  // nobody reads pixels any more
    out_t *const outputs = reinterpret_cast<out_t *>(pixels);
    const int plane = static_cast<int>(first) + slot, n = plane / K;
    if (slot < planes) store_row(conv, sums, outputs + t * OUT_ROW, n, plane - n * K, p);
    __syncthreads();
    copy_outputs(args, outputs, static_cast<int>(first), planes);
}
