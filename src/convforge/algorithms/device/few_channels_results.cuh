// Results of few_channels.cu, which includes this file in the middle, because these functions use its tiles and sums.
//
// finish_filters<Out>(args, tile, n0, sums);    stores neighbouring filters of an output
// rescale_filters<Out>(args, tile, n0, sums);   the same for bytes that are computed in float (rescaled.cuh)
// finish_outputs<Out>(args, tile, n0, sums);    stores runs of outputs of a filter
//
// The results are a lane's, for the outputs from `tile` and the filters from n0 on.
#pragma once
#include "epilogue.cuh"
#include "rescaled.cuh"

// NHWC, or results without neighbours: two filters of an output of each product, or eight of four products.
template <class Out>
__device__ __forceinline__ void finish_filters(const FewChannels &args, const Tile &tile, int n0,
                                               const WarpSums &sums) {
    const Conv &conv = args.conv;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2 * cfg::FRAGMENTS; i++) {
        const int p = tile.p + row_of(i / 2), q = tile.q + output_of(i % LANE_OUTPUTS) + g;
        if (p >= conv.P || q >= conv.Q) continue;
        out_t *const first = conv.out + offset_of(conv.out_strides, tile.n, 0, p, q);
        const auto pair_of = [&](int j) {
            const int n = n0 + lane_column<IN_EIGHTS>(j, t);
            const float *own = sums[i / 2][j] + i % 2 * 2;
            Vector<Out, 2> pair;
            pair.word = {};
            constexpr bool EVERY = cfg::K % cfg::BLOCK_N == 0;
            if (EVERY || n < cfg::K) pair.at[0] = output_value(conv, tile.n, n, p, q, own[0]);
            if (EVERY || n + 1 < cfg::K) pair.at[1] = output_value(conv, tile.n, n + 1, p, q, own[1]);
            return pair;
        };
        if constexpr (IN_EIGHTS) {
            if (args.store_width == EIGHT) {
#pragma unroll
                for (int j = 0; j < COLUMNS; j += 4) {
                    Vector<Out, EIGHT> eight;
#pragma unroll
                    for (int v = 0; v < 4; v++) {
                        const Vector<Out, 2> pair = pair_of(j + v);
                        if constexpr (sizeof(Out) == 2) eight.word.bits[v] = pair.word.bits;
                        else eight.at[2 * v] = pair.at[0], eight.at[2 * v + 1] = pair.at[1];
                    }
                    const int n = n0 + lane_column<IN_EIGHTS>(j, t);
                    if (cfg::K % cfg::BLOCK_N == 0 || n < cfg::K) store_vector(first + n, eight);
                }
                continue;
            }
        }
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            const int n = n0 + lane_column<IN_EIGHTS>(j, t);
            if (n >= cfg::K) continue;
            const Vector<Out, 2> pair = pair_of(j);
            if (!cfg::ALONG_Q && args.store_width > 1) {
                store_vector(first + n, pair);
                continue;
            }
            const index_t step = conv.out_strides.c;
            first[n * step] = pair.at[0];
            if (n + 1 < cfg::K) first[(n + 1) * step] = pair.at[1];
        }
    }
}

// finish_filters for RESCALED results: a lane's filters of four products, or of one, at once.
template <class Out>
__device__ __forceinline__ void rescale_filters(const FewChannels &args, const Tile &tile, int n0,
                                                const WarpSums &sums) {
    constexpr int TOGETHER = IN_EIGHTS ? 4 : 1, FILTERS = 2 * TOGETHER;
    const Conv &conv = args.conv;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < COLUMNS; j += TOGETHER) {
        const int n = n0 + lane_column<IN_EIGHTS>(j, t);
        const RescaledFilters<Out, FILTERS> filters(conv, n, cfg::K - 1, true);
#pragma unroll
        for (int i = 0; i < 2 * cfg::FRAGMENTS; i++) {
            const int p = tile.p + row_of(i / 2), q = tile.q + output_of(i % LANE_OUTPUTS) + g;
            if (p >= conv.P || q >= conv.Q || n >= cfg::K) continue;
            float own[FILTERS];
#pragma unroll
            for (int v = 0; v < FILTERS; v++) own[v] = sums[i / 2][j + v / 2][i % 2 * 2 + v % 2];
            const auto bytes = filters.template bytes<1>(0, own);
            out_t *const first = conv.out + offset_of(conv.out_strides, tile.n, n, p, q);
            if (FILTERS == EIGHT && args.store_width == EIGHT) {
                store_vector(first, bytes);
                continue;
            }
#pragma unroll
            for (int v = 0; v < FILTERS; v++)
                if (n + v < cfg::K) first[v * static_cast<index_t>(conv.out_strides.c)] = bytes.at[v];
        }
    }
}

// NCHW: stores runs of outputs of a filter.
template <class Out>
__device__ __forceinline__ void finish_outputs(const FewChannels &args, const Tile &tile, int n0,
                                               const WarpSums &sums) {
    const Conv &conv = args.conv;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2 * cfg::FRAGMENTS; i += cfg::OUTPUT_RUN) {
        const int p = tile.p + row_of(i / 2), q = tile.q + output_of(i % LANE_OUTPUTS) + g * cfg::OUTPUT_RUN;
        if (p >= conv.P || q >= conv.Q) continue;
        out_t *const first = conv.out + offset_of(conv.out_strides, tile.n, 0, p, q);
#pragma unroll
        for (int j = 0; j < 2 * COLUMNS; j++) {
            const int n = n0 + lane_column<false>(j / 2, t) + j % 2;
            if (cfg::K % cfg::BLOCK_N && n >= cfg::K) continue;
            const auto sum_of = [&](int v) { return sums[(i + v) / 2][j / 2][(i + v) % 2 * 2 + j % 2]; };
            [[maybe_unused]] Vector<Out, cfg::OUTPUT_RUN> bytes;
            if constexpr (RESCALED<Out>) {
                float own[cfg::OUTPUT_RUN];
#pragma unroll
                for (int v = 0; v < cfg::OUTPUT_RUN; v++) own[v] = sum_of(v);
                bytes = RescaledFilters<Out, 1>(conv, n, cfg::K - 1, true).template bytes<0>(0, own);
            }
            const auto result = [&](int v) {
                if constexpr (RESCALED<Out>) return bytes.at[v];
                else return output_value(conv, tile.n, n, p, q + v, sum_of(v));
            };
            out_t *const to = first + n * static_cast<index_t>(conv.out_strides.c);
            if (args.store_width == cfg::OUTPUT_RUN) {
                Vector<Out, cfg::OUTPUT_RUN> run;
#pragma unroll
                for (int v = 0; v < cfg::OUTPUT_RUN; v++) run.at[v] = result(v);
                store_vector(to, run);
                continue;
            }
#pragma unroll
            for (int v = 0; v < cfg::OUTPUT_RUN; v++)
                if (q + v < conv.Q) to[v * static_cast<index_t>(conv.out_strides.w)] = result(v);
        }
    }
}
