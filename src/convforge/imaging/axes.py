"""Names of array axes, one letter each as in tifffile: rows, columns, bands and page axes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from convforge.imaging.image import Array, Image, ImageError

LETTERS = {
    "Y": "rows",
    "X": "columns",
    "C": "channels, which are bands",
    "S": "samples of a pixel, which are bands",
    "Z": "depth",
    "T": "time",
    "I": "images of any series",
}
"""The letters of `axes` and their meaning."""

# A last axis of at most this size is read as bands: gray, gray and alpha, RGB, RGBA.
CLEAR_BANDS = 4

# (N, H, W) pages of at most this width may be rows of an image with bands; the user must then name the axes.
NARROW = 16


class AxesError(ImageError):
    """The axes have no names or wrong names; the message says how to name them."""


@dataclass(frozen=True, slots=True)
class Axes:
    """Names of an array's axes, one letter of `LETTERS` each; Y and X are adjacent, and at most one letter follows.

    Examples
    --------
    >>> axes = Axes("TZYXC")
    >>> axes.bands, axes.pages
    ('C', 'TZ')
    >>> Axes("CYX").stack(np.zeros((25, 8, 9))).shape
    (1, 8, 9, 25)
    """

    letters: str

    def __post_init__(self) -> None:
        letters = self.letters
        wrong = next((letter for letter in letters if letter not in LETTERS), None)
        if wrong is not None:
            known = ", ".join(f"{letter} ({meaning})" for letter, meaning in LETTERS.items())
            raise AxesError(f"axes {letters!r}: {wrong!r} is no letter of an axis; the letters are {known}")
        if len(set(letters)) < len(letters):
            raise AxesError(f"axes {letters!r}: a letter occurs twice; each axis has a letter of its own")
        if "YX" not in letters:
            raise AxesError(f"axes {letters!r}: Y and X must be adjacent and in this order, as in YX, ZYX or YXC")
        if len(letters) - letters.index("YX") > 3:
            raise AxesError(f"axes {letters!r}: at most one letter may follow YX; move the other axes to the front")

    @property
    def bands(self) -> str:
        """Letter of the band axis: S, else C; empty without bands."""
        return next((letter for letter in "SC" if letter in self.letters), "")

    @property
    def pages(self) -> str:
        return "".join(letter for letter in self.letters if letter not in f"YX{self.bands}")

    def sizes(self, shape: tuple[int, ...]) -> dict[str, int]:
        """Return the size of each axis by its letter; raise ``AxesError`` for a wrong number of axes."""
        if len(shape) != len(self.letters):
            raise AxesError(
                f"axes {self.letters!r} name {len(self.letters)} axes, and the array has {len(shape)}: its shape is "
                f"{shape}; {_readings_text(shape)}"
            )
        return dict(zip(self.letters, shape, strict=True))

    def stack(self, array: Any) -> Any:
        """Return an array of any library as (T, H, W, B), with the page axes merged into T; a view where possible."""
        self.sizes(array.shape)
        letters, pages = self.letters, self.pages
        if letters.startswith(pages):  # merge before the transpose: no copy of a contiguous array
            array, letters, pages = self._merged(array, len(pages)), f"T{letters[len(pages) :]}", "T"
        array = array.transpose(*(letters.index(letter) for letter in f"{pages}YX{self.bands}"))
        array = array if self.bands else array[..., None]
        return array if len(pages) == 1 else self._merged(array, len(pages))

    def _merged(self, array: Any, count: int) -> Any:
        if count < 2:
            return array if count else array[None]
        try:
            return array.reshape(math.prod(array.shape[:count]), *array.shape[count:])
        except ValueError as error:  # reshape copies NumPy arrays only, not arrays on a GPU
            raise AxesError(
                f"axes {self.letters!r}: the planes of the image do not follow each other in memory; make a contiguous "
                f"copy of it that begins with the axes {self.pages}"
            ) from error

    def unstack(self, stack: Array, pages: tuple[int, ...]) -> Array:
        """Return a result (T, P, Q, K) with the named axes, the reverse of `stack`; `pages` are sizes of page axes."""
        array = stack.reshape(*pages, *stack.shape[1 : None if self.bands else 3])
        order = f"{self.pages}YX{self.bands}"
        return array.transpose([order.index(letter) for letter in self.letters])

    def for_filter(self, array: Any, *, summed: bool) -> Any:
        """Return the array as (T, H, W, B), so that a filter's result keeps the array's axis order.

        Without `summed` every plane is filtered alone, so any axis may be used as B.
        """
        self.sizes(array.shape)
        first = self.letters.index("Y")
        behind = self.letters[first + 2 :]
        if not summed:
            array = self._merged(array, first)
            return array if behind else array[..., None]
        if behind not in ("", self.bands):
            raise AxesError(
                f"axes {self.letters!r}: where bands are summed only they may follow YX; move {behind} to the front"
            )
        return self.stack(array)

    def result_shape(self, shape: tuple[int, ...], plane: tuple[int, int], *, summed: bool) -> tuple[int, ...]:
        """Return the shape of a filter's result: Y and X have the sizes `plane`; `summed` removes the band axis.

        Examples
        --------
        >>> Axes("TCYX").result_shape((2, 3, 8, 9), (4, 5), summed=False)
        (2, 3, 4, 5)
        >>> Axes("TCYX").result_shape((2, 3, 8, 9), (4, 5), summed=True)
        (2, 4, 5)
        """
        sizes = self.sizes(shape) | dict(zip("YX", plane, strict=True))
        return tuple(size for letter, size in sizes.items() if not (summed and letter == self.bands))


def image_of(array: Array, axes: Axes, **fields: Any) -> Image:
    """Make an image from an array with named axes; a single band has no axis in the image."""
    sizes = axes.sizes(array.shape)
    pixels = np.ascontiguousarray(axes.stack(array))
    pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    named = (axes.letters, tuple(sizes[letter] for letter in axes.pages))
    return Image(pixels if axes.pages else pixels[0], pages=bool(axes.pages), axes=named, **fields)


def as_named(axes: Axes | None, image: Image, sizes: tuple[int, ...] = ()) -> Image:
    """Apply the user's axes to an image from a file; raise ``AxesError`` if they do not fit it.

    `sizes` are the sizes of the page axes in the file.
    """
    if axes is None:
        return image
    array = image.pixels
    divided = array.reshape(sizes + array.shape[1:]) if image.pages and sizes else array
    array = divided if divided.ndim == len(axes.letters) else array
    if image.bands > 1 and array.ndim == len(axes.letters) and axes.letters.endswith("YX"):
        raise AxesError(
            f"axes {axes.letters!r}: each pixel of the file has {image.bands} bands, so a letter must follow YX, "
            "as in YXC; or leave axes out"
        )
    reordered = image_of(array, axes, metadata=image.metadata)
    if image.alpha is None:
        return reordered
    shape = reordered.pixels.shape[: 3 if reordered.pages else 2]
    if image.bands != reordered.bands or (axes.pages and axes.letters.index("Y") != len(axes.pages)):
        raise AxesError(f"axes {axes.letters!r}: the image has alpha, which has no place in them; leave axes out")
    return replace(reordered, alpha=image.alpha.reshape(shape))


def check_clear(name: str, shape: tuple[int, ...]) -> None:
    """Raise ``AxesError`` for an ambiguous shape; the message lists the possible `axes`.

    Unambiguous are (H, W), and (H, W, B) and (T, H, W, B) with at most four bands B.

    Examples
    --------
    >>> check_clear("a.npy", (25, 25, 3))
    >>> check_clear("a.npy", (200, 25, 24))
    Traceback (most recent call last):
    ...
    convforge.imaging.axes.AxesError: a.npy: its shape (200, 25, 24) can be read in several ways; write --axes ZYX for \
200 planes of 24 x 25 pixels, --axes CYX for 24 x 25 pixels of 200 bands, or --axes YXC for 25 x 200 pixels of 24 \
bands (axes= in Python)
    """
    if len(shape) == 2 or (len(shape) in (3, 4) and shape[-1] <= CLEAR_BANDS):
        return
    raise AxesError(f"{name}: its shape {shape} can be read in several ways; {_readings_text(shape)}")


def may_hold_bands_as_columns(shape: tuple[int, ...]) -> bool:
    """True if (N, H, W) pages are so narrow that they may be rows of an (H, W, B) image."""
    return len(shape) == 3 and shape[2] <= NARROW and shape[2] < min(shape[:2])


def readings(shape: tuple[int, ...]) -> tuple[str, ...]:
    """Return the usual axis names of a shape, those without bands first: ('ZYX', 'CYX', 'YXC') for three axes."""
    return {
        2: ("YX",),
        3: ("ZYX", "CYX", "YXC"),
        4: ("TZYX", "TCYX", "ZYXC"),
        5: ("TZCYX", "TCZYX", "TZYXC"),
        6: ("ITZCYX", "ITZYXC"),
        7: ("ITZCYXS",),
    }.get(len(shape), ())


def _readings_text(shape: tuple[int, ...]) -> str:
    known = []
    for axes in map(Axes, readings(shape)):
        sizes = axes.sizes(shape)
        pages = f"{math.prod(sizes[letter] for letter in axes.pages)} planes of " if axes.pages else ""
        bands = f" of {sizes[axes.bands]} bands" if axes.bands else ""
        known.append(f"--axes {axes.letters} for {pages}{sizes['X']} x {sizes['Y']} pixels{bands}")
    if not known:
        return "an image has 2 to 7 axes"
    *most, last = known
    return f"write {', '.join(most)}{', or ' if most else ''}{last} (axes= in Python)"
