// gemm_wgmma: products of 16-bit numbers on Hopper's tensor cores. One warpgroup loads tiles, two multiply them.
//
// Since gemm_mma: the tensor cores read shared memory themselves, so no lane holds fragments of A or B. The
//           TMA loads tiles in the order that the tensor cores read, and stores the results. Threads only issue
//           instructions, wait and round. Sums are floats.
//
// Threads   three warpgroups of 128 threads: a producer, of which two threads load, one A and one B; and two consumers,
//           which multiply. Registers move from the producer to the consumers (setmaxnreg).
// Tiles     BLOCK_M x BLOCK_N of C, in steps of 64 along K. Persistent grid: a block computes tile after tile, in
//           groups of GROUP rows of tiles, so that concurrent tiles share rows of A and columns of B in L2.
// Layout    rows of 128 bytes, swizzled. K-major: 64 numbers along K of a row of A or a column of B. MN-major
//           (A_ACROSS, B_ACROSS): 64 numbers along M or N, 64 rows along K, one box after another. The tensor cores
//           read both, so neither operand is transposed.
// Producer  each thread waits for a free stage of the ring, then issues the copies of its operand: one box, or BLOCK /
//           64 boxes if M or N is ragged. One barrier for each stage counts the bytes of both operands. PAIRED: two
//           blocks, a cluster, compute tiles with the same columns of B in step. Each loads half of B's part for both
//           (multicast). A stage is free when both have read it.
// Consumer  cooperative: each has half of a tile's rows. PING_PONG: each has its own tiles, and one stores while the
//           other multiplies. A stage is free after the products of the next one have been issued.
// Store     64 x 64 results at a time: rounded, written to one of two boxes of shared memory by stmatrix, stored by the
//           TMA.
// Any       M, N, K: the TMA loads zeros outside the matrices and stores nothing there. Rows, addresses and strides
//           must be multiples of 16 bytes.
// Limit     tensor cores; with small tiles, L2.
#include "tma.cuh"
#include "types.cuh"
#include "wgmma.cuh"

constexpr int WARPGROUP = 128, CONSUMERS = 2, THREADS = WARPGROUP * (1 + CONSUMERS);
constexpr int GROUPS_OF_TILE = cfg::PING_PONG ? 1 : 2;         // warpgroups that share a tile
constexpr int ROWS_64 = cfg::BLOCK_M / (64 * GROUPS_OF_TILE);  // products of 64 rows of a warpgroup
constexpr int STEP_K = 64, ROW_BYTES = 128, BOX_BYTES = 64 * ROW_BYTES;
constexpr int OF_CLUSTER = cfg::PAIRED ? 2 : 1;                // blocks of a cluster, neighbours along M
constexpr int PRODUCTS = STEP_K / 16;                          // of 16 along K, in a step
static_assert(ROWS_64 >= 1 && cfg::BLOCK_M == 64 * GROUPS_OF_TILE * ROWS_64, "warpgroups multiply whole 64 rows");
static_assert(cfg::BLOCK_N % 64 == 0 && cfg::BLOCK_N <= 256, "results are stored 64 columns at a time");

struct Wgmma {
    TensorMap a, b, c;
    int tiles_m, tiles_n, steps;  // tiles_m: rows of tiles of a cluster
    int boxes_a, boxes_b;  // copies that load an operand's part of a stage
};

struct Memory {
    alignas(1024) unsigned char results[CONSUMERS][2][BOX_BYTES];
    alignas(1024) unsigned char a[cfg::STAGES][cfg::BLOCK_M * ROW_BYTES];
    alignas(1024) unsigned char b[cfg::STAGES][cfg::BLOCK_N * ROW_BYTES];
};
static_assert(sizeof(Memory) + 1024 - 128 <= cfg::SHARED_BYTES,
              "the host asks for the shared memory that a block uses");

struct Barriers {
    unsigned long long full[cfg::STAGES], empty[cfg::STAGES];
    unsigned long long turn[CONSUMERS];  // the consumer that may multiply
};

// The first row and column of a tile. Tiles are numbered down GROUP rows of tiles, then along columns.
struct Place {
    int m, n;
};
__device__ inline Place place_of(const Wgmma &args, int tile) {
    const int all = tile / OF_CLUSTER, group = all / (cfg::GROUP * args.tiles_n), first = group * cfg::GROUP;
    const int rows = min(args.tiles_m - first, cfg::GROUP), in_group = all - first * args.tiles_n;
    return {((first + in_group % rows) * OF_CLUSTER + tile % OF_CLUSTER) * cfg::BLOCK_M,
            in_group / rows * cfg::BLOCK_N};
}
__device__ inline int tiles_of(const Wgmma &args) { return args.tiles_m * args.tiles_n * OF_CLUSTER; }

// Producer: one thread loads one operand, IS_A or B.
template <bool IS_A>
__device__ inline void load_operand(const Wgmma &args, Memory *memory, Barriers &bars) {
    constexpr bool ACROSS = IS_A ? cfg::A_ACROSS : cfg::B_ACROSS;
    constexpr bool SHARED = cfg::PAIRED && !IS_A;  // this block loads half of it for both blocks
    constexpr int BYTES = (IS_A ? cfg::BLOCK_M : cfg::BLOCK_N) * ROW_BYTES,
                  BLOCK = IS_A ? cfg::BLOCK_M : cfg::BLOCK_N / OF_CLUSTER;
    const TensorMap &map = IS_A ? args.a : args.b;
    const int boxes = IS_A ? args.boxes_a : args.boxes_b;
    const int part = SHARED ? cluster_rank() : 0;
    const auto copy = [&](unsigned char *to, int x, int y, int z, unsigned long long *full) {
        if (SHARED) tma_load_multicast(3, to, map, x, y, z, full);
        else tma_load(to, map, x, y, z, full);
    };
    Ring<cfg::STAGES> ring{0, 1};
    for (int tile = blockIdx.x; tile < tiles_of(args); tile += gridDim.x) {
        const Place at = place_of(args, tile);
        const int x = (IS_A ? at.m : at.n) + part * BLOCK;
        for (int step = 0; step < args.steps; step++, ring.next()) {
            unsigned long long *full = &bars.full[ring.stage];
            unsigned char *to = (IS_A ? memory->a[ring.stage] : memory->b[ring.stage]) + part * BLOCK * ROW_BYTES;
            mbarrier_wait(&bars.empty[ring.stage], ring.parity);
            mbarrier_expect_tx(full, BYTES);
            if (!ACROSS) copy(to, step * STEP_K, x, 0, full);
            else if (BLOCK > 64 && boxes == 1)  // the map has 64 by 64 of M or N
                copy(to, 0, step * STEP_K, x / 64, full);
            else
                for (int i = 0; i < boxes; i++) copy(to + i * BOX_BYTES, x + 64 * i, step * STEP_K, 0, full);
        }
    }
}

// Consumer: adds the products of a step to the sums, or sets the sums in the first step.
__device__ __forceinline__ void multiply_step(float (&sums)[ROWS_64][SUMS], const unsigned char *a,
                                              const unsigned char *b, int share, bool adds) {
    constexpr int NEXT_A = cfg::A_ACROSS ? 16 * ROW_BYTES / 16 : 2, NEXT_B = cfg::B_ACROSS ? 16 * ROW_BYTES / 16 : 2;
    const auto of_b = cfg::B_ACROSS ? mn_major_matrix(b, BOX_BYTES) : k_major_matrix(b, 8 * ROW_BYTES);
#pragma unroll
    for (int i = 0; i < PRODUCTS; i++)
#pragma unroll
        for (int t = 0; t < ROWS_64; t++) {
            // 64 rows of A take the same number of bytes in both layouts: 64 rows of a K-major part, or one MN-major
            // box.
            const unsigned char *rows = a + (share * ROWS_64 + t) * BOX_BYTES;
            const auto of_a = cfg::A_ACROSS ? mn_major_matrix(rows, BOX_BYTES) : k_major_matrix(rows, 8 * ROW_BYTES);
            wgmma(sums[t], of_a + NEXT_A * i, of_b + NEXT_B * i, adds || i > 0);
        }
}

// Writes 64 x 64 rounded results to a box of shared memory, whose rows of 128 bytes are swizzled.
__device__ inline void round_results(const float (&sums)[SUMS], int first, unsigned char *box) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % WARPGROUP / 32 * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        unsigned v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int e = 4 * (first / 8 + j + i / 2) + 2 * (i % 2);
            v[i] = narrow_pair<out_t>(sums[e], sums[e + 1]);
        }
        stmatrix<false>(box + row * ROW_BYTES + ((j + lane / 16) ^ row % 8) * 16, v);
    }
}

__device__ inline void multiply_tiles(const Wgmma &args, Memory *memory, Barriers &bars, int warpgroup) {
    const bool elected = threadIdx.x % WARPGROUP == 0;
    const int share = cfg::PING_PONG ? 0 : warpgroup;  // of the tile's rows
    Ring<cfg::STAGES> ring;
    int turn = 0;
    unsigned parity = warpgroup ^ 1;
    for (int tile = blockIdx.x; tile < tiles_of(args); tile += gridDim.x, turn ^= 1) {
        if (cfg::PING_PONG && turn != warpgroup) {
            ring.skip(args.steps);
            continue;
        }
        float sums[ROWS_64][SUMS];
        if (cfg::PING_PONG) {
            mbarrier_wait(&bars.turn[warpgroup], parity);
            parity ^= 1;
        }
        int before = -1;  // a stage that products in flight may still read
        for (int step = 0; step < args.steps; step++, ring.next()) {
            mbarrier_wait(&bars.full[ring.stage], ring.parity);
            wgmma_fence();
            multiply_step(sums, memory->a[ring.stage], memory->b[ring.stage], share, step > 0);
            wgmma_commit();
            wgmma_wait<1>();
            release_stage<cfg::PAIRED>(&bars.empty[max(before, 0)], before >= 0);
            before = ring.stage;
        }
        wgmma_wait<0>();
        release_stage<cfg::PAIRED>(&bars.empty[before], true);
        mbarrier_arrive_if(&bars.turn[warpgroup ^ 1], elected && cfg::PING_PONG);

        const Place at = place_of(args, tile);
#pragma unroll
        for (int t = 0; t < ROWS_64; t++)
#pragma unroll
            for (int first = 0; first < cfg::BLOCK_N; first += 64) {
                unsigned char *box = memory->results[warpgroup][(t * (cfg::BLOCK_N / 64) + first / 64) % 2];
                if (elected) tma_store_wait_read<1>();  // the previous box may still be in flight
                warpgroup_sync(warpgroup);
                round_results(sums[t], first, box);
                fence_proxy_async();
                warpgroup_sync(warpgroup);
                if (elected) {
                    tma_store(args.c, box, at.n + first, at.m + 64 * (share * ROWS_64 + t));
                    tma_store_commit();
                }
            }
        // The next tile begins with the first box, which must not be the box in flight.
        if (elected && ROWS_64 * (cfg::BLOCK_N / 64) % 2) tma_store_wait_read();
    }
    if (elected) tma_store_wait();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) gemm_wgmma(const __grid_constant__ Wgmma args) {
    TMA_SHARED(unsigned char, shared);
    Memory *memory = reinterpret_cast<Memory *>(shared + (-shared_address(shared) & 1023));
    __shared__ Barriers bars;
    const int warpgroup = threadIdx.x / WARPGROUP;
    if (threadIdx.x == 0) {
        for (int i = 0; i < cfg::STAGES; i++) {
            mbarrier_init(&bars.full[i], 2);  // the threads that load A and B
            mbarrier_init(&bars.empty[i], GROUPS_OF_TILE * OF_CLUSTER);
        }
        for (int i = 0; i < CONSUMERS; i++) mbarrier_init(&bars.turn[i], 1);
        mbarrier_init_fence();
        prefetch_tensormap(args.a);
        prefetch_tensormap(args.b);
        prefetch_tensormap(args.c);
    }
    cluster_begin<cfg::PAIRED>();
    pdl_wait();
    if (warpgroup == 0) {
        setmaxnreg_dec<40>();
        if (threadIdx.x == 0) load_operand<true>(args, memory, bars);
        if (threadIdx.x == 32) load_operand<false>(args, memory, bars);
    } else {
        setmaxnreg_inc<232>();
        multiply_tiles(args, memory, bars, warpgroup - 1);
    }
    if (cfg::PAIRED) cluster_sync();
}
