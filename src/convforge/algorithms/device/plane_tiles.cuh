// Tiles of neighbouring planes, numbered along q, then p, then planes.
#pragma once
#include "conv.cuh"
#include "divide.cuh"

// Tiles of a plane.
struct PlaneTiles {
    Divisor across, down;
};

// `planes` planes from (n, k) on, and their first output.
struct Tile {
    int n, k, planes, p, q;
};

template <int PLANES, int TILE_P, int TILE_Q>
__device__ inline Tile tile_of(const PlaneTiles &tiles, const Conv &conv, int i) {
    const int strip = quotient(i, tiles.across), group = quotient(strip, tiles.down);
    const long long first = static_cast<long long>(group) * PLANES, planes = static_cast<long long>(conv.N) * K - first;
    const int n = sizeof(index_t) == 4 ? static_cast<unsigned>(first) / K : first / K;  // the cheapest division that does
    return {n, static_cast<int>(first - static_cast<long long>(n) * K),
            static_cast<int>(planes < PLANES ? planes : PLANES), (strip - group * tiles.down.by) * TILE_P,
            (i - strip * tiles.across.by) * TILE_Q};
}
