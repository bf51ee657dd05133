// split_pixels: splits an image of any layout, strides and border into rows of halves (split.cuh), with a scale for
// each pixel and 64 channels. implicit_gemm_split then splits nothing; otherwise it may split the same pixels many
// times.
//
// Threads   32 x LINES a block, for a square of SIDE pixels and SIDE channels (pixels.cuh).
// Shared    the square, first as floats, then as halves in the same place. Its lines are padded by four bytes.
// Layout    halves[half][n][pixel][c], c up to PITCH, a multiple of 8, with zeros beyond C; downs[n][pixel][slice], the
//           factor of a sum of products of this pixel's 64 channels, padded with zeros to a multiple of 16 bytes.
//           Pixels are those of the padded image if the border is not zeros.
// Range     a pixel's down is -1 if the halves lose accuracy, and its outputs are computed from the floats: it has Inf,
//           NaN or numbers out of range; or more than a quarter of its numbers, or all numbers of one of the square's
//           channels, are so small relative to the largest of their pixels that they lose bits. An output may be the
//           sum of those alone.
// Limit     memory: both sides in whole lines.
#include "pixels.cuh"
#include "split.cuh"

using Squares = PixelSquares<cfg::CHANNELS, cfg::WHOLE_GROUP, cfg::CHANNELS_LAST>;
constexpr int SIDE = Squares::SIDE, LINES = Squares::LINES;
constexpr int THREADS = 32 * LINES, PARTS = THREADS / SIDE, OF_PART = SIDE / PARTS;  // of a pixel's channels
constexpr int PAIRS = OF_PART / 2, WORDS = cfg::PITCH / 2;
constexpr int MOST_LOST = 4;     // a pixel may lose bits in one number of so many
constexpr float LEAST = 1e-30f;  // replaces smaller numbers that are not zero

struct SplitPixels {
    Conv conv;
    unsigned *halves;  // pairs of them
    float *downs;
    int height, width, top, left, squares;
};

extern "C" __global__ void __launch_bounds__(THREADS) split_pixels(const __grid_constant__ SplitPixels args) {
    __shared__ float square[SIDE][SIDE + 1], largest[PARTS][SIDE], ups[SIDE];
    __shared__ unsigned column[SIDE];  // bits of the largest scaled number of each channel
    __shared__ int balance[SIDE];      // of each pixel: above 0 if too many numbers lose bits
    const int lane = threadIdx.x, line = threadIdx.y, thread = line * 32 + lane, at = thread % SIDE;
    const int part = thread / SIDE, from = part * OF_PART;
    const int n = blockIdx.x / args.squares, first = blockIdx.x % args.squares * SIDE, c0 = blockIdx.y * SIDE;
    const int pixels = args.height * args.width;
    pdl_wait();
    Squares::load_square(args, n, first, c0, [&](int pixel, int c, float value) { square[pixel][c] = value; });
    if (thread < SIDE) column[thread] = 0, balance[thread] = 0;
    __syncthreads();
    // The scale of each pixel.
    float most = 0;
#pragma unroll
    for (int i = 0; i < OF_PART; i++) most = largest_of(most, square[at][from + i]);
    largest[part][at] = most;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PARTS; i++) most = largest_of(most, largest[i][at]);
    if (most > 0 && most < SMALLEST) most = SMALLEST;
    const Scale scale = scale_of(most, SHIFT);
    if (part == 0) ups[at] = scale.up;
    __syncthreads();
    // Tests that each channel has a number that keeps its bits, and each pixel enough of them. Zeros do not count.
    float kept = 0;
    int lose = 0;
#pragma unroll
    for (int i = 0; i < OF_PART; i++) {
        const float v = fabsf(square[from + i][at]);
        if (v != 0) kept = fmaxf(kept, fmaxf(v * ups[from + i], LEAST));
        const float own = fabsf(square[at][from + i]);
        if (own != 0) lose += own * scale.up < IN_FULL ? MOST_LOST - 1 : -1;
    }
    atomicAdd(&balance[at], lose);
    if (kept > 0) atomicMax(&column[at], bits_of(kept));
    __syncthreads();
    kept = float_of(column[at]);
    const bool lost = __syncthreads_or(kept > 0 && kept < IN_FULL);
    if (part == 0 && first + at < pixels) {
        float *downs = args.downs + (static_cast<long long>(n) * pixels + first + at) * cfg::SLICES;
        downs[c0 / SIDE] = lost || balance[at] > 0 || cannot_split(most) ? -1 : scale.down;
        for (int slice = c0 / SIDE + 1; c0 + SIDE >= cfg::CHANNELS && slice < cfg::SLICES; slice++) downs[slice] = 0;
    }
    // The halves overwrite the floats of the thread: high ones, then low ones.
    unsigned high[PAIRS], low[PAIRS];
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const float *pair = &square[at][from + 2 * i];
        split_pair(pair[0] * scale.up, pair[1] * scale.up, high[i], low[i]);
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        square[at][from + i] = float_of(high[i]);
        square[at][from + PAIRS + i] = float_of(low[i]);
    }
    __syncthreads();
    const int word = c0 / 2 + lane, of_high = lane / PAIRS * OF_PART + lane % PAIRS;
    unsigned *to = args.halves + (static_cast<long long>(n) * pixels + first + line) * WORDS + word;
    const long long lows = static_cast<long long>(args.conv.N) * pixels * WORDS;
#pragma unroll
    for (int i = 0; i < SIDE; i += LINES, to += LINES * WORDS) {
        if (first + line + i >= pixels || word >= WORDS) continue;
        to[0] = bits_of(square[line + i][of_high]);
        to[lows] = bits_of(square[line + i][of_high + PAIRS]);
    }
}
