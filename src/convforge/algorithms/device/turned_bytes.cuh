// Tiles of bytes whose neighbours in memory lie along M or N, turned on the way: ldmatrix turns matrices of 16-bit numbers
// alone, and products take bytes that are neighbours along K.
//
// TurnedCopies<SPAN> copy(...);  copy(tile, k0) brings this thread's part of the tile at k0, as LineCopies does
// turn_bytes(words);             transposes 4 x 4 bytes: byte i of word j becomes byte j of word i
#pragma once
#include "mma_tiles.cuh"

__device__ inline void turn_bytes(unsigned (&words)[4]) {
    const unsigned low = __byte_perm(words[0], words[1], 0x5140), low2 = __byte_perm(words[2], words[3], 0x5140);
    const unsigned high = __byte_perm(words[0], words[1], 0x7362), high2 = __byte_perm(words[2], words[3], 0x7362);
    words[0] = __byte_perm(low, low2, 0x5410), words[1] = __byte_perm(low, low2, 0x7632);
    words[2] = __byte_perm(high, high2, 0x5410), words[3] = __byte_perm(high, high2, 0x7632);
}

// A thread loads four neighbours along M or N for each of AT_ONCE of K, and stores so many bytes of each of four lines.
// Every four numbers begin at a multiple of 4 bytes and end inside the matrix; see `whole_pieces`.
template <int SPAN>
struct TurnedCopies {
    using Lines = OperandTile<SPAN, true>;
    static constexpr int ACROSS = 4;
    static constexpr int AT_ONCE = ROWS * COLUMNS > 16 ? 8 : PIECE;  // beside many sums there are registers for no more
    static constexpr int OF_LINE = BLOCK_K / AT_ONCE, PARTS = SPAN / ACROSS * OF_LINE;
    const Operand &from;
    const int x0, length, depth;

    __device__ TurnedCopies(const Operand &from, int x0, int length, int depth)
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
                place += from.deep;
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE / 4; j++) turn_bytes(words[j]);
#pragma unroll
            for (int x = 0; x < ACROSS; x++) {
                Vector<math_t, AT_ONCE> turned;
#pragma unroll
                for (int j = 0; j < AT_ONCE / 4; j++) turned.word.bits[j] = words[j][x];
                store_vector(tile.piece(line + x, k / PIECE) + k % PIECE, turned);
            }
        }
    }
};

// Whether a tile's lines lie along K: where its operand's do, and of bytes always.
template <bool DEEP> constexpr bool TILE_DEEP = DEEP || sizeof(factor_t) == 1;

// What brings the tiles of an operand whose neighbours lie along K, DEEP, or along M or N.
template <int SPAN, bool DEEP, bool WHOLE, bool TURNED = WHOLE && TILE_DEEP<DEEP> != DEEP> struct copies {
    using type = LineCopies<SPAN, TILE_DEEP<DEEP>, WHOLE>;
};
template <int SPAN, bool DEEP, bool WHOLE> struct copies<SPAN, DEEP, WHOLE, true> { using type = TurnedCopies<SPAN>; };
template <int SPAN, bool DEEP, bool WHOLE>
using Copies = typename copies<SPAN, DEEP, WHOLE>::type;
