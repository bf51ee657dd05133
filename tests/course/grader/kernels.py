"""Readers' kernels: two that are right, and what is changed in them to plant a fault."""

from __future__ import annotations

from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples"
NAIVE = (EXAMPLES / "student_naive.cu").read_text(encoding="utf-8")

# A tile of pixels with its halo in shared memory, channel by channel.
SHARED = """// convforge: block=8x8 grid=ceil(Q/8),ceil(P/8),N*K shared=4*(7*stride_h+R)*(7*stride_w+S)
#include <cuda_runtime.h>
__global__ void conv2d(const float *__restrict__ x, const float *__restrict__ w, float *y, int N, int C, int H, int W,
                       int K, int R, int S, int P, int Q, int stride_h, int stride_w, int pad_top, int pad_left) {
    extern __shared__ float tile[];
    const int q = blockIdx.x * 8 + threadIdx.x, p = blockIdx.y * 8 + threadIdx.y;
    const int n = blockIdx.z / K, k = blockIdx.z % K;
    const int high = 7 * stride_h + R, wide = 7 * stride_w + S;
    const int top = blockIdx.y * 8 * stride_h - pad_top, left = blockIdx.x * 8 * stride_w - pad_left;
    float sum = 0;
    for (int c = 0; c < C; c++) {
        for (int i = threadIdx.y * 8 + threadIdx.x; i < high * wide; i += 64) {
            const int h = top + i / wide, v = left + i % wide;
            tile[i] = h >= 0 && h < H && v >= 0 && v < W ? x[((n * C + c) * H + h) * W + v] : 0;
        }
        __syncthreads();  // the tile is loaded
        for (int r = 0; r < R; r++)
            for (int s = 0; s < S; s++)
                sum += tile[(threadIdx.y * stride_h + r) * wide + threadIdx.x * stride_w + s] *
                       w[((k * C + c) * R + r) * S + s];
        __syncthreads();  // the tile is used
    }
    if (p < P && q < Q) y[((n * K + k) * P + p) * Q + q] = sum;
}
"""

_INSIDE = "if (h >= 0 && h < H && v >= 0 && v < W)"
_PLACE = "p * stride_h + r - pad_top, v = q * stride_w + s - pad_left"
_NEIGHBOURS = "border reads neighbouring memory: "

# Text of NAIVE -> text of the faulty kernel; the fault's name.
PLANTED: dict[str, tuple[str, str, str]] = {
    "flip": ("R + r) * S + s]", "R + R - 1 - r) * S + S - 1 - s]", "flipped filter"),
    "channel ignored": ("c < C;", "c < C - 1;", "the last channel is ignored"),
    "first channel": ("c < C;", "c < 1;", "only the first channel counts"),
    "H and W of the filter": ("* R + r) * S + s]", "* S + s) * R + r]", "swapped H and W of the filter"),
    "H and W of the image": ("* H + h) * W + v]", "* W + v) * H + h]", "swapped H and W of the image"),
    "pitch": ("* H + h) * W + v]", "* H + h) * H + v]", "swapped H and W of the image: a row taken to have H pixels"),
    "H and W of the output": ("* P + p) * Q + q]", "* Q + q) * P + p]", "swapped H and W of the output"),
    "no border": (_INSIDE, "if (true)", f"{_NEIGHBOURS}neither rows nor columns are checked"),
    "rows unchecked": (_INSIDE, "if (v >= 0 && v < W)", f"{_NEIGHBOURS}only columns are checked"),
    "columns unchecked": (_INSIDE, "if (h >= 0 && h < H)", f"{_NEIGHBOURS}only rows are checked"),
    "border skipped": (
        "if (p >= P || q >= Q) return;", "if (p >= P - pad_top || q >= Q - pad_left || !p || !q) return;",
        "border skipped: outputs there are not written",
    ),
    "border repeated": (
        f"{_INSIDE}\n                    sum += x[((n * C + c) * H + h) * W + v]",
        "sum += x[((n * C + c) * H + min(max(h, 0), H - 1)) * W + min(max(v, 0), W - 1)]", "border taken as replicate",
    ),
    "stride": (_PLACE, "p + r - pad_top, v = q + s - pad_left", "stride ignored"),
    "stride of the padding": (
        _PLACE, "(p - pad_top) * stride_h + r, v = (q - pad_left) * stride_w + s", "stride applied to the padding too",
    ),
    "padding": (_PLACE, "p * stride_h + r, v = q * stride_w + s", "padding ignored"),
    "first filter": ("w[((k * C", "w[((0 * C", "one filter for all outputs: that of filter 0"),
    "filters and channels": ("w[((k * C + c)", "w[((c * K + k)", "swapped K and C of the filter"),
    "unset sum": ("float sum = 0.0f;", "float sum;", "the sum is not set to 0 before it is added to"),
    "added to": ("+ q] = sum;", "+ q] += sum;", "the output is added to instead of set"),
    "HWC": ("* C + c) * H + h) * W + v]", "* H + h) * W + v) * C + c]", "NCHW read as NHWC, or the reverse"),
    "NHWC out": ("* K + k) * P + p) * Q + q]", "* P + p) * Q + q) * K + k]", "NHWC instead of NCHW"),
    "off by one": ("r - pad_top,", "r - pad_top + 1,", "one pixel off: the image moved up"),
    "off by one to the right": ("s - pad_left;", "s - pad_left - 1;", "one pixel off: the image moved to the right"),
    "short filter": ("r < R;", "r < R - 1;", "last row of the filter left out"),
    "nothing written": ("if (p >= P ||", "if (p >= 0 ||", "nothing is written"),
    "last row": ("p >= P ||", "p >= P - 1 ||", "not written: the last rows"),
    "last column": ("q >= Q)", "q >= Q - 1)", "not written: the last columns"),
    "first image": ("x[((n * C + c)", "x[((0 * C + c)", "one image for the whole batch"),
    "twice": ("= sum;", "= 2 * sum;", "scaled by a constant: 2"),
    "narrow": ("= sum;", "= sum * 1.000003f;", "errors larger than those of float32"),
    "out of bounds": ("if (p >= P || q >= Q) return;", "if (p >= P) return;", "writes outside of the output"),
    "endless": ("r < R; r++", "r < R;", "a loop that does not end"),
}  # fmt: skip

# The same of SHARED.
PLANTED_SHARED: dict[str, tuple[str, str, str]] = {
    "no barrier": (
        "        __syncthreads();  // the tile is loaded\n", "", "the result depends on the order in which threads run",
    ),
    "no barrier behind": (
        "        __syncthreads();  // the tile is used\n", "", "the result depends on the order in which threads run",
    ),
    "divergent barrier": (
        "    float sum = 0;", "    if (p >= P || q >= Q) return;\n    float sum = 0;",
        "divergent barrier: not all threads come to it",
    ),
    "tile of stride 1": (
        "shared=4*(7*stride_h+R)*(7*stride_w+S)", "shared=4*(7+R)*(7+S)", "index outside of dynamic shared memory",
    ),
    "halo not loaded": (
        "i < high * wide; i += 64", "i < 64; i += 64", "NaN or infinite outputs",
    ),
    "halo of zeros": (
        "? x[((n", "&& h / 8 == blockIdx.y && v / 8 == blockIdx.x ? x[((n",
        "halo missing: pixels outside of the block's own count as 0",
    ),
}  # fmt: skip


def planted(right: str, change: tuple[str, str, str]) -> str:
    """A kernel with a fault in it."""
    assert right.count(change[0]) == 1, f"{change[0]!r} stands {right.count(change[0])} times in the kernel"
    return right.replace(change[0], change[1])
