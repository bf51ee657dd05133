"""Images between reading and writing: pixels, transparency and metadata."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from convforge.imaging.convert import to_dtype
from convforge.imaging.formats.exif import main_of, pack_block, without_pixels

Array = npt.NDArray[Any]
Unit = Literal["inch", "centimeter", "none"]
Number = TypeVar("Number", int, float)

MAX_PIXELS = 2**28
"""Default limit of `read_image`: 268 million pixels, a 16384 x 16384 image."""

# Values of the orientation tag of images that are stored by columns.
_SIDEWAYS = range(5, 9)

# Below this a wrong header costs nothing: the decoder may find the fault itself and name it better.
HARMLESS_BYTES = 2**20


class ImageError(ValueError):
    """An image cannot be read or written; the message names the file, what is wrong, and what to do."""


@dataclass(frozen=True)
class Metadata:
    """Metadata of an image.

    Parameters
    ----------
    resolution : (float, float), optional
        Pixels per `unit`, along x and along y.
    unit : {"inch", "centimeter", "none"}
        "none" means that only the ratio of the two resolutions has a meaning.
    description : str
        TIFF ImageDescription, PNG Description, JPEG ImageDescription or comment.
    icc_profile : bytes, optional
        The colour profile, unchanged.
    premultiplied : bool
        The colours are already multiplied by alpha ("associated" alpha, TIFF only).
    exif : bytes, optional
        A block of EXIF that begins with b"II"; without orientation, as pixels are upright, and without the maker's note
        and thumbnail, which would be untrue or damaged.
    png : tuple of (bytes, bytes)
        Chunks of text and colour that only PNG holds, by name.
    left : tuple of str
        Names of further metadata of the file, none of which is written.
    storage : tuple of str
        How a TIFF was stored where it is written otherwise.

    Examples
    --------
    >>> Metadata(resolution=(300, 300), unit="inch").pixels_per("centimeter")
    (118.11023622047244, 118.11023622047244)
    """

    resolution: tuple[float, float] | None = None
    unit: Unit = "inch"
    description: str = ""
    icc_profile: bytes | None = field(default=None, repr=False)
    premultiplied: bool = False
    exif: bytes | None = field(default=None, repr=False)
    png: tuple[tuple[bytes, bytes], ...] = field(default=(), repr=False)
    left: tuple[str, ...] = field(default=(), repr=False)
    storage: tuple[str, ...] = field(default=(), repr=False)

    def pixels_per(self, unit: Literal["inch", "centimeter"]) -> tuple[float, float] | None:
        """Return the resolution along x and y in `unit`, or None where the file has none."""
        if self.resolution is None or self.unit == "none":
            return None
        x, y = self.resolution
        if unit == self.unit:
            return (x, y)
        return (x * 2.54, y * 2.54) if unit == "inch" else (x / 2.54, y / 2.54)


@dataclass(frozen=True, eq=False)
class Image:
    """Pixels with their transparency and metadata.

    Parameters
    ----------
    pixels : ndarray
        (H, W) or (H, W, B); with `pages` (T, H, W) or (T, H, W, B). Integers or floats of 8 to 64 bits. One band has
        no axis of its own.
    alpha : ndarray, optional
        (H, W), with `pages` (T, H, W). It is not filtered.
    metadata : Metadata
    pages : bool
        The first axis counts pages.
    axes : (str, tuple of int)
        The named axes of the array that the pixels were read from, and the sizes of its page axes, so that a .npy file
        is written with the same axes.

    Raises
    ------
    ImageError
        Axes that do not fit `pages`, an empty image, an alpha of another size, an unsupported sample type.

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
        """Refuse shapes and types that no file can hold."""
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
        """Rows of one page."""
        return int(self.pixels.shape[1 if self.pages else 0])

    @property
    def width(self) -> int:
        """Columns of one page."""
        return int(self.pixels.shape[2 if self.pages else 1])

    @property
    def bands(self) -> int:
        """Bands of a pixel, alpha not counted."""
        return int(self.pixels.shape[-1]) if self.pixels.ndim == (4 if self.pages else 3) else 1

    @property
    def page_count(self) -> int:
        """Pages; 1 for a plain image."""
        return int(self.pixels.shape[0]) if self.pages else 1

    def filtered(self, pixels: Array, *, stride: tuple[int, int] = (1, 1)) -> Image:
        """Return the image with the pixels of a filter's result, and everything else of this one.

        Parameters
        ----------
        pixels : ndarray
            With the page axis of this image, any number of bands.
        stride : (int, int)
            Stride of the filter along y and x. Alpha is taken at the same steps, and a resolution of 300 pixels per
            inch becomes 150 at stride 2. Where it is not 1, entries of EXIF that are counted in pixels are removed.

        Raises
        ------
        ImageError
            The new pixels do not fit alpha at this stride (a filter without padding shrinks the image).
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


SAMPLE_DTYPES = "uint8/16/32/64, int8/16/32/64 or float16/32/64"


def is_sample_dtype(dtype: np.dtype[Any]) -> bool:
    """Tell whether an image can hold samples of this type (no bool, complex, long double or objects)."""
    return dtype.kind in "uif" and dtype.itemsize <= 8


def check_size(
    path: str | os.PathLike[str], height: int, width: int, *, bands: int = 1, pages: int = 1, max_pixels: int
) -> None:
    """Raise ``ImageError`` for an empty image, and one beyond `max_pixels`, from the header alone.

    Pages count; of bands, each four begun count as one more image, so that thousands of bands cannot slip through.
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
    """Raise ``ImageError`` for a header that declares more bytes than `stored` bytes can unpack to at `ratio` to one.

    The ratios are the best that each compression can reach, so that no honest image is refused, however blank.
    """
    if declared > stored * ratio + HARMLESS_BYTES:
        raise ImageError(
            f"{path}: the header declares {declared} bytes of pixels, out of proportion to the {stored} bytes of pixel "
            "data in the file; it is truncated or was made to exhaust memory, get it again from its source"
        )


def upright(pixels: Array, orientation: int) -> Array:
    """Turn pixels (H, W) or (H, W, B) upright by the EXIF/TIFF Orientation tag (1 to 8; other values change nothing).

    Examples
    --------
    >>> upright(np.array([[1, 2, 3], [4, 5, 6]]), 6)
    array([[4, 1],
           [5, 2],
           [6, 3]])
    """
    turned = pixels
    if orientation in _SIDEWAYS:  # swapped, the cases are those of 1 to 4
        turned = np.swapaxes(turned, 0, 1)
        orientation -= 4
    flips = {2: (1,), 3: (0, 1), 4: (0,)}.get(orientation)
    return np.ascontiguousarray(turned if flips is None else np.flip(turned, flips))


def upright_pair(pair: tuple[Number, Number], orientation: int) -> tuple[Number, Number]:
    """Swap values along x and y where `upright` swaps the axes."""
    return (pair[1], pair[0]) if orientation in _SIDEWAYS else pair


def alpha_as(alpha: Array, dtype: np.dtype[Any]) -> Array:
    """Return alpha in the samples of `dtype`: opaque is the largest integer, or 1.0.

    Files hold one sample type for all bands, so a float result of an 8-bit image needs a float alpha.
    """
    if alpha.dtype == dtype:
        return alpha
    opaque = 1.0 if alpha.dtype.kind == "f" else float(np.iinfo(alpha.dtype).max)
    share = np.clip(np.nan_to_num(alpha.astype(np.float64)) / opaque, 0.0, 1.0)
    if dtype.kind == "f":
        return share.astype(dtype)
    return to_dtype(share, dtype, scale=float(np.iinfo(dtype).max))
