// fft_scatter: stores the outputs of every tile, each stride-th of the valid sums, through the epilogue.
//
// The last of five steps: the reverse of gather.cu.
// Threads   THREADS a block, for a box of ROWS x COLUMNS outputs of INTERLEAVED output channels, PER a thread. All are
//           loaded before any is stored.
// Channels  INTERLEAVED = 1 if the pixels of an output channel are contiguous. In NHWC a box has INTERLEAVED channels:
//           loaded row by row, transposed in shared memory, stored pixel by pixel.
// Grid      one dimension: boxes of a tile, channels, tiles.
// Limit     memory: the writes. A chunk of tiles that fits in L2 is read from there.
#include "epilogue.cuh"
#include "fft.cuh"

constexpr int COLUMNS = 32, ROWS = cfg::INTERLEAVED < 32 ? 32 / cfg::INTERLEAVED : 1, BOX = ROWS * COLUMNS * cfg::INTERLEAVED, THREADS = 256;
constexpr int PER = (BOX + THREADS - 1) / THREADS;

struct Scatter {
    Conv conv;
    Tiles tiles;
};

extern "C" __global__ void __launch_bounds__(THREADS) fft_scatter(const __grid_constant__ Scatter args) {
    const Tiles &tiles = args.tiles;
    const Conv &conv = args.conv;
    const Box box = box_of<ROWS, COLUMNS, cfg::INTERLEAVED>(tiles, tiles.tile_p, tiles.tile_q);
    const Corner corner = corner_of(tiles, box.i);
    const int rows = min(tiles.tile_p, conv.P - corner.p), columns = min(tiles.tile_q, conv.Q - corner.q);
    acc_t values[PER];
#pragma unroll
    for (int e = 0; e < PER; e++) {
        const int at = e * THREADS + threadIdx.x, c = box.c + at / COLUMNS % cfg::INTERLEAVED,
                  column = box.column + at % COLUMNS;
        const int row = box.row + at / (COLUMNS * cfg::INTERLEAVED);
        const bool takes_part = at < BOX && c < tiles.channels && row < rows && column < columns;
        values[e] = takes_part ? row_of(tiles, box.i, c, row * cfg::STRIDE_H)[column * cfg::STRIDE_W] : 0;
    }
    if constexpr (cfg::INTERLEAVED > 1) {
        __shared__ acc_t transposed[BOX / COLUMNS][COLUMNS + 1];
#pragma unroll
        for (int e = 0; e < PER; e++) {
            const int at = e * THREADS + threadIdx.x;
            if (at < BOX) transposed[at / COLUMNS][at % COLUMNS] = values[e];
        }
        __syncthreads();
#pragma unroll
        for (int e = 0; e < PER; e++) {
            const int at = e * THREADS + threadIdx.x;
            if (at < BOX)
                values[e] = transposed[at / (COLUMNS * cfg::INTERLEAVED) * cfg::INTERLEAVED + at % cfg::INTERLEAVED][at / cfg::INTERLEAVED % COLUMNS];
        }
    }
#pragma unroll
    for (int e = 0; e < PER; e++) {
        const int at = e * THREADS + threadIdx.x, c = box.c + at % cfg::INTERLEAVED,
                  column = box.column + at / cfg::INTERLEAVED % COLUMNS;
        const int row = box.row + at / (COLUMNS * cfg::INTERLEAVED);
        if (at < BOX && c < tiles.channels && row < rows && column < columns)
            store_output(conv, corner.n, tiles.channel + c, corner.p + row, corner.q + column, values[e]);
    }
}
