// What the kernels of the GEMM ladder share: operands, a block's tile, the way of a sum to its place.
//
// C = A B, where A is M x K and B is K x N, once for each group. Both operands are seen alike: `along` leads to the next
// row of A or column of B, `deep` to the next k, so operands may be transposed or have gaps. From the prelude come
//   BLOCK_M, BLOCK_N      the part of C that a block computes
//   A_DEEP, B_DEEP        whether neighbours in memory are neighbours along K: true for a row-major A and a transposed
//                         B. It decides which threads load which elements, never what is right.
//   C_NEAR_M              whether neighbours of the output are neighbours along M: channels in NHWC; else along N
//   CONVOLUTION           defined where C is a convolution's output: A holds the weights of a group, a column of B what
//                         an output pixel sees, and sums go through the epilogue straight into NCHW or NHWC.
// Blocks stand in one dimension, as a grid has room for 2^31 along x alone; neighbours along x share columns of B.
#pragma once
#ifdef CONVOLUTION
#include "columns.cuh"
#include "ends.cuh"
#endif
#include "vector.cuh"

constexpr int VECTOR = 16 / sizeof(acc_t);  // elements of a 16-byte load

// Blocks that a multiprocessor must have room for, as far as registers go. Sums of 8 bytes take twice the registers:
// left to itself the compiler spills a few for the sake of more blocks. 0 leaves the choice to it.
constexpr int RESIDENT = sizeof(acc_t) > 4 ? 1 : 0;

struct Operand {
    const acc_t *data;
    long long group;  // from one group's matrix to the next, in elements
    int along, deep;
    int vectors;  // whether VECTOR neighbours, counted from a multiple of VECTOR, are aligned to 16 bytes
};

#ifdef CONVOLUTION
struct Store {
    Conv conv;
    index_t first;  // column of the whole matrix that column 0 is
    int vectors;    // whether four neighbours of the output, counted from a multiple of four, are aligned for one store
};
#else
using out_t = acc_t;
struct Store {
    out_t *data;
    int row, column;  // strides of C
    int vectors;
};
#endif

struct Gemm {
    Operand a, b;
    Store store;
    int M, N, K;
};

// The part of C that a block computes: its group, its first row and column.
struct Tile {
    int group, m, n;
};

__device__ inline Tile tile_of(const Gemm &args) {
    const unsigned rows = (args.M + BLOCK_M - 1) / BLOCK_M, columns = (args.N + BLOCK_N - 1) / BLOCK_N;
    const unsigned row = blockIdx.x % rows, rest = blockIdx.x / rows;
    return {static_cast<int>(rest / columns), static_cast<int>(row * BLOCK_M),
            static_cast<int>(rest % columns * BLOCK_N)};
}

// The operand of one group.
__device__ inline Operand of_group(Operand operand, int group) {
    operand.data += group * operand.group;
    return operand;
}

// Where row x of A, or column x of B, has its element k.
__device__ inline const acc_t *at(const Operand &operand, int x, int k) {
    return operand.data + (static_cast<long long>(x) * operand.along + static_cast<long long>(k) * operand.deep);
}

// How THREADS threads share a tile of LENGTH x DEPTH elements (along M or N, and along K), PER neighbours at a time:
// thread t begins at (x, k) and goes on in steps. Neighbouring threads take neighbours in memory; along K only 8 of
// them, whose transposed stores, into rows that are 16 bytes longer than a multiple of 128, meet no bank twice.
template <int LENGTH, int DEPTH, int THREADS, bool DEEP, int PER = 1>
struct Share {
    static_assert(DEPTH % 8 == 0, "eight neighbours along K are loaded together");
    static constexpr int WIDE = LENGTH / PER < THREADS ? LENGTH / PER : THREADS;
    static_assert(LENGTH % PER == 0 && THREADS % WIDE == 0, "whole rows of threads share a tile");
    static constexpr int STEP_X = DEEP ? THREADS / (8 / PER) : WIDE * PER, STEP_K = DEEP ? 8 : THREADS / WIDE;
    static constexpr int COUNT_X = (LENGTH + STEP_X - 1) / STEP_X, COUNT_K = (DEPTH + STEP_K - 1) / STEP_K;
    static constexpr int COUNT = COUNT_X * COUNT_K;
    static constexpr bool EVEN = LENGTH % STEP_X == 0 && DEPTH % STEP_K == 0;  // no thread has less to do
    int x, k;
    __device__ explicit Share(int t)
        : x(DEEP ? t / (8 / PER) : t % WIDE * PER), k(DEEP ? t % (8 / PER) * PER : t / WIDE) {}
    // Whether the element that is a step of (dx, dk) away belongs to the tile.
    __device__ bool has(int dx, int dk) const { return EVEN || (x + dx < LENGTH && k + dk < DEPTH); }
};

// Bring the tile of an operand that begins at (x0, k0) into shared memory, element by element; 0 where the matrix ends.
// Only tiles at the matrix's edge test each element.
template <int LENGTH, int THREADS, bool DEEP, int DEPTH, int PITCH>
__device__ inline void load_tile(acc_t (&tile)[DEPTH][PITCH], const Operand &from, int x0, int k0, int length,
                                 int depth) {
    using S = Share<LENGTH, DEPTH, THREADS, DEEP>;
    const S share(threadIdx.x);
    const bool whole = x0 + LENGTH <= length && k0 + DEPTH <= depth;
    const acc_t *first = at(from, x0 + share.x, k0 + share.k);
#pragma unroll
    for (int i = 0; i < S::COUNT; i++) {
        const int dx = i / S::COUNT_K * S::STEP_X, dk = i % S::COUNT_K * S::STEP_K;
        if (!share.has(dx, dk)) continue;
        const bool there = whole || (x0 + share.x + dx < length && k0 + share.k + dk < depth);
        const long long step = static_cast<long long>(dx) * from.along + static_cast<long long>(dk) * from.deep;
        tile[share.k + dk][share.x + dx] = there ? first[step] : 0;
    }
}

// A thread's part of a tile on its way through registers: asked for early, put into shared memory late.
template <int LENGTH, int DEPTH, int THREADS, bool DEEP>
struct Staged {
    using S = Share<LENGTH, DEPTH, THREADS, DEEP, VECTOR>;
    Vector<acc_t, VECTOR> parts[S::COUNT];

    // By 16-byte loads inside the matrix where they are aligned.
    __device__ void load(const Operand &from, int x0, int k0, int length, int depth) {
        const S share(threadIdx.x);
        const bool whole = from.vectors && x0 + LENGTH <= length && k0 + DEPTH <= depth;
        const acc_t *first = at(from, x0 + share.x, k0 + share.k);
#pragma unroll
        for (int i = 0; i < S::COUNT; i++) {
            const int dx = i / S::COUNT_K * S::STEP_X, dk = i % S::COUNT_K * S::STEP_K;
            if (!share.has(dx, dk)) continue;
            const acc_t *place =
                first + (static_cast<long long>(dx) * from.along + static_cast<long long>(dk) * from.deep);
            if (whole) {
                parts[i] = load_vector<VECTOR>(place);
                continue;
            }
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                const int x = x0 + share.x + dx + (DEEP ? 0 : j), k = k0 + share.k + dk + (DEEP ? j : 0);
                const long long step = static_cast<long long>(j) * (DEEP ? from.deep : from.along);
                parts[i].at[j] = x < length && k < depth ? place[step] : 0;
            }
        }
    }

    template <int PITCH>
    __device__ void store(acc_t (&tile)[DEPTH][PITCH]) const {
        const S share(threadIdx.x);
#pragma unroll
        for (int i = 0; i < S::COUNT; i++) {
            const int dx = i / S::COUNT_K * S::STEP_X, dk = i % S::COUNT_K * S::STEP_K;
            if (!share.has(dx, dk)) continue;
            if constexpr (DEEP) {
#pragma unroll
                for (int j = 0; j < VECTOR; j++) tile[share.k + dk + j][share.x + dx] = parts[i].at[j];
            } else {
                store_vector(&tile[share.k + dk][share.x + dx], parts[i]);
            }
        }
    }
};

// The sums that a thread has of the product of two tiles in shared memory: ROWS x COLUMNS, in squares of four by four.
// Its rows are m, m + 1, m + 2, m + 3, then the same `step_m` further on, and so on; columns likewise. Numbers of the
// next k are asked for before those of this k are used.
template <int ROWS, int COLUMNS, int DEPTH, int PITCH_A, int PITCH_B>
__device__ inline void multiply(acc_t (&sums)[ROWS][COLUMNS], const acc_t (&a_tile)[DEPTH][PITCH_A],
                                const acc_t (&b_tile)[DEPTH][PITCH_B], int m, int n, int step_m, int step_n) {
    static_assert(PITCH_A % VECTOR == 0 && PITCH_B % VECTOR == 0, "rows in shared memory begin at 16 bytes");
    acc_t a[2][ROWS], b[2][COLUMNS];
    const auto fragments = [&](int k) {
#pragma unroll
        for (int i = 0; i < ROWS; i += VECTOR) {
            const auto part = load_vector<VECTOR>(&a_tile[k][m + i / 4 * step_m + i % 4]);
#pragma unroll
            for (int v = 0; v < VECTOR; v++) a[k % 2][i + v] = part.at[v];
        }
#pragma unroll
        for (int j = 0; j < COLUMNS; j += VECTOR) {
            const auto part = load_vector<VECTOR>(&b_tile[k][n + j / 4 * step_n + j % 4]);
#pragma unroll
            for (int v = 0; v < VECTOR; v++) b[k % 2][j + v] = part.at[v];
        }
    };
    fragments(0);
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        if (k + 1 < DEPTH) fragments(k + 1);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) sums[i][j] = multiply_add(a[k % 2][i], b[k % 2][j], sums[i][j]);
    }
}

// Where sums go. A column of C begins at `start` and has a row every `row_step` elements; `value` is what is stored.
#ifdef CONVOLUTION
__device__ inline Column column_at(const Store &store, int n) { return column_of(store.conv, store.first + n); }
__device__ inline Column after(const Store &store, const Column &column) { return after(store.conv, column); }
__device__ inline out_t *start(const Store &store, int group, const Column &at) {
    return store.conv.out + place(store.conv.out_strides, at.n, group * K_GROUP, at.p, at.q);
}
__device__ inline index_t row_step(const Store &store) { return store.conv.out_strides.c; }
__device__ inline out_t value(const Store &store, int group, int m, const Column &at, acc_t sum) {
    return finished(store.conv, at.n, group * K_GROUP + m, at.p, at.q, sum);
}
#else
using Column = int;
__device__ inline Column column_at(const Store &, int n) { return n; }
__device__ inline Column after(const Store &, Column column) { return column + 1; }
__device__ inline out_t *start(const Store &store, int, Column n) {
    return store.data + static_cast<long long>(n) * store.column;
}
__device__ inline long long row_step(const Store &store) { return store.row; }
__device__ inline out_t value(const Store &, int, int, Column, acc_t sum) { return sum; }
#endif

// Store the sum of row m and column n.
__device__ inline void put(const Gemm &args, int group, int m, int n, acc_t sum) {
    const Column column = column_at(args.store, n);
    start(args.store, group, column)[m * row_step(args.store)] = value(args.store, group, m, column, sum);
}

// Store a thread's sums, which lie as in `multiply`; whole squares several at once where the output's layout allows it.
template <int ROWS, int COLUMNS>
__device__ inline void put_squares(const Gemm &args, int group, int m0, int n0, int step_m, int step_n,
                                   const acc_t (&sums)[ROWS][COLUMNS]) {
    constexpr int AT_ONCE = sizeof(out_t) > 4 ? 2 : 4;
    const Store &store = args.store;
    const auto step = row_step(store);
#pragma unroll
    for (int j = 0; j < COLUMNS; j += 4) {
        const int n = n0 + j / 4 * step_n, columns = args.N - n;
        if (columns <= 0) continue;
        Column at[4] = {column_at(store, n)};
        out_t *starts[4] = {start(store, group, at[0])};
#pragma unroll
        for (int v = 1; v < 4; v++) {
            at[v] = after(store, at[v - 1]);
            starts[v] = start(store, group, at[v]);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i += 4) {
            const int m = m0 + i / 4 * step_m, rows = args.M - m;
            out_t values[4][4];
#pragma unroll
            for (int u = 0; u < 4; u++)
#pragma unroll
                for (int v = 0; v < 4; v++)
                    if (u < rows && v < columns) values[u][v] = value(store, group, m + u, at[v], sums[i + u][j + v]);
            if (store.vectors && rows >= 4 && columns >= 4) {
#pragma unroll
                for (int u = 0; u < 4; u++)
#pragma unroll
                    for (int v = 0; v < 4; v += AT_ONCE) {
                        Vector<out_t, AT_ONCE> several;
#pragma unroll
                        for (int w = 0; w < AT_ONCE; w++)
                            several.at[w] = C_NEAR_M ? values[v + w][u] : values[u][v + w];
                        store_vector(C_NEAR_M ? starts[u] + (m + v) : starts[v] + (m + u) * step, several);
                    }
                continue;
            }
#pragma unroll
            for (int u = 0; u < 4; u++)
#pragma unroll
                for (int v = 0; v < 4; v++)
                    if (u < rows && v < columns) starts[v][(m + u) * step] = values[u][v];
        }
    }
}
