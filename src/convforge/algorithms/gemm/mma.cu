// gemm_mma: tensor cores of any GPU since Ampere multiply 16-bit matrices, tiles of which lie in shared memory.
//
// Since gemm_warp_tiled: a warp multiplies 16 x 16 numbers of A by 16 x 8 of B in one instruction, whose factors its
// lanes hold together (mma.cuh). It takes the place of 64 multiply-adds of each lane.
// Threads   WARPS_M x WARPS_N warps, each with WARP_M x WARP_N of the tile: WARP_M / 16 x WARP_N / 8 products for each
//           16 of K.
// Tiles     STAGES of BLOCK_M x BLOCK_K of A and of BLOCK_K x BLOCK_N of B, in the order that they have in memory
//           (mma_tiles.cuh): nothing is transposed by hand, ldmatrix reads either way.
// Copies    STAGES - 1 tiles ahead, by cp.async.
// Any       M, N, K, strides, alignment: pieces that are not whole, or not aligned, are brought number by number.
// Limit     tensor cores, which wait for shared memory: a warp reads (WARP_M + WARP_N) x 16 numbers for each of
//           WARP_M x WARP_N x 16 products.
#include "gemm.cuh"
#include "mma_tiles.cuh"

// Store a warp's sums, of which a lane has two neighbouring columns of rows g and g + 8 of each product.
__device__ inline void put_sums(const Gemm &args, const Tile &tile, int m0, int n0, const WarpSums &sums) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const bool pairs = args.store.vectors && !C_NEAR_M;
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
            const float *own = sums[i / 2][j] + i % 2 * 2;
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

extern "C" __global__ void __launch_bounds__(THREADS) gemm_mma(const __grid_constant__ Gemm args) {
    struct Tiles {
        OperandTile<BLOCK_M, BLOCK_K, A_DEEP> a;
        OperandTile<BLOCK_N, BLOCK_K, B_DEEP> b;
    };
    DYNAMIC_SHARED(Tiles, stages);
    const Tile tile = tile_of(args);
    const Operand a = of_group(args.a, tile.group), b = of_group(args.b, tile.group);
    const int warp = threadIdx.x / 32, m0 = warp / WARPS_N * WARP_M, n0 = warp % WARPS_N * WARP_N;
    const auto ask = [&](int k0) {  // a commit for every step, so that waiting can count them
        if (k0 < args.K) {
            Tiles &target = stages[k0 / BLOCK_K % STAGES];
            copy_lines<BLOCK_M, BLOCK_K, A_DEEP>(target.a, a, tile.m, k0, args.M, args.K);
            copy_lines<BLOCK_N, BLOCK_K, B_DEEP>(target.b, b, tile.n, k0, args.N, args.K);
        }
        copy_async_commit();
    };
    for (int stage = 0; stage < STAGES - 1; stage++) ask(stage * BLOCK_K);
    WarpSums sums = {};
    for (int k0 = 0; k0 < args.K; k0 += BLOCK_K) {
        copy_async_wait<STAGES - 2>();  // this thread's part of the tile has landed,
        __syncthreads();                // so has every other's, and all are done with the tile before it
        ask(k0 + (STAGES - 1) * BLOCK_K);
        const Tiles &now = stages[k0 / BLOCK_K % STAGES];
        multiply_tiles<A_DEEP, B_DEEP>(sums, now.a, now.b, m0, n0);
    }
    put_sums(args, tile, m0, n0, sums);
}
