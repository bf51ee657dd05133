"""A convolution program as `convforge check` runs it: x.npy and w.npy in, y.npy out, stride and padding as options.

convforge check student_conv.py
"""

import argparse

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("x")
parser.add_argument("w")
parser.add_argument("y")
parser.add_argument("--stride", type=int, default=1)
parser.add_argument("--padding", type=int, default=0)
options = parser.parse_args()

x, w = np.load(options.x), np.load(options.w)  # (N, C, H, W), (K, C, R, S)
stride, pad = options.stride, options.padding
(R, S), (H, W) = w.shape[2:], x.shape[2:]
P, Q = (H + 2 * pad - R) // stride + 1, (W + 2 * pad - S) // stride + 1
padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
y = np.zeros((x.shape[0], w.shape[0], P, Q), np.float32)
for r in range(R):
    for s in range(S):
        pixels = padded[:, :, r : r + stride * (P - 1) + 1 : stride, s : s + stride * (Q - 1) + 1 : stride]
        y += np.einsum("ncpq,kc->nkpq", pixels, w[:, :, r, s])
np.save(options.y, y)
