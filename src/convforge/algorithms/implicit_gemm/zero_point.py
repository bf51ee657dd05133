"""The zero point of x in products of stored pixels: sums of taps, which tap_sums.cu prepares with the weights."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from convforge.algorithms.contract import Buffers, Launch, Preparation, PreparedFilter
from convforge.algorithms.host.conv import address
from convforge.algorithms.host.element_types import ElementTypes
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem

THREADS = 128
NAME = "tap_sums"  # of the prepared array


class _Axis(ctypes.Structure):
    """struct Axis of tap_sums.cu."""

    _fields_ = tuple(
        (name, ctypes.c_int)
        for name in ("size", "steps", "start", "step", "dilation", "first", "last", "classes")
    )  # fmt: skip


class _TapSums(ctypes.Structure):
    """struct TapSums of tap_sums.cu."""

    _fields_ = (
        ("w", ctypes.c_void_p), ("sums", ctypes.c_void_p), ("strides", ctypes.c_longlong * 4),
        ("h", _Axis), ("w_axis", _Axis), *((name, ctypes.c_int) for name in ("channels", "pitch", "zero", "flip")),
    )  # fmt: skip


class ZeroPoint(ctypes.Structure):
    """struct ZeroPoint of zero_point.cuh."""

    _fields_ = (
        ("tap_sums", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("pitch", "across", "one_class", "first_h", "last_h", "first_w", "last_w")),
    )


class Classes(NamedTuple):
    """Classes of the outputs along an axis, by the taps of theirs that are inside the image.

    Outputs before `first` and after `last` have a class each; the others share one.
    """

    first: int
    last: int
    classes: int

    @classmethod
    def of(cls, size: int, before: int, outputs: int, step: int, reach: int) -> Classes:
        """Classes of `outputs` windows over `size` pixels; `reach` is from a window's first pixel to its last.

        Examples
        --------
        >>> Classes.of(size=8, before=1, outputs=8, step=1, reach=2)  # the first output, the last one, the others
        Classes(first=1, last=6, classes=3)
        """
        first = min(-(-before // step), outputs)
        last = max(first, (size - 1 - reach + before) // step)
        return cls(first, last, min(outputs, first + 1) + max(0, outputs - 1 - last))


def _classes(problem: Conv2dProblem) -> tuple[Classes, Classes]:
    (top, _, left, _), (high, wide), (down, across) = problem.padding, problem.stride, problem.dilation
    rows = Classes.of(problem.h, top, problem.p, high, (problem.r - 1) * down)
    return rows, Classes.of(problem.w, left, problem.q, wide, (problem.s - 1) * across)


def _pitch(problem: Conv2dProblem) -> int:
    return problem.k + problem.k % 2


def zero_point_of(problem: Conv2dProblem, buffers: Buffers) -> ZeroPoint:
    """The struct for a call; `problem` is that of the rows which the kernel loads."""
    rows, columns = _classes(problem)
    return ZeroPoint(
        address(buffers["w"].tensors[NAME]), _pitch(problem), columns.classes, rows.classes * columns.classes == 1,
        rows.first, rows.last, columns.first, columns.last,
    )  # fmt: skip


class WithTapSums(Preparation):
    """A preparation of weights that also makes the sums of taps; `loaded` is the problem of what the TMA loads."""

    def __init__(self, inner: Preparation, weights: Conv2dProblem, loaded: Conv2dProblem, runtime: Runtime) -> None:
        rows, columns = _classes(loaded)
        sizes = (loaded.h, loaded.w), (loaded.r, loaded.s), (-loaded.padding[0], -loaded.padding[2])
        h, w_axis = (
            _Axis(size, steps, start, step, dilation, *classes)
            for size, steps, start, step, dilation, classes in zip(
                *sizes, loaded.stride, loaded.dilation, (rows, columns), strict=True
            )
        )
        lines = (*ElementTypes(w=weights.w_dtype).prelude(), *constants(R=loaded.r, S=loaded.s))
        source = KernelSource("algorithms/implicit_gemm/tap_sums.cu", "tap_sums", lines, _TapSums, "TapSums")
        info = LaunchInfo("tap_sums", (loaded.k,), (THREADS,), pdl=True)
        channels, flip = weights.c_per_group, int(loaded.mode == "convolution")
        pitch, zero = _pitch(loaded), weights.epilogue.x_zero_point

        def arguments(buffers: Buffers) -> Any:
            w = buffers["given"]
            strides = (ctypes.c_longlong * 4)(*(step // w.itemsize for step in w.strides))
            return _TapSums(address(w), address(buffers[NAME]), strides, h, w_axis, channels, pitch, zero, flip)

        launch = Launch(info, runtime.compile(source), arguments, runtime)
        self._wrap(inner, runtime, {NAME: ((rows.classes * columns.classes, pitch), "int32")}, launch)

    def _wrap(self, inner: Preparation, runtime: Runtime, own: dict[str, Any], launch: Launch) -> None:
        def finish(buffers: Buffers, stream: Any) -> PreparedFilter:
            made = inner.finish(buffers, stream)
            return PreparedFilter({**made.tensors, NAME: buffers[NAME]}, made.nbytes + buffers[NAME].nbytes)

        super().__init__(runtime, {**inner.pieces, **own}, (*inner.steps, launch), finish)
        self._inner, self._own, self._launch = inner, own, launch
        self._others: dict[int, Preparation] = {}
        if (borrow := getattr(inner, "borrow", None)) is not None:
            self.borrow = self._around(borrow)

    def _around(self, inner: Preparation) -> Preparation:
        made = WithTapSums.__new__(WithTapSums)
        made._wrap(inner, self._runtime, self._own, self._launch)
        return made

    def of(self, given: Any) -> Preparation:
        chosen = self._inner.of(given)
        if chosen is self._inner:
            return self
        if id(chosen) not in self._others:
            self._others[id(chosen)] = self._around(chosen)
        return self._others[id(chosen)]
