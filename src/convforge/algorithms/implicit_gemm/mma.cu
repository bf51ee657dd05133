// implicit_gemm_mma: implicit GEMM of 16-bit types on the tensor cores of any GPU since Ampere.
//
// Since gemm_mma: the rows of A are what an output pixel sees, and are gathered from the picture as they are needed; the
// columns of B are filters. Out (NPQ x K) = columns (NPQ x RSC) times filters (RSC x K), for each group.
// Threads   WARPS_M x WARPS_N warps, each with WARP_M pixels x WARP_N filters of the tile.
// Order     along K of the product: taps, and of each tap the channels, as many as make whole pieces of 16 bytes (PITCH).
// Copies    a thread has one piece of several lines: of so many pixels, and of so many filters. From step to step it goes
//           on by BLOCK_K channels, and on to the next tap, without a division. Where a window begins it works out once.
// Pixels    pieces of 8 channels by cp.async, where channels lie side by side at multiples of 16 bytes; else number by
//           number. What stands outside is a zero of the copy, or the border's value.
// Filters   packed (K, R, S, PITCH): every piece is aligned.
// Finish    sums go through the epilogue where they are; in NHWC two neighbouring outputs are stored as one.
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
constexpr int PIECES = BLOCK_K / PIECE, LINES = THREADS / PIECES;  // lines that all threads take at once
static_assert(THREADS % PIECES == 0, "a thread has the same piece of each line");

struct ImplicitMma {
    Conv conv;
    int vectors;  // whether PIECE channels, counted from a multiple of PIECE of the group's, are aligned to 16 bytes
    int pairs;    // whether two neighbouring outputs, the first of them even, may be stored as one
};

// Where the window of an output begins.
struct Corner {
    index_t picture;  // place of the first channel of the group
    int h, w;
};

// The tap and the channel of a thread's piece, from step to step.
struct Along {
    int r, s, c;
    __device__ void next(int channels) {
        for (c += channels; c >= PITCH; c -= PITCH)
            if (++s == S) s = 0, r++;
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

__device__ inline void copy_pixel(math_t *to, const ImplicitMma &args, const Corner &corner, const Along &at) {
    const Conv &conv = args.conv;
    const int h = inside(corner.h + at.r * DILATION_H, conv.H), w = inside(corner.w + at.s * DILATION_W, conv.W);
    const int left = at.r < R ? C_GROUP - at.c : 0;
    if (BORDER == CONSTANT && left > 0 && (h < 0 || w < 0)) {
        put_piece(to, left, [&](int) { return stored<math_t>::of(conv.outside); });
        return;
    }
    const bool there = left > 0 && h >= 0 && w >= 0;
    const x_t *place = there ? conv.x + (corner.picture + h * static_cast<index_t>(conv.x_strides.h) +
                                         w * static_cast<index_t>(conv.x_strides.w) +
                                         at.c * static_cast<index_t>(conv.x_strides.c))
                             : conv.x;
    if (!there || (args.vectors && left >= PIECE)) copy_async16(to, place, there);
    else put_piece(to, left, [&](int j) { return place[j * static_cast<index_t>(conv.x_strides.c)]; });
}

__device__ inline void copy_filter(math_t *to, const math_t *filter, bool there, const Along &at) {
    const int left = there && at.r < R ? C_GROUP - at.c : 0;
    const math_t *place = left > 0 ? filter + (at.r * S + at.s) * PITCH + at.c : filter;
    if (left <= 0 || left >= PIECE) copy_async16(to, place, left > 0);
    else put_piece(to, left, [&](int j) { return place[j]; });
}

// Finish. A lane has two neighbouring filters of pixels g and g + 8 of each product.
__device__ inline void finish_sums(const ImplicitMma &args, int group, int share, index_t m0, int n0,
                                   const WarpSums &sums) {
    const Conv &conv = args.conv;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const index_t pixels = static_cast<index_t>(conv.N) * conv.P * conv.Q;
#pragma unroll
    for (int i = 0; i < 2 * ROWS; i++) {
        const index_t m = m0 + 8 * i + g;
        if (m >= pixels) continue;
        const Column at = column_of(conv, m);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            const int n = n0 + 8 * j + 2 * t, k = group * K_GROUP + n;
            if (n >= K_GROUP) continue;
            const float *own = sums[i / 2][j] + i % 2 * 2;
            out_t *to = conv.out + share * pixels * K + place(conv.out_strides, at.n, k, at.p, at.q);
            Vector<out_t, 2> pair;
            pair.at[0] = finished(conv, at.n, k, at.p, at.q, own[0]);
            if (n + 1 < K_GROUP) pair.at[1] = finished(conv, at.n, k + 1, at.p, at.q, own[1]);
            if (args.pairs) {
                store_vector(to, pair);
                continue;
            }
            to[0] = pair.at[0];
            if (n + 1 < K_GROUP) to[conv.out_strides.c] = pair.at[1];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) implicit_gemm_mma(const __grid_constant__ ImplicitMma args) {
    struct Tiles {
        LineTile<BLOCK_M, BLOCK_K> pixels;
        LineTile<BLOCK_N, BLOCK_K> filters;
    };
    DYNAMIC_SHARED(Tiles, stages);
    const Conv &conv = args.conv;
    constexpr unsigned ACROSS = (K_GROUP + BLOCK_N - 1) / BLOCK_N;
    const index_t pixels = static_cast<index_t>(conv.N) * conv.P * conv.Q;
    const unsigned down = static_cast<unsigned>((pixels + BLOCK_M - 1) / BLOCK_M), rest = blockIdx.x / ACROSS;
    const int share = rest / (down * GROUPS), group = rest / down % GROUPS;
    const int tile_n = blockIdx.x % ACROSS * BLOCK_N;
    const index_t tile_m = static_cast<index_t>(rest % down) * BLOCK_M;
    const int first = share * SHARE_STEPS, steps = min(SHARE_STEPS, STEPS - first);
    wait_for_earlier();
    // This thread's lines of pixels and of filters.
    constexpr int MINE_M = (BLOCK_M + LINES - 1) / LINES, MINE_N = (BLOCK_N + LINES - 1) / LINES;
    const int piece = threadIdx.x % PIECES, line = threadIdx.x / PIECES;
    Corner corners[MINE_M];
#pragma unroll
    for (int i = 0; i < MINE_M; i++) {  // pixels beyond the last see what the last sees
        const index_t m = tile_m + line + i * LINES;
        const Column at = column_of(conv, m < pixels ? m : pixels - 1);
        corners[i] = {place(conv.x_strides, at.n, group * C_GROUP, 0, 0), at.p * STRIDE_H - conv.top,
                      at.q * STRIDE_W - conv.left};
    }
    const math_t *filters = reinterpret_cast<const math_t *>(conv.w) + static_cast<long long>(group) * K_GROUP * TAPS * PITCH;
    Along along{0, 0, 0};
    along.next(first * BLOCK_K + piece * PIECE);
    const auto ask = [&](int step) {  // a commit for every step, so that waiting can count them
        if (step < steps) {
            Tiles &target = stages[step % STAGES];
#pragma unroll
            for (int i = 0; i < MINE_M; i++)
                if (BLOCK_M % LINES == 0 || line + i * LINES < BLOCK_M)
                    copy_pixel(target.pixels.piece(line + i * LINES, piece), args, corners[i], along);
#pragma unroll
            for (int i = 0; i < MINE_N; i++) {
                const int n = tile_n + line + i * LINES;
                if (BLOCK_N % LINES == 0 || line + i * LINES < BLOCK_N)
                    copy_filter(target.filters.piece(line + i * LINES, piece),
                                filters + static_cast<long long>(min(n, K_GROUP - 1)) * TAPS * PITCH, n < K_GROUP, along);
            }
            along.next(BLOCK_K);
        }
        copy_async_commit();
    };
    const int warp = threadIdx.x / 32, m0 = warp / WARPS_N * WARP_M, n0 = warp % WARPS_N * WARP_N;
    for (int stage = 0; stage < STAGES - 1; stage++) ask(stage);
    WarpSums sums = {};
    for (int step = 0; step < steps; step++) {
        copy_async_wait<STAGES - 2>();  // this thread's part of the tile has landed,
        __syncthreads();                // so has every other's, and all are done with the tile before it
        ask(step + STAGES - 1);
        const Tiles &now = stages[step % STAGES];
        multiply_tiles<true, true>(sums, now.pixels, now.filters, m0, n0);
    }
    finish_sums(args, group, share, tile_m + m0, tile_n + n0, sums);
}
