// implicit_gemm_mma: implicit GEMM of 16-bit types on the tensor cores of any GPU since Ampere.
//
// Since gemm_mma: the rows of A are what an output pixel sees, and are gathered from the image as they are needed; the
// columns of B are filters. Out (NPQ x K) = columns (NPQ x RSC) times filters (RSC x K), for each group.
// Threads   WARPS_M x WARPS_N warps, each with WARP_M pixels x WARP_N filters of the tile.
// Order     along K of the product: taps, and of each tap the channels, as many as make whole pieces of 16 bytes (PITCH).
// Copies    a thread has one piece of several lines: of so many pixels, and of so many filters. From step to step it goes
//           on by BLOCK_K channels, and on to the next tap, without a division. Where a window begins, and which of its
//           rows and columns are inside the image (a bit each), it works out once.
// Pixels    pieces of 8 channels by cp.async, where channels are neighbours at multiples of 16 bytes (WHOLE_PIECES): in
//           NHWC, or in the rows that pixel_rows.cu writes of any other x. Else number by number. What stands outside is
//           a zero of the copy, or the border's value.
// Filters   packed (K, R, S, PITCH), with zeros behind a tap's channels: every piece is aligned.
// Finish    sums go through the epilogue where they are. Tiles have filters, or pixels, in such an order that a lane's
//           results are neighbours: in NHWC (OUT_CHANNELS_LAST) eight filters of a pixel in four products, in NCHW a run of
//           PIXEL_RUN pixels of a filter. They are stored as one.
// Tiles     a block takes tile after tile, and asks for the first steps of the next one before it finishes this one.
// Shares    with SPLIT_K, several blocks have a part of a tile's steps each, and leave sums that sum_shares.cu adds up.
// Any       stride, padding, border, dilation, groups, layout, C and K.
// Limit     as of gemm_mma; with few channels, gathering.
// implicit_gemm_tf32_mma is this kernel on floats: the host gives it that name.
#include "border.cuh"
#include "conv.cuh"
#include "epilogue.cuh"
#include "mma.cuh"
#include "mma_tiles.cuh"

constexpr int PITCH = (cfg::C_GROUP + PIECE - 1) / PIECE * PIECE, TAPS = cfg::R * cfg::S;
constexpr int STEPS = (TAPS * PITCH + cfg::BLOCK_K - 1) / cfg::BLOCK_K;
constexpr int SHARE_STEPS = (STEPS + cfg::SPLIT_K - 1) / cfg::SPLIT_K;  // of those that share a tile's products

struct ImplicitMma {
    Conv conv;
    int store_width;  // so many neighbouring outputs may be stored as one: 1, or 2 or 8 filters, or PIXEL_RUN pixels
};

static_assert(!cfg::WHOLE_PIECES || cfg::C_GROUP == PITCH, "the last piece of a tap is whole");

// Whether bits tell what of a window is inside the image; else each tap looks at where it is.
constexpr bool BY_BITS = cfg::BORDER == ZEROS && cfg::R <= 15 && cfg::S <= 16;

// The window of an output.
struct Window {
    index_t first;  // BY_BITS: place of its first tap, which may be outside; else of the image's first channel of the group
    int h, w;       // of its first tap
    unsigned seen;  // bit i: whether row i is inside; bit 16 + i: column i
};

// Bit i: whether position first + i * STEP is inside an axis of `size`. There are no further positions.
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

// The tap and the channel of a thread's piece, from step to step. Behind the last tap r is R.
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

// Bring the numbers of a piece one by one; `left` of them are of the group.
template <class Number>
__device__ inline void put_piece(math_t *to, int left, Number number) {
    Vector<math_t, PIECE> numbers;
#pragma unroll
    for (int j = 0; j < PIECE; j++) numbers.at[j] = j < left ? number(j) : math_t{};
    store_vector(to, numbers);
}

// The pixel that line `line` of a tile has: a lane, which has sums of eight times as many rows as it has of each eight,
// has runs of PIXEL_RUN pixels.
static_assert(2 * ROWS % cfg::PIXEL_RUN == 0 && cfg::PIXEL_RUN * sizeof(out_t) <= 16,
              "a lane has whole runs, stored as one");
__device__ constexpr int pixel_of(int line) {
    const int eight = line % cfg::WARP_M / 8;
    return line / cfg::WARP_M * cfg::WARP_M + eight / cfg::PIXEL_RUN * (8 * cfg::PIXEL_RUN) +
           line % 8 * cfg::PIXEL_RUN + eight % cfg::PIXEL_RUN;
}

// Whether a lane's results of four products are eight neighbouring filters.
constexpr bool IN_EIGHTS = cfg::OUT_CHANNELS_LAST && sizeof(out_t) == 2 && COLUMNS % 4 == 0;

// Where bits do not tell, or a piece is not channels of one pixel, aligned to 16 bytes.
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

// A block's part of the products: a tile of a group's outputs, or a share of its steps.
struct Part {
    int share, group, tile_n;
    index_t tile_m;
    __device__ int first_step() const { return share * SHARE_STEPS; }
    __device__ int steps() const { return min(SHARE_STEPS, STEPS - first_step()); }
};

// What a thread brings of each step: a piece of several lines of pixels and of filters.
struct Loader {
    // Lines that all threads take at once.
    static constexpr int PIECES = cfg::BLOCK_K / PIECE, LINES = THREADS / PIECES;
    static constexpr int PIXELS = (cfg::BLOCK_M + LINES - 1) / LINES, FILTERS = (cfg::BLOCK_N + LINES - 1) / LINES;
    static_assert(THREADS % PIECES == 0, "a thread has the same piece of each line");
    static_assert(!IN_EIGHTS || LINES % 32 == 0 || (LINES & (LINES - 1)) == 0, "from line to line columns change alike");
    const ImplicitMma &args;
    const int line, piece;
    Window windows[PIXELS];
    const math_t *filters;  // the thread's piece of its first one, at the step that comes next
    int left;               // filters of the group from there on
    KIndex k_index;            // likewise

    __device__ explicit Loader(const ImplicitMma &args)
        : args(args), line(threadIdx.x / PIECES), piece(threadIdx.x % PIECES), k_index(0) {}

    __device__ __forceinline__ void begin(const Part &part) {
        const Conv &conv = args.conv;
        const int k = part.first_step() * cfg::BLOCK_K + piece * PIECE, n = part.tile_n + column_at<IN_EIGHTS>(line);
        left = cfg::K_GROUP - n;
        k_index = KIndex(k);
        const index_t pixels = static_cast<index_t>(conv.N) * conv.P * conv.Q;
#pragma unroll
        for (int i = 0; i < PIXELS; i++) {  // pixels beyond the last see what the last sees
            const index_t m = part.tile_m + pixel_of(line + i * LINES);
            windows[i] = window_of(conv, column_of(conv, m < pixels ? m : pixels - 1), part.group * cfg::C_GROUP);
        }
        filters = reinterpret_cast<const math_t *>(conv.w) +
                  (static_cast<long long>(part.group) * cfg::K_GROUP + n) * (TAPS * PITCH) + k;
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

// Finish. Where a pixel's results of a group are stored, from its first filter on; outside, those of no pixel.
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

// The first of a lane's two filters of product j.
__device__ __forceinline__ int filter_at(int n0, int j) { return n0 + lane_column<IN_EIGHTS>(j, threadIdx.x % 4); }

// Store a pixel's results. pair_of(j) are the lane's two neighbouring filters of product j.
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
                for (int v = 0; v < 4; v++) eight.word.bits[v] = pair_of(j + v).word.bits;
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

// A lane has two neighbouring filters of pixels g and g + 8 of each product.
template <class Out>
__device__ inline void finish_filters(const ImplicitMma &args, int group, int share, index_t m0, int n0,
                                      const WarpSums &sums) {
    const Conv &conv = args.conv;
    const int g = threadIdx.x % 32 / 4, first_k = group * cfg::K_GROUP;
#pragma unroll
    for (int i = 0; i < 2 * ROWS; i++) {
        const Results own = results_of(conv, group, share, m0 + 8 * i + g);
        const auto pair_of = [&](int j) {
            const int n = filter_at(n0, j);
            const float *sum = sums[i / 2][j] + i % 2 * 2;
            const auto result = [&](int k, float of) { return output_value(conv, own.at.n, k, own.at.p, own.at.q, of); };
            Vector<Out, 2> pair;
            pair.word = {};
            if (own.inside && n < cfg::K_GROUP) pair.at[0] = result(first_k + n, sum[0]);
            if (own.inside && n + 1 < cfg::K_GROUP) pair.at[1] = result(first_k + n + 1, sum[1]);
            return pair;
        };
        store_filters<Out>(args, own, n0, pair_of);
    }
}

// A lane has a run of pixels of two filters of each product. Those that are stored as one are of one image.
template <class Out>
__device__ inline void finish_pixels(const ImplicitMma &args, int group, int share, index_t m0, int n0,
                                     const WarpSums &sums) {
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
            const auto result = [&](const Column &at, int v) {
                const float sum = sums[(i + v) / 2][j / 2][(i + v) % 2 * 2 + j % 2];
                return output_value(conv, at.n, first_k + n, at.p, at.q, sum);
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
        multiply_steps<true, true>(sums, stages, part.steps(), m0, n0, ask);
        const Part done = part;
        i += gridDim.x;
        if (i < parts) {  // nobody reads tiles from the last step's barrier on
            part = part_of(i);
            load.begin(part);
            begin_steps(stages, ask);
        }
        const index_t m = done.tile_m + m0;
        if constexpr (cfg::PIXEL_RUN > 1) finish_pixels<out_t>(args, done.group, done.share, m, done.tile_n + n0, sums);
        else finish_filters<out_t>(args, done.group, done.share, m, done.tile_n + n0, sums);
        if (i >= parts) break;
    }
}
