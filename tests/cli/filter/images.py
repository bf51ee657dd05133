"""Images in files, and what a filter makes of them by SciPy in float64."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

from convforge.imaging.files import Image, write_image

RANDOM = np.random.default_rng(11)
LAPLACIAN = np.array([[1, 1, 1], [1, -8, 1], [1, 1, 1]])
SOBEL_X = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
SMALL = RANDOM.integers(0, 256, (23, 31, 3), dtype=np.uint8)


def kept(folder: Path, name: str, pixels: Any, **fields: Any) -> Path:
    """An image written to a file of its own."""
    path = folder / name
    write_image(path, Image(np.asarray(pixels), **fields))
    return path


def hear_signals() -> None:
    """For a process about to start: let signals end it, also where the tests run under nohup or in the background."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(signal.Signals[name], signal.SIG_DFL)


def correlated(pixels: Any, kernel: Any, mode: Any = "mirror", cval: float = 0.0) -> np.ndarray[Any, Any]:
    """Each band of (H, W, B), or (H, W), by SciPy in float64."""
    bands = np.atleast_3d(np.asarray(pixels, np.float64))
    kernel = np.asarray(kernel, np.float64)
    result = [ndimage.correlate(bands[..., b], kernel, mode=mode, cval=cval) for b in range(bands.shape[-1])]
    return np.stack(result, axis=-1).reshape(np.shape(pixels))


def saturated(values: Any, dtype: str = "uint8") -> np.ndarray[Any, Any]:
    ends = np.iinfo(dtype)
    result: np.ndarray[Any, Any] = np.clip(np.rint(values), ends.min, ends.max).astype(dtype)
    return result
