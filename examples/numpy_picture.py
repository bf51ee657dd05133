"""Filter a NumPy image: a blur of each channel, edges over all of them, and a strided convolution, on CPU or GPU.

python examples/numpy_picture.py
python examples/numpy_picture.py --device cuda --out out   # and write the results there
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import convforge
from convforge.imaging.convert import to_dtype
from convforge.imaging.files import Image, write_image
from convforge.imaging.kernels import named_kernel
from convforge.imaging.photographs import photograph


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="folder for the pictures")
    given = parser.parse_args()
    picture = photograph("astronaut")  # (H, W, 3), uint8
    device = given.device

    blurred = convforge.filter(picture, "gaussian:9:2", device=device)
    edges = convforge.filter(picture, "laplacian", channels="sum", out_dtype=np.int32, device=device)

    # The same edges by conv2d: (N, C, H, W), one filter that sums all channels.
    x = np.ascontiguousarray(picture.transpose(2, 0, 1)[None]).astype(np.float32)
    w = np.broadcast_to(named_kernel("laplacian").values.astype(np.float32), (1, 3, 3, 3))
    y = convforge.conv2d(x, w, padding=1, padding_mode="reflect", device=device)
    assert np.array_equal(y[0, 0], edges), "whole numbers: both are exact"

    half = convforge.conv2d(x, w, stride=2, padding=1, device=device)
    print(f"a picture of {picture.shape}, {picture.dtype}, on {device}")
    print(f"blurred: {blurred.shape}, {blurred.dtype}, from a spread of {picture.std():.1f} to {blurred.std():.1f}")
    print(f"edges: {edges.shape}, {edges.dtype}, from {edges.min()} to {edges.max()}; at stride 2: {half.shape}")
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        for name, pixels in (("blurred", blurred), ("edges", to_dtype(edges, np.uint8, absolute=True))):
            write_image(given.out / f"{name}.png", Image(pixels))


if __name__ == "__main__":
    main()
