"""Filters that reach along Z: planes first, then each pixel's line of planes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convforge.imaging.axes import Axes, AxesError
from convforge.imaging.filtering import FilterOptions
from convforge.imaging.filtering import filter as filter_planes


def depth_sums(samples: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of the sums of planes, which the filter along Z reads: float32, or float64 for wider samples."""
    return np.dtype(np.float64 if samples.itemsize > 2 and samples != np.float32 else np.float32)


def filter_volume(image: Any, taps: Any, depth: Any, device: str | None, options: FilterOptions) -> Any:
    """Filter planes with `taps` (R, S), then along Z with `depth` (D,); the options are those of `filter`."""
    axes = Axes(str(options.get("axes") or "YX").upper())
    if "Z" not in axes.letters:
        raise AxesError("the kernel reaches along Z; name the axes of the image, such as axes='ZYX'")
    dtype = np.dtype(str(image.dtype).removeprefix("torch."))
    planes: FilterOptions = {**options, "out_dtype": depth_sums(dtype)}
    sums = filter_planes(image, taps, device=device, **planes)
    summed = options.get("channels") == "sum"
    letters = [letter for letter in axes.letters if not (summed and letter == axes.bands)]
    at, shape = letters.index("Z"), tuple(sums.shape)
    lines = sums.reshape(math.prod(shape[:at]), shape[at], math.prod(shape[at + 1 :]), 1)
    result = options.get("out_dtype")
    out = filter_planes(
        lines, np.asarray(depth)[:, None], border=options.get("border", "reflect"), cval=options.get("cval", 0.0),
        out_dtype=dtype if result is None else result, device=device, algorithm="separable",
    )  # fmt: skip
    return out.reshape(shape)
