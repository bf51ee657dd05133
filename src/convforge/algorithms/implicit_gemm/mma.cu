// implicit_gemm_mma: implicit GEMM of 16-bit types on the tensor cores of any GPU since Ampere.
//
// Since gemm_mma: the rows of A are what an output pixel sees, and are gathered from the picture as they are needed; the
// columns of B are filters. Out (NPQ x K) = columns (NPQ x RSC) times filters (RSC x K), for each group.
// Threads   WARPS_M x WARPS_N warps, each with WARP_M pixels x WARP_N filters of the tile.
// Order     along K of the product: taps, and of each tap the channels, as many as make whole pieces of 16 bytes (PITCH).
// Copies    a thread has one piece of several lines: of so many pixels, and of so many filters. From step to step it goes
//           on by BLOCK_K channels, and on to the next tap, without a division. Where a window begins, and which of its
//           rows and columns are inside the picture (a bit each), it works out once.
// Pixels    pieces of 8 channels by cp.async, where channels lie side by side at multiples of 16 bytes; else number by
//           number. What stands outside is a zero of the copy, or the border's value.
// Filters   packed (K, R, S, PITCH): every piece is aligned.
// Finish    sums go through the epilogue where they are; in NHWC eight neighbouring outputs are stored as one, or two.
// Shares    with SPLIT_K, several blocks have a part of a tile's steps each, and leave sums that sum_shares.cu adds up.
// Any       stride, padding, border, dilation, groups, layout, C and K.
// Limit     as of gemm_mma; with few channels, gathering.
#include "border.cuh"
#include "columns.cuh"
#include "ends.cuh"
#include "mma_tiles.cuh"

constexpr int PITCH = (C_GROUP + PIECE - 1) / PIECE * PIECE, TAPS = R * S;
constexpr int STEPS = (TAPS * PITCH + BLOCK_K - 1) / BLOCK_K;
constexpr int SHARE_STEPS = (STEPS + SPLIT_K - 1) / SPLIT_K;  // of those that share a tile's products

struct ImplicitMma {
    Conv conv;
    int vectors;   // whether PIECE channels, counted from a multiple of PIECE of the group's, are aligned to 16 bytes
    int together;  // so many neighbouring outputs of a pixel may be stored as one: 1, 2 or 8
};

// Whether bits tell what of a window is inside the picture; else each tap looks at where it is.
constexpr bool BY_BITS = BORDER == ZEROS && R <= 15 && S <= 16;

// The window of an output.
struct Window {
    index_t first;  // BY_BITS: place of its first tap, which may be outside; else of the picture's first channel of the group
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
    const int h = at.p * STRIDE_H - conv.top, w = at.q * STRIDE_W - conv.left;
    if constexpr (!BY_BITS) return {place(conv.x_strides, at.n, c, 0, 0), h, w, 0};
    return {place(conv.x_strides, at.n, c, h, w), h, w,
            bits_inside<R, DILATION_H>(h, conv.H) | bits_inside<S, DILATION_W>(w, conv.W) << 16};
}

// The tap and the channel of a thread's piece, from step to step. Behind the last tap r is R.
struct Along {
    int r, s, c;

    __device__ explicit Along(int k) : r(k / PITCH / S), s(k / PITCH % S), c(k % PITCH) {}

    __device__ __forceinline__ void next() {
        c += BLOCK_K;
#pragma unroll
        for (int i = 0; i < (BLOCK_K + PITCH - 1) / PITCH; i++) {
            const bool tap = c >= PITCH;
            c -= tap ? PITCH : 0, s += tap;
            const bool row = s == S;
            s = row ? 0 : s, r += row;
        }
        r = min(r, R);
    }

    __device__ index_t place(const Strides &steps, int h, int w) const {
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

// Where bits do not tell, or a piece is not 8 channels of a pixel, aligned to 16 bytes (WHOLE).
template <bool WHOLE>
__device__ inline void copy_pixel(math_t *to, const Conv &conv, const Window &window, const Along &at) {
    int h = at.r * DILATION_H, w = at.s * DILATION_W;
    bool there = at.r < R;
    if constexpr (BY_BITS) {
        there = there && (window.seen >> at.r & window.seen >> (16 + at.s) & 1);
    } else {
        h = inside(window.h + h, conv.H), w = inside(window.w + w, conv.W);
        there = there && h >= 0 && w >= 0;
    }
    const x_t *from = conv.x + (there ? window.first + at.place(conv.x_strides, h, w) : 0);
    const int left = at.r < R ? C_GROUP - at.c : 0;  // channels of the tap from here on
    if (BORDER == CONSTANT && left > 0 && !there)
        put_piece(to, left, [&](int) { return stored<math_t>::of(conv.outside); });
    else if (WHOLE || !there)
        copy_kept16(to, from, there);
    else
        put_piece(to, left, [&](int j) { return from[j * static_cast<index_t>(conv.x_strides.c)]; });
}

__device__ __forceinline__ void copy_filter(math_t *to, const math_t *filter, bool there, const Along &at) {
    if (C_GROUP == PITCH || !there || at.c + PIECE <= C_GROUP) copy_async16(to, filter, there);
    else put_piece(to, C_GROUP - at.c, [&](int j) { return filter[j]; });
}

struct Tiles {
    OperandTile<BLOCK_M, true> a;  // pixels
    OperandTile<BLOCK_N, true> b;  // filters
};

// What a thread brings of each step: a piece of several lines of pixels and of filters.
struct Loader {
    static constexpr int PIECES = BLOCK_K / PIECE, LINES = THREADS / PIECES;  // lines that all threads take at once
    static constexpr int PIXELS = (BLOCK_M + LINES - 1) / LINES, FILTERS = (BLOCK_N + LINES - 1) / LINES;
    static_assert(THREADS % PIECES == 0, "a thread has the same piece of each line");
    const ImplicitMma &args;
    const int line, piece;
    Window windows[PIXELS];
    const math_t *filters;  // the thread's piece of its first one, at the step that comes next
    const int left;         // filters of the group from there on
    Along along;            // likewise

    __device__ Loader(const ImplicitMma &args, int group, index_t tile_m, int tile_n, int first_step)
        : args(args), line(threadIdx.x / PIECES), piece(threadIdx.x % PIECES), left(K_GROUP - tile_n - line),
          along(first_step * BLOCK_K + piece * PIECE) {
        const Conv &conv = args.conv;
        const index_t pixels = static_cast<index_t>(conv.N) * conv.P * conv.Q;
#pragma unroll
        for (int i = 0; i < PIXELS; i++) {  // pixels beyond the last see what the last sees
            const index_t m = tile_m + line + i * LINES;
            windows[i] = window_of(conv, column_of(conv, m < pixels ? m : pixels - 1), group * C_GROUP);
        }
        filters = reinterpret_cast<const math_t *>(conv.w) +
                  (static_cast<long long>(group) * K_GROUP + tile_n + line) * (TAPS * PITCH) +
                  (first_step * BLOCK_K + piece * PIECE);
    }

    template <bool WHOLE>
    __device__ __forceinline__ void ask(Tiles &tiles) {
        const Conv &conv = args.conv;
        const unsigned needed = 1u << along.r | 0x10000u << along.s;
        const index_t tap = along.place(conv.x_strides, along.r * DILATION_H, along.s * DILATION_W);
#pragma unroll
        for (int i = 0; i < PIXELS; i++) {
            if (BLOCK_M % LINES && line + i * LINES >= BLOCK_M) break;
            math_t *to = tiles.a.piece(line + i * LINES, piece);
            if constexpr (WHOLE && BY_BITS)
                copy_kept16(to, conv.x + (windows[i].first + tap), (windows[i].seen & needed) == needed);
            else
                copy_pixel<WHOLE>(to, conv, windows[i], along);
        }
#pragma unroll
        for (int i = 0; i < FILTERS; i++) {
            if (BLOCK_N % LINES && line + i * LINES >= BLOCK_N) break;
            const bool there = (K_GROUP % BLOCK_N == 0 || i * LINES < left) && along.r < R;
            copy_filter(tiles.b.piece(line + i * LINES, piece), filters + i * static_cast<long long>(LINES * TAPS * PITCH),
                        there, along);
        }
        filters += BLOCK_K;
        along.next();
    }
};

// Finish. A lane has two neighbouring filters of pixels g and g + 8 of each product. Where eight outputs of a pixel may be
// stored as one, four lanes hand each other what they have of four products.
template <class Out>
__device__ inline void finish_sums(const ImplicitMma &args, int group, int share, index_t m0, int n0,
                                   const WarpSums &sums) {
    constexpr bool BY_EIGHT = sizeof(Out) == 2 && COLUMNS % 4 == 0;
    const Conv &conv = args.conv;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, first_k = group * K_GROUP;
    const index_t pixels = static_cast<index_t>(conv.N) * conv.P * conv.Q, step = conv.out_strides.c;
#pragma unroll
    for (int i = 0; i < 2 * ROWS; i++) {
        const index_t m = m0 + 8 * i + g;
        const bool inside = m < pixels;
        const Column at = column_of(conv, inside ? m : 0);
        Out *const to = conv.out + (share * pixels * K + place(conv.out_strides, at.n, first_k, at.p, at.q));
        const auto pair_of = [&](int j) {
            const int n = n0 + 8 * j + 2 * t;
            const float *own = sums[i / 2][j] + i % 2 * 2;
            Vector<Out, 2> pair;
            pair.word = {};
            if (inside && n < K_GROUP) pair.at[0] = finished(conv, at.n, first_k + n, at.p, at.q, own[0]);
            if (inside && n + 1 < K_GROUP) pair.at[1] = finished(conv, at.n, first_k + n + 1, at.p, at.q, own[1]);
            return pair;
        };
        if constexpr (BY_EIGHT) {
            if (args.together == PIECE) {
#pragma unroll
                for (int j = 0; j < COLUMNS; j += 4) {
                    Vector<Out, PIECE> eight;
#pragma unroll
                    for (int v = 0; v < 4; v++) eight.word.bits[v] = pair_of(j + v).word.bits;
                    turn_words(eight.word.bits);
                    const int n = n0 + 8 * (j + t);
                    if (inside && n < K_GROUP) store_vector(to + n, eight);
                }
                continue;
            }
        }
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            const int n = n0 + 8 * j + 2 * t;
            if (!inside || n >= K_GROUP) continue;
            const Vector<Out, 2> pair = pair_of(j);
            if (args.together > 1) {
                store_vector(to + n, pair);
                continue;
            }
            to[n * step] = pair.at[0];
            if (n + 1 < K_GROUP) to[(n + 1) * step] = pair.at[1];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) implicit_gemm_mma(const __grid_constant__ ImplicitMma args) {
    DYNAMIC_SHARED(Tiles, stages);
    constexpr unsigned ACROSS = (K_GROUP + BLOCK_N - 1) / BLOCK_N;
    const index_t pixels = static_cast<index_t>(args.conv.N) * args.conv.P * args.conv.Q;
    const unsigned down = static_cast<unsigned>((pixels + BLOCK_M - 1) / BLOCK_M), rest = blockIdx.x / ACROSS;
    const int share = rest / (down * GROUPS), group = rest / down % GROUPS;
    const int tile_n = blockIdx.x % ACROSS * BLOCK_N;
    const index_t tile_m = static_cast<index_t>(rest % down) * BLOCK_M;
    const int first = share * SHARE_STEPS, steps = min(SHARE_STEPS, STEPS - first);
    const int warp = threadIdx.x / 32, m0 = warp / WARPS_N * WARP_M, n0 = warp % WARPS_N * WARP_N;
    wait_for_earlier();
    Loader load(args, group, tile_m, tile_n, first);
    WarpSums sums = {};
    if (C_GROUP == PITCH && args.vectors)
        multiply_steps<true, true>(sums, stages, steps, m0, n0, [&](int, Tiles &to) { load.ask<true>(to); });
    else
        multiply_steps<true, true>(sums, stages, steps, m0, n0, [&](int, Tiles &to) { load.ask<false>(to); });
    finish_sums<out_t>(args, group, share, tile_m + m0, tile_n + n0, sums);
}
