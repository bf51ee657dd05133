// fft_gather: copies the pixels of each overlap-save tile, with halo and border, as acc_t.
//
// The first of five steps: gather, transform, multiply, inverse transform, scatter. cuFFT computes the transforms.
// Tile      SPAN_H x SPAN_W pixels of the padded image, then zeros up to the transform's size and the row's pitch.
//           Tiles overlap by the filter's extent minus one. Every number of a row is written, because a transform in
//           place may read it.
// Threads   THREADS a block, for a box of ROWS x COLUMNS numbers of INTERLEAVED channels, PER a thread. All are loaded
//           before any is stored.
// Channels  INTERLEAVED = 1 if the pixels of a channel are contiguous: a warp loads and stores 32 neighbours. In NHWC a
//           box has INTERLEAVED channels: loaded pixel by pixel, transposed in shared memory, stored row by row.
// Grid      one dimension: boxes of a tile, channels, tiles.
// Limit     memory. A chunk of tiles that fits in L2 is written and read there.
#include "border.cuh"
#include "fft.cuh"

constexpr int COLUMNS = 32, ROWS = cfg::INTERLEAVED < 32 ? 32 / cfg::INTERLEAVED : 1, BOX = ROWS * COLUMNS * cfg::INTERLEAVED, THREADS = 256;
constexpr int PER = (BOX + THREADS - 1) / THREADS;

struct Gather {
    Conv conv;
    Tiles tiles;
    int span_h, span_w;
};

// Number (row, column) of a tile's channel c.
__device__ inline acc_t number(const Gather &args, const Corner &corner, int c, int row, int column) {
    const Conv &conv = args.conv;
    if (row >= args.span_h || column >= args.span_w) return 0;
    return pixel(conv, corner.n, args.tiles.channel + c, corner.p * cfg::STRIDE_H - conv.top + row,
                 corner.q * cfg::STRIDE_W - conv.left + column);
}

extern "C" __global__ void __launch_bounds__(THREADS) fft_gather(const __grid_constant__ Gather args) {
    const Tiles &tiles = args.tiles;
    const Box box = box_of<ROWS, COLUMNS, cfg::INTERLEAVED>(tiles, tiles.size_h, tiles.pitch);
    const Corner corner = corner_of(tiles, box.i);
    acc_t values[PER];
#pragma unroll
    for (int e = 0; e < PER; e++) {
        const int at = e * THREADS + threadIdx.x, c = box.c + at % cfg::INTERLEAVED,
                  row = box.row + at / (COLUMNS * cfg::INTERLEAVED);
        const bool takes_part = at < BOX && c < tiles.channels && row < tiles.size_h;
        values[e] = takes_part ? number(args, corner, c, row, box.column + at / cfg::INTERLEAVED % COLUMNS) : 0;
    }
    if constexpr (cfg::INTERLEAVED > 1) {
        __shared__ acc_t transposed[BOX / COLUMNS][COLUMNS + 1];
#pragma unroll
        for (int e = 0; e < PER; e++) {
            const int at = e * THREADS + threadIdx.x;
            if (at < BOX)
                transposed[at / (COLUMNS * cfg::INTERLEAVED) * cfg::INTERLEAVED + at % cfg::INTERLEAVED][at / cfg::INTERLEAVED % COLUMNS] = values[e];
        }
        __syncthreads();
#pragma unroll
        for (int e = 0; e < PER; e++) {
            const int at = e * THREADS + threadIdx.x;
            if (at < BOX) values[e] = transposed[at / COLUMNS][at % COLUMNS];
        }
    }
#pragma unroll
    for (int e = 0; e < PER; e++) {
        const int at = e * THREADS + threadIdx.x, c = box.c + at / COLUMNS % cfg::INTERLEAVED,
                  column = box.column + at % COLUMNS;
        const int row = box.row + at / (COLUMNS * cfg::INTERLEAVED);
        if (at < BOX && c < tiles.channels && row < tiles.size_h && column < tiles.pitch)
            row_of(tiles, box.i, c, row)[column] = values[e];
    }
}
