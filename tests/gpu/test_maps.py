"""Maps of arrays in both modes, on a GPU or the emulator: several in a struct, swizzled, tiny."""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.im2col_maps import im2col_of
from tests.gpu.hopper import hopper, needs_hopper

from convforge.algorithms.host.conv import address
from convforge.backends.kernel import KernelSource
from convforge.backends.maps import AnyMap, TiledMap
from convforge.backends.runtime import LaunchInfo
from convforge.backends.structs import MapField, struct_with_maps

pytestmark = needs_hopper

KERNEL = """
#include "tma.cuh"
struct Bring {
    int c, w, h, n, off_w, off_h, bytes;
    TensorMap other;
    TensorMap map;
    unsigned char *out;
};
extern "C" __global__ void bring(const __grid_constant__ Bring args) {
    DYNAMIC_SHARED(unsigned char, room);
    __shared__ unsigned long long bar;
    unsigned char *const tile = room + (1024 - shared_address(room) % 1024) % 1024;
    if (threadIdx.x == 0) {
        mbarrier_init(&bar);
        mbarrier_init_fence();
        mbarrier_expect_tx(&bar, args.bytes);
        COPY;
    }
    __syncthreads();
    mbarrier_wait(&bar, 0);
    for (int i = threadIdx.x; i < args.bytes; i += blockDim.x) args.out[i] = tile[i];
}
"""
STRUCT: Any = struct_with_maps("Bring", [
    *((name, ctypes.c_int) for name in ("c", "w", "h", "n", "off_w", "off_h", "bytes")),
    ("other", MapField), ("map", MapField), ("out", ctypes.c_void_p),
])  # fmt: skip
PAGE = {"float16": "f16", "float32": "f32", "uint8": "u8"}


def brought(seen: AnyMap, rows: int, row_bytes: int, at: tuple[int, ...], offsets: tuple[int, int], tmp: Path) -> Any:
    """The bytes that one copy brings, (rows, bytes of a row), where a swizzle put them back in order."""
    name, offset = ("tma_load", "") if isinstance(seen, TiledMap) else ("tma_load_im2col", "args.off_w, args.off_h, ")
    copy = f"{name}(tile, args.map, args.c, args.w, args.h, args.n, {offset}&bar)"
    path = tmp / "bring.cu"
    path.write_text(KERNEL.replace("COPY", copy), encoding="utf-8")
    runtime = hopper()
    kernel = runtime.compile(KernelSource(str(path), "bring", (), STRUCT, "Bring"))
    nbytes = rows * row_bytes
    out = runtime.empty((nbytes,), np.uint8)
    args = STRUCT(*at, *offsets, nbytes)
    assert seen.refusal() is None
    args.put_map("map", seen, runtime.tensor_map(seen))
    args.out = address(out)
    runtime.launch(kernel, LaunchInfo("bring", (1,), (128,), nbytes + 1024), args)
    runtime.synchronize()
    found = runtime.download(out).reshape(rows, row_bytes // 16, 16)
    pieces = seen.swizzle // 16
    if pieces:  # a piece's place is turned by the number of its line of 128 bytes (PTX ISA, Swizzling modes)
        lines = np.arange(rows) * row_bytes // 128
        found = np.stack([row[np.arange(len(row)) ^ (line % pieces)] for row, line in zip(found, lines, strict=True)])
    return found.reshape(rows, row_bytes)


def picture(n: int, h: int, w: int, c: int, dtype: str) -> Any:
    return np.random.default_rng(3).integers(1, 100, (n, h, w, c)).astype(dtype)


@pytest.mark.parametrize("swizzle", [0, 128])
@pytest.mark.parametrize("dtype", ["float16", "float32", "uint8"])
@pytest.mark.parametrize("size", [(1, 1, 1), (2, 3, 5), (2, 40, 41)])
def test_tiles_of_four_axes(size: tuple[int, int, int], dtype: str, swizzle: int, tmp_path: Path) -> None:
    n, h, w = size
    c = 128 // np.dtype(dtype).itemsize
    x = picture(n, h, w, c, dtype)
    there = hopper().upload(x)
    strides = tuple(x.strides[axis] for axis in (2, 1, 0))
    seen = TiledMap(address(there), PAGE[dtype], (c, w, h, n), strides, (c, 8, 4, 1), swizzle=swizzle)
    for at in ((0, 0, 0, 0), (0, -2, -1, n - 1), (0, w - 1, h - 2, 0)):
        found = brought(seen, 32, 128, at, (0, 0), tmp_path).reshape(4, 8, 128).view(dtype)
        padded = np.pad(x[at[3]], ((8, 8), (16, 16), (0, 0)))
        np.testing.assert_array_equal(found, padded[8 + at[2] :][:4, 16 + at[1] :][:, :8], str(at))


@pytest.mark.parametrize("swizzle", [0, 64, 128])
@pytest.mark.parametrize(("stride", "dilation"), [((1, 1), (1, 1)), ((2, 1), (1, 2)), ((2, 2), (1, 1))])
@pytest.mark.parametrize("size", [(1, 3, 3), (2, 5, 4), (3, 20, 31)])
def test_im2col_goes_across_rows_and_pictures(
    size: tuple[int, int, int], stride: tuple[int, int], dilation: tuple[int, int], swizzle: int, tmp_path: Path
) -> None:
    """Every tap of a 3 x 3 filter, from the first output on and from one in the middle; W before H."""
    n, h, w = size
    c = 32 if swizzle == 64 else 64
    x = picture(n, h, w, c, "float16")
    there = hopper().upload(x)
    padding = ((1, 1), (dilation[1], dilation[1]))
    seen = im2col_of(address(there), "f16", (c, w, h, n), padding=padding, taps=(3, 3), channels=c, pixels=64,
                     stride=stride, dilation=dilation, swizzle=swizzle)  # fmt: skip
    q = (w + 2 - 2 * dilation[0] - 1) // stride[0] + 1
    p = (h + 2 * padding[1][0] - 2 * dilation[1] - 1) // stride[1] + 1
    outputs = list(itertools.product(range(n), range(p), range(q)))
    padded = np.pad(x, ((0, 0), (8, 8), (8, 8), (0, 0)))
    for first in (0, len(outputs) // 2):
        for r, s in ((0, 0), (1, 2), (2, 1), (2, 2)):
            image, row, column = outputs[first]
            at = (0, column * stride[0] - 1, row * stride[1] - padding[1][0], image)
            found = brought(seen, 64, 2 * c, at, (s * dilation[0], r * dilation[1]), tmp_path).view("float16")
            expected = np.zeros((64, c), "float16")
            for i, (image, row, column) in enumerate(outputs[first:][:64]):
                y, z = row * stride[1] - padding[1][0] + r * dilation[1], column * stride[0] - 1 + s * dilation[0]
                expected[i] = padded[image, 8 + y, 8 + z]
            np.testing.assert_array_equal(found, expected, f"from output {first}, tap {r}, {s}")
