"""Gaussians by their standard deviation along each axis, in pixels or in a unit of length."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Units of length in micrometres; a pixel has the length of the image's spacing.
LENGTHS = {"nm": 1e-3, "um": 1.0, "µm": 1.0, "μm": 1.0, "mm": 1e3}
PIXELS = "px"

# A Gaussian ends at so many standard deviations, as in scipy.ndimage.
TRUNCATE = 4.0

LARGEST_RADIUS = 2047

_VALUES = re.compile(rf"([0-9.e+\-, ]+)({'|'.join([PIXELS, *LENGTHS])})", re.IGNORECASE)
_SPACING = re.compile(r"[0-9.e+\-, ]+")


class SigmasError(ValueError):
    """Standard deviations that make no kernel; the message says why, and what to write."""


@dataclass(frozen=True, slots=True)
class Sigmas:
    """Standard deviations of a Gaussian along Y and X, or along Z, Y and X.

    Examples
    --------
    >>> sigmas = Sigmas.of("2,0.5,0.5um")
    >>> sigmas.values, sigmas.unit
    ((2.0, 0.5, 0.5), 'um')
    >>> [line.size for line in sigmas.lines({"Z": 1.0, "Y": 0.25, "X": 0.25})]
    [17, 17, 17]
    """

    values: tuple[float, ...]
    unit: str

    @classmethod
    def of(cls, text: str) -> Sigmas | None:
        """Parse values and their unit, such as 2px, 0.5um or 2,0.5,0.5um; None if the text has no unit.

        One value is that of Y and X, two are Y and X, three are Z, Y and X. ``SigmasError`` for other values.
        """
        found = _VALUES.fullmatch(text.strip())
        if found is None:
            return None
        try:
            values = tuple(float(word) for word in found[1].split(","))
        except ValueError as error:
            raise SigmasError(f"{text!r} is no list of numbers with a unit, such as 2,0.5,0.5um") from error
        if len(values) > 3:
            raise SigmasError(f"{text!r} has {len(values)} values; write Y,X or Z,Y,X")
        if not all(0 <= value < math.inf for value in values) or not any(values):
            raise SigmasError(f"{text!r}: each value must be a number of at least 0, and one above 0")
        return cls(values * 2 if len(values) == 1 else values, found[2].lower())

    @property
    def letters(self) -> str:
        return "ZYX"[-len(self.values) :]

    def lines(self, spacing: Mapping[str, float | None]) -> list[NDArray[np.float64]]:
        """Return the one-dimensional Gaussian of each axis of `letters`.

        Parameters
        ----------
        spacing : mapping
            Distance of the samples in micrometres by the letter of the axis; of no matter for a unit of pixels.

        Raises
        ------
        SigmasError
            The spacing of an axis is not known, or a Gaussian is too long.
        """
        lines = []
        for letter, value in zip(self.letters, self.values, strict=True):
            sigma = value
            if self.unit != PIXELS and value:
                gap = spacing.get(letter)
                if not gap:
                    raise SigmasError(
                        f"the distance of the samples along {letter} is not known, so {value:g} {self.unit} is no "
                        "number of pixels; name it with --spacing (spacing= of filter_large), or give sigma in px"
                    )
                sigma = value * LENGTHS[self.unit] / gap
            radius = int(TRUNCATE * sigma + 0.5)
            if radius > LARGEST_RADIUS:
                raise SigmasError(f"sigma {sigma:.3g} pixels along {letter} needs more than {LARGEST_RADIUS} on a side")
            steps = np.arange(-radius, radius + 1) / (sigma or 1.0)
            line = np.exp(-0.5 * steps * steps)
            lines.append(line / line.sum())
        return lines


def spacing_from(text: str) -> dict[str, float]:
    """Parse distances of samples in micrometres, by the letter of the axis.

    One value is that of Y and X, two are Y and X, three are Z, Y and X. ``SigmasError`` for other values.

    Examples
    --------
    >>> spacing_from("2,0.25,0.25"), spacing_from("0.5")
    ({'Z': 2.0, 'Y': 0.25, 'X': 0.25}, {'Y': 0.5, 'X': 0.5})
    """
    how = "write the distance of the samples in micrometres, such as 0.25, or along Z, Y and X, such as 2,0.25,0.25"
    try:
        values = [float(word) for word in text.split(",")] if _SPACING.fullmatch(text) else []
    except ValueError:
        values = []
    if not 1 <= len(values) <= 3 or not all(0 < value < math.inf for value in values):
        raise SigmasError(f"{text!r} is no spacing; {how}")
    values = values * 2 if len(values) == 1 else values
    return dict(zip("ZYX"[-len(values) :], values, strict=True))
