// implicit_gemm_wgmma: implicit GEMM on Hopper's tensor cores. One warpgroup loads tiles, two multiply them.
//
// Since implicit_gemm_mma: no thread gathers pixels, and no lane holds fragments of A or B. The TMA loads
//           pixels and filters to shared memory in the order that the tensor cores read, and stores the results.
//           Threads only issue instructions, wait, and apply the epilogue. x and w have 16 bits, or are floats of which
//           the first 19 bits are multiplied (TF32), or bytes, in NHWC. Sums are floats, or of integers int.
//
// Threads   three warpgroups of 128 threads: a producer, of which two threads load, and two consumers, which multiply.
//           Registers move from the producer to the consumers.
// Layout    out (NPQ x K) = columns (NPQ x RSC) times weights (RSC x K), in steps of one tap and 64 channels of 16
//           bits, or 32 floats: a row of 128 bytes for each pixel or filter (ROW_BYTES: 64 or 32 for few channels). A
//           tile has BLOCK_PIXELS x BLOCK_FILTERS outputs. Persistent grid, one block an SM. Either operand may have
//           the 64 rows of a product; FILTERS_ON_M selects the better fit. PATCH: a tile is 8 outputs wide. The pixels
//           for all taps of a row of channels are loaded once, as a patch with halo, and a tap is an offset into it.
//           Otherwise the pixels of each tap are loaded separately, in im2col mode.
// Producer  one thread loads pixels and one loads filters, each ahead in its own ring (PIXEL_STAGES, FILTER_STAGES)
//           with full and empty barriers. RESIDENT: all filters stay in shared memory.
// Consumer  cooperative: each warpgroup has half of a tile's rows. PING_PONG: each has its own tiles, and one applies
//           the epilogue while the other multiplies.
// Finish    the epilogue in registers; results are rounded, transposed in shared memory to the order of out, and stored
//           by the TMA while the next tile is multiplied. SCATTERED: threads store them, in any layout and type.
// Needs     zeros at the border; rows of channels, addresses and strides that are multiples of 16 bytes. pixel_rows.cu
//           repacks other x. Groups: channels of a group fill whole products.
// Limit     tensor cores; if K is small, memory.
// Bytes     TWO_LEVELS: the sums of one row of 8-bit floats are added to others by multiply-add units, because the
//           tensor cores keep 14 bits of them. ZERO_POINT: that of integer pixels is subtracted from the sums
//           (zero_point.cuh). Results of one byte are four filters of a pixel in a word, after lanes have exchanged
//           bytes (bytes.cuh). AMAX: the largest absolute value of the results is kept as well (amax.cuh).
//           PASSES: weights of int16 from -255 to 255 are differences of two bytes, floor(w / 2) - (-ceil(w / 2)). The
//           first pass adds up products with -ceil(w / 2), the second those with floor(w / 2), after the sums have been
//           negated.
// implicit_gemm_tf32, implicit_gemm_int8 and implicit_gemm_fp8 are this kernel on other types; the host passes their
// names.
#include "wgmma_results.cuh"

constexpr int THREADS = WARPGROUP * (1 + CONSUMERS);
// Without a wait between taps, the compiler would keep the sums of several taps in registers.
constexpr int UNROLLED = cfg::TWO_LEVELS && cfg::RESIDENT ? 1 : TAPS_AT_ONCE;

struct Memory : Factors<MULTIPLY_ADD>, Classes<cfg::ZERO_POINT> {
    alignas(1024) unsigned char results[CONSUMERS][OUT_BYTES];
    alignas(1024) unsigned char pixels[cfg::PIXEL_STAGES][PIXEL_BYTES];
    alignas(1024) unsigned char filters[cfg::FILTER_STAGES][FILTER_BYTES];
};
static_assert(sizeof(Memory) + 1024 - 128 <= cfg::SHARED_BYTES,
              "the host asks for the shared memory that a block uses");

struct Barriers {
    unsigned long long pixels_full[cfg::PIXEL_STAGES], pixels_empty[cfg::PIXEL_STAGES];
    unsigned long long filters_full[cfg::FILTER_STAGES], filters_empty[cfg::FILTER_STAGES];
    unsigned long long turn[CONSUMERS];  // the consumer that may multiply
};

// Producer.
__device__ inline void load_pixels(const Wgmma &args, Memory *memory, Barriers &bars) {
    Ring<cfg::PIXEL_STAGES> ring{0, 1};
    for (int tile = blockIdx.x; tile < args.tiling.tiles; tile += gridDim.x) {
        const Place at = place_of(args.tiling, tile);
        const Windows from = windows_of(args.conv, args.tiling, at);
        for (int i = 0; i < STAGES_OF_TILE; i++, ring.next()) {
            unsigned long long *there = &bars.pixels_full[ring.stage];
            const int tap = cfg::PATCH ? 0 : i % TAPS, c = at.c + channel_of(cfg::PATCH ? i : i / TAPS);
            mbarrier_wait(&bars.pixels_empty[ring.stage], ring.parity);
            mbarrier_expect_tx(there, PIXEL_ROWS * cfg::ROW_BYTES);
            if (cfg::PATCH)
#pragma unroll
                for (int i = 0; i < PHASES; i++)
                    tma_load(memory->pixels[ring.stage] + i * PHASE_BYTES, args.pixels, c, from.w + i % PHASES_W,
                             from.h + i / PHASES_W, from.n, there);
            else load_windows(memory->pixels[ring.stage], args.pixels, c, from, tap, there);
        }
    }
}

// Consumer: adds the products of a row of channels of a tile's pixels and filters to the sums, or sets the sums.
__device__ __forceinline__ void multiply_row(acc_t (&sums)[cfg::ROWS_64][SUMS], const unsigned char *pixels,
                                             const unsigned char *filters, int share, bool adds) {
    constexpr int PIECES = PRODUCT_BYTES / 16;
#pragma unroll
    for (int i = 0; i < PRODUCTS; i++)
#pragma unroll
        for (int t = 0; t < cfg::ROWS_64; t++) {
            const int row = share * cfg::ROWS_64 + t;
            const int filters_in = cfg::FILTERS_ON_M ? row * 8 * EIGHT_ROWS : 0;
            const int pixels_in = cfg::FILTERS_ON_M ? 0 : row * 8 * PIXEL_PITCH;
            const auto of_filters = k_major_matrix<cfg::ROW_BYTES>(filters + filters_in, EIGHT_ROWS) + PIECES * i;
            const auto of_pixels = k_major_matrix<cfg::ROW_BYTES>(pixels + pixels_in, PIXEL_PITCH) + PIECES * i;
            if (cfg::FILTERS_ON_M) wgmma(sums[t], of_filters, of_pixels, adds || i > 0);
            else wgmma(sums[t], of_pixels, of_filters, adds || i > 0);
        }
}

// Consumer: negates the sums between the passes, when their products are complete. Nothing overflows:
// |floor(w / 2)| <= |w| and |ceil(w / 2)| <= |w|. So every sum on the way is at most as large as the problem's bound,
// in which each pixel and weight has its largest magnitude.
__device__ __forceinline__ void negate(acc_t (&sums)[cfg::ROWS_64][SUMS]) {
    wgmma_wait<0>();
#pragma unroll
    for (int t = 0; t < cfg::ROWS_64; t++)
#pragma unroll
        for (int e = 0; e < SUMS; e++) sums[t][e] = -sums[t][e];
}

__device__ inline void multiply_tiles(const Wgmma &args, Memory *memory, Barriers &bars, int warpgroup) {
    const bool elected = threadIdx.x % WARPGROUP == 0;
    const int share = cfg::PING_PONG ? 0 : warpgroup;  // of the tile's rows
    unsigned char *results = memory->results[warpgroup];
    Ring<cfg::PIXEL_STAGES> pixels;
    Ring<cfg::FILTER_STAGES> filters;
    int turn = 0;
    unsigned parity = warpgroup ^ 1;
    bool first = true;
    for (int tile = blockIdx.x; tile < args.tiling.tiles; tile += gridDim.x, turn ^= 1) {
        if (cfg::PING_PONG && turn != warpgroup) {
            pixels.skip(STAGES_OF_TILE);
            if (!cfg::RESIDENT) filters.skip(STEPS);
            continue;
        }
        const Place at = place_of(args.tiling, tile);
        acc_t sums[cfg::ROWS_64][SUMS];
        acc_t sums_of_row[cfg::ROWS_64][SUMS];  // TWO_LEVELS
        if (cfg::TWO_LEVELS)
#pragma unroll
            for (int e = 0; e < cfg::ROWS_64 * SUMS; e++) sums[e / SUMS][e % SUMS] = 0;
        if (cfg::PING_PONG) {
            mbarrier_wait(&bars.turn[warpgroup], parity);
            parity ^= 1;
        }
        int filters_before = -1, pixels_before = -1;  // stages that products in flight may still read
        for (int slice = 0; slice < SLICES * cfg::PASSES; slice++) {
            if (cfg::PASSES == 2 && slice == SLICES) negate(sums);
#pragma unroll UNROLLED
            for (int tap = 0; tap < TAPS; tap++) {
                const int step = slice * TAPS + tap, stage = cfg::RESIDENT ? step : filters.stage;
                if (!cfg::PATCH || tap == 0) mbarrier_wait(&bars.pixels_full[pixels.stage], pixels.parity);
                if (!cfg::RESIDENT || first)
                    mbarrier_wait(&bars.filters_full[stage], cfg::RESIDENT ? 0 : filters.parity);
                const unsigned char *pixel = memory->pixels[pixels.stage] + tap_offset(tap);
                const unsigned char *filter = memory->filters[stage];
                wgmma_fence();
                if constexpr (cfg::TWO_LEVELS) {
                    multiply_row(sums_of_row, pixel, filter, share, false);
                    wgmma_commit();
                    wgmma_wait<0>();
#pragma unroll
                    for (int t = 0; t < cfg::ROWS_64; t++)
#pragma unroll
                        for (int e = 0; e < SUMS; e++) sums[t][e] += sums_of_row[t][e];
                } else {
                    multiply_row(sums, pixel, filter, share, step > 0);
                    wgmma_commit();
                    wgmma_wait<1>();
                }
                release_stage<cfg::PAIRS_FILTERS>(&bars.filters_empty[max(filters_before, 0)],
                                                  !cfg::RESIDENT && filters_before >= 0);
                release_stage<cfg::PAIRS_PIXELS>(&bars.pixels_empty[max(pixels_before, 0)],
                                                 pixels_before >= 0 && (!cfg::PATCH || tap == 0));
                filters_before = stage;
                if (!cfg::PATCH || tap == TAPS - 1) pixels_before = pixels.stage, pixels.next();
                if (!cfg::RESIDENT) filters.next();
            }
        }
        first = false;
        wgmma_wait<0>();
        release_stage<cfg::PAIRS_FILTERS>(&bars.filters_empty[max(filters_before, 0)], !cfg::RESIDENT);
        release_stage<cfg::PAIRS_PIXELS>(&bars.pixels_empty[max(pixels_before, 0)], true);
        mbarrier_arrive_if(&bars.turn[warpgroup ^ 1], elected && cfg::PING_PONG);

        // Of split-K, the first share subtracts the zero point.
        if (cfg::ZERO_POINT && (cfg::SPLIT_K == 1 || at.share == 0)) {
            write_classes(args, at, memory, warpgroup);
#pragma unroll
            for (int t = 0; t < cfg::ROWS_64; t++)
                subtract_zero_point(args, at, memory, warpgroup, sums[t], share * cfg::ROWS_64 + t);
        }
        Largest largest;
        if constexpr (cfg::SCATTERED) {
            const int lane = threadIdx.x % 32, warp = threadIdx.x % WARPGROUP / 32;
#pragma unroll
            for (int t = 0; t < cfg::ROWS_64; t++) {
                const int row = 64 * (share * cfg::ROWS_64 + t) + 16 * warp + lane / 4;
                store_sums(args.conv, args.tiling, at, sums[t], row, lane % 4 * 2, args.store_width, largest);
            }
        } else {
            if (elected) tma_store_wait_read();
            load_factors(args.conv, at, memory, warpgroup);
            warpgroup_sync(warpgroup);
            const Finish finish = finish_of(args.conv);
            const bool within =
                MULTIPLY_ADD && (!cfg::RESIDUAL || finish.words) && all_within(memory, warpgroup, finish);
#pragma unroll
            for (int t = 0; t < cfg::ROWS_64; t++)
                if constexpr (!IN_BYTES)
                    transpose_results(args, at, sums[t], share * cfg::ROWS_64 + t, t, results, largest);
                else if (MULTIPLY_ADD && within)
                    transpose_bytes<true>(args, at, sums[t], share * cfg::ROWS_64 + t, t, memory, warpgroup, finish,
                                          results, largest);
                else
                    transpose_bytes<false>(args, at, sums[t], share * cfg::ROWS_64 + t, t, memory, warpgroup, finish,
                                           results, largest);
            fence_proxy_async();
            warpgroup_sync(warpgroup);
            if (elected) {
#pragma unroll
                for (int t = 0; t < cfg::ROWS_64; t++) store_results(args, at, share * cfg::ROWS_64 + t, t, results);
                tma_store_commit();
            }
        }
        largest.store(args);
    }
    if (elected && !cfg::SCATTERED) tma_store_wait();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) implicit_gemm_wgmma(const __grid_constant__ Wgmma args) {
    TMA_SHARED(unsigned char, shared);
    Memory *memory = reinterpret_cast<Memory *>(shared + (-shared_address(shared) & 1023));
    __shared__ Barriers bars;
    const int warpgroup = threadIdx.x / WARPGROUP;
    if (threadIdx.x == 0) {
        for (int i = 0; i < cfg::PIXEL_STAGES; i++) {
            mbarrier_init(&bars.pixels_full[i], 1);
            mbarrier_init(&bars.pixels_empty[i], GROUPS_OF_TILE * (cfg::PAIRS_PIXELS ? 2 : 1));
        }
        for (int i = 0; i < cfg::FILTER_STAGES; i++) {
            mbarrier_init(&bars.filters_full[i], 1);
            mbarrier_init(&bars.filters_empty[i], GROUPS_OF_TILE * (cfg::PAIRS_FILTERS ? 2 : 1));
        }
        for (int i = 0; i < CONSUMERS; i++) mbarrier_init(&bars.turn[i], 1);
        mbarrier_init_fence();
        prefetch_tensormap(args.pixels);
        prefetch_tensormap(args.filters);
        if (!cfg::SCATTERED) prefetch_tensormap(args.results);
    }
    cluster_begin<PAIRED>();
    pdl_wait();
    if (warpgroup == 0) {
        setmaxnreg_dec<40>();
        if (threadIdx.x == 0) load_pixels(args, memory, bars);
        if (threadIdx.x == 32)
            load_filters(args.filters, args.tiling, memory->filters, bars.filters_full, bars.filters_empty);
    } else {
        setmaxnreg_inc<232>();
        multiply_tiles(args, memory, bars, warpgroup - 1);
    }
    if (PAIRED) cluster_sync();
}
