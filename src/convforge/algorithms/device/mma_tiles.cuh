// Tiles of matrices in shared memory, from which a warp loads fragments for the tensor cores: 16-bit numbers or bytes
// (mma.cuh), or floats, which become TF32.
//
// A tile keeps the order of its operand in memory: lines of contiguous numbers. K-major: a line is a row of A or a
// column of B. MN-major: a line has all elements of the tile with one k. Lines are cut into pieces of 16 bytes, and a
// swizzle permutes the pieces, so that the same piece of eight lines is in different banks. So lanes that each read 16
// bytes of a line have no bank conflicts.
//
// LineTile<LINES, LENGTH> tile;         tile.piece(line, i) is the address of piece i of a line
// LineCopies<SPAN, K_MAJOR, WHOLE> copy(...);
//                                       copy(tile, k0) issues the copies of this thread's part of the tile at k0, in
//                                       16-byte pieces or number by number; 0 outside the matrix
// load_rows<K_MAJOR>(a, tile, m, k);    16 rows of A from row m, 16 of K from k on: a[0] to a[3] of mma_halves; with 32
//                                       of K those of mma_bytes
// load_columns<K_MAJOR>(b, tile, n, k); 16 columns of B from column n on: b[0] and b[1] of the first eight, b[2] and
//                                       b[3] of the others
// begin_steps(stages, ask);             issues the copies of the first steps
// multiply_steps<K_MAJOR_A, K_MAJOR_B>(...);
//                                       a warp's sums of all steps: the loop of copies, loads and products
// TransposedCopies<SPAN> copy(...);     copy(tile, k0) copies this thread's part of the tile at k0, like LineCopies,
//                                       and transposes MN-major bytes: ldmatrix transposes only 16-bit numbers, and
//                                       products need bytes that are contiguous along K
#pragma once
#include "loader.cuh"
#include "mma.cuh"

#ifdef FACTORS_ARE_HALVES  // of floats, which are split
using factor_t = half_t;
#else
using factor_t = math_t;
#endif
static_assert(sizeof(factor_t) <= 4, "factors are bytes, of 16 bits, or floats, which become TF32");
constexpr int PIECE = 16 / sizeof(factor_t);  // numbers in 16 bytes
constexpr int MMA_DEPTH = 2 * PIECE;          // of K, in a product

#ifdef FACTORS_ARE_BYTES  // A's are of x_t, and B's of w_t: integers or 8-bit floats
using sum_t = acc_t;
#else
using sum_t = float;
#endif

// The units may keep as few as 14 bits of a sum of 8-bit floats. So sums of at most MOST_OF_UNITS products are added to
// others in float (DeepSeek-AI, DeepSeek-V3 technical report, 2024, section 3.3.2).
constexpr bool TWO_LEVELS = sizeof(factor_t) == 1 && static_cast<sum_t>(1) / 2 != 0;
constexpr int MOST_OF_UNITS = 128;

// The type of `mma_halves`. Not used for floats and bytes.
template <class T> struct narrow { using type = half_t; };
template <> struct narrow<bfloat16_t> { using type = bfloat16_t; };
using Narrow = narrow<factor_t>::type;

// Constants of the prelude: BLOCK_M x BLOCK_N of C a block, in steps of BLOCK_K; WARP_M x WARP_N of that a warp.
constexpr int WARPS_M = cfg::BLOCK_M / cfg::WARP_M, WARPS_N = cfg::BLOCK_N / cfg::WARP_N,
              THREADS = 32 * WARPS_M * WARPS_N;
// Products of a warp for each MMA_DEPTH of K.
constexpr int ROWS = cfg::WARP_M / MMA_ROWS, COLUMNS = cfg::WARP_N / MMA_COLUMNS;
static_assert(cfg::BLOCK_M % cfg::WARP_M == 0 && cfg::BLOCK_N % cfg::WARP_N == 0,
              "warps cover the block's tile exactly");
static_assert(cfg::WARP_M % 16 == 0 && cfg::WARP_N % 16 == 0, "a warp loads 16 x 16 numbers at once");
static_assert(cfg::BLOCK_K % (2 * MMA_DEPTH) == 0,
              "factors of one product are multiplied while the next ones are loaded");
static_assert(cfg::STAGES >= 2, "one tile is used while another is on its way");

// The sums of a lane: for each product, two neighbouring columns of row g, then of row g + 8.
using WarpSums = sum_t[ROWS][COLUMNS][4];

template <int LINES, int LENGTH>
struct alignas(128) LineTile {
    static constexpr int PIECES = LENGTH / PIECE;
    static_assert(LENGTH % PIECE == 0 && (PIECES & (PIECES - 1)) == 0 && PIECES >= 2, "pieces change places in powers of 2");
    factor_t numbers[LINES * LENGTH];
    // Lines of 32 or 64 bytes: four or two of them cover all banks once, and the next ones use other pieces.
    __device__ static int at(int line, int piece) {
        const int turn = PIECES >= 8 ? line & 7 : line / (8 / PIECES) & (PIECES - 1);
        return line * LENGTH + (piece ^ turn) * PIECE;
    }
    __device__ factor_t *piece(int line, int piece) { return numbers + at(line, piece); }
    __device__ const factor_t *piece(int line, int piece) const { return numbers + at(line, piece); }
};

// A tile of an operand: SPAN of its rows or columns, BLOCK_K along K.
template <int SPAN, bool K_MAJOR>
using OperandTile = LineTile<K_MAJOR ? SPAN : cfg::BLOCK_K, K_MAJOR ? cfg::BLOCK_K : SPAN>;

// Copies of an operand's tiles by all threads: SPAN rows or columns from x0 on, tile after tile along K. With WHOLE,
// every piece is aligned to 16 bytes and ends inside the matrix; see `whole_pieces`.
template <int SPAN, bool K_MAJOR, bool WHOLE>
struct LineCopies {
    using Lines = OperandTile<SPAN, K_MAJOR>;
    static constexpr int LINES = K_MAJOR ? SPAN : cfg::BLOCK_K, TOGETHER = THREADS / Lines::PIECES;
    static constexpr int PER_THREAD = (LINES + TOGETHER - 1) / TOGETHER;  // pieces of a thread, of lines TOGETHER apart
    static_assert(THREADS % Lines::PIECES == 0, "a thread has the same piece of each of its lines");
    const Operand &from;
    const int x0, length, depth, line, piece;

    __device__ LineCopies(const Operand &from, int x0, int length, int depth)
        : from(from), x0(x0), length(length), depth(depth), line(threadIdx.x / Lines::PIECES),
          piece(threadIdx.x % Lines::PIECES) {}

    __device__ __forceinline__ void operator()(Lines &tile, int k0) const {
        const math_t *first = K_MAJOR ? at(from, x0 + line, k0 + piece * PIECE) : at(from, x0 + piece * PIECE, k0 + line);
        const long long line_stride = static_cast<long long>(K_MAJOR ? from.mn_stride : from.k_stride) * TOGETHER;
        constexpr int AT_ONCE = WHOLE ? PER_THREAD : 1;
#pragma unroll AT_ONCE
        for (int i = 0; i < PER_THREAD; i++) {
            if (LINES % TOGETHER && line + i * TOGETHER >= LINES) break;
            const int own = line + i * TOGETHER, x = x0 + (K_MAJOR ? own : piece * PIECE), k = k0 + (K_MAJOR ? piece * PIECE : own);
            const bool there = x < length && k < depth;
            const math_t *place = first + i * line_stride;
            if (WHOLE) copy_async16(tile.piece(own, piece), place, there);
            else by_number(tile.piece(own, piece), place, there ? (K_MAJOR ? depth - k : length - x) : 0);
        }
    }

    // Copies a piece of which `left` numbers are inside the matrix, as many at once as fit in registers.
    __device__ void by_number(math_t *to, const math_t *place, int left) const {
        constexpr int AT_ONCE = VECTOR < 8 ? VECTOR : 8;
        const long long step = K_MAJOR ? from.k_stride : from.mn_stride;
#pragma unroll 1
        for (int first = 0; first < VECTOR; first += AT_ONCE) {
            Vector<math_t, AT_ONCE> numbers;
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int j = first + i;
                numbers.at[i] = j < left ? place[j * step] : math_t{};
            }
            store_vector(to + first, numbers);
        }
    }
};

// True if an operand of this length along M or N and this depth along K may be copied in whole pieces.
template <bool K_MAJOR>
__device__ inline bool whole_pieces(const Operand &from, int length, int depth) {
    return from.vectors && (K_MAJOR ? depth : length) % PIECE == 0;
}

#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)
// mma.m16n8k8: with lane = 4 * g + t, a[0] is row g and column t of the first matrix, a[1] row g + 8, a[2] and a[3]
// column t + 4; b[0] is row t and column g of the second, b[1] row t + 4.
__device__ __forceinline__ void mma_tf32(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else  // the emulator
#define AT int line = __builtin_LINE(), const char *file = __builtin_FILE()

inline void mma_tf32(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2], AT) {
    emulator::here()->services->multiply_fragments({"mma_tf32", file, line}, "tf32", sums, a, b);
}

#undef AT
#endif

// Loads a warp's 16 x 16 numbers of A. The four matrices are rows 0 to 7 and 8 to 15, then the same rows with the next
// eight of K. MN-major matrices are transposed by the load.
template <bool K_MAJOR, int LINES, int LENGTH>
__device__ inline void load_rows(unsigned (&a)[4], const LineTile<LINES, LENGTH> &tile, int m, int k) {
    const int lane = threadIdx.x % 32;
    if constexpr (K_MAJOR) ldmatrix<false>(a, tile.piece(m + lane % 16, k / PIECE + lane / 16));
    else ldmatrix<true>(a, tile.piece(k + lane / 16 * 8 + lane % 8, m / PIECE + lane / 8 % 2));
}

// The four matrices are eight columns with eight of K, the same columns with the next eight of K, then the other
// columns.
template <bool K_MAJOR, int LINES, int LENGTH>
__device__ inline void load_columns(unsigned (&b)[4], const LineTile<LINES, LENGTH> &tile, int n, int k) {
    const int lane = threadIdx.x % 32;
    if constexpr (K_MAJOR) ldmatrix<false>(b, tile.piece(n + lane / 16 * 8 + lane % 8, k / PIECE + lane / 8 % 2));
    else ldmatrix<true>(b, tile.piece(k + lane % 16, n / PIECE + lane / 16));
}

// Tensor cores use the upper 19 bits of a float. Adding half of the last of these bits rounds numbers instead of
// truncating them. NaN stays NaN. 16-bit numbers are left unchanged.
__device__ __forceinline__ void round_factors(unsigned (&words)[4]) {
    if constexpr (sizeof(factor_t) == 4)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float number = float_of(words[i]);
            words[i] = number != number ? words[i] : words[i] + 0x1000u;
        }
}

// One product: 16 x 16 by 16 x 8 of 16-bit numbers, 16 x 8 by 8 x 8 of TF32, or 16 x 32 by 32 x 8 bytes. All have
// fragments of the same number of words.
__device__ __forceinline__ void multiply_factors(sum_t (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#ifdef FACTORS_ARE_BYTES
    add_bytes<x_t, w_t>(sums, a, b);
#else
    if constexpr (sizeof(factor_t) == 4) mma_tf32(sums, a, b);
    else mma_halves<Narrow>(sums, a, b);
#endif
}

// The fragments of a lane for the products of its warp.
struct Factors {
    unsigned rows[ROWS][4], columns[COLUMNS / 2][4];

    template <bool K_MAJOR_A, bool K_MAJOR_B, class Tiles>
    __device__ __forceinline__ void load(const Tiles &tiles, int m0, int n0, int k) {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            load_rows<K_MAJOR_A>(rows[i], tiles.a, m0 + i * MMA_ROWS, k);
            round_factors(rows[i]);
        }
#pragma unroll
        for (int j = 0; j < COLUMNS / 2; j++) {
            load_columns<K_MAJOR_B>(columns[j], tiles.b, n0 + j * 16, k);
            round_factors(columns[j]);
        }
    }

    __device__ __forceinline__ void multiply(WarpSums &sums) const {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                const unsigned pair[2] = {columns[j / 2][j % 2 * 2], columns[j / 2][j % 2 * 2 + 1]};
                multiply_factors(sums[i][j], rows[i], pair);
            }
    }
};

// Adds sums to others, and sets them to zero.
__device__ __forceinline__ void add_sums(WarpSums &sums, WarpSums &others) {
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums[i][j][e] += others[i][j][e], others[i][j][e] = 0;
}

// Issues the copies of the first STAGES - 1 steps. ask(step, tiles) issues this thread's copies of a step.
template <class Tiles, class Ask>
__device__ __forceinline__ void begin_steps(Tiles *stages, const Ask &ask) {
    for (int stage = 0; stage < cfg::STAGES - 1; stage++) {
        ask(stage, stages[stage]);
        copy_async_commit();  // for every step, so that the wait can count them
    }
}

// Adds up `steps` steps of a warp's part of the tile, whose first row and column are m0 and n0, after begin_steps. It
// also issues copies for STAGES steps beyond the last, which nobody reads, because a test would delay the products.
// Tiles are loaded STAGES - 1 steps ahead. The fragments for 16 of K are loaded while those of the previous 16 are
// multiplied.
template <bool K_MAJOR_A, bool K_MAJOR_B, class Tiles, class Ask>
__device__ __forceinline__ void multiply_steps(WarpSums &sums, Tiles *stages, int steps, int m0, int n0, const Ask &ask) {
    const auto ask_for = [&](int step, Tiles &tiles) {
        ask(step, tiles);
        copy_async_commit();
    };
    const auto meet = [] {
        copy_async_wait<cfg::STAGES - 2>();  // this thread's copies of the next tile have completed,
        __syncthreads();                // so has every other's, and all have loaded what they need of the last one
    };
    Factors factors[2];
    [[maybe_unused]] WarpSums of_units = {};
    meet();
    ask_for(cfg::STAGES - 1, stages[cfg::STAGES - 1]);
    factors[0].template load<K_MAJOR_A, K_MAJOR_B>(stages[0], m0, n0, 0);
    int stage = 0;
    for (int step = 0; step < steps; step++) {
        Tiles &now = stages[stage];
        stage = stage + 1 == cfg::STAGES ? 0 : stage + 1;
#pragma unroll
        for (int k = 0; k < cfg::BLOCK_K; k += MMA_DEPTH) {
            Factors &next = factors[(k / MMA_DEPTH + 1) % 2];
            if (k + MMA_DEPTH < cfg::BLOCK_K) {
                next.template load<K_MAJOR_A, K_MAJOR_B>(now, m0, n0, k + MMA_DEPTH);
            } else {
                meet();
                if (step + 1 < steps) next.template load<K_MAJOR_A, K_MAJOR_B>(stages[stage], m0, n0, 0);
                ask_for(step + cfg::STAGES, now);
            }
            if constexpr (TWO_LEVELS) {
                factors[k / MMA_DEPTH % 2].multiply(of_units);
                if ((k + MMA_DEPTH) % MOST_OF_UNITS == 0 || k + MMA_DEPTH == cfg::BLOCK_K) add_sums(sums, of_units);
                continue;
            }
            factors[k / MMA_DEPTH % 2].multiply(sums);
        }
    }
    copy_async_wait();
}

// A thread loads four neighbours along M or N for each of AT_ONCE of K, and stores that many bytes of each of four
// lines. Each group of four numbers is aligned to 4 bytes and ends inside the matrix; see `whole_pieces`. T is a
// parameter so that kernels of wider numbers, which never use this, need no such vectors.
template <int SPAN, class T = math_t>
struct TransposedCopies {
    using Lines = OperandTile<SPAN, true>;
    static constexpr int ACROSS = 4;
    static constexpr int AT_ONCE = ROWS * COLUMNS > 16 ? 8 : PIECE;  // with many sums, registers allow no more
    static constexpr int OF_LINE = cfg::BLOCK_K / AT_ONCE, PARTS = SPAN / ACROSS * OF_LINE;
    const Operand &from;
    const int x0, length, depth;

    __device__ TransposedCopies(const Operand &from, int x0, int length, int depth)
        : from(from), x0(x0), length(length), depth(depth) {}

    __device__ __forceinline__ void operator()(Lines &tile, int k0) const {
#pragma unroll 1
        for (int i = 0; i < (PARTS + THREADS - 1) / THREADS; i++) {
            const int part = threadIdx.x + i * THREADS;
            if (PARTS % THREADS && part >= PARTS) break;
            const int line = part / OF_LINE * ACROSS, k = part % OF_LINE * AT_ONCE;
            const int left = x0 + line < length ? depth - k0 - k : 0;
            const math_t *place = at(from, x0 + line, k0 + k);
            unsigned words[AT_ONCE / 4][4];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                words[j / 4][j % 4] = j < left ? load_vector<ACROSS>(place).word.bits : 0;
                place += from.k_stride;
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE / 4; j++)
                transpose_bytes(words[j], words[j][0], words[j][1], words[j][2], words[j][3]);
#pragma unroll
            for (int x = 0; x < ACROSS; x++) {
                Vector<T, AT_ONCE> transposed;
#pragma unroll
                for (int j = 0; j < AT_ONCE / 4; j++) transposed.word.bits[j] = words[j][x];
                store_vector(tile.piece(line + x, k / PIECE) + k % PIECE, transposed);
            }
        }
    }
};

// True if the tile is K-major: if its operand is, and always for bytes.
template <bool K_MAJOR> constexpr bool TILE_K_MAJOR = K_MAJOR || sizeof(factor_t) == 1;

// Selects the copies for the tiles of an operand that is K-major or MN-major.
template <int SPAN, bool K_MAJOR, bool WHOLE, bool TRANSPOSED = WHOLE && TILE_K_MAJOR<K_MAJOR> != K_MAJOR> struct copies {
    using type = LineCopies<SPAN, TILE_K_MAJOR<K_MAJOR>, WHOLE>;
};
template <int SPAN, bool K_MAJOR, bool WHOLE> struct copies<SPAN, K_MAJOR, WHOLE, true> { using type = TransposedCopies<SPAN>; };
template <int SPAN, bool K_MAJOR, bool WHOLE>
using Copies = typename copies<SPAN, K_MAJOR, WHOLE>::type;
