// Loaders: copy tiles of operands to shared memory as math_t, in the layout of the multipliers.
//
// Both operands have the same form: `mn_stride` leads to the next row of A or column of B, `k_stride` to the next k. So
// operands may be transposed or have gaps. Elements outside are 0. A loader through registers (`product` in gemm.cuh)
// has
//   Part part; load(part, k0);    issues the loads of this thread's part of the tile at k0;
//   part.store(tile);             writes it to shared memory
// A loader by asynchronous copies, which needs no registers, has
//   copy(tile, k0);               issues the copies of this thread's part
// Loaders, multipliers and stores hold references and are always inlined, so a composed kernel compiles to the same
// machine code as a kernel written by hand.
#pragma once
#include "memory.cuh"

constexpr int VECTOR = 16 / sizeof(math_t);  // elements of a 16-byte load

struct Operand {
    const math_t *data;
    long long group;  // from one group's matrix to the next, in elements
    int mn_stride, k_stride;
    int vectors;  // true if VECTOR elements at a multiple of VECTOR are aligned to 16 bytes
};

// The operand of one group.
__device__ inline Operand of_group(Operand operand, int group) {
    operand.data += group * operand.group;
    return operand;
}

// Address of element k of row x of A, or of column x of B.
__device__ inline const math_t *at(const Operand &operand, int x, int k) {
    return operand.data + (static_cast<long long>(x) * operand.mn_stride + static_cast<long long>(k) * operand.k_stride);
}

// Partition of a tile of LENGTH x DEPTH elements (along M or N, and along K) among THREADS threads, PER neighbours at a
// time: thread t begins at (x, k) and continues in steps. Neighbouring threads take neighbours in memory. Along K they
// are only 8, whose transposed stores, into rows that are 16 bytes longer than a multiple of 128, have no bank
// conflicts.
template <int LENGTH, int DEPTH, int THREADS, bool K_MAJOR, int PER = 1>
struct Share {
    static_assert(DEPTH % 8 == 0, "eight neighbours along K are loaded together");
    static constexpr int WIDE = LENGTH / PER < THREADS ? LENGTH / PER : THREADS;
    static_assert(LENGTH % PER == 0 && THREADS % WIDE == 0, "whole rows of threads share a tile");
    static constexpr int STEP_X = K_MAJOR ? THREADS / (8 / PER) : WIDE * PER, STEP_K = K_MAJOR ? 8 : THREADS / WIDE;
    static constexpr int COUNT_X = (LENGTH + STEP_X - 1) / STEP_X, COUNT_K = (DEPTH + STEP_K - 1) / STEP_K;
    static constexpr int COUNT = COUNT_X * COUNT_K;
    static constexpr bool EVEN = LENGTH % STEP_X == 0 && DEPTH % STEP_K == 0;  // all threads have equal work
    int x, k;
    __device__ explicit Share(int t)
        : x(K_MAJOR ? t / (8 / PER) : t % WIDE * PER), k(K_MAJOR ? t % (8 / PER) * PER : t / WIDE) {}
    // True if the element at a step of (dx, dk) belongs to the tile.
    __device__ bool has(int dx, int dk) const { return EVEN || (x + dx < LENGTH && k + dk < DEPTH); }
};

// Copies the tile of an operand at (x0, k0) to shared memory, element by element, with 0 outside the matrix. Only tiles
// at the edge test each element.
template <int LENGTH, int THREADS, bool K_MAJOR, int DEPTH, int PITCH>
__device__ inline void load_tile(math_t (&tile)[DEPTH][PITCH], const Operand &from, int x0, int k0, int length,
                                 int depth) {
    using S = Share<LENGTH, DEPTH, THREADS, K_MAJOR>;
    const S share(threadIdx.x);
    const bool whole = x0 + LENGTH <= length && k0 + DEPTH <= depth;
    const math_t *first = at(from, x0 + share.x, k0 + share.k);
#pragma unroll
    for (int i = 0; i < S::COUNT; i++) {
        const int dx = i / S::COUNT_K * S::STEP_X, dk = i % S::COUNT_K * S::STEP_K;
        if (!share.has(dx, dk)) continue;
        const bool there = whole || (x0 + share.x + dx < length && k0 + share.k + dk < depth);
        const long long step = static_cast<long long>(dx) * from.mn_stride + static_cast<long long>(dk) * from.k_stride;
        tile[share.k + dk][share.x + dx] = there ? first[step] : math_t{};
    }
}

// A thread's part of a tile of a matrix. Inside the matrix it is loaded in 16-byte vectors if they are aligned.
template <int LENGTH, int DEPTH, int THREADS, bool K_MAJOR>
struct MatrixPart {
    using S = Share<LENGTH, DEPTH, THREADS, K_MAJOR, VECTOR>;
    Vector<math_t, VECTOR> parts[S::COUNT];

    __device__ void load(const Operand &from, int x0, int k0, int length, int depth) {
        const S share(threadIdx.x);
        const bool whole = from.vectors && x0 + LENGTH <= length && k0 + DEPTH <= depth;
        const math_t *first = at(from, x0 + share.x, k0 + share.k);
#pragma unroll
        for (int i = 0; i < S::COUNT; i++) {
            const int dx = i / S::COUNT_K * S::STEP_X, dk = i % S::COUNT_K * S::STEP_K;
            if (!share.has(dx, dk)) continue;
            const math_t *place =
                first + (static_cast<long long>(dx) * from.mn_stride + static_cast<long long>(dk) * from.k_stride);
            if (whole) {
                parts[i] = load_vector<VECTOR>(place);
                continue;
            }
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                const int x = x0 + share.x + dx + (K_MAJOR ? 0 : j), k = k0 + share.k + dk + (K_MAJOR ? j : 0);
                const long long step = static_cast<long long>(j) * (K_MAJOR ? from.k_stride : from.mn_stride);
                parts[i].at[j] = x < length && k < depth ? place[step] : math_t{};
            }
        }
    }

    template <int PITCH>
    __device__ void store(math_t (&tile)[DEPTH][PITCH]) const {
        const S share(threadIdx.x);
#pragma unroll
        for (int i = 0; i < S::COUNT; i++) {
            const int dx = i / S::COUNT_K * S::STEP_X, dk = i % S::COUNT_K * S::STEP_K;
            if (!share.has(dx, dk)) continue;
            if constexpr (K_MAJOR) {
#pragma unroll
                for (int j = 0; j < VECTOR; j++) tile[share.k + dk + j][share.x + dx] = parts[i].at[j];
            } else {
                store_vector(&tile[share.k + dk][share.x + dx], parts[i]);
            }
        }
    }
};

// Loads tiles of LENGTH rows of A, or columns of B, from x0 on, through registers.
template <int LENGTH, int DEPTH, int THREADS, bool K_MAJOR>
struct MatrixLoader {
    using Part = MatrixPart<LENGTH, DEPTH, THREADS, K_MAJOR>;
    const Operand &from;
    const int &x0, &length, &depth;
    __device__ __forceinline__ void load(Part &part, int k0) const { part.load(from, x0, k0, length, depth); }
};

// Issues the copies of this thread's part of the tile at (x0, k0), PER neighbours at a time.
template <int LENGTH, int THREADS, bool K_MAJOR, int PER, bool WHOLE, int DEPTH, int PITCH>
__device__ inline void copy_parts(math_t (&tile)[DEPTH][PITCH], const Operand &from, int x0, int k0, int length,
                                  int depth) {
    using S = Share<LENGTH, DEPTH, THREADS, K_MAJOR, PER>;
    const S share(threadIdx.x);
    const math_t *first = at(from, x0 + share.x, k0 + share.k);
#pragma unroll
    for (int i = 0; i < S::COUNT; i++) {
        const int dx = i / S::COUNT_K * S::STEP_X, dk = i % S::COUNT_K * S::STEP_K;
        if (!share.has(dx, dk)) continue;
        const bool there = WHOLE || (x0 + share.x + dx < length && k0 + share.k + dk < depth);
        const math_t *place = first + (static_cast<long long>(dx) * from.mn_stride + static_cast<long long>(dk) * from.k_stride);
        copy_async<PER * sizeof(math_t)>(&tile[share.k + dk][share.x + dx], there ? place : from.data, there);
    }
}

template <int LENGTH, int THREADS, bool K_MAJOR, int DEPTH, int PITCH>
__device__ inline void copy_tile(math_t (&tile)[DEPTH][PITCH], const Operand &from, int x0, int k0, int length,
                                 int depth) {
    if (x0 + LENGTH > length || k0 + DEPTH > depth)
        copy_parts<LENGTH, THREADS, K_MAJOR, 1, false>(tile, from, x0, k0, length, depth);
    else if (!K_MAJOR && from.vectors)
        copy_parts<LENGTH, THREADS, K_MAJOR, K_MAJOR ? 1 : VECTOR, true>(tile, from, x0, k0, length, depth);
    else
        copy_parts<LENGTH, THREADS, K_MAJOR, 1, true>(tile, from, x0, k0, length, depth);
}

// Copies such tiles without registers.
template <int LENGTH, int THREADS, bool K_MAJOR>
struct MatrixCopies {
    const Operand &from;
    const int &x0, &length, &depth;
    template <int DEPTH, int PITCH>
    __device__ __forceinline__ void copy(math_t (&tile)[DEPTH][PITCH], int k0) const {
        copy_tile<LENGTH, THREADS, K_MAJOR>(tile, from, x0, k0, length, depth);
    }
};
