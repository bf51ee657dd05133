// A convolution as a student writes it first: one thread an output, everything in global memory.
// convforge: block=16x16 grid=ceil(Q/16),ceil(P/16),N*K
//
//     convforge check student_naive.cu
extern "C" __global__ void conv2d(const float *x, const float *w, float *y, int N, int C, int H, int W, int K, int R,
                                  int S, int P, int Q, int stride_h, int stride_w, int pad_top, int pad_left) {
    const int q = blockIdx.x * blockDim.x + threadIdx.x;
    const int p = blockIdx.y * blockDim.y + threadIdx.y;
    const int n = blockIdx.z / K, k = blockIdx.z % K;
    if (p >= P || q >= Q) return;
    float sum = 0.0f;
    for (int c = 0; c < C; c++)
        for (int r = 0; r < R; r++)
            for (int s = 0; s < S; s++) {
                const int h = p * stride_h + r - pad_top, v = q * stride_w + s - pad_left;
                if (h >= 0 && h < H && v >= 0 && v < W)
                    sum += x[((n * C + c) * H + h) * W + v] * w[((k * C + c) * R + r) * S + s];
            }
    y[((n * K + k) * P + p) * Q + q] = sum;
}
