"""NumPy's .npy files as pictures: (H, W), (H, W, B), or a stack (T, H, W, B)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import BinaryIO

import numpy as np

from convforge.images.picture import (
    SAMPLE_DTYPES,
    Array,
    Picture,
    PictureError,
    alpha_as,
    check_size,
    is_sample_dtype,
)


def read(path: Path, max_pixels: int) -> Picture:
    """Read a picture from a .npy file; the header is checked before any memory is taken for pixels."""
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)
        else:  # version 3 exists for the names of fields, which no picture has
            raise PictureError(f"{path}: .npy format version {version}; save a plain array with numpy.save")
        stored = path.stat().st_size - file.tell()
    if not is_sample_dtype(dtype) and dtype.kind != "b":
        raise PictureError(f"{path}: samples are {dtype}; convert the array to {SAMPLE_DTYPES} first")
    if len(shape) not in (2, 3, 4):
        raise PictureError(f"{path}: an array of shape {shape}; a picture is (H, W), (H, W, B) or (T, H, W, B)")
    declared = math.prod(shape) * dtype.itemsize
    if declared > stored:
        raise PictureError(
            f"{path}: truncated, shape {shape} of {dtype} needs {declared} bytes and the file holds {stored}; "
            "get it again from its source"
        )
    pages = len(shape) == 4
    height, width = shape[1:3] if pages else shape[:2]
    bands = shape[-1] if len(shape) > 2 else 1
    check_size(path, height, width, bands=bands, pages=shape[0] if pages else 1, max_pixels=max_pixels)
    pixels: Array = np.load(path, allow_pickle=False)
    if dtype.kind == "b":  # black and white, as a 1-bit PNG or TIFF gives them
        pixels = pixels.astype(np.uint8) * np.uint8(255)
    pixels = np.ascontiguousarray(pixels, dtype=pixels.dtype.newbyteorder("="))
    if pixels.ndim > 2 and bands == 1:
        pixels = pixels[..., 0]
    return Picture(pixels, pages=pages)


def write(file: BinaryIO, picture: Picture) -> None:
    """Write the pixels, alpha as the last band; a gray stack keeps a band axis so that it reads back as a stack."""
    pixels = picture.pixels
    if picture.pages and picture.bands == 1 and pixels.ndim == 3:
        pixels = pixels[..., np.newaxis]
    if picture.alpha is not None:
        if picture.bands == 1 and not picture.pages and pixels.ndim == 2:
            pixels = pixels[..., np.newaxis]
        pixels = np.concatenate([pixels, alpha_as(picture.alpha, pixels.dtype)[..., np.newaxis]], axis=-1)
    np.save(file, np.ascontiguousarray(pixels), allow_pickle=False)
