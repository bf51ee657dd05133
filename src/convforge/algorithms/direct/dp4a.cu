// direct_dp4a: grouped convolution of 8-bit integers by dp4a, for groups of few channels and few filters (sm_61).
//
// Since direct_tiled: a factor is a word of four channels, so that one instruction adds four products. Neither pixels nor
//           weights are in shared memory: a thread reads each pixel of its windows once, and L1 has the rest.
// Threads   THREADS a block. A thread computes FILTERS filters of a group for a strip of TILE_Q pixels of a row.
//           Neighbouring threads take neighbouring filters and groups in NHWC, and neighbouring strips in NCHW.
// Pixels    for each row of the filter and each word of channels, the words under the strip, in registers: as words if
//           channels are contiguous and aligned (WHOLE_WORDS), else byte by byte. All taps of the row use them.
// Weights   packed (KWords::DEPTH, K) by pack_words.cu, so that the filters of a thread are one vector (words.cuh).
// Outside   the image, the stored value of the padding: see implicit_gemm_dp4a, whose zero point this kernel has too.
// Bytes     as results are computed in float where that is exact, if the epilogue is a multiply-add (rescaled.cuh).
// Any       stride, padding, border, dilation, groups and layout.
// Limit     dp4a, with four filters a thread or more; then the loads of pixels.
#include "border.cuh"
#include "memory.cuh"
#include "mma.cuh"
#include "rescaled.cuh"
#include "words.cuh"

constexpr int SEEN = (cfg::TILE_Q - 1) * cfg::STRIDE_W + (cfg::S - 1) * cfg::DILATION_W + 1;  // pixels under a strip
constexpr int BLOCKS = (cfg::K_GROUP + cfg::FILTERS - 1) / cfg::FILTERS, UNITS = cfg::GROUPS * BLOCKS;
constexpr bool EVEN = cfg::K_GROUP % cfg::FILTERS == 0;  // every thread has FILTERS filters

template <int BYTES> struct UnsignedOf { using type = unsigned; };
template <> struct UnsignedOf<8> { using type = unsigned long long; };
using unsigned_index = UnsignedOf<sizeof(index_t)>::type;

struct DirectDp4a {
    Conv conv;
    int strips;       // of a row of the output
    int vectors;      // true if the outputs of FILTERS filters (NHWC) or of TILE_Q pixels may be stored as vectors
    const int *zero;  // zero point of x times the sum of the weights, for each filter; null without a zero point
};

static_assert(KWords::TAPS == 1, "the channels of a word are of one tap");

// A thread's outputs: pixels (n, p, q) and on, filters k and on of a group.
struct Strip {
    int n, p, q, group, k;
};

__device__ inline Strip strip_of(const DirectDp4a &args, index_t i) {
    const Conv &conv = args.conv;
    unsigned_index rest = static_cast<unsigned_index>(i);  // unsigned divisions are the cheapest
    int unit = 0, strip = 0;
    if constexpr (cfg::CHANNELS_LAST) {
        unit = static_cast<int>(rest % UNITS), rest /= UNITS;
        strip = static_cast<int>(rest % args.strips), rest /= args.strips;
    } else {
        strip = static_cast<int>(rest % args.strips), rest /= args.strips;
    }
    const int p = static_cast<int>(rest % conv.P);
    rest /= conv.P;
    if constexpr (!cfg::CHANNELS_LAST) unit = static_cast<int>(rest % UNITS), rest /= UNITS;
    return {static_cast<int>(rest), p, strip * cfg::TILE_Q, unit / BLOCKS, unit % BLOCKS * cfg::FILTERS};
}

// Word c of channels of a pixel.
__device__ __forceinline__ unsigned word_at(const Conv &conv, const x_t *pixel, int c) {
    if constexpr (cfg::WHOLE_WORDS) return load_vector<4>(pixel + c).word.bits;
    unsigned word = 0;
#pragma unroll
    for (int b = 0; b < 4; b++)
        if (KWords::exists(0, c + b))
            word |= static_cast<unsigned>(static_cast<unsigned char>(pixel[(c + b) * static_cast<index_t>(conv.x_strides.c)])) << 8 * b;
    return word;
}

// Loads the words under a strip, of row h; `first` is the first column, and h is -1 outside the image.
__device__ __forceinline__ void load_row(unsigned (&words)[SEEN], const Conv &conv, const x_t *image, int h, int first, int c) {
    const unsigned outside_word = static_cast<unsigned char>(conv.outside) * 0x01010101u;
    const x_t *row = image + h * static_cast<index_t>(conv.x_strides.h);
    const index_t step = conv.x_strides.w;
    if (h >= 0 && first >= 0 && first + SEEN <= conv.W) {
#pragma unroll
        for (int i = 0; i < SEEN; i++) words[i] = word_at(conv, row + (first + i) * step, c);
        return;
    }
#pragma unroll
    for (int i = 0; i < SEEN; i++) {
        const int w = h < 0 ? -1 : inside(first + i, conv.W);
        words[i] = w < 0 ? outside_word : word_at(conv, row + w * step, c);
    }
}

// The words of FILTERS filters, from `from` on; those beyond the last filter of the group repeat it.
__device__ __forceinline__ void load_filters(unsigned (&words)[cfg::FILTERS], const unsigned *from, int left) {
    if constexpr (EVEN) {
#pragma unroll
        for (int k = 0; k < cfg::FILTERS; k += 4) {
            const auto four = load_vector<4>(from + k);
#pragma unroll
            for (int v = 0; v < 4; v++) words[k + v] = four.at[v];
        }
    } else {
#pragma unroll
        for (int k = 0; k < cfg::FILTERS; k++) words[k] = from[min(k, left - 1)];
    }
}

// Stores runs of COUNT neighbours: run(i) returns run i. exists(i, v): there is its neighbour v; at(i, v): the place.
template <int RUNS, int COUNT, class Run, class Exists, class At>
__device__ __forceinline__ void store_runs(bool vectors, const Run &run, const Exists &exists, const At &at) {
#pragma unroll
    for (int i = 0; i < RUNS; i++) {
        const auto values = run(i);
        if (vectors && exists(i, COUNT - 1)) {
            store_vector(at(i, 0), values);
            continue;
        }
#pragma unroll
        for (int v = 0; v < COUNT; v++)
            if (exists(i, v)) *at(i, v) = values.at[v];
    }
}

template <class Out>
__device__ __forceinline__ void finish(const DirectDp4a &args, const Strip &at, const int (&sums)[cfg::FILTERS][cfg::TILE_Q]) {
    // In NHWC neighbours are filters of a pixel, else pixels of a filter. A vector has at most 16 bytes.
    constexpr bool OF_FILTERS = cfg::OUT_CHANNELS_LAST;
    constexpr int LENGTH = OF_FILTERS ? cfg::FILTERS : cfg::TILE_Q, MOST = 16 / sizeof(Out);
    constexpr int COUNT = LENGTH < MOST ? LENGTH : MOST, RUNS = cfg::FILTERS * cfg::TILE_Q / COUNT;
    const Conv &conv = args.conv;
    const int first_k = at.group * cfg::K_GROUP;
    out_t *first = conv.out + offset_of(conv.out_strides, at.n, first_k + at.k, at.p, at.q);
    const index_t step_k = conv.out_strides.c, step_q = conv.out_strides.w;
    // Filter and pixel of neighbour v of run i.
    const auto filter = [](int i, int v) { return OF_FILTERS ? i * COUNT % LENGTH + v : i * COUNT / LENGTH; };
    const auto pixel = [](int i, int v) { return OF_FILTERS ? i * COUNT / LENGTH : i * COUNT % LENGTH + v; };
    const auto exists = [&](int i, int v) {
        return (EVEN || at.k + filter(i, v) < cfg::K_GROUP) && at.q + pixel(i, v) < conv.Q;
    };
    const auto place = [&](int i, int v) { return first + (filter(i, v) * step_k + pixel(i, v) * step_q); };
    if constexpr (RESCALED<Out>) {
        const RescaledFilters<Out, cfg::FILTERS> filters(conv, first_k + at.k, first_k + cfg::K_GROUP - 1, false);
        store_runs<RUNS, COUNT>(args.vectors, [&](int i) {
            int own[COUNT];
#pragma unroll
            for (int v = 0; v < COUNT; v++) own[v] = sums[filter(i, v)][pixel(i, v)];
            return filters.template bytes<OF_FILTERS>(filter(i, 0), own);
        }, exists, place);
    } else {
        store_runs<RUNS, COUNT>(args.vectors, [&](int i) {
            Vector<Out, COUNT> values;
#pragma unroll
            for (int v = 0; v < COUNT; v++)
                if (exists(i, v))
                    values.at[v] = output_value(conv, at.n, first_k + at.k + filter(i, v), at.p, at.q + pixel(i, v),
                                                sums[filter(i, v)][pixel(i, v)]);
            return values;
        }, exists, place);
    }
}

extern "C" __global__ void __launch_bounds__(cfg::THREADS) direct_dp4a(const __grid_constant__ DirectDp4a args) {
    const Conv &conv = args.conv;
    pdl_wait();
    const index_t i = static_cast<index_t>(blockIdx.x) * cfg::THREADS + threadIdx.x;
    if (i >= static_cast<index_t>(conv.N) * conv.P * args.strips * UNITS) return;
    const Strip at = strip_of(args, i);
    const unsigned *weights = reinterpret_cast<const unsigned *>(conv.w) + (at.group * cfg::K_GROUP + at.k);
    const int left = cfg::K_GROUP - at.k;
    const x_t *image = conv.x + offset_of(conv.x_strides, at.n, at.group * cfg::C_GROUP, 0, 0);
    int sums[cfg::FILTERS][cfg::TILE_Q] = {};
    if constexpr (cfg::ZERO_POINT) {
#pragma unroll
        for (int k = 0; k < cfg::FILTERS; k++) {
            const int zero = args.zero[at.group * cfg::K_GROUP + at.k + min(k, left - 1)];
#pragma unroll
            for (int q = 0; q < cfg::TILE_Q; q++) sums[k][q] = -zero;
        }
    }
#pragma unroll 1
    for (int r = 0; r < cfg::R; r++) {
        const int h = inside(at.p * cfg::STRIDE_H - conv.top + r * cfg::DILATION_H, conv.H);
#pragma unroll 1
        for (int c = 0; c < KWords::WORDS; c++) {
            unsigned pixels[SEEN];
            load_row(pixels, conv, image, h, at.q * cfg::STRIDE_W - conv.left, 4 * c);
#pragma unroll
            for (int s = 0; s < cfg::S; s++) {
                unsigned taps[cfg::FILTERS];
                load_filters(taps, weights + static_cast<index_t>((r * cfg::S + s) * KWords::WORDS + c) * cfg::K, left);
#pragma unroll
                for (int k = 0; k < cfg::FILTERS; k++)
#pragma unroll
                    for (int q = 0; q < cfg::TILE_Q; q++)
                        sums[k][q] = dp4a<x_t, w_t>(pixels[q * cfg::STRIDE_W + s * cfg::DILATION_W], taps[k], sums[k][q]);
            }
        }
    }
    finish<out_t>(args, at, sums);
}
