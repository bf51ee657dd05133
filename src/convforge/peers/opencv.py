"""OpenCV's filter2D and sepFilter2D, called plane by plane, or once for all channels if they share one filter.

OpenCV's thread count applies to the whole process: making a plan sets it to the number of cores for convforge.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.contract import Config, PreparedFilter
from convforge.algorithms.host.weights import correlation_filter
from convforge.algorithms.traits import Mark
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.errors import Reason, UnsupportedProblem
from convforge.peers.contract import PeerPlan, absence, sums_dtype, version
from convforge.peers.planes import Placement, Plane, PlaneFilter, Terms, dilated, in_range, placement, share_of_channel
from convforge.problem import Conv2dProblem
from convforge.problem.types import is_integer

# Fewest taps for which filter2D uses the discrete Fourier transform: with SSE3 and not in float64; otherwise.
DFT_TAPS, DFT_TAPS_ELSE = 130, 50

# OpenCV may treat an array of at most this many elements as the channels of one pixel, not as an image.
SCALAR = 4

# Most channels of an image that every version of OpenCV accepts.
MOST_CHANNELS = 128


class Opencv(PlaneFilter):
    """Shared parts of filter2D and sepFilter2D."""

    borders = ("zeros", "reflect", "symmetric", "replicate")
    interleaves = True

    def missing(self) -> Reason | None:
        return absence("cv2", "OpenCV", "opencv-python-headless")

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        halves = "float16" in (problem.x_dtype, problem.w_dtype, problem.out_dtype)
        return super().refuses(problem, facts) or (
            Reason("OpenCV filters no float16; cast to float32") if halves else None
        )

    def versions(self) -> dict[str, str]:
        return {"opencv": version("opencv-python-headless", "opencv-python", "opencv-contrib-python")}

    def start(self, facts: DeviceFacts) -> None:
        import cv2

        if cv2.getNumThreads() != facts.cores:
            cv2.setNumThreads(facts.cores)

    def interleavable(self, problem: Conv2dProblem) -> bool:
        return super().interleavable(problem) and problem.c <= MOST_CHANNELS

    def pad(self, problem: Conv2dProblem, plane: Plane, value: float, target: Plane) -> None:
        import cv2

        channels = 1 if plane.ndim == 2 else plane.shape[2]
        if channels > 4:  # OpenCV's border value has at most four channels
            for channel in range(channels):
                self.pad(problem, plane[:, :, channel], value, target[:, :, channel])
            return
        border = _border(problem.padding_mode)
        padded = cv2.copyMakeBorder(_input(plane), *problem.padding, border, _target(target), (value,) * channels)
        _keep(padded, target)

    def split(self, image: Plane, targets: Plane) -> None:
        import cv2

        if image.shape[2] > MOST_CHANNELS:
            super().split(image, targets)
        else:
            cv2.split(_input(image), list(targets))

    def merge(self, planes: Plane, target: Plane) -> None:
        import cv2

        if len(planes) > MOST_CHANNELS:
            super().merge(planes, target)
        else:
            _keep(cv2.merge(list(planes), _target(target)), target)

    def mix(self, problem: Conv2dProblem, image: Plane, row: Plane, target: Plane) -> None:
        import cv2

        nhwc = problem.x_layout == "NHWC"
        if nhwc and image.dtype == target.dtype and problem.c <= MOST_CHANNELS:
            _keep(cv2.transform(_input(image), row[None], target), target)
            return
        depth = _depth(target.dtype)
        planes = [_input(plane) for plane in (image.transpose(2, 0, 1) if nhwc else image)]
        if (row == 1).all():
            cv2.add(planes[0], planes[1], target, dtype=depth)
            for plane in planes[2:]:
                cv2.add(target, plane, target, dtype=depth)
            return
        cv2.addWeighted(planes[0], float(row[0]), planes[1], float(row[1]), 0, target, depth)
        for plane, factor in zip(planes[2:], row[2:], strict=True):
            cv2.addWeighted(target, 1, plane, float(factor), 0, target, depth)

    def add(self, a: Plane, b: Plane, target: Plane) -> None:
        import cv2

        _keep(cv2.add(a, b, _target(target), dtype=_depth(target.dtype)), target)

    def store(self, plane: Plane, target: Plane) -> None:
        import cv2

        if plane.size <= SCALAR:
            super().store(plane, target)
        elif plane.dtype == target.dtype:
            np.copyto(target, plane)
        elif plane.dtype == np.float32 and target.dtype == np.int32:
            np.copyto(target, plane, casting="unsafe")  # whole numbers below 2^24
        else:
            _keep(cv2.add(_input(plane), 0, _target(target), dtype=_depth(target.dtype)), target)


class OpencvFilter2d(Opencv):
    """``cv2.filter2D`` for filters that it applies tap by tap.

    Dtypes other than uint8 are cast to the sums' dtype first, which is faster than filter2D on mixed dtypes. filter2D
    skips taps of 0, so an image with a NaN or an infinity is refused if the filter has taps of 0.
    """

    name = "opencv_filter2d"
    summary = "OpenCV's filter2D, tap by tap"
    call = "cv2.filter2D"
    by_dft: ClassVar[bool] = False
    look = Mark("opencv", "square", (2, 2))

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if reason := super().refuses(problem, facts):
            return reason
        taps, limit = problem.extent_h * problem.extent_w, _dft_taps(problem, facts)
        if self.by_dft == (taps >= limit):
            return None
        if self.by_dft:
            return Reason("filter2D sums {taps} taps one by one; it takes the Fourier transform from {limit} on",
                          taps=taps, limit=limit)  # fmt: skip
        return Reason("filter2D takes the Fourier transform from {limit} taps on, here {taps}: see opencv_filter2d_dft",
                      limit=limit, taps=taps)  # fmt: skip

    def finite_alone(self, problem: Conv2dProblem, w: NDArray[Any]) -> bool:
        """True if a tap is zero: filter2D skips zeros, which is correct only for those between dilated taps."""
        return not self.by_dft and bool((w == 0).any())

    def as_is(self, problem: Conv2dProblem) -> tuple[bool, bool]:
        types = (problem.x_dtype, problem.out_dtype, sums_dtype(problem))
        straight = types == ("uint8", "uint8", "float32") and problem.c_per_group == 1
        return straight, straight

    def correlate(self, problem: Conv2dProblem, plane: Plane, kernel: Any, where: Placement, target: Plane) -> None:
        import cv2

        anchor, border = where.anchor[::-1], _border(border_of(problem, where))
        _keep(cv2.filter2D(_input(plane), _depth(target.dtype), kernel, _target(target), anchor, 0, border), target)


class OpencvFilter2dDft(OpencvFilter2d):
    """``cv2.filter2D`` for filters that it applies by the discrete Fourier transform, block by block, in float32."""

    name = "opencv_filter2d_dft"
    summary = "OpenCV's filter2D of a large filter, by the Fourier transform"
    precision = "fft"
    nan_spread = "image"
    by_dft = True
    look = Mark("opencv", "triangle-right", (6, 2, 2, 2))

    def correlate(self, problem: Conv2dProblem, plane: Plane, kernel: Any, where: Placement, target: Plane) -> None:
        filtered = super().correlate
        in_range(lambda source, result: filtered(problem, source, kernel, where, result), plane, target)


class OpencvSepFilter2d(Opencv):
    """``cv2.sepFilter2D``: two 1D passes, for filters of rank one; `prepare` finds the factors (SVD).

    If a filter also has rank one over its channels, the channels are mixed first. Sums stay in float, because OpenCV
    would round a smooth filter's factors to 8 bits for a uint8 output. With symmetric factors OpenCV adds pixels in
    pairs before it multiplies, so float pixels of unmixed planes overflow above half the largest number.
    """

    name = "opencv_sepfilter2d"
    summary = "OpenCV's sepFilter2D, for filters of rank one"
    since = "opencv_filter2d"
    precision = "separable"
    call = "cv2.sepFilter2D"
    look = Mark("opencv", "cross", (4, 4))

    def plan(self, problem: Conv2dProblem, config: Config, runtime: Runtime) -> PeerPlan:
        """Make a plan; its `prepare` raises ``UnsupportedProblem`` for a filter of a higher rank."""
        return super().plan(problem, config, runtime)

    def finite_alone(self, problem: Conv2dProblem, w: NDArray[Any]) -> bool:
        """True for zero taps or dilation: sepFilter2D skips only the zero in the middle of an antisymmetric factor."""
        return problem.dilation != (1, 1) or bool((w == 0).any())

    def as_is(self, problem: Conv2dProblem) -> tuple[bool, bool]:
        mixed_types = problem.c_per_group > 1 and placement(problem, self.borders).pads
        return problem.x_dtype == "uint8" and sums_dtype(problem) == "float32" and not mixed_types, False

    def terms(self, problem: Conv2dProblem, w: NDArray[Any], stream: Any = None) -> PreparedFilter:
        if not np.isfinite(w).all():
            reason = Reason(
                "sepFilter2D takes filters of rank 1; this one has a tap that is NaN or infinite, and no rank"
            )
            raise UnsupportedProblem(str(problem), {self.name: reason})
        if problem.groups > 1 or problem.c == 1:
            return super().terms(problem, w)
        correlation = correlation_filter(problem, w, sums_dtype(problem))
        packed = dilated(problem, correlation)
        share = share_of_channel(problem, packed)
        share /= 2 if share < 1 else 1  # for symmetric factors OpenCV adds pixels in pairs before it multiplies
        flat = packed.reshape(problem.k, problem.c, -1)
        factors = [_rank_one(matrix, is_integer(problem.acc_dtype)) for matrix in flat]
        if not share or any(factor is None for factor in factors):
            return super().terms(problem, w)
        rows, kernels = zip(*(factor for factor in factors if factor is not None), strict=True)
        mixes, which = np.unique(np.stack(rows) * packed.dtype.type(share), axis=0, return_inverse=True)
        which = which.reshape(-1)  # NumPy 2.0 returns it with another axis
        outputs = tuple(
            ((int(which[k]), self.kernel(problem, kernels[k].reshape(packed.shape[2:]) / packed.dtype.type(share))),)
            for k in range(problem.k)
        )
        terms = Terms(mixes, outputs, finite=self.finite_alone(problem, correlation))
        return PreparedFilter({"terms": terms}, packed.nbytes, Reason("rank one, over the channels too"))

    def kernel(self, problem: Conv2dProblem, kernel: Plane) -> Any:
        factors = _rank_one(kernel, is_integer(problem.acc_dtype))
        if factors is None:
            values = np.linalg.svd(kernel.astype(np.float64), compute_uv=False)
            rank = int((values > _tolerance(kernel) * values[0]).sum())
            reason = Reason("sepFilter2D takes filters of rank 1; this one has rank {rank}", rank=rank)
            raise UnsupportedProblem(str(problem), {self.name: reason})
        column, row = factors
        size = row.dtype.type(2.0 ** np.ceil(np.log2(np.abs(row).sum()))) if row.any() else row.dtype.type(1)
        larger = column * size
        # OpenCV filters rows first. Row taps with an absolute sum of at most 1 overflow only if the outputs overflow.
        fits = problem.x_dtype == row.dtype and np.isfinite(larger).all()
        return (larger, row / size) if fits else (column, row)

    def correlate(self, problem: Conv2dProblem, plane: Plane, kernel: Any, where: Placement, target: Plane) -> None:
        import cv2

        column, row = kernel
        anchor, border = where.anchor[::-1], _border(border_of(problem, where))
        filtered = cv2.sepFilter2D(_input(plane), _depth(target.dtype), row, column, _target(target), anchor, 0, border)
        _keep(filtered, target)


def _rank_one(matrix: Plane, whole: bool) -> tuple[Plane, Plane] | None:
    """Factor a matrix as a b^T, where the largest of a is 1, or into integers if `whole`; None for a higher rank."""
    u, values, v = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    if (values[1:] > _tolerance(matrix) * values[0]).any():
        return None
    if whole and matrix.any():  # every row is a multiple of an integer row without common divisors
        row = matrix[np.abs(matrix).max(axis=1).argmax()].astype(np.int64)
        row //= np.gcd.reduce(row)
        at = np.abs(row).argmax()
        return (matrix[:, at] / row[at]).astype(matrix.dtype), row.astype(matrix.dtype)
    a, b = u[:, 0].astype(np.longdouble), v[0] * values[0]
    if b.any():  # one step of power iteration improves the last bits of float64
        b = a @ matrix / (a @ a)
        a = matrix @ b / (b @ b)
    pivot = a[np.abs(a).argmax()]  # equal rows of a matrix then give exactly 1
    return (a / pivot).astype(matrix.dtype), (b * pivot).astype(matrix.dtype)


def _tolerance(matrix: Plane) -> float:
    """Relative tolerance: singular values below this share of the largest are rounding errors."""
    return float(min(matrix.shape) * np.finfo(matrix.dtype).eps / 2)


def _dft_taps(problem: Conv2dProblem, facts: DeviceFacts) -> int:
    """Fewest taps for which filter2D uses the Fourier transform (OpenCV's filter.dispatch.cpp)."""
    x86 = facts.architecture.lower() in ("x86_64", "amd64")
    return DFT_TAPS if x86 and sums_dtype(problem) == "float32" else DFT_TAPS_ELSE


def border_of(problem: Conv2dProblem, where: Placement) -> str:
    """Padding mode for OpenCV; "zeros" if the call needs no border, because OpenCV has no circular mode."""
    return "zeros" if where.pads or not any(problem.padding) else problem.padding_mode


@functools.cache
def _border(mode: str) -> int:
    import cv2

    borders = {
        "zeros": cv2.BORDER_CONSTANT,
        "constant": cv2.BORDER_CONSTANT,
        "reflect": cv2.BORDER_REFLECT_101,
        "symmetric": cv2.BORDER_REFLECT,
        "replicate": cv2.BORDER_REPLICATE,
        "circular": cv2.BORDER_WRAP,
    }
    return int(borders[mode])


@functools.cache
def _depth(dtype: np.dtype[Any]) -> int:
    import cv2

    depths = {
        "uint8": cv2.CV_8U,
        "int8": cv2.CV_8S,
        "uint16": cv2.CV_16U,
        "int16": cv2.CV_16S,
        "int32": cv2.CV_32S,
        "float32": cv2.CV_32F,
        "float64": cv2.CV_64F,
    }
    return int(depths[dtype.name])


def _input(array: Plane) -> Plane:
    """Return the array if OpenCV accepts its strides, else a contiguous copy."""
    return array if _understood(array) else np.ascontiguousarray(array)


def _target(array: Plane) -> Plane | None:
    """Return the array if OpenCV can write into it; None if OpenCV must allocate."""
    return array if _understood(array) else None


def _understood(array: Plane) -> bool:
    item = array.itemsize
    pixel = item if array.ndim == 2 else item * array.shape[2]
    dense = array.strides[1] == pixel and (array.ndim == 2 or array.strides[2] == item)
    return dense and array.strides[0] >= pixel * array.shape[1] and array.strides[0] % item == 0


def _keep(result: Plane, target: Plane) -> None:
    """Copy OpenCV's result into the target, unless OpenCV wrote it there."""
    if result is not target and (result.ctypes.data != target.ctypes.data or not _understood(target)):
        np.copyto(target, result.reshape(target.shape))
