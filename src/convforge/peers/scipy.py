"""SciPy's ndimage.correlate and signal.oaconvolve, called plane by plane (one channel of one image)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.traits import Mark
from convforge.backends.cpu.facts import cpu_facts
from convforge.errors import Reason, UnsupportedProblem
from convforge.peers.contract import absence, version
from convforge.peers.planes import Placement, Plane, PlaneFilter, in_range
from convforge.problem import PADDING_MODES, Conv2dProblem

# scipy.ndimage treats taps up to DBL_EPSILON as zero.
SKIPPED = float(np.finfo(np.float64).eps)


class Scipy(PlaneFilter):
    def missing(self) -> Reason | None:
        return absence("scipy", "SciPy", "scipy")

    def versions(self) -> dict[str, str]:
        return {"scipy": version("scipy")}


class ScipyNdimage(Scipy):
    """``scipy.ndimage.correlate``: tap by tap in float64, on one core.

    It treats NaN taps and taps of at most 2.2e-16 as zero, and skips zeros. So filters with these taps are refused. If
    a filter has zeros, an x that contains NaN or infinities is refused too.
    """

    name = "scipy_ndimage"
    summary = "SciPy's ndimage.correlate, one core"
    call = "scipy.ndimage.correlate"
    borders = tuple(mode for mode in PADDING_MODES if mode != "constant")
    look = Mark("scipy", "diamond", (8, 3, 2, 3))

    def finite_alone(self, problem: Conv2dProblem, w: NDArray[Any]) -> bool:
        """True if a tap is zero: SciPy skips zeros, which is correct only for those between dilated taps."""
        return bool((w == 0).any())

    def borders_of(self, problem: Conv2dProblem) -> tuple[str, ...]:
        """Only zeros and replicate if a border is wider than the image, because SciPy's mirrors are then wrong."""
        top, bottom, left, right = problem.padding
        wide = max(top, bottom) > problem.h or max(left, right) > problem.w
        return ("zeros", "replicate") if wide else self.borders

    def kernel(self, problem: Conv2dProblem, kernel: Plane) -> Any:
        skipped = (kernel != 0) & ~(np.abs(kernel) > SKIPPED)  # includes NaN
        if skipped.any():
            reason = Reason(
                "{call} takes taps of at most {most} and those that are NaN for 0; this filter has one of "
                "{tap}: scale the filter, or use a method of convforge's",
                call=self.call,
                most=f"{SKIPPED:.2g}",
                tap=f"{kernel[skipped][0]:.2g}",
            )
            raise UnsupportedProblem(str(problem), {self.name: reason})
        return kernel

    def correlate(self, problem: Conv2dProblem, plane: Plane, kernel: Any, where: Placement, target: Plane) -> None:
        from scipy import ndimage

        mode: Any = "constant" if where.pads else PADDING_MODES[problem.padding_mode][0].partition(",")[0]
        origin: Any = tuple(at - size // 2 for at, size in zip(where.anchor, kernel.shape, strict=True))
        ndimage.correlate(plane, kernel, output=target, mode=mode, cval=0.0, origin=origin)


class ScipyOaconvolve(Scipy):
    """``scipy.signal.oaconvolve``: convolution by FFT, block by block (overlap-add)."""

    name = "scipy_oaconvolve"
    summary = "SciPy's signal.oaconvolve, by the Fourier transform"
    call = "scipy.signal.oaconvolve"
    precision = "fft"
    nan_spread = "image"
    look = Mark("scipy", "triangle-down", (5, 3))

    def correlate(self, problem: Conv2dProblem, plane: Plane, kernel: Any, where: Placement, target: Plane) -> None:
        """Write the outputs of full windows to the top left of `target`, and zeros to the rest."""
        in_range(lambda source, result: self._convolved(source, kernel, result), plane, target)

    def _convolved(self, plane: Plane, kernel: Plane, target: Plane) -> None:
        from scipy import fft, signal

        # In the frequency domain an infinity is multiplied by zeros. This gives the NaN that `nan_spread` declares.
        with fft.set_workers(cpu_facts().cores):
            valid: Plane = signal.oaconvolve(plane, kernel[::-1, ::-1], mode="valid")
        rows, columns = valid.shape
        target[:rows, :columns] = valid
        target[rows:], target[:, columns:] = 0, 0
