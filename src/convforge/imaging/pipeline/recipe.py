"""Steps of the command before and after the convolution: gray, type of the sums, magnitude, scale, rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convforge.call.dispatch import runtime_of
from convforge.imaging.convert import to_dtype, to_gray
from convforge.imaging.files import axes_of, check_writable, read_image
from convforge.imaging.filtering import FilterOptions, filter_problem
from convforge.imaging.image import MAX_PIXELS, Array, Image, ImageError
from convforge.imaging.pipeline.lanes import Clock, Convolved, Convolver, Lane, lanes_of
from convforge.imaging.pipeline.part import convolved_region, cut, picked
from convforge.imaging.selection import Selection, SelectionError
from convforge.imaging.spacing import spaced
from convforge.imaging.volumes import depth_sums
from convforge.problem import DTYPES, Conv2dProblem
from convforge.problem.types import ADDED, is_integer

# float64 represents all whole numbers up to this one.
EXACT = 2**53

# Sample types that methods read and write; samples of other types are converted to float64.
COMPUTABLE = tuple(name for name in DTYPES.values() if name not in ADDED)


class Depth(NamedTuple):
    """A filter along Z: the taps, the planes that it reads before and after each, and its stride."""

    taps: tuple[float, ...]
    before: int
    after: int
    step: int = 1

    @classmethod
    def centred(cls, taps: Sequence[float]) -> Depth:
        """Return the filter whose middle tap, or the one behind the middle, is at the plane of the result."""
        return cls(tuple(taps), len(taps) // 2, len(taps) - 1 - len(taps) // 2)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Options of the command, and its three steps for an image: :meth:`stack`, :meth:`convolved`, :meth:`finished`.

    Fields are as in :func:`convforge.filter` and :func:`convforge.imaging.files.read_image`.
    """

    taps: Array  # (R, S)
    channels: str
    border: str
    cval: float
    stride: tuple[int, int]
    device: str
    algorithm: str
    out_dtype: np.dtype[Any] | None  # None: the type of the image
    magnitude: bool  # take the magnitude of the sums, before scale and rounding
    scale: float  # factor of the sums, before they are rounded
    gray: bool  # convert RGB to gray first
    max_pixels: int = MAX_PIXELS
    axes: str | None = None
    depth: Depth | None = None  # a filter along Z, after that of the planes
    selection: Selection | None = None  # the part of the image that is wanted
    spacing: Mapping[str, float] | None = None  # micrometres by the letter of the axis, instead of the file's

    @property
    def _options(self) -> FilterOptions:
        return FilterOptions(
            channels=self.channels, border=self.border, cval=self.cval, stride=self.stride, algorithm=self.algorithm
        )

    def convolver(self, clock: Clock, device: str | None = None) -> Convolver:
        """Make one convolver for all images that are filtered on a device."""
        return Convolver(self.taps, clock, device or self.device, **self._options)

    def bands(self, image: Image) -> int:
        """Return the number of bands of the result."""
        return 1 if self.gray or self.channels == "sum" else image.bands

    def filtered_bands(self, bands: int) -> int:
        """Return the number of bands that are filtered of an image with so many, without alpha."""
        if not self.gray or bands == 1:
            return bands
        if bands != 3:
            raise ValueError(f"--gray needs red, green and blue; the image has {bands} bands")
        return 1

    def dtype(self, image: Image) -> np.dtype[Any]:
        """Return the sample type of the result."""
        return self.out_dtype or image.pixels.dtype

    def read(self, path: Path) -> Image:
        """Read an image, of which the selected channels, depths and times are kept, with the named spacing."""
        image = read_image(path, max_pixels=self.max_pixels, axes=self.axes)
        image = image if self.spacing is None else spaced(image, self.spacing)
        selection = self.selection
        if selection is None:
            return image
        try:
            selection.in_result(image.height, image.width, self.stride)
            return picked(image, selection, *axes_of(path)) if selection.has_planes else image
        except SelectionError as error:
            raise SelectionError(f"{path}: {error}") from error

    def check_target(self, target: Path, image: Image) -> None:
        """Raise ``ImageError`` if the target's format cannot hold the result."""
        has_alpha = image.alpha is not None
        check_writable(target, self.dtype(image), bands=self.bands(image), pages=image.pages, alpha=has_alpha)

    def stack(self, image: Image, clock: Clock) -> Array:
        """Return the pixels as (T, H, W, C), in gray if requested, in a supported type that holds them exactly.

        ``ImageError`` for 64-bit samples that float64 cannot represent; ``ValueError`` if gray is requested and the
        image has neither one nor three bands.
        """
        pixels = image.pixels if image.pages else image.pixels[np.newaxis]
        if pixels.ndim == 3:
            pixels = pixels[..., np.newaxis]
        if self.filtered_bands(image.bands) != image.bands:
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
        """Compute the convolution, in the type of the result if no step follows, else in the type of the sums.

        ``ValueError`` for a filter along Z, which is computed in units only.
        """
        if self.depth is not None:
            raise ValueError("the kernel reaches along Z, and an image in memory is filtered plane by plane")
        dtype = self.dtype(image)
        if self.selection is None or self.selection.region is None:
            return convolver(lane, stack, out_dtype=self.computed_dtype(stack, dtype))
        region = self.selection.in_result(image.height, image.width, self.stride)
        return convolved_region(
            *self.problem(stack, dtype), region, stack, self.algorithm, convolver, lane, self.device
        )

    def computed_dtype(self, stack: Array, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the type that the convolution writes, where the samples of the result have `dtype`."""
        return dtype if self.is_direct(dtype) else self._sums_dtype(stack)

    def finished(self, image: Image, sums: Array, clock: Clock) -> Image:
        """Return the filtered image: apply magnitude, scale and rounding if the convolution has not."""
        sums = self.samples(sums, self.dtype(image), clock)
        image = image if self.selection is None else cut(image, self.selection, self.stride)
        pixels = sums if image.pages else sums[0]
        return image.filtered(pixels[..., 0] if pixels.shape[-1] == 1 else pixels, stride=self.stride)

    def samples(self, sums: Array, dtype: np.dtype[Any], clock: Clock) -> Array:
        """Return a convolution's result as samples of the result: magnitude, scale and rounding if they are left."""
        if self.is_direct(dtype):
            return sums
        with clock("convert"):
            return to_dtype(sums, dtype, scale=self.scale, absolute=self.magnitude)

    def problem(self, stack: Array, dtype: np.dtype[Any]) -> tuple[Conv2dProblem, Array]:
        """Return the problem of a stack (T, H, W, C) whose result has this sample type, and the weights."""
        if self.depth is not None:  # planes are summed in floats, which the filter along Z reads
            out_dtype = depth_sums(stack.dtype)
        else:
            out_dtype = self.computed_dtype(stack, dtype)
        options: FilterOptions = {**self._options, "out_dtype": out_dtype}
        problem, _, weights = filter_problem(stack, self.taps, **options)
        return problem, weights

    def depth_problem(self, depth: Depth, planes: Conv2dProblem, pages: int, dtype: np.dtype[Any]) -> Conv2dProblem:
        """Return the problem along Z of the results of planes, in `pages` stacks: rows are planes, columns pixels."""
        n, h, w, c = planes.out_shape
        sums = planes.out_dtype
        out = dtype if self.is_direct(dtype) else np.dtype(sums)
        return Conv2dProblem(
            n=pages, c=1, h=n // pages, w=h * w * c, k=1, r=len(depth.taps), s=1, stride=(depth.step, 1), x_dtype=sums,
            w_dtype=sums, out_dtype=out.name, x_layout="NHWC", precision="separable",
        )  # fmt: skip

    def __call__(self, image: Image, clock: Clock) -> tuple[Image, Convolved]:
        stack = self.stack(image, clock)
        with lanes_of(runtime_of(self.device))[0] as lane:
            convolved = self.convolved(image, stack, self.convolver(clock), lane)
        return self.finished(image, convolved.sums, clock), convolved

    def is_direct(self, dtype: np.dtype[Any]) -> bool:
        """True if the convolution itself writes the result, so that no step follows."""
        return not self.magnitude and self.scale == 1 and dtype.name in COMPUTABLE

    def _sums_dtype(self, stack: Array) -> np.dtype[Any]:
        """Return the type of the sums, which is the same for every method."""
        problem, _, _ = filter_problem(stack, self.taps, **self._options)
        fractions = is_integer(problem.acc_dtype) and problem.epilogue.divisor > 1
        return np.dtype("float64" if fractions else problem.acc_dtype)
