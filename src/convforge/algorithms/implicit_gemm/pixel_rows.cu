// pixel_rows: an image of any layout and strides as rows of channels, with what stands outside of it written around.
//
// Since implicit_gemm_wgmma: the TMA brings rows of channels whose addresses are multiples of 16
// bytes, and zeros from outside. This makes such rows where x has none.
// Threads   32 x LINES a block, a square of SIDE pixels and SIDE channels. Neighbours read what lies side by side in x:
//           pixels, or, CHANNELS_LAST, channels; and write channels, four bytes each.
// Shared    the square, whose lines are four bytes longer, so that a column of it meets all banks.
// Out       rows of CHANNELS, PITCH apart, of (N, height, width) pixels, which are those of the padded image where the
//           border is not zeros. Each group's channels are followed by zeros up to WHOLE_GROUP.
// Limit     memory: both sides in whole lines.
#include "pixels.cuh"

using Squares = PixelSquares<cfg::CHANNELS, cfg::WHOLE_GROUP, cfg::CHANNELS_LAST>;
constexpr int SIDE = Squares::SIDE, LINES = Squares::LINES;
constexpr int WORD = 4 / sizeof(x_t);  // of four bytes

struct PixelRows {
    Conv conv;
    x_t *rows;
    int height, width, top, left, squares;
};

extern "C" __global__ void __launch_bounds__(32 * LINES) pixel_rows(const __grid_constant__ PixelRows args) {
    __shared__ __align__(4) x_t square[SIDE][SIDE + WORD];
    const int lane = threadIdx.x, line = threadIdx.y;
    const int n = blockIdx.x / args.squares, first = blockIdx.x % args.squares * SIDE, c0 = blockIdx.y * SIDE;
    pdl_wait();
    Squares::load_square(args, n, first, c0, [&](int pixel, int c, x_t value) { square[pixel][c] = value; });
    __syncthreads();
    const int pixels = args.height * args.width, c = lane * WORD;
    x_t *to = args.rows + (static_cast<long long>(n) * pixels + first + line) * cfg::PITCH + c0 + c;
#pragma unroll
    for (int i = 0; i < SIDE; i += LINES, to += LINES * cfg::PITCH)
#pragma unroll
        for (int j = 0; j < SIDE; j += 32 * WORD)
            if (first + line + i < pixels && c0 + c + j < cfg::PITCH)
                *reinterpret_cast<unsigned *>(to + j) = *reinterpret_cast<const unsigned *>(&square[line + i][c + j]);
}
