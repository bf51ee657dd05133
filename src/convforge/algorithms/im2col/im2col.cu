// im2col: expands the image so that a convolution becomes one matrix product: a column is the window of an output.
//
// out (K x NPQ) = weights (K x CRS) times columns (CRS x NPQ), for each group.
// Threads   THREADS a block. A thread handles one channel of a column, or of PER neighbouring columns, and writes their
//           R * S entries of the matrix: PER at once if rows of the matrix are whole vectors.
// Order     of the matrix follows that of the image, so that neighbouring threads read and write neighbours in memory.
//           PIXELS_CONTIGUOUS: threads are along the output's pixels; entry (c, r, s) of a column is a row of the
//           matrix, and rows have `count` entries. Otherwise threads are along the channels (NHWC): a column is
//           contiguous, with the entries (r, s, c) of each group together.
// Grid      PIXELS_CONTIGUOUS: x along the columns, y along the channels in steps of the grid; else x along both,
//           flattened.
// Chunks    columns [first, first + count) of the whole matrix, which need not fit in memory at once.
// Any       stride, padding, border, dilation, groups. Entries have the type of the product's factors, math_t, minus
//           the zero point: the type of the sums, or of x if tensor cores multiply.
// Limit     memory: each pixel is read about once and written R * S times, and these are read again by the product.
#include "border.cuh"
#include "conv.cuh"
#include "memory.cuh"

static_assert(cfg::THREADS >= 32 && cfg::THREADS <= 1024, "a block has 32 to 1024 threads");

struct Expansion {
    Conv conv;
    math_t *columns;
    long long first;
    int count;
};

// The entry of a tap, which may be outside the image.
template <class Entry>
__device__ inline Entry entry(const Conv &conv, bool there, const x_t *pixel) {
    if constexpr (sizeof(Entry) == 2)  // of x's own type
        return there ? *reinterpret_cast<const Entry *>(pixel) : stored<Entry>::of(conv.outside);
    else
        return there ? centred(conv, *pixel) : outside(conv);
}

// Writes the entries of channel c in COUNT neighbouring columns: those of (r, s) to target[(r * S + s) * step] and on.
template <int COUNT>
__device__ inline void expand(const Conv &conv, Column column, int c, math_t *target, long long step) {
    const x_t *rows[COUNT][cfg::R];
    int columns[COUNT][cfg::S];
#pragma unroll
    for (int i = 0; i < COUNT; i++, column = after(conv, column)) {
        const x_t *plane = conv.x + offset_of(conv.x_strides, min(column.n, conv.N - 1), c, 0, 0);
#pragma unroll
        for (int r = 0; r < cfg::R; r++) {
            const int h = inside(column.p * cfg::STRIDE_H - conv.top + r * cfg::DILATION_H, conv.H);
            rows[i][r] = h < 0 ? nullptr : plane + h * static_cast<index_t>(conv.x_strides.h);
        }
#pragma unroll
        for (int s = 0; s < cfg::S; s++)
            columns[i][s] = inside(column.q * cfg::STRIDE_W - conv.left + s * cfg::DILATION_W, conv.W);
    }
#pragma unroll
    for (int r = 0; r < cfg::R; r++)
#pragma unroll
        for (int s = 0; s < cfg::S; s++) {
            Vector<math_t, COUNT> entries;
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                const index_t place = columns[i][s] * static_cast<index_t>(conv.x_strides.w);
                const bool there = rows[i][r] != nullptr && columns[i][s] >= 0;
                entries.at[i] = entry<math_t>(conv, there, there ? rows[i][r] + place : conv.x);
            }
            store_vector(target, entries);
            target += step;
        }
}

extern "C" __global__ void __launch_bounds__(cfg::THREADS) im2col(const __grid_constant__ Expansion args) {
    const Conv &conv = args.conv;
    const long long i =
        (static_cast<long long>(blockIdx.x) * cfg::THREADS + threadIdx.x) * (cfg::PIXELS_CONTIGUOUS ? cfg::PER : 1);
    if constexpr (cfg::PIXELS_CONTIGUOUS) {
        if (i >= args.count) return;
        const Column column = column_of(conv, static_cast<index_t>(args.first + i));
        for (int c = blockIdx.y; c < cfg::C; c += gridDim.y) {
            math_t *target = args.columns + (static_cast<long long>(c) * cfg::R * cfg::S * args.count + i);
            if (args.count % cfg::PER == 0) {
                expand<cfg::PER>(conv, column, c, target, args.count);
                continue;
            }
            Column next = column;
            for (int j = 0; j < cfg::PER && i + j < args.count; j++, next = after(conv, next))
                expand<1>(conv, next, c, target + j, args.count);
        }
    } else {
        const long long place = i / cfg::C;
        if (place >= args.count) return;
        const int c = i % cfg::C, group = c / cfg::C_GROUP;
        const Column column = column_of(conv, static_cast<index_t>(args.first + place));
        math_t *run = args.columns + place * (static_cast<long long>(cfg::C) * cfg::R * cfg::S);
        expand<1>(conv, column, c, run + (group * cfg::C_GROUP * cfg::R * cfg::S + c % cfg::C_GROUP), cfg::C_GROUP);
    }
}
