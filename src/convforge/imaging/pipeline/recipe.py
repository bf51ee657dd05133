"""What is done to an image beside its convolution: gray, the type of the sums, magnitude, scale, rounding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.imaging.convert import to_dtype, to_gray
from convforge.imaging.files import read_image
from convforge.imaging.filtering import filter_problem
from convforge.imaging.image import MAX_PIXELS, Image, ImageError
from convforge.imaging.pipeline.clock import Clock
from convforge.imaging.pipeline.convolver import Convolved, Convolver
from convforge.imaging.pipeline.lanes import Lane
from convforge.problem import DTYPES
from convforge.problem.types import ADDED, is_integer

Array = NDArray[Any]

# Whole numbers up to here are float64 numbers.
EXACT = 2**53

# The sample types that methods read and write; the others go through float64.
COMPUTABLE = tuple(name for name in DTYPES.values() if name not in ADDED)


@dataclass(frozen=True, slots=True)
class Reading:
    """How files are read: `max_pixels` and `axes` of :func:`convforge.imaging.files.read_image`."""

    max_pixels: int = MAX_PIXELS
    axes: str | None = None

    def __call__(self, path: Path) -> Image:
        """The image in a file."""
        return read_image(path, max_pixels=self.max_pixels, axes=self.axes)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How images are filtered. :meth:`loaded`, :meth:`convolved` and :meth:`finished` follow each other.

    Attributes
    ----------
    taps : array of shape (R, S)
    channels, border, cval, stride, device, algorithm
        As in :func:`convforge.filter`.
    out_dtype : dtype or None
        Sample type of the result; None is the image's own.
    magnitude : bool
        Take the sums' magnitudes.
    scale : float
        Multiply the sums, before they are rounded once.
    gray : bool
        Turn red, green and blue into gray first.
    """

    taps: Array
    channels: str
    border: str
    cval: float
    stride: tuple[int, int]
    device: str
    algorithm: str
    out_dtype: np.dtype[Any] | None
    magnitude: bool
    scale: float
    gray: bool

    def convolver(self, clock: Clock) -> Convolver:
        """What convolves the images; one for all."""
        return Convolver(
            self.taps, channels=self.channels, border=self.border, cval=self.cval, stride=self.stride,
            device=self.device, algorithm=self.algorithm, clock=clock,
        )  # fmt: skip

    def bands(self, image: Image) -> int:
        """Bands of the result."""
        return 1 if self.gray or self.channels == "sum" else image.bands

    def dtype(self, image: Image) -> np.dtype[Any]:
        """Sample type of the result."""
        return self.out_dtype or image.pixels.dtype

    def loaded(self, image: Image, clock: Clock) -> Array:
        """The pixels as (T, H, W, C), gray if asked, in a type that can be computed with and holds them exactly.

        Raises
        ------
        ImageError
            Samples of 64 bits that float64 cannot hold.
        ValueError
            Gray is asked of an image that is not of one band or three.
        """
        pixels = image.pixels if image.pages else image.pixels[np.newaxis]
        if pixels.ndim == 3:
            pixels = pixels[..., np.newaxis]
        if self.gray and image.bands > 1:
            if image.bands != 3:
                raise ValueError(f"--gray needs red, green and blue; the image has {image.bands} bands")
            with clock("gray"):
                pixels = to_gray(pixels)[..., np.newaxis]
        if pixels.dtype.name in COMPUTABLE:
            return pixels
        if pixels.dtype.itemsize == 8 and (pixels.max() > EXACT or pixels.min() < -EXACT):
            raise ImageError(
                f"the image's {pixels.dtype} samples go beyond 2^53, where float64 holds no whole numbers any more; "
                "scale them down first"
            )
        with clock("widen"):
            return pixels.astype(np.float64)

    def convolved(self, image: Image, stack: Array, convolver: Convolver, lane: Lane) -> Convolved:
        """The sums, in the result's type where nothing more is done to them, else in the type they are taken in."""
        dtype = self.dtype(image)
        return convolver(lane, stack, dtype if self._straight(dtype) else self._sums_dtype(stack))

    def finished(self, image: Image, sums: Array, clock: Clock) -> Image:
        """The filtered image: magnitudes, scale and rounding where :meth:`convolved` has not rounded already."""
        dtype = self.dtype(image)
        if not self._straight(dtype):
            with clock("convert"):
                sums = to_dtype(sums, dtype, scale=self.scale, absolute=self.magnitude)
        pixels = sums if image.pages else sums[0]
        pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
        return image.filtered(pixels, stride=self.stride)

    def _straight(self, dtype: np.dtype[Any]) -> bool:
        """Whether the kernel itself writes the result."""
        return not self.magnitude and self.scale == 1 and dtype.name in COMPUTABLE

    def _sums_dtype(self, stack: Array) -> np.dtype[Any]:
        """The type that the sums of this image and kernel are taken in, whichever method takes them."""
        problem, _, _ = filter_problem(
            stack, self.taps, channels=self.channels, border=self.border, cval=self.cval, stride=self.stride,
            algorithm=self.algorithm,
        )  # fmt: skip
        fractions = is_integer(problem.acc_dtype) and problem.epilogue.divisor > 1
        return np.dtype("float64" if fractions else problem.acc_dtype)
