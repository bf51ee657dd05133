// implicit_gemm_mma: implicit GEMM of 16-bit types on tensor cores, on any GPU since Ampere.
//
// Since gemm_mma: a row of A is the window of an output pixel, gathered from the image when needed. A column
//           of B is a filter. Out (NPQ x K) = columns (NPQ x RSC) times filters (RSC x K), for each group.
// Threads   WARPS_M x WARPS_N warps, each with WARP_M pixels x WARP_N filters of the tile.
// Order     along K: taps, and for each tap its channels, padded to whole pieces of 16 bytes (PITCH).
// Copies    a thread copies one piece of several lines of pixels and of filters. From step to step it advances by
//           BLOCK_K channels and to the next tap, without a division. It computes once where each window begins, and
//           one bit for each row and column that is inside the image.
// Pixels    pieces of 8 channels by cp.async if channels are contiguous and aligned to 16 bytes (WHOLE_PIECES): in
//           NHWC, or in the rows that pixel_rows.cu writes for any other x. Otherwise number by number. Outside the
//           image the copy writes zeros, or the border's value.
// Filters   packed (K, R, S, PITCH), with zeros after the channels of a tap, so every piece is aligned.
// Finish    the epilogue is applied in registers. Tiles order filters, or pixels, so that the results of a lane are
//           neighbours: in NHWC (OUT_CHANNELS_LAST) eight filters of a pixel from four products, in NCHW a run of
//           PIXEL_RUN pixels of a filter. They are stored as one vector.
// Tiles     persistent: a block computes tile after tile, and issues the first copies of the next tile before it stores
//           this one.
// Split-K| with SPLIT_K, several blocks compute parts of the steps of a tile, and sum_shares.cu adds up their sums.
// Any       stride, padding, border, dilation, groups, layout, C and K.
// Limit     that of gemm_mma; with few channels, the gather.
// Bytes     implicit_gemm_int8_mma: integers of 8 bits, multiplied as they are stored, with exact sums. The zero point of
//           x times the weights of the taps inside the image is subtracted from a sum (zero_point.cuh). If the epilogue
//           is a multiply-add and results are bytes, it is computed in float where that is exact (rescaled.cuh).
//           implicit_gemm_fp8_mma: 8-bit floats. Sums of at most 128 products are added to others in float. AMAX: the
//           largest absolute value of the results is kept as well (amax.cuh).
//           Weights of int16 from -255 to 255 are differences of two bytes: floor(w / 2) - (-ceil(w / 2)). The steps of
//           a tile are computed in two PASSES. The first adds up products with -ceil(w / 2), the second those with
//           floor(w / 2), after the sums have been negated.
// implicit_gemm_tf32_mma is this kernel on floats; the host passes these names.
#include "amax.cuh"
#include "border.cuh"
#include "conv.cuh"
#include "mma.cuh"
#include "mma_tiles.cuh"
#include "rescaled.cuh"
#include "zero_point.cuh"

constexpr int PITCH = (cfg::C_GROUP + PIECE - 1) / PIECE * PIECE, TAPS = cfg::R * cfg::S;
constexpr int STEPS = (TAPS * PITCH + cfg::BLOCK_K - 1) / cfg::BLOCK_K;
constexpr int SHARE_STEPS = (STEPS + cfg::SPLIT_K - 1) / cfg::SPLIT_K;  // steps of a block

struct ImplicitMma {
    Conv conv;
    int store_width;  // neighbouring outputs a store: 1, or 2 or 8 filters, or PIXEL_RUN pixels
#ifdef AMAX
    Amax amax;  // of floats, which have no zero point
#else
    Optional<cfg::ZERO_POINT, ZeroPoint>::type zero;
#endif
};

static_assert(!cfg::WHOLE_PIECES || cfg::C_GROUP == PITCH, "the last piece of a tap is whole");

// True if bits tell which rows and columns of a window are inside the image; else each tap tests its position.
constexpr bool BY_BITS = cfg::BORDER == ZEROS && cfg::R <= 15 && cfg::S <= 16;

// The window of an output.
struct Window {
    index_t first;  // offset: BY_BITS, of the first tap, which may be outside; else of the group in the image
    int h, w;       // of its first tap
    unsigned seen;  // bit i: row i is inside the image; bit 16 + i: column i
};

// Bit i is set if position first + i * STEP is inside an axis of `size`, for i below COUNT.
template <int COUNT, int STEP>
__device__ inline unsigned bits_inside(int first, int size) {
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++) bits |= static_cast<unsigned>(0 <= first + i * STEP && first + i * STEP < size) << i;
    return bits;
}

__device__ inline Window window_of(const Conv &conv, const Column &at, int c) {
    const int h = at.p * cfg::STRIDE_H - conv.top, w = at.q * cfg::STRIDE_W - conv.left;
    if constexpr (!BY_BITS) return {offset_of(conv.x_strides, at.n, c, 0, 0), h, w, 0};
    return {offset_of(conv.x_strides, at.n, c, h, w), h, w,
            bits_inside<cfg::R, cfg::DILATION_H>(h, conv.H) | bits_inside<cfg::S, cfg::DILATION_W>(w, conv.W) << 16};
}

// The tap and channel of a thread's piece, from step to step. After the last tap, r is R.
struct KIndex {
    int r, s, c;

    __device__ explicit KIndex(int k) : r(k / PITCH / cfg::S), s(k / PITCH % cfg::S), c(k % PITCH) {}

    __device__ __forceinline__ void next() {
        c += cfg::BLOCK_K;
#pragma unroll
        for (int i = 0; i < (cfg::BLOCK_K + PITCH - 1) / PITCH; i++) {
            const bool tap = c >= PITCH;
            c -= tap ? PITCH : 0, s += tap;
            const bool row = s == cfg::S;
            s = row ? 0 : s, r += row;
        }
        r = min(r, cfg::R);
    }

    __device__ index_t offset_of(const Strides &steps, int h, int w) const {
        return h * static_cast<index_t>(steps.h) + w * static_cast<index_t>(steps.w) + c * static_cast<index_t>(steps.c);
    }
};

// Copies the numbers of a piece one by one; `left` of them belong to the group.
template <class Number>
__device__ inline void put_piece(math_t *to, int left, Number number) {
    Vector<math_t, PIECE> numbers;
#pragma unroll
    for (int j = 0; j < PIECE; j++) numbers.at[j] = j < left ? number(j) : math_t{};
    store_vector(to, numbers);
}

// The pixel at a line of a tile. A lane has sums of two rows of each 16, so runs of PIXEL_RUN pixels are spread over
// such rows.
static_assert(2 * ROWS % cfg::PIXEL_RUN == 0 && cfg::PIXEL_RUN * sizeof(out_t) <= 16,
              "a lane has whole runs, stored as one");
__device__ constexpr int pixel_of(int line) {
    const int eight = line % cfg::WARP_M / 8;
    return line / cfg::WARP_M * cfg::WARP_M + eight / cfg::PIXEL_RUN * (8 * cfg::PIXEL_RUN) +
           line % 8 * cfg::PIXEL_RUN + eight % cfg::PIXEL_RUN;
}

// True if the results of a lane in four products are eight neighbouring filters.
constexpr bool IN_EIGHTS = cfg::OUT_CHANNELS_LAST && sizeof(out_t) <= 2 && COLUMNS % 4 == 0;

// Copies a piece if bits do not describe the window, or the piece is not aligned channels of one pixel.
__device__ inline void copy_pixel(math_t *to, const Conv &conv, const Window &window, const KIndex &at) {
    int h = at.r * cfg::DILATION_H, w = at.s * cfg::DILATION_W;
    bool there = at.r < cfg::R;
    if constexpr (BY_BITS) {
        there = there && (window.seen >> at.r & window.seen >> (16 + at.s) & 1);
    } else {
        h = inside(window.h + h, conv.H), w = inside(window.w + w, conv.W);
        there = there && h >= 0 && w >= 0;
    }
    const x_t *from = conv.x + (there ? window.first + at.offset_of(conv.x_strides, h, w) : 0);
    const int left = at.r < cfg::R ? cfg::C_GROUP - at.c : 0;  // channels of the tap from here on
    if (cfg::BORDER == CONSTANT && left > 0 && !there)
        put_piece(to, left, [&](int) { return stored<math_t>::of(conv.outside); });
    else if (cfg::WHOLE_PIECES || !there) copy_async16_l1(to, from, there);
    else
        put_piece(to, left, [&](int j) { return from[j * static_cast<index_t>(conv.x_strides.c)]; });
}

struct Tiles {
    OperandTile<cfg::BLOCK_M, true> a;  // pixels
    OperandTile<cfg::BLOCK_N, true> b;  // filters
};

// The work of a block: a tile of the outputs of a group, or a share of its steps.
struct Part {
    int share, group, tile_n;
    index_t tile_m;
    __device__ int first_step() const { return share * SHARE_STEPS; }
    __device__ int steps() const { return min(SHARE_STEPS, STEPS - first_step()); }
};

// The copies of a thread in each step: a piece of several lines of pixels and of filters.
struct Loader {
    // Lines that all threads copy at once.
    static constexpr int PIECES = cfg::BLOCK_K / PIECE, LINES = THREADS / PIECES;
    static constexpr int PIXELS = (cfg::BLOCK_M + LINES - 1) / LINES, FILTERS = (cfg::BLOCK_N + LINES - 1) / LINES;
    static_assert(THREADS % PIECES == 0, "a thread has the same piece of each line");
    static_assert(!IN_EIGHTS || LINES % 32 == 0 || (LINES & (LINES - 1)) == 0, "from line to line columns change alike");
    const ImplicitMma &args;
    const int line, piece;
    Window windows[PIXELS];
    const math_t *filters;  // the thread's piece of its first filter, in the next step
    int left;               // filters of the group from there on
    KIndex k_index;            // of the next step

    __device__ explicit Loader(const ImplicitMma &args)
        : args(args), line(threadIdx.x / PIECES), piece(threadIdx.x % PIECES), k_index(0) {}

    __device__ __forceinline__ void begin(const Part &part, int pass = 0) {
        const Conv &conv = args.conv;
        const int k = part.first_step() * cfg::BLOCK_K + piece * PIECE, n = part.tile_n + column_at<IN_EIGHTS>(line);
        left = cfg::K_GROUP - n;
        k_index = KIndex(k);
        const index_t pixels = static_cast<index_t>(conv.N) * conv.P * conv.Q;
#pragma unroll
        for (int i = 0; i < PIXELS; i++) {  // pixels beyond the last repeat the last one
            const index_t m = part.tile_m + pixel_of(line + i * LINES);
            windows[i] = window_of(conv, column_of(conv, m < pixels ? m : pixels - 1), part.group * cfg::C_GROUP);
        }
        filters = reinterpret_cast<const math_t *>(conv.w) +
                  (static_cast<long long>(pass * cfg::GROUPS + part.group) * cfg::K_GROUP + n) * (TAPS * PITCH) + k;
    }

    __device__ __forceinline__ void ask(Tiles &tiles) {
        const Conv &conv = args.conv;
        const unsigned needed = 1u << k_index.r | 0x10000u << k_index.s;
        const index_t tap = k_index.offset_of(conv.x_strides, k_index.r * cfg::DILATION_H, k_index.s * cfg::DILATION_W);
#pragma unroll
        for (int i = 0; i < PIXELS; i++) {
            if (cfg::BLOCK_M % LINES && line + i * LINES >= cfg::BLOCK_M) break;
            math_t *to = tiles.a.piece(line + i * LINES, piece);
            if constexpr (cfg::WHOLE_PIECES && BY_BITS)
                copy_async16_l1(to, conv.x + (windows[i].first + tap), (windows[i].seen & needed) == needed);
            else
                copy_pixel(to, conv, windows[i], k_index);
        }
#pragma unroll
        for (int i = 0; i < FILTERS; i++) {
            if (cfg::BLOCK_N % LINES && line + i * LINES >= cfg::BLOCK_N) break;
            const bool there =
                (cfg::K_GROUP % cfg::BLOCK_N == 0 || column_at<IN_EIGHTS>(i * LINES) < left) && k_index.r < cfg::R;
            copy_async16(tiles.b.piece(line + i * LINES, piece),
                         filters + column_at<IN_EIGHTS>(i * LINES) * static_cast<long long>(TAPS * PITCH), there);
        }
        filters += cfg::BLOCK_K;
        k_index.next();
    }
};

// Results: where the results of a pixel and a group are stored, from its first filter on. Null for pixels outside.
struct Results {
    bool inside;
    Column at;
    out_t *first;
};

__device__ inline Results results_of(const Conv &conv, int group, int share, index_t m) {
    const index_t pixels = static_cast<index_t>(conv.N) * conv.P * conv.Q;
    const bool inside = m < pixels;
    const Column at = column_of(conv, inside ? m : 0);
    const index_t first = offset_of(conv.out_strides, at.n, group * cfg::K_GROUP, at.p, at.q);
    return {inside, at, conv.out + (share * pixels * cfg::K + first)};
}

// The first of a lane's two filters in product j.
__device__ __forceinline__ int filter_at(int n0, int j) { return n0 + lane_column<IN_EIGHTS>(j, threadIdx.x % 4); }

// Negates the sums between the passes. Nothing overflows: |floor(w / 2)| <= |w| and |ceil(w / 2)| <= |w|. So every sum
// on the way is at most as large as the problem's bound, in which each pixel and weight has its largest magnitude.
__device__ __forceinline__ void negate(WarpSums &sums) {
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums[i][j][e] = -sums[i][j][e];
}

// The sums of a tile before its first product: minus the zero point times the weights of the taps inside the image, or
// plus if the sums will be negated.
template <class Args>
__device__ __forceinline__ void begin_sums(const Args &args, const Part &part, int m0, int n0, WarpSums &sums) {
    if constexpr (cfg::ZERO_POINT) {
        const Conv &conv = args.conv;
        const int g = threadIdx.x % 32 / 4, first_k = part.group * cfg::K_GROUP;
        const index_t pixels = static_cast<index_t>(conv.N) * conv.P * conv.Q;
        const int *whole = args.zero.tap_sums + tap_sums_inside(args.zero) + first_k;
        const auto pair_at = [&](const int *from, int j) {
            const int n = min(part.tile_n + filter_at(n0, j), (cfg::K_GROUP - 1) / 2 * 2);
            if (cfg::GROUPS == 1 || cfg::K_GROUP % 2 == 0) return load_vector<2>(from + n);
            Vector<int, 2> pair;
            pair.at[0] = from[n], pair.at[1] = n + 1 < cfg::K_GROUP ? from[n + 1] : 0;
            return pair;
        };
        const auto begun = [](int taken) { return cfg::PASSES == 1 ? -taken : taken; };
        Vector<int, 2> usual[COLUMNS];
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) usual[j] = pair_at(whole, j);
#pragma unroll
        for (int i = 0; i < 2 * ROWS; i++) {
            const index_t m = part.tile_m + m0 + pixel_of(8 * i + g);
            const Column at = column_of(conv, m < pixels ? m : pixels - 1);
            const int *of_pixel = args.zero.tap_sums + tap_sums_of(args.zero, conv, at.p, at.q) + first_k;
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                const Vector<int, 2> own = of_pixel == whole ? usual[j] : pair_at(of_pixel, j);
                sums[i / 2][j][i % 2 * 2] = begun(own.at[0]), sums[i / 2][j][i % 2 * 2 + 1] = begun(own.at[1]);
            }
        }
    }
}

// Stores the results of a pixel. pair_of(j) returns the lane's two neighbouring filters of product j.
template <class Out, class PairOf>
__device__ __forceinline__ void store_filters(const ImplicitMma &args, const Results &to, int n0,
                                              const PairOf &pair_of) {
    const index_t step = args.conv.out_strides.c;
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
                const int n = filter_at(n0, j);
                if (to.inside && n < cfg::K_GROUP) store_vector(to.first + n, eight);
            }
            return;
        }
    }
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        const int n = filter_at(n0, j);
        if (!to.inside || n >= cfg::K_GROUP) continue;
        const Vector<Out, 2> pair = pair_of(j);
        if (cfg::OUT_CHANNELS_LAST && args.store_width > 1) {
            store_vector(to.first + n, pair);
            continue;
        }
        to.first[n * step] = pair.at[0];
        if (n + 1 < cfg::K_GROUP) to.first[(n + 1) * step] = pair.at[1];
    }
}

// NHWC: a lane has two neighbouring filters of pixels g and g + 8 in each product.
template <class Out>
__device__ inline void finish_filters(const ImplicitMma &args, int group, int share, index_t m0, int n0,
                                      const WarpSums &sums, Largest &largest) {
    const Conv &conv = args.conv;
    const int g = threadIdx.x % 32 / 4, first_k = group * cfg::K_GROUP;
#pragma unroll
    for (int i = 0; i < 2 * ROWS; i++) {
        const Results own = results_of(conv, group, share, m0 + 8 * i + g);
        const auto pair_of = [&](int j) {
            const int n = filter_at(n0, j);
            const sum_t *sum = sums[i / 2][j] + i % 2 * 2;
            const auto result = [&](int k, sum_t of) {
                return output_value(conv, own.at.n, k, own.at.p, own.at.q, of, largest);
            };
            Vector<Out, 2> pair;
            pair.word = {};
            if (own.inside && n < cfg::K_GROUP) pair.at[0] = result(first_k + n, sum[0]);
            if (own.inside && n + 1 < cfg::K_GROUP) pair.at[1] = result(first_k + n + 1, sum[1]);
            return pair;
        };
        store_filters<Out>(args, own, n0, pair_of);
    }
}

// Bytes of a run of pixels of a filter.
template <class Out, class SumOf>
__device__ __forceinline__ Vector<Out, cfg::PIXEL_RUN> rescaled_run(const Conv &conv, int group, int n,
                                                                    const SumOf &sum_of) {
    const int first_k = group * cfg::K_GROUP;
    const RescaledFilters<Out, 1> filter(conv, first_k + n, first_k + cfg::K_GROUP - 1, false);
    int sums[cfg::PIXEL_RUN];
#pragma unroll
    for (int v = 0; v < cfg::PIXEL_RUN; v++) sums[v] = sum_of(v);
    return filter.template bytes<0>(0, sums);
}

// NCHW: a lane has a run of pixels of two filters in each product. Pixels of one vector belong to one image.
template <class Out>
__device__ inline void finish_pixels(const ImplicitMma &args, int group, int share, index_t m0, int n0,
                                     const WarpSums &sums, Largest &largest) {
    const Conv &conv = args.conv;
    const int g = threadIdx.x % 32 / 4, first_k = group * cfg::K_GROUP;
    const index_t step = conv.out_strides.c;
#pragma unroll
    for (int i = 0; i < 2 * ROWS; i += cfg::PIXEL_RUN) {
        const index_t m = m0 + 8 * i + g * cfg::PIXEL_RUN;
        const Results own = results_of(conv, group, share, m);
#pragma unroll
        for (int j = 0; j < 2 * COLUMNS; j++) {
            const int n = filter_at(n0, j / 2) + j % 2;
            if (!own.inside || n >= cfg::K_GROUP) continue;
            [[maybe_unused]] Vector<Out, cfg::PIXEL_RUN> bytes;
            const auto sum_of = [&](int v) { return sums[(i + v) / 2][j / 2][(i + v) % 2 * 2 + j % 2]; };
            if constexpr (RESCALED<Out>) bytes = rescaled_run<Out>(conv, group, n, sum_of);
            const auto result = [&](const Column &at, int v) {
                if constexpr (RESCALED<Out>) return bytes.at[v];
                else return output_value(conv, at.n, first_k + n, at.p, at.q, sum_of(v), largest);
            };
            if (args.store_width == cfg::PIXEL_RUN) {
                Vector<Out, cfg::PIXEL_RUN> run;
#pragma unroll
                for (int v = 0; v < cfg::PIXEL_RUN; v++)
                    run.at[v] = result(cfg::RESIDUAL ? column_of(conv, m + v) : own.at, v);
                store_vector(own.first + n * step, run);
                continue;
            }
#pragma unroll
            for (int v = 0; v < cfg::PIXEL_RUN; v++) {
                const Results one = results_of(conv, group, share, m + v);
                if (one.inside) one.first[n * step] = result(one.at, v);
            }
        }
    }
}

// Stores the results of filters n and n + 1 of a pixel.
template <class Out>
__device__ __forceinline__ void store_pair(const ImplicitMma &args, out_t *first, int n, const Vector<Out, 2> &pair) {
    if (args.store_width > 1 && cfg::OUT_CHANNELS_LAST) {
        store_vector(first + n, pair);
        return;
    }
    const index_t step = args.conv.out_strides.c;
    first[n * step] = pair.at[0];
    if (n + 1 < cfg::K_GROUP) first[(n + 1) * step] = pair.at[1];
}

// finish_filters for RESCALED results, with a lane's filters of four products, or of one, at once.
template <class Out>
__device__ inline void rescale_filters(const ImplicitMma &args, int group, int share, index_t m0, int n0,
                                       const WarpSums &sums) {
    constexpr int TOGETHER = IN_EIGHTS ? 4 : 1, FILTERS = 2 * TOGETHER;
    const Conv &conv = args.conv;
    const int first_k = group * cfg::K_GROUP;
    index_t first[2 * ROWS];  // offsets of the results of each pixel, from its first filter on
    unsigned inside = 0;
#pragma unroll
    for (int i = 0; i < 2 * ROWS; i++) {
        const Results to = results_of(conv, group, share, m0 + 8 * i + threadIdx.x % 32 / 4);
        first[i] = static_cast<index_t>(to.first - conv.out), inside |= static_cast<unsigned>(to.inside) << i;
    }
#pragma unroll
    for (int j = 0; j < COLUMNS; j += TOGETHER) {
        const int n = filter_at(n0, j);
        const RescaledFilters<Out, FILTERS> filters(conv, first_k + n, first_k + cfg::K_GROUP - 1, false);
#pragma unroll
        for (int i = 0; i < 2 * ROWS; i++) {
            int own[FILTERS];
#pragma unroll
            for (int v = 0; v < FILTERS; v++) own[v] = sums[i / 2][j + v / 2][i % 2 * 2 + v % 2];
            const auto bytes = filters.template bytes<1>(0, own);
            if (!(inside >> i & 1) || n >= cfg::K_GROUP) continue;
            if (FILTERS == EIGHT && args.store_width == EIGHT) {
                store_vector(conv.out + (first[i] + n), bytes);
                continue;
            }
#pragma unroll
            for (int v = 0; v < FILTERS; v += 2) {
                if (n + v >= cfg::K_GROUP) break;
                Vector<Out, 2> pair;
                pair.at[0] = bytes.at[v], pair.at[1] = bytes.at[v + 1];
                store_pair<Out>(args, conv.out + first[i], n + v, pair);
            }
        }
    }
}

template <class Out>
__device__ __forceinline__ void finish(const ImplicitMma &args, int group, int share, index_t m0, int n0,
                                       const WarpSums &sums, Largest &largest) {
    if constexpr (cfg::PIXEL_RUN > 1) finish_pixels<Out>(args, group, share, m0, n0, sums, largest);
    else if constexpr (RESCALED<Out>) rescale_filters<Out>(args, group, share, m0, n0, sums);
    else finish_filters<Out>(args, group, share, m0, n0, sums, largest);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) implicit_gemm_mma(const __grid_constant__ ImplicitMma args) {
    DYNAMIC_SHARED(Tiles, stages);
    constexpr unsigned ACROSS = (cfg::K_GROUP + cfg::BLOCK_N - 1) / cfg::BLOCK_N;
    const index_t pixels = static_cast<index_t>(args.conv.N) * args.conv.P * args.conv.Q;
    const unsigned down = static_cast<unsigned>((pixels + cfg::BLOCK_M - 1) / cfg::BLOCK_M);
    const unsigned parts = ACROSS * down * cfg::GROUPS * cfg::SPLIT_K;
    const auto part_of = [&](unsigned i) -> Part {
        const unsigned rest = i / ACROSS;
        return {static_cast<int>(rest / (down * cfg::GROUPS)), static_cast<int>(rest / down % cfg::GROUPS),
                static_cast<int>(i % ACROSS * cfg::BLOCK_N), static_cast<index_t>(rest % down) * cfg::BLOCK_M};
    };
    const int warp = threadIdx.x / 32, m0 = warp / WARPS_N * cfg::WARP_M, n0 = warp % WARPS_N * cfg::WARP_N;
    Loader load(args);
    const auto ask = [&](int, Tiles &to) { load.ask(to); };
    Part part = part_of(blockIdx.x);
    pdl_wait();
    load.begin(part);
    begin_steps(stages, ask);
    for (unsigned i = blockIdx.x;;) {
        WarpSums sums = {};
        if (cfg::ZERO_POINT && (cfg::SPLIT_K == 1 || part.share == 0)) begin_sums(args, part, m0, n0, sums);
#pragma unroll
        for (int pass = 0; pass < cfg::PASSES; pass++) {
            if (pass > 0) {
                negate(sums);
                load.begin(part, pass);
                begin_steps(stages, ask);
            }
            multiply_steps<true, true>(sums, stages, part.steps(), m0, n0, ask);
        }
        const Part done = part;
        i += gridDim.x;
        if (i < parts) {  // after the barrier of the last step nobody reads tiles
            part = part_of(i);
            load.begin(part);
            begin_steps(stages, ask);
        }
        Largest largest;
        finish<out_t>(args, done.group, done.share, done.tile_m + m0, done.tile_n + n0, sums, largest);
        largest.store(args);
        if (i >= parts) break;
    }
}
