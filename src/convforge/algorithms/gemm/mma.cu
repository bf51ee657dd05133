// gemm_mma: products of 16-bit numbers or bytes on tensor cores, on any GPU since Ampere.
//
// Since gemm_warp_tiled: one instruction of a warp multiplies 16 x 16 numbers of A by 16 x 8 of B, with the
//           fragments distributed over its lanes (mma.cuh). It replaces 64 FMAs of each lane.
// Threads   WARPS_M x WARPS_N warps, each with WARP_M x WARP_N of the tile: WARP_M / 16 x WARP_N / 8 products for each
//           16 of K.
// Tiles     STAGES of BLOCK_M x BLOCK_K of A and of BLOCK_K x BLOCK_N of B, in their order in memory (mma_tiles.cuh).
//           Nothing is transposed explicitly, because ldmatrix reads both orders. Tiles of bytes are always K-major:
//           copies transpose the others.
// Copies    STAGES - 1 tiles ahead, by cp.async. The fragments for 16 of K are loaded from shared memory while those of
//           the previous 16 are multiplied.
// Bytes     int8 or uint8 for each operand, 32 of K in a product, summed exactly in int32.
// Any       M, N, K, strides, alignment: incomplete or unaligned pieces are copied number by number.
// Limit     tensor cores, which wait for shared memory: a warp reads (WARP_M + WARP_N) x 16 numbers for WARP_M x WARP_N
//           x 16 products.
#include "gemm.cuh"
#include "mma_tiles.cuh"

// Stores a warp's sums. A lane has two neighbouring columns of rows g and g + 8 of each product.
__device__ inline void put_sums(const Gemm &args, const Tile &tile, int m0, int n0, const WarpSums &sums) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const bool pairs = args.store.vectors && !cfg::C_M_MAJOR;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        const int n = tile.n + n0 + 8 * j + 2 * t;
        if (n >= args.N) continue;
        const Column column[2] = {column_at(args.store, n), after(args.store, column_at(args.store, n))};
        out_t *starts[2] = {start(args.store, tile.group, column[0]), start(args.store, tile.group, column[1])};
#pragma unroll
        for (int i = 0; i < 2 * ROWS; i++) {
            const int m = tile.m + m0 + 8 * i + g;
            if (m >= args.M) continue;
            const auto at = m * row_step(args.store);
            const sum_t *own = sums[i / 2][j] + i % 2 * 2;
            Vector<out_t, 2> pair;
            pair.at[0] = value(args.store, tile.group, m, column[0], own[0]);
            if (n + 1 >= args.N) {
                starts[0][at] = pair.at[0];
                continue;
            }
            pair.at[1] = value(args.store, tile.group, m, column[1], own[1]);
            if (pairs) {
                store_vector(starts[0] + at, pair);
            } else {
                starts[0][at] = pair.at[0];
                starts[1][at] = pair.at[1];
            }
        }
    }
}

struct Tiles {
    OperandTile<cfg::BLOCK_M, TILE_K_MAJOR<cfg::A_K_MAJOR>> a;
    OperandTile<cfg::BLOCK_N, TILE_K_MAJOR<cfg::B_K_MAJOR>> b;
};

template <bool WHOLE>
__device__ __forceinline__ void sum_up(WarpSums &sums, Tiles *stages, const Gemm &args, const Tile &tile, int m0, int n0) {
    const Operand a = of_group(args.a, tile.group), b = of_group(args.b, tile.group);
    const Copies<cfg::BLOCK_M, cfg::A_K_MAJOR, WHOLE> copy_a(a, tile.m, args.M, args.K);
    const Copies<cfg::BLOCK_N, cfg::B_K_MAJOR, WHOLE> copy_b(b, tile.n, args.N, args.K);
    const int steps = (args.K + cfg::BLOCK_K - 1) / cfg::BLOCK_K;
    const auto ask = [&](int step, Tiles &to) {
        copy_a(to.a, step * cfg::BLOCK_K);
        copy_b(to.b, step * cfg::BLOCK_K);
    };
    begin_steps(stages, ask);
    multiply_steps<TILE_K_MAJOR<cfg::A_K_MAJOR>, TILE_K_MAJOR<cfg::B_K_MAJOR>>(sums, stages, steps, m0, n0, ask);
}

extern "C" __global__ void __launch_bounds__(THREADS) gemm_mma(const __grid_constant__ Gemm args) {
    DYNAMIC_SHARED(Tiles, stages);
    const Tile tile = tile_of(args);
    const int warp = threadIdx.x / 32, m0 = warp / WARPS_N * cfg::WARP_M, n0 = warp % WARPS_N * cfg::WARP_N;
    WarpSums sums = {};
    if (whole_pieces<cfg::A_K_MAJOR>(args.a, args.M, args.K) && whole_pieces<cfg::B_K_MAJOR>(args.b, args.N, args.K))
        sum_up<true>(sums, stages, args, tile, m0, n0);
    else
        sum_up<false>(sums, stages, args, tile, m0, n0);
    put_sums(args, tile, m0, n0, sums);
}
