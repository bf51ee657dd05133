// pixel_rows: repacks an image of any layout and strides as rows of channels, with the values of the border around it.
//
// Since implicit_gemm_wgmma: the TMA loads rows of channels whose addresses are multiples of 16 bytes, and
//           zeros outside. This kernel writes such rows for any other x.
// Threads   32 x LINES a block, for a square of SIDE pixels and SIDE channels. Neighbouring threads read contiguous
//           elements of x: pixels, or channels (CHANNELS_LAST). They write channels, four bytes each.
// Shared    the square. Its lines are padded by four bytes, so that a column has no bank conflicts.
// Out       rows of CHANNELS, PITCH apart, of (N, height, width) pixels. These are the pixels of the padded image if
//           the border is not zeros. The channels of each group are padded with zeros to WHOLE_GROUP.
// Limit     memory: both sides in whole lines.
#include "pixels.cuh"

using Squares = PixelSquares<cfg::CHANNELS, cfg::WHOLE_GROUP, cfg::CHANNELS_LAST>;
constexpr int SIDE = Squares::SIDE, LINES = Squares::LINES;
constexpr int WORD = 4 / sizeof(x_t);  // elements in four bytes

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
            if ((32 * WORD <= SIDE || c < SIDE) && first + line + i < pixels && c0 + c + j < cfg::PITCH)
                *reinterpret_cast<unsigned *>(to + j) = *reinterpret_cast<const unsigned *>(&square[line + i][c + j]);
}
