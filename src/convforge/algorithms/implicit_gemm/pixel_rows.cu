// pixel_rows: a picture of any layout and strides as rows of channels, with what stands outside of it written around.
//
// Since implicit_gemm_wgmma: the tensor memory accelerator brings rows of channels whose addresses are multiples of 16
// bytes, and zeros from outside. This makes such rows where x has none.
// Threads   32 x LINES a block, a square of SIDE pixels and SIDE channels. Neighbours read what lies side by side in x:
//           pixels, or, CHANNELS_NEAR, channels; and write channels, four bytes each.
// Shared    the square, whose lines are four bytes longer, so that a column of it meets all banks.
// Out       rows of CHANNELS, PITCH apart, of (N, height, width) pixels, which are those of the padded picture where the
//           border is not zeros. Each group's channels are followed by zeros up to WHOLE_GROUP.
// Limit     memory: both sides in whole lines.
#include "border.cuh"
#include "device.cuh"

constexpr int SIDE = 64, LINES = 8, WORD = 4 / sizeof(x_t);  // of four bytes

struct PixelRows {
    Conv conv;
    x_t *rows;
    int height, width, top, left, squares;  // squares: of a picture's pixels
};

// A pixel of the rows: where its first channel lies in x, if it is `seen`, in the picture and not outside.
struct Source {
    const x_t *first;
    bool seen, inside;
};

__device__ inline Source source_of(const PixelRows &args, int n, int pixel) {
    const Conv &conv = args.conv;
    const bool seen = pixel < args.height * args.width;
    const int row = pixel / args.width;
    const int h = inside(row - args.top, conv.H), w = inside(pixel - row * args.width - args.left, conv.W);
    const bool there = seen && h >= 0 && w >= 0;
    return {conv.x + (there ? place(conv.x_strides, n, 0, h, w) : 0), seen, there};
}

// Of a pixel's channels every STEP-th from c on, handed one by one to put(which, value).
template <int STEP, class Put>
__device__ __forceinline__ void bring(const PixelRows &args, const Source &source, int c, const Put &put) {
    const index_t stride = args.conv.x_strides.c;
    const x_t outside = BORDER == CONSTANT && source.seen ? stored<x_t>::of(args.conv.outside) : x_t{};
    const x_t *from = source.first + (GROUPS == 1 ? c * stride : 0);
#pragma unroll
    for (int i = 0; i < SIDE / STEP; i++, c += STEP) {
        const int group = GROUPS == 1 ? 0 : c / WHOLE_GROUP, in_group = c - group * WHOLE_GROUP;
        if (GROUPS > 1) from = source.first + (group * C_GROUP + in_group) * stride;
        x_t value{};
        if (c < CHANNELS && in_group < C_GROUP) value = source.inside ? *from : outside;
        if (GROUPS == 1) from += STEP * stride;
        put(i * STEP, value);
    }
}

extern "C" __global__ void __launch_bounds__(32 * LINES) pixel_rows(const __grid_constant__ PixelRows args) {
    __shared__ __align__(4) x_t square[SIDE][SIDE + WORD];
    const int lane = threadIdx.x, line = threadIdx.y;
    const int n = blockIdx.x / args.squares, first = blockIdx.x % args.squares * SIDE, c0 = blockIdx.y * SIDE;
    wait_for_earlier();
    if (CHANNELS_NEAR) {
#pragma unroll
        for (int i = 0; i < SIDE; i += LINES)
            bring<32>(args, source_of(args, n, first + line + i), c0 + lane,
                      [&](int c, x_t value) { square[line + i][lane + c] = value; });
    } else {
#pragma unroll
        for (int i = 0; i < SIDE; i += 32)
            bring<LINES>(args, source_of(args, n, first + lane + i), c0 + line,
                         [&](int c, x_t value) { square[lane + i][line + c] = value; });
    }
    __syncthreads();
    const int pixels = args.height * args.width, c = lane * WORD;
    x_t *to = args.rows + (static_cast<long long>(n) * pixels + first + line) * PITCH + c0 + c;
#pragma unroll
    for (int i = 0; i < SIDE; i += LINES, to += LINES * PITCH)
#pragma unroll
        for (int j = 0; j < SIDE; j += 32 * WORD)
            if (first + line + i < pixels && c0 + c + j < PITCH)
                *reinterpret_cast<unsigned *>(to + j) = *reinterpret_cast<const unsigned *>(&square[line + i][c + j]);
}
