// truth_conv2d, truth_gemm: sums of products in float64, and the sums of their absolute values.
//
// The reference for results of large problems. It shares nothing with the methods that it judges: no header, no
// geometry. The host resolves borders in tables of rows and columns, as for loops.py, against which it is checked.
// Sums      in the order c, r, s (k in a matrix product), starting at 0. Every product and every sum is rounded
//           separately: __dmul_rn and __dadd_rn are never fused, so results equal those of loops.py bit by bit.
// Threads   one output element at a time: thread t computes elements t, t + threads of the grid, ...; a block takes
//           tiles of a matrix in the same way. So any number of blocks works, and offsets have 64 bits.
// Memory    pixels and weights are read through L1. The matrix product uses tiles of TILE x TILE in shared memory;
//           without them 8192 x 8192 x 8192 would take seconds.
// Limit     three float64 operations a product, none of which is fused; in a convolution the loads of two factors.

struct Convolution {
    const pixel_t *x;
    const double *w;            // (K, channels, R, S), in cross-correlation order
    const int *rows, *columns;  // position in the image of each padded row and column, or -1 for `outside`
    double *totals, *magnitude;    // in the output's layout: sums of products, sums of absolute values
    long long outputs;          // elements of either
    long long x_n, x_c, x_h, x_w;  // strides of x in elements
    double outside, zero;       // value outside the image; subtracted from every pixel
    int K, P, Q, channels, filters, R, S;  // channels and filters of a group
    int stride_h, stride_w, dilation_h, dilation_w;
};

// Adds a product to a sum, and its absolute value to the other sum.
__device__ inline void add(double &total, double &magnitude, double weight, double pixel) {
    const double product = __dmul_rn(weight, pixel);
    total = __dadd_rn(total, product);
    magnitude = __dadd_rn(magnitude, fabs(product));
}

extern "C" __global__ void truth_conv2d(const Convolution args) {
    const long long threads = static_cast<long long>(gridDim.x) * blockDim.x;
    for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < args.outputs; i += threads) {
        // The axes after N, the last first: K, Q, P in NHWC, else Q, P, K.
        const int sizes[3] = {cfg::CHANNELS_LAST ? args.K : args.Q, cfg::CHANNELS_LAST ? args.Q : args.P,
                              cfg::CHANNELS_LAST ? args.P : args.K};
        const long long line = i / sizes[0], plane = line / sizes[1], n = plane / sizes[2];
        const int last = i % sizes[0], middle = line % sizes[1], outer = plane % sizes[2];
        const int k = cfg::CHANNELS_LAST ? last : outer, p = cfg::CHANNELS_LAST ? outer : middle;
        const int q = cfg::CHANNELS_LAST ? middle : last, first = k / args.filters * args.channels;
        const pixel_t *image = args.x + n * args.x_n + first * args.x_c;
        const double *weight = args.w + static_cast<long long>(k) * args.channels * args.R * args.S;
        double total = 0, magnitude = 0;
        for (int c = 0; c < args.channels; c++)
            for (int r = 0; r < args.R; r++) {
                const int h = args.rows[p * args.stride_h + r * args.dilation_h];
                for (int s = 0; s < args.S; s++) {
                    const int v = args.columns[q * args.stride_w + s * args.dilation_w];
                    const bool there = h >= 0 && v >= 0;
                    const double pixel = there ? image[c * args.x_c + h * args.x_h + v * args.x_w] : args.outside;
                    add(total, magnitude, *weight++, pixel - args.zero);
                }
            }
        args.totals[i] = total;
        args.magnitude[i] = magnitude;
    }
}

struct Product {
    const float *a, *b;
    double *totals, *magnitude;  // (M, N)
    long long a_row, a_k, b_k, b_column;  // strides of A and B in elements
    int M, N, K;
};

constexpr int TILE = 16;

// Element (row, column) of a matrix, or 0 outside, whose products with 0 leave every sum unchanged.
__device__ inline double element(const float *matrix, long long row_step, long long column_step, long long row,
                                 long long column, int rows, int columns) {
    return row < rows && column < columns ? matrix[row * row_step + column * column_step] : 0;
}

extern "C" __global__ void __launch_bounds__(TILE * TILE) truth_gemm(const Product args) {
    __shared__ double a_tile[TILE][TILE + 1], b_tile[TILE][TILE];  // padded, so that rows of A are in other banks
    const int x = threadIdx.x, y = threadIdx.y;
    const long long across = (args.N + TILE - 1LL) / TILE, tiles = (args.M + TILE - 1LL) / TILE * across;
    for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const long long m = tile / across * TILE + y, n = tile % across * TILE + x;
        double total = 0, magnitude = 0;
        for (long long k0 = 0; k0 < args.K; k0 += TILE) {
            a_tile[y][x] = element(args.a, args.a_row, args.a_k, m, k0 + x, args.M, args.K);
            b_tile[y][x] = element(args.b, args.b_k, args.b_column, k0 + y, n, args.K, args.N);
            __syncthreads();
#pragma unroll
            for (int k = 0; k < TILE; k++) add(total, magnitude, a_tile[y][k], b_tile[k][x]);
            __syncthreads();
        }
        if (m < args.M && n < args.N) {
            args.totals[m * args.N + n] = total;
            args.magnitude[m * args.N + n] = magnitude;
        }
    }
}
