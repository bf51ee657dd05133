// Overlap-save tiles in memory: a chunk of them, and where the outputs of each lie.
//
// A chunk is (count, channels, size_h, pitch) numbers: `count` tiles of the batch from `first` on, of each so many
// channels. All sizes come at run time: a new size of picture or of transform compiles nothing.
#pragma once
#include "conv.cuh"

struct Tiles {
    acc_t *data;
    int first;           // tile of the batch: pictures, then rows of tiles, then tiles of a row
    int channel;         // first channel, or output channel
    int channels;        // of each tile
    int size_h, pitch;   // rows of a tile, numbers of a row
    int tile_p, tile_q;  // outputs of a tile
    int across, down;    // tiles of a picture
};

// The picture that a tile belongs to, and its first output.
struct Corner {
    int n, p, q;
};

__device__ inline Corner corner_of(const Tiles &tiles, int i) {
    const unsigned tile = tiles.first + i, row = tile / tiles.across, n = row / tiles.down;
    return {static_cast<int>(n), static_cast<int>((row - n * tiles.down) * tiles.tile_p),
            static_cast<int>((tile - row * tiles.across) * tiles.tile_q)};
}

// What a block of a kernel over tiles does: NEAR channels from c on of tile i, a box of pixels from (row, column) on.
struct Box {
    int i, c, row, column;
};

template <int ROWS, int COLUMNS, int NEAR>
__device__ inline Box box_of(const Tiles &tiles, int rows, int columns) {
    const unsigned across = (columns + COLUMNS - 1) / COLUMNS, down = (rows + ROWS - 1) / ROWS;
    const unsigned group = blockIdx.x / (across * down), part = blockIdx.x - group * (across * down);
    const unsigned groups = (tiles.channels + NEAR - 1) / NEAR, i = group / groups, y = part / across;
    return {static_cast<int>(i), static_cast<int>((group - i * groups) * NEAR), static_cast<int>(y * ROWS),
            static_cast<int>((part - y * across) * COLUMNS)};
}

// A row of channel c of tile i; c is counted from the chunk's first.
__device__ inline acc_t *row_of(const Tiles &tiles, int i, int c, int row) {
    return tiles.data + ((static_cast<long long>(i) * tiles.channels + c) * tiles.size_h + row) * tiles.pitch;
}
