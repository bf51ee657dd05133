"""NumPy's .npy files: (H, W), (H, W, B), a stack (T, H, W, B), or any named axes."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from convforge.imaging.axes import Axes, check_clear, image_of
from convforge.imaging.image import (
    SAMPLE_DTYPES,
    Array,
    Declared,
    Image,
    ImageError,
    alpha_as,
    check_size,
    is_sample_dtype,
)


def read(path: Path, max_pixels: int, axes: Axes | None) -> Image:
    """Read an image from a .npy file; the header is checked before memory is allocated for pixels."""
    with path.open("rb") as file:
        shape, by_columns, dtype = read_header(path, file)
        start = file.tell()
        stored = path.stat().st_size - start
    if not is_sample_dtype(dtype) and dtype.kind != "b":
        raise ImageError(f"{path}: samples are {dtype}; convert the array to {SAMPLE_DTYPES} first")
    known = _axes(path, shape, axes)
    sizes = known.sizes(shape)
    declared = math.prod(shape) * dtype.itemsize
    if declared > stored:
        raise ImageError(
            f"{path}: truncated, shape {shape} of {dtype} needs {declared} bytes and the file holds {stored}; "
            "get it again from its source"
        )
    pages = math.prod(sizes[letter] for letter in known.pages)
    check_size(path, sizes["Y"], sizes["X"], bands=sizes.get(known.bands, 1), pages=pages, max_pixels=max_pixels)
    pixels: Array = np.fromfile(path, dtype, math.prod(shape), offset=start)
    pixels = pixels.reshape(shape[::-1]).T if by_columns else pixels.reshape(shape)
    if dtype.kind == "b":  # becomes black and white, as in a 1-bit PNG or TIFF
        pixels = pixels.astype(np.uint8) * np.uint8(255)
    image = image_of(np.asarray(pixels, dtype=pixels.dtype.newbyteorder("=")), known)
    return image if axes else replace(image, axes=Image.axes)


def header(path: Path) -> tuple[tuple[int, ...], str]:
    """Return the shape and the element type."""
    with path.open("rb") as file:
        shape, _, dtype = read_header(path, file)
    return shape, dtype.str


def declared(path: Path, axes: Axes | None) -> Declared:
    """Return what the header declares; ``AxesError`` if the axes are unclear."""
    with path.open("rb") as file:
        shape, _, dtype = read_header(path, file)
    known = _axes(path, shape, axes)
    sizes = known.sizes(shape)
    pages = math.prod(sizes[letter] for letter in known.pages)
    dtype = np.dtype(np.uint8) if dtype.kind == "b" else dtype
    return Declared(pages, sizes["Y"], sizes["X"], sizes.get(known.bands, 1), False, dtype.newbyteorder("="))


def _axes(path: Path, shape: tuple[int, ...], named: Axes | None) -> Axes:
    """Return the axes that the user names, else those of a clear shape."""
    if len(shape) < 2:
        raise ImageError(f"{path}: an array of shape {shape}; an image has rows and columns")
    if named is None:
        check_clear(str(path), shape)
    return named or Axes({2: "YX", 3: "YXC"}.get(len(shape), "TYXC"))


# CPython 3.11 raises "AST constructor recursion depth mismatch" where several threads parse literals.
_PARSING = threading.Lock()


def read_header(path: Path, file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the shape, True for Fortran's order, and the element type, up to the first element of the file."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):  # version 3 is for field names, which images do not have
        raise ImageError(f"{path}: .npy format version {version}; save a plain array with numpy.save")
    parse = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        with _PARSING:
            shape, by_columns, dtype = parse(file)
    except ValueError as fault:
        if "dtype descriptor" not in str(fault):
            raise
        unknown = str(fault).rpartition(": ")[2]  # such as float8_e5m2's, which is '<f1'
        raise ImageError(
            f"{path}: samples are {unknown}, which NumPy does not know; convert the array to {SAMPLE_DTYPES} first"
        ) from fault
    if any(isinstance(size, bool) or size < 0 for size in shape):
        raise ImageError(f"{path}: damaged, its header has the shape {shape}; get it again from its source")
    return shape, by_columns, dtype


def write(file: BinaryIO, image: Image) -> None:
    """Write the pixels with the named axes of the array that was read.

    Without named axes, or with alpha as the last band, a gray stack is written with a band axis, so that it is read as
    a stack again.
    """
    pixels = image.pixels
    if pixels.ndim == 2 + image.pages and (image.pages or image.alpha is not None):
        pixels = pixels[..., np.newaxis]
    letters, sizes = image.axes
    if image.alpha is not None:
        pixels = np.concatenate([pixels, alpha_as(image.alpha, pixels.dtype)[..., np.newaxis]], axis=-1)
    elif letters:
        pixels = Axes(letters).unstack(pixels.reshape(image.page_count, image.height, image.width, -1), sizes)
    np.save(file, np.ascontiguousarray(pixels), allow_pickle=False)
