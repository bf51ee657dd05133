"""Images in memory: pixels, transparency and metadata."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from convforge.imaging.convert import to_dtype
from convforge.imaging.formats.exif import main_of, pack_block, without_pixels

Array = npt.NDArray[Any]
Unit = Literal["inch", "centimeter", "none"]
Number = TypeVar("Number", int, float)

MAX_PIXELS = 2**28
"""Default limit of `read_image`: 268 million pixels, a 16384 x 16384 image."""

# Values of the orientation tag that swap rows and columns.
_SIDEWAYS = range(5, 9)

# Up to this size a wrong header allocates little memory, and the decoder reports the fault more precisely.
HARMLESS_BYTES = 2**20


class ImageError(ValueError):
    """An image cannot be read or written; the message names the file, the fault and the solution."""


@dataclass(frozen=True)
class Metadata:
    """Metadata of an image."""

    resolution: tuple[float, float] | None = None  # pixels per `unit` along x and y
    unit: Unit = "inch"  # "none": only the ratio of x to y has a meaning
    description: str = ""  # TIFF ImageDescription, PNG Description, JPEG ImageDescription or comment
    icc_profile: bytes | None = field(default=None, repr=False)  # unchanged
    premultiplied: bool = False  # colours are already multiplied by alpha ("associated" alpha, TIFF only)
    # A block of EXIF that begins with b"II", without orientation (the pixels are upright) and without maker's note and
    # thumbnail (they would be damaged or outdated).
    exif: bytes | None = field(default=None, repr=False)
    png: tuple[tuple[bytes, bytes], ...] = field(default=(), repr=False)  # (name, body) of chunks that only PNG has
    left: tuple[str, ...] = field(default=(), repr=False)  # names of the file's metadata that is not written
    storage: tuple[str, ...] = field(default=(), repr=False)  # features of the TIFF's storage that are not written

    def profile_for(self, bands: int) -> bytes | None:
        """Return the ICC profile if its colour space has this number of bands (an RGB profile needs 3), else None."""
        space = {1: b"GRAY", 3: b"RGB "}.get(bands)
        return self.icc_profile if self.icc_profile is not None and self.icc_profile[16:20] == space else None

    def pixels_per(self, unit: Literal["inch", "centimeter"]) -> tuple[float, float] | None:
        """Return the resolution along x and y in `unit`, or None if the file has none."""
        if self.resolution is None or self.unit == "none":
            return None
        x, y = self.resolution
        if unit == self.unit:
            return (x, y)
        return (x * 2.54, y * 2.54) if unit == "inch" else (x / 2.54, y / 2.54)


@dataclass(frozen=True, eq=False)
class Image:
    """An image: pixels, alpha and metadata.

    Parameters
    ----------
    pixels : ndarray
        (H, W) or (H, W, B); with `pages` (T, H, W) or (T, H, W, B). Integers or floats of 8 to 64 bits. A single band
        has no axis.
    alpha : ndarray, optional
        (H, W), with `pages` (T, H, W). Filters do not change it.
    metadata : Metadata
    pages : bool
        The first axis counts pages.
    axes : (str, tuple of int)
        The letters of the axes of the array that was read, and the sizes of its page axes: a .npy file is written with
        the same axes.

    Raises
    ------
    ImageError
        The number of axes does not fit `pages`, the image is empty, alpha has another size, or the sample type is
        unsupported.

    Examples
    --------
    >>> p = Image(np.zeros((4, 6, 3), np.uint8), alpha=np.full((4, 6), 255, np.uint8))
    >>> p.height, p.width, p.bands, p.page_count
    (4, 6, 3, 1)
    """

    pixels: Array
    alpha: Array | None = None
    metadata: Metadata = Metadata()
    pages: bool = False
    axes: tuple[str, tuple[int, ...]] = ("", ())

    def __post_init__(self) -> None:
        first = 1 if self.pages else 0
        shape = self.pixels.shape
        if len(shape) not in (first + 2, first + 3):
            wanted = "(T, H, W) or (T, H, W, B)" if self.pages else "(H, W) or (H, W, B)"
            raise ImageError(f"pixels have shape {shape}; an image with pages={self.pages} is {wanted}")
        if 0 in shape:
            raise ImageError(f"pixels have shape {shape}; an image has at least one pixel")
        if not is_sample_dtype(self.pixels.dtype):
            raise ImageError(f"pixels are {self.pixels.dtype}; use {SAMPLE_DTYPES}")
        if self.alpha is not None and self.alpha.shape != shape[: first + 2]:
            raise ImageError(f"alpha has shape {self.alpha.shape}; pixels of shape {shape} need {shape[: first + 2]}")

    @property
    def height(self) -> int:
        return int(self.pixels.shape[1 if self.pages else 0])

    @property
    def width(self) -> int:
        return int(self.pixels.shape[2 if self.pages else 1])

    @property
    def bands(self) -> int:
        """Number of bands without alpha."""
        return int(self.pixels.shape[-1]) if self.pixels.ndim == (4 if self.pages else 3) else 1

    @property
    def page_count(self) -> int:
        """Number of pages; 1 for a plain image."""
        return int(self.pixels.shape[0]) if self.pages else 1

    def filtered(self, pixels: Array, *, stride: tuple[int, int] = (1, 1)) -> Image:
        """Return a copy of this image with the pixels of a filter's result.

        Parameters
        ----------
        pixels : ndarray
            The result, with the page axis of this image and any number of bands.
        stride : (int, int)
            Stride of the filter along y and x. Alpha is subsampled by it, and the resolution is divided by it. If it is
            not 1, EXIF entries that count pixels are removed.

        Raises
        ------
        ImageError
            The new pixels and alpha differ in size (a filter without padding shrinks the image).
        """
        step_y, step_x = stride
        alpha = None if self.alpha is None else np.ascontiguousarray(self.alpha[..., ::step_y, ::step_x])
        metadata = self.metadata
        if metadata.resolution is not None and stride != (1, 1):
            x, y = metadata.resolution
            metadata = replace(metadata, resolution=(x / step_x, y / step_y))
        if metadata.exif is not None and stride != (1, 1):
            kept, lost = without_pixels(main_of(metadata.exif))
            metadata = replace(metadata, exif=pack_block(kept), left=(*metadata.left, *lost))
        done = replace(self, pixels=pixels, alpha=alpha, metadata=metadata)
        letters, sizes = self.axes
        if done.bands == self.bands:
            return done
        return replace(done, axes=(letters.replace("S" if "S" in letters else "C", ""), sizes))


class Declared(NamedTuple):
    """Size and sample type of an image as its file's header declares them; `bands` do not count alpha."""

    pages: int
    height: int
    width: int
    bands: int
    alpha: bool
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the decoded samples, with alpha."""
        return self.pages * self.height * self.width * (self.bands + self.alpha) * self.dtype.itemsize


SAMPLE_DTYPES = "uint8/16/32/64, int8/16/32/64 or float16/32/64"


def is_sample_dtype(dtype: np.dtype[Any]) -> bool:
    """True if an image can have samples of this type (no bool, complex, long double or objects)."""
    return dtype.kind in "uif" and dtype.itemsize <= 8


def check_size(
    path: str | os.PathLike[str], height: int, width: int, *, bands: int = 1, pages: int = 1, max_pixels: int
) -> None:
    """Raise ``ImageError`` for an empty image, or for more than `max_pixels` pixels, before anything is decoded.

    Every page counts, and every four bands count as one image, so an image of thousands of bands is refused too.
    """
    if min(height, width, bands, pages) < 1:
        raise ImageError(f"{path}: declares {width} x {height} pixels in {bands} bands; the file holds no image")
    count = height * width * pages * math.ceil(bands / 4)
    if count > max_pixels:
        what = f"{width} x {height} pixels"
        what += f" in {bands} bands" if bands > 4 else ""
        what += f" on {pages} pages" if pages > 1 else ""
        raise ImageError(
            f"{path}: declares {what}, beyond the limit of {max_pixels}; "
            f"raise max_pixels (--max-pixels) to {count} if the file is to be trusted"
        )


def check_proportion(path: str | os.PathLike[str], declared: int, stored: int, ratio: int) -> None:
    """Raise ``ImageError`` if a file declares more than `ratio` times the bytes that it stores.

    `ratio` is the largest possible ratio of the compression, so no valid image is refused, even a blank one.
    """
    if declared > stored * ratio + HARMLESS_BYTES:
        raise ImageError(
            f"{path}: the header declares {declared} bytes of pixels, out of proportion to the {stored} bytes of pixel "
            "data in the file; it is truncated or was made to exhaust memory, get it again from its source"
        )


def upright(pixels: Array, orientation: int) -> Array:
    """Rotate and flip pixels (H, W) or (H, W, B) by the EXIF/TIFF Orientation tag (1 to 8; others change nothing)."""
    rotated = pixels
    if orientation in _SIDEWAYS:  # after the swap, the remaining flips are those of 1 to 4
        rotated = np.swapaxes(rotated, 0, 1)
        orientation -= 4
    flips = {2: (1,), 3: (0, 1), 4: (0,)}.get(orientation)
    return np.ascontiguousarray(rotated if flips is None else np.flip(rotated, flips))


def upright_pair(pair: tuple[Number, Number], orientation: int) -> tuple[Number, Number]:
    """Swap the values of x and y if `upright` swaps the axes."""
    return (pair[1], pair[0]) if orientation in _SIDEWAYS else pair


def alpha_as(alpha: Array, dtype: np.dtype[Any]) -> Array:
    """Convert alpha to `dtype`; opaque is the largest integer of the type, or 1.0.

    A file has one sample type for all bands, so a float result of an 8-bit image needs a float alpha.
    """
    if alpha.dtype == dtype:
        return alpha
    opaque = 1.0 if alpha.dtype.kind == "f" else float(np.iinfo(alpha.dtype).max)
    share = np.clip(np.nan_to_num(alpha.astype(np.float64)) / opaque, 0.0, 1.0)
    if dtype.kind == "f":
        return share.astype(dtype)
    return to_dtype(share, dtype, scale=float(np.iinfo(dtype).max))
