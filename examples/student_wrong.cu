// A convolution through shared memory that forgets the halo: each thread loads one pixel, and a block of outputs takes
// every pixel outside of its own block as 0.
// convforge: block=16x16 grid=ceil(Q/16),ceil(P/16),N*K
extern "C" __global__ void conv2d(const float *x, const float *w, float *y, int N, int C, int H, int W, int K, int R,
                                  int S, int P, int Q, int stride_h, int stride_w, int pad_top, int pad_left) {
    __shared__ float tile[16][16];
    const int q = blockIdx.x * 16 + threadIdx.x, p = blockIdx.y * 16 + threadIdx.y;
    const int n = blockIdx.z / K, k = blockIdx.z % K;
    float sum = 0.0f;
    for (int c = 0; c < C; c++) {
        tile[threadIdx.y][threadIdx.x] = p < H && q < W ? x[((n * C + c) * H + p) * W + q] : 0.0f;
        __syncthreads();
        for (int r = 0; r < R; r++)
            for (int s = 0; s < S; s++) {
                const int i = threadIdx.y * stride_h + r - pad_top, j = threadIdx.x * stride_w + s - pad_left;
                if (i >= 0 && i < 16 && j >= 0 && j < 16) sum += tile[i][j] * w[((k * C + c) * R + r) * S + s];
            }
        __syncthreads();
    }
    if (p < P && q < Q) y[((n * K + k) * P + p) * Q + q] = sum;
}
