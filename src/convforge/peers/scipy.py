"""SciPy: ndimage.correlate and signal.oaconvolve, plane by plane."""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.backends.cpu.facts import cpu_facts
from convforge.peers.contract import absence, version
from convforge.peers.planes import Placement, Plane, PlaneFilter
from convforge.problem import PADDING_MODES, Conv2dProblem


class Scipy(PlaneFilter):
    """What both share."""

    def missing(self) -> str | None:
        """See :class:`PlaneFilter`."""
        return absence("scipy", "SciPy", "scipy")

    def versions(self) -> dict[str, str]:
        """SciPy's version."""
        return {"scipy": version("scipy")}


class ScipyNdimage(Scipy):
    """``scipy.ndimage.correlate``: tap by tap in float64, on one core.

    Taps of an absolute value of at most 2.2e-16 are taken as zero, and zeros are skipped.
    """

    name = "scipy_ndimage"
    summary = "SciPy's ndimage.correlate, one core"
    call = "scipy.ndimage.correlate"
    borders = tuple(mode for mode in PADDING_MODES if mode != "constant")

    def correlate(self, problem: Conv2dProblem, plane: Plane, kernel: Any, where: Placement, target: Plane) -> None:
        """See :class:`PlaneFilter`."""
        from scipy import ndimage

        mode: Any = "constant" if where.pads else PADDING_MODES[problem.padding_mode][0].partition(",")[0]
        origin: Any = tuple(at - size // 2 for at, size in zip(where.anchor, kernel.shape, strict=True))
        ndimage.correlate(plane, kernel, output=target, mode=mode, cval=0.0, origin=origin)


class ScipyOaconvolve(Scipy):
    """``scipy.signal.oaconvolve``: products of Fourier transforms, block by block (overlap-add)."""

    name = "scipy_oaconvolve"
    summary = "SciPy's signal.oaconvolve, by the Fourier transform"
    call = "scipy.signal.oaconvolve"
    precision = "fft"
    nan_spread = "picture"

    def correlate(self, problem: Conv2dProblem, plane: Plane, kernel: Any, where: Placement, target: Plane) -> None:
        """See :class:`PlaneFilter`. The outputs that the window fills lie at the top left."""
        from scipy import fft, signal

        # An infinity meets zeros in the frequency domain, and becomes the NaN that `nan_spread` declares.
        with np.errstate(invalid="ignore", over="ignore"), fft.set_workers(cpu_facts().cores):
            valid = signal.oaconvolve(plane, kernel[::-1, ::-1], mode="valid")
        rows, columns = valid.shape
        target[:rows, :columns] = valid
        target[rows:], target[:, columns:] = 0, 0
