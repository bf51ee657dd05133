// The SPLIT variants of functions of few_channels.cu, whose factors are halves of floats. few_channels.cu includes this
// file in the middle, because these functions use its patch, filters and sums.
//
// Scale     one for the whole patch of a tile, so that sums are scaled back once, when they are complete.
// Range     a patch cannot be split if it has Inf, NaN or numbers out of range; or a pixel or channel whose numbers are
//           all so small relative to the largest of the patch that they lose bits; or more than MOST_LOST such numbers.
//           An output may be the sum of those alone. Zeros do not count. The outputs of such a tile are computed from
//           the floats (border.cuh), and so are those of filters that split_filters.cu marks.
// Sums      tensor cores truncate sums, floats round them. So the sums of 32 of K begin at zero (split.cuh).
#pragma once
#include "border.cuh"
#include "mma.cuh"
#include "split.cuh"

constexpr int MOST_LOST = 8;  // numbers of a patch that may lose bits, if others of their pixels and channels do not

// Stages a patch as halves. A thread first writes its pixels as floats, to the place of their halves, and reads only
// those.
__device__ inline void stage_halves(Shared &shared, const Conv &conv, const Tile &tile) {
    const Stager stager(conv, tile, true);
    unsigned largest[cfg::C] = {}, most = 0;  // bits of magnitudes: they have the same order, with NaN above Inf
    const auto place = [&](int i, int number) -> unsigned & {
        return shared.patches[number / cfg::C][0][stager.first_word(i) + number % cfg::C];
    };
#pragma unroll 1
    for (int first = 0; first < PER_THREAD; first += TWOS_AT_ONCE) {
        Two twos[TWOS_AT_ONCE];
#pragma unroll
        for (int j = 0; j < TWOS_AT_ONCE; j++) twos[j] = stager.load(first + j);
#pragma unroll
        for (int j = 0; j < TWOS_AT_ONCE; j++) {
            const bool exists = stager.exists(first + j);
#pragma unroll
            for (int number = 0; number < 2 * cfg::C; number++) {
                const unsigned bits = bits_of(twos[j].numbers[number]);
                largest[number % cfg::C] = max(largest[number % cfg::C], bits & 0x7fffffffu);
                if (exists) place(first + j, number) = bits;
            }
        }
    }
#pragma unroll
    for (int c = 0; c < cfg::C; c++) {
        const unsigned of_warp = __reduce_max_sync(0xffffffffu, largest[c]);
        if (threadIdx.x % 32 == 0) shared.largest[threadIdx.x / 32][c] = of_warp;
    }
    if (threadIdx.x == 0) shared.lost = 0;
    __syncthreads();  // the largest number of each warp is known
#pragma unroll
    for (int c = 0; c < cfg::C; c++) {
        for (int i = 0; i < THREADS / 32; i++) largest[c] = max(largest[c], shared.largest[i][c]);
        most = max(most, largest[c]);
    }
    const Scale scale = scale_of(float_of(most), SHIFT);
    int lost = cannot_split(float_of(most)) ? MOST_LOST + 1 : 0;
#pragma unroll
    for (int c = 0; c < cfg::C; c++)
        if (largest[c] > 0 && float_of(largest[c]) * scale.up < IN_FULL) lost += MOST_LOST + 1;
#pragma unroll 2
    for (int i = 0; i < PER_THREAD; i++) {
        if (!stager.exists(i)) continue;
        float numbers[2 * cfg::C];
        int small[2] = {}, kept[2] = {};  // of each pixel; zeros are neither
#pragma unroll
        for (int number = 0; number < 2 * cfg::C; number++) {
            const float given = float_of(place(i, number));
            numbers[number] = given * scale.up;
            const bool keeps = fabsf(numbers[number]) >= IN_FULL;
            kept[number / cfg::C] += keeps, small[number / cfg::C] += !keeps && given != 0;
        }
#pragma unroll
        for (int j = 0; j < 2; j++) lost += small[j] > 0 && kept[j] == 0 ? MOST_LOST + 1 : small[j];
        Pairs high, low;
#pragma unroll
        for (int j = 0; j < cfg::C; j++)
            split_pair(numbers[2 * j], numbers[2 * j + 1], high[j].word.bits, low[j].word.bits);
        stager.put(shared.patches[0], i, high);
        stager.put(shared.patches[1], i, low);
    }
    if (lost > 0) atomicAdd(&shared.lost, lost);
    if (threadIdx.x == 0) shared.down = scale.down;
}

// True if the patch cannot be split.
__device__ inline bool is_lost(const Shared &shared) { return shared.lost > MOST_LOST; }

constexpr int STEP_PARTS = 2;  // steps in one sum of tensor cores, which truncate: 32 of K; floats add these sums
constexpr int PARTS_AT_ONCE = STEPS <= 4 ? 2 : 1;  // in straight-line code; more would take too many registers

// Adds up a warp's sums, as for 16 bits.
__device__ __forceinline__ void multiply_halves_of_patch(WarpSums &sums, const unsigned *pixels, const Words *words,
                                                         const Columns *filters) {
    constexpr int NEXT_STEP = cfg::BLOCK_N / 16 * 32, LOW_PIXELS = sizeof(Patch) / sizeof(unsigned);
#pragma unroll PARTS_AT_ONCE
    for (int first = 0; first < STEPS; first += STEP_PARTS) {
        unsigned a[STEP_PARTS][HALVES][cfg::FRAGMENTS][4];
#pragma unroll
        for (int part = 0; part < STEP_PARTS; part++)
#pragma unroll
            for (int half = 0; half < HALVES; half++)
                if (STEPS % STEP_PARTS == 0 || first + part < STEPS)
                    load_pixels(a[part][half], pixels + half * LOW_PIXELS, words, first + part);
#pragma unroll
        for (int j = 0; j < COLUMNS / 2; j++) {
            Columns b[STEP_PARTS][HALVES];
#pragma unroll
            for (int part = 0; part < STEP_PARTS; part++)
#pragma unroll
                for (int half = 0; half < HALVES; half++)
                    if (STEPS % STEP_PARTS == 0 || first + part < STEPS)
                        b[part][half] = filters[(half * STEPS + first + part) * NEXT_STEP + j * 32];
#pragma unroll
            for (int i = 0; i < cfg::FRAGMENTS * 2; i++) {
                const int fragment = i / 2, eight = i % 2;
                float main[4] = {}, cross[4] = {};
#pragma unroll
                for (int part = 0; part < STEP_PARTS; part++) {
                    if (STEPS % STEP_PARTS && first + part == STEPS) continue;
                    mma_halves<math_t>(main, a[part][0][fragment], b[part][0].words[eight]);
                    mma_halves<math_t>(cross, a[part][0][fragment], b[part][1].words[eight]);
                    mma_halves<math_t>(cross, a[part][1][fragment], b[part][0].words[eight]);
                }
#pragma unroll
                for (int e = 0; e < 4; e++) sums[fragment][2 * j + eight][e] += fmaf(cross[e], 1 / LOW, main[e]);
            }
        }
    }
}

// Undoes the scales of the patch and of the warp's filters, which begin at filter n0 of the block.
__device__ __forceinline__ void unscale(WarpSums &sums, const Shared &shared, int n0) {
#pragma unroll
    for (int i = 0; i < cfg::FRAGMENTS * COLUMNS * 4; i++) {
        const int fragment = i / (4 * COLUMNS), column = i / 4 % COLUMNS, e = i % 4;
        const float scale = shared.scales[n0 + 8 * column + 2 * (threadIdx.x % 4) + e % 2];
        sums[fragment][column][e] = sums[fragment][column][e] * shared.down * scale;
    }
}

// Loads the filters' scales. Returns true if some of the filters cannot be split.
__device__ inline bool keep_scales(Shared &shared, const FewChannels &args, int n0) {
    bool some = false;
    for (int i = threadIdx.x; i < cfg::BLOCK_N; i += THREADS) {
        shared.scales[i] = n0 + i < cfg::K ? args.scales[n0 + i] : 1;
        some |= shared.scales[i] == 0;
    }
    return __syncthreads_or(some);
}

// Computes a tile's outputs from the floats: of all filters of the block, or of those that cannot be split.
__device__ __noinline__ void store_plain_sums(const FewChannels &args, const Shared &shared, Tile tile, int n0) {
    const Conv &conv = args.conv;
    const bool every = is_lost(shared);
    __syncthreads();  // the sums of these outputs are stored
    for (int k = n0; k < cfg::K && k < n0 + cfg::BLOCK_N; k++) {
        if (!every && shared.scales[k - n0] != 0) continue;
        for (int i = threadIdx.x; i < cfg::TILE_H * cfg::TILE_W; i += THREADS) {
            const Column at = {tile.n, tile.p + i / cfg::TILE_W, tile.q + i % cfg::TILE_W};
            if (at.p < conv.P && at.q < conv.Q)
                store_output(conv, at.n, k, at.p, at.q, plain_sum(conv, args.w_strides, at, k, 0, 0, cfg::C));
        }
    }
    if (every && threadIdx.x == 0) atomicAdd(args.redone, 1u);
}
