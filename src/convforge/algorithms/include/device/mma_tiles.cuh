// Tiles of 16-bit matrices in shared memory, from which the lanes of a warp read what the tensor cores multiply (mma.cuh).
//
// A tile keeps the order that its operand has in memory: lines of numbers that are neighbours there. DEEP, neighbours lie
// along K, and a line is a row of A or a column of B; else a line is all that the tile has of one k. Lines are cut into
// pieces of 16 bytes, and pieces change places by a rule (a swizzle), so that eight lines have the same piece in
// different banks: lanes that each read 16 bytes of a line then meet no bank twice.
//
// LineTile<LINES, LENGTH> tile;            tile.piece(line, i) is where piece i of a line lies
// copy_lines<SPAN, DEPTH, DEEP>(...);      asks for this thread's part of the copies: 16 bytes at once where they are
//                                          aligned and inside, else number by number; 0 where the matrix ends
// load_rows<DEEP>(a, tile, m, k);          16 rows of A from row m, 16 of K from k on: a[0] to a[3] of multiply_halves
// load_columns<DEEP>(b, tile, n, k);       16 columns of B from column n on: b[0] and b[1] of the first eight, b[2] and
//                                          b[3] of the others
// multiply_tiles<DEEP_A, DEEP_B>(sums, a, b, m0, n0);   a warp's part of a step, whose first row and column these are
// load_matrices<TURNED>(words, row);       four matrices of 8 x 8 numbers (ldmatrix): lane i gives the address of row i % 8
//                                          of matrix i / 8, 16 bytes. With lane = 4 * g + t, words[j] are the numbers 2 t
//                                          and 2 t + 1 of row g of matrix j; TURNED, of its column g
#pragma once
#include "loader.cuh"
#include "mma.cuh"

static_assert(sizeof(math_t) == 2, "fragments are of 16-bit numbers");
constexpr int PIECE = VECTOR;  // numbers of 16 bytes

// From the prelude: BLOCK_M x BLOCK_N of C a block, in steps of BLOCK_K; WARP_M x WARP_N of that a warp.
constexpr int WARPS_M = BLOCK_M / WARP_M, WARPS_N = BLOCK_N / WARP_N, THREADS = 32 * WARPS_M * WARPS_N;
constexpr int ROWS = WARP_M / MMA_ROWS, COLUMNS = WARP_N / MMA_COLUMNS;  // products of a warp for each 16 of K
static_assert(BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0, "warps cover the block's tile exactly");
static_assert(WARP_M % 16 == 0 && WARP_N % 16 == 0 && BLOCK_K % 16 == 0, "a warp loads 16 x 16 numbers at once");
static_assert(STAGES >= 2, "one tile is used while another is on its way");

// The sums of a lane: of each product two neighbouring columns of row g, then of row g + 8.
using WarpSums = float[ROWS][COLUMNS][4];

template <int LINES, int LENGTH>
struct alignas(128) LineTile {
    static constexpr int PIECES = LENGTH / PIECE;
    static_assert(LENGTH % PIECE == 0 && (PIECES & (PIECES - 1)) == 0 && PIECES >= 2, "pieces change places in powers of 2");
    math_t numbers[LINES * LENGTH];
    // Lines of 32 or 64 bytes: four or two of them pass all banks once, and the next ones use other pieces.
    __device__ static int at(int line, int piece) {
        const int turn = PIECES >= 8 ? line & 7 : line / (8 / PIECES) & (PIECES - 1);
        return line * LENGTH + (piece ^ turn) * PIECE;
    }
    __device__ math_t *piece(int line, int piece) { return numbers + at(line, piece); }
    __device__ const math_t *piece(int line, int piece) const { return numbers + at(line, piece); }
};

// The tile of an operand that begins at (x0, k0): SPAN of its rows or columns, DEPTH of K.
template <int SPAN, int DEPTH, bool DEEP>
using OperandTile = LineTile<DEEP ? SPAN : DEPTH, DEEP ? DEPTH : SPAN>;

template <int SPAN, int DEPTH, bool DEEP>
__device__ inline void copy_lines(OperandTile<SPAN, DEPTH, DEEP> &tile, const Operand &from, int x0, int k0, int length,
                                  int depth) {
    using Lines = OperandTile<SPAN, DEPTH, DEEP>;
    constexpr int LINES = DEEP ? SPAN : DEPTH, COUNT = LINES * Lines::PIECES;
#pragma unroll
    for (int i = 0; i < (COUNT + THREADS - 1) / THREADS; i++) {
        const int id = threadIdx.x + i * THREADS, line = id / Lines::PIECES, piece = id % Lines::PIECES;
        if (COUNT % THREADS && id >= COUNT) break;
        const int x = x0 + (DEEP ? line : piece * PIECE), k = k0 + (DEEP ? piece * PIECE : line);
        const int left = x < length && k < depth ? (DEEP ? depth - k : length - x) : 0;  // numbers of the line from here on
        const math_t *place = left > 0 ? at(from, x, k) : from.data;
        math_t *to = tile.piece(line, piece);
        if (from.vectors && (left >= PIECE || left <= 0)) {
            copy_async16(to, place, left > 0);
            continue;
        }
        const long long step = DEEP ? from.deep : from.along;
        Vector<math_t, PIECE> numbers;
#pragma unroll
        for (int j = 0; j < PIECE; j++) numbers.at[j] = j < left ? place[j * step] : math_t{};
        store_vector(to, numbers);
    }
}

#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)
template <bool TURNED>
__device__ inline void load_matrices(unsigned (&words)[4], const void *row) {
    const unsigned at = shared_address(row);
    if constexpr (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(at));
}
#else  // the emulator: lanes tell each other their rows
template <bool TURNED>
inline void load_matrices(unsigned (&words)[4], const void *row) {
    const int lane = emulator::here()->lane, g = lane / 4, t = lane % 4;
    for (int j = 0; j < 4; j++) {
        unsigned short pair[2];
        for (int i = 0; i < 2; i++) {
            const void *from = __shfl_sync(0xffffffffu, row, 8 * j + (TURNED ? 2 * t + i : g));
            pair[i] = static_cast<const unsigned short *>(from)[TURNED ? g : 2 * t + i];
        }
        words[j] = pair[0] | static_cast<unsigned>(pair[1]) << 16;
    }
}
#endif

// A warp's 16 x 16 numbers of A. The four matrices are rows 0 to 7 and 8 to 15, then the same rows eight of K
// further on. Where lines lie along M or N, each matrix is read turned.
template <bool DEEP, int LINES, int LENGTH>
__device__ inline void load_rows(unsigned (&a)[4], const LineTile<LINES, LENGTH> &tile, int m, int k) {
    const int lane = threadIdx.x % 32;
    if constexpr (DEEP) load_matrices<false>(a, tile.piece(m + lane % 16, k / PIECE + lane / 16));
    else load_matrices<true>(a, tile.piece(k + lane / 16 * 8 + lane % 8, m / PIECE + lane / 8 % 2));
}

// Here the four are eight columns and eight of K, the same columns and the next eight of K, then the other columns.
template <bool DEEP, int LINES, int LENGTH>
__device__ inline void load_columns(unsigned (&b)[4], const LineTile<LINES, LENGTH> &tile, int n, int k) {
    const int lane = threadIdx.x % 32;
    if constexpr (DEEP) load_matrices<false>(b, tile.piece(n + lane / 16 * 8 + lane % 8, k / PIECE + lane / 8 % 2));
    else load_matrices<true>(b, tile.piece(k + lane % 16, n / PIECE + lane / 16));
}

template <bool DEEP_A, bool DEEP_B, class TileA, class TileB>
__device__ inline void multiply_tiles(WarpSums &sums, const TileA &a, const TileB &b, int m0, int n0) {
#pragma unroll
    for (int k = 0; k < BLOCK_K; k += MMA_HALVES) {
        unsigned rows[ROWS][4], columns[COLUMNS / 2][4];
#pragma unroll
        for (int i = 0; i < ROWS; i++) load_rows<DEEP_A>(rows[i], a, m0 + i * MMA_ROWS, k);
#pragma unroll
        for (int j = 0; j < COLUMNS / 2; j++) load_columns<DEEP_B>(columns[j], b, n0 + j * 16, k);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                const unsigned factors[2] = {columns[j / 2][j % 2 * 2], columns[j / 2][j % 2 * 2 + 1]};
                multiply_halves<math_t>(sums[i][j], rows[i], factors);
            }
    }
}
