"""Convolution by libraries that filter one plane (one channel of one image) at a time, with one output per pixel.

A smaller output is cropped from the result. With a stride, all outputs are computed, and every stride-th is kept.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.contract import Algorithm, Buffers, Config, PreparedFilter
from convforge.algorithms.host.views import logical
from convforge.algorithms.host.weights import correlation_filter
from convforge.algorithms.host.workspace import Part, carve, nbytes
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.errors import Reason, UnsupportedProblem
from convforge.peers.contract import PeerPlan, dtype_refusal, missing_epilogue, readable, sums_dtype
from convforge.problem import Conv2dProblem, border_indices

Plane = NDArray[Any]

# Most calls for one image. With more calls, as for a layer of a network, we would measure only their overhead.
MOST_FILTERINGS = 4096


@dataclass(frozen=True, slots=True)
class Placement:
    """Position of the outputs in a filtered plane."""

    pads: bool  # pad first: the library lacks the padding mode, or the output extends beyond the plane
    anchor: tuple[int, int]  # row and column of the dilated filter that is aligned with the output's pixel
    shape: tuple[int, int]  # rows and columns of the filtered plane
    whole: bool  # the filtered plane is the whole output


def placement(problem: Conv2dProblem, borders: Sequence[str]) -> Placement:
    """Place the anchor at (top, left) for a library with these padding modes: output row p is filtered row p * stride.

    Examples
    --------
    >>> problem = Conv2dProblem(n=1, c=1, h=8, w=9, k=1, r=3, s=4, padding=(1, 1, 2, 1))
    >>> placement(problem, ["zeros"])
    Placement(pads=False, anchor=(1, 2), shape=(8, 9), whole=True)
    """
    top, bottom, left, right = problem.padding
    zeros = problem.padding_mode == "constant" and problem.padding_value == 0
    inside = top + bottom < problem.extent_h and left + right < problem.extent_w
    pads = any(problem.padding) and not (inside and ("zeros" if zeros else problem.padding_mode) in borders)
    shape = (problem.padded_h, problem.padded_w) if pads else (problem.h, problem.w)
    anchor = (0, 0) if pads else (top, left)
    return Placement(pads, anchor, shape, problem.stride == (1, 1) and shape == (problem.p, problem.q))


@dataclass(frozen=True, slots=True)
class Terms:
    """Weights in the form that the library needs."""

    # (M, C): each row mixes the channels into one plane before the filter. None: channels are filtered separately.
    mixes: NDArray[Any] | None
    # For each output channel, pairs: index of a plane, and result of :meth:`PlaneFilter.kernel` for its filter.
    outputs: tuple[tuple[tuple[int, Any], ...], ...]
    interleaved: bool = False  # all channels of an NHWC image share one filter and are filtered in one call
    finite: bool = False  # with these filters, the library's results are correct only for finite images


class PlaneFilter(Algorithm[Conv2dProblem, Config]):
    operation = "conv2d"
    ours = False
    borders: ClassVar[tuple[str, ...]] = ()
    interleaves: ClassVar[bool] = False  # can filter all channels of an NHWC image in one call
    call: ClassVar[str]

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if reason := self.missing() or dtype_refusal(problem) or missing_epilogue(problem, self.call):
            return reason
        if (calls := problem.k * problem.c_per_group) <= MOST_FILTERINGS:
            return None
        return Reason("{call} filters planes: {calls} calls an image are beyond the {most} that it is for",
                      call=self.call, calls=calls, most=MOST_FILTERINGS)  # fmt: skip

    def plan(self, problem: Conv2dProblem, config: Config, runtime: Runtime) -> PeerPlan:
        self.start(runtime.facts)
        filtering = ImageFilter(self, problem)
        return PeerPlan(
            self,
            problem,
            config,
            runtime,
            compute=filtering.compute,
            prepare=functools.partial(self.terms, problem),
            kernel=self.call,
            workspace_bytes=nbytes(filtering.parts),
        )

    def terms(self, problem: Conv2dProblem, w: NDArray[Any], stream: Any = None) -> PreparedFilter:
        """Convert weights to :class:`Terms`; adds channels that share a filter. Raises the errors of `kernel`."""
        correlation = correlation_filter(problem, w, sums_dtype(problem))
        packed = dilated(problem, correlation)
        mixes, note = None, None
        channels = problem.c_per_group
        kernels = [[self.kernel(problem, packed[k, c]) for c in range(channels)] for k in range(problem.k)]
        first = [k // problem.k_per_group * channels for k in range(problem.k)]
        outputs = tuple(tuple((first[k] + c, kernels[k][c]) for c in range(channels)) for k in range(problem.k))
        interleaved = False
        share = share_of_channel(problem, packed)
        if problem.groups == 1 and channels > 1 and share and bool((packed == packed[:, :1]).all()):
            mixes = np.full((1, channels), share, packed.dtype)
            outputs = tuple(((0, self.kernel(problem, packed[k, 0] / share)),) for k in range(problem.k))
            note = Reason("channels share their filter: they are added up first")
        elif self.interleavable(problem) and bool((packed == packed[:1]).all()):
            interleaved, outputs = True, (((0, kernels[0][0]),),)
            note = Reason("channels share their filter: all are filtered at once")
        terms = Terms(mixes, outputs, interleaved, self.finite_alone(problem, correlation))
        return PreparedFilter({"terms": terms}, packed.nbytes, note)

    def interleavable(self, problem: Conv2dProblem) -> bool:
        depthwise = problem.groups == problem.c == problem.k > 1
        return self.interleaves and depthwise and problem.x_layout == problem.out_layout == "NHWC"

    # Methods that a library overrides.

    @abstractmethod
    def missing(self) -> Reason | None:
        """Reason if the library is not installed; else None."""

    def start(self, facts: DeviceFacts) -> None:
        """Set the library's number of threads."""

    def borders_of(self, problem: Conv2dProblem) -> tuple[str, ...]:
        """Padding modes that the library supports for this problem's size."""
        return self.borders

    def kernel(self, problem: Conv2dProblem, kernel: Plane) -> Any:
        """Prepare a dilated filter for :meth:`correlate`."""
        return kernel

    def finite_alone(self, problem: Conv2dProblem, w: NDArray[Any]) -> bool:
        """True if the library gives wrong results for NaN or infinity in x with these undilated taps."""
        return False

    def as_is(self, problem: Conv2dProblem) -> tuple[bool, bool]:
        """Two flags: the library reads x's dtype, and it writes the output's dtype, even if the sums' dtype differs."""
        return False, False

    @abstractmethod
    def correlate(self, problem: Conv2dProblem, plane: Plane, kernel: Any, where: Placement, target: Plane) -> None:
        """Filter a plane into `target`, which has the same size."""

    def pad(self, problem: Conv2dProblem, plane: Plane, value: float, target: Plane) -> None:
        """Write the padded plane into `target`."""
        modes = {"zeros": "constant", "replicate": "edge", "circular": "wrap"}
        mode: Any = modes.get(problem.padding_mode, problem.padding_mode)
        top, bottom, left, right = problem.padding
        if mode != "constant" and (max(top, bottom) >= problem.h or max(left, right) >= problem.w):
            rows = border_indices(problem.h, top, bottom, problem.padding_mode)
            columns = border_indices(problem.w, left, right, problem.padding_mode)
            np.copyto(target, plane[rows[:, None], columns])  # np.pad is wrong for borders this wide on one side only
            return
        values = {"constant_values": value} if mode == "constant" else {}
        np.copyto(target, np.pad(plane, ((top, bottom), (left, right)), mode, **values))

    def split(self, image: Plane, targets: Plane) -> None:
        np.copyto(targets, image.transpose(2, 0, 1))

    def mix(self, problem: Conv2dProblem, image: Plane, row: Plane, target: Plane) -> None:
        """Store the sum over c of row[c] * channel c in `target`; `image` is an image in x's layout."""
        channels = image if problem.x_layout == "NCHW" else image.transpose(2, 0, 1)
        np.multiply(channels[0], row[0], out=target, dtype=target.dtype, casting="unsafe")
        for plane, factor in zip(channels[1:], row[1:], strict=True):
            np.add(target, plane if factor == 1 else plane * factor, out=target, casting="unsafe")

    def add(self, a: Plane, b: Plane, target: Plane) -> None:
        """Store a + b in `target`, rounded and saturated if its dtype is an integer; may overwrite a."""
        np.add(a, b, out=a)
        self.store(a, target)

    def store(self, plane: Plane, target: Plane) -> None:
        """Cast sums to the output's dtype: integers are rounded half to even and saturated, NaN becomes 0."""
        if target.dtype.kind in "iu":
            limits = np.iinfo(target.dtype)
            plane = np.clip(
                np.nan_to_num(np.rint(plane), nan=0.0, posinf=np.inf, neginf=-np.inf), limits.min, limits.max
            )
        np.copyto(target, plane, casting="unsafe")

    def merge(self, planes: Plane, target: Plane) -> None:
        np.copyto(target, planes.transpose(1, 2, 0))


class ImageFilter:
    """Call of one plan: computes image by image and output channel by output channel."""

    def __init__(self, library: PlaneFilter, problem: Conv2dProblem) -> None:
        self.library = library
        self.problem = problem
        self.where = placement(problem, library.borders_of(problem))
        self.sums = np.dtype(sums_dtype(problem))
        takes, gives = library.as_is(problem)
        self.taken = np.dtype(problem.x_dtype) if takes else self.sums
        self.given = np.dtype(problem.out_dtype) if gives else self.sums
        self.parts = self._parts()

    def _parts(self) -> list[Part]:
        """Workspace parts: split channels, cast channels, padded planes, mixtures, two filtered planes, results."""
        p, sums = self.problem, self.sums
        source, filtered = (p.c, p.h, p.w), self.where.shape
        summed = p.c_per_group > 1
        mixtures = (p.k if self.library.precision == "separable" else 1) if summed and p.groups == 1 else 0
        alike = p.c if self.library.interleavable(p) else 1
        direct = self.where.whole and self.given == p.out_dtype
        return [
            (source if p.x_layout == "NHWC" and p.c > 1 else (0,), p.x_dtype),
            (source if p.x_dtype != self.taken else (0,), self.taken),
            ((max(p.c, mixtures), *filtered) if self.where.pads else (0,), self.taken),
            ((mixtures, p.h, p.w), sums),
            ((0,) if direct and not summed else (alike, *filtered), self.given),
            (filtered if summed else (0,), sums),
            ((p.k, p.p, p.q) if p.out_layout == "NHWC" and p.k > 1 else (0,), p.out_dtype),
        ]

    def compute(self, buffers: Buffers, stream: Any) -> Any:
        problem = self.problem
        out = np.empty(problem.out_shape, problem.out_dtype) if buffers["out"] is None else buffers["out"]
        terms: Terms = buffers["w"].tensors["terms"]
        x = readable(buffers["x"])
        if terms.finite and x.dtype.kind == "f" and not np.isfinite(x).all():
            reason = Reason(
                "{call} has a NaN or an infinity wrong under a tap of 0 or between dilated taps, and x holds one: "
                "use a method of convforge's",
                call=self.library.call,
            )
            raise UnsupportedProblem(str(problem), {self.library.name: reason})
        scratch = carve(buffers.get("workspace"), self.parts)
        with np.errstate(over="ignore", invalid="ignore"):  # infinities are valid results
            for image, result in zip(x, out, strict=True):
                if terms.interleaved:
                    self._interleaved(image, result, terms, scratch)
                else:
                    self._planes(image, result, terms, scratch)
        return out

    def _planes(self, image: Plane, result: Plane, terms: Terms, scratch: list[Plane]) -> None:
        sources = self._sources(image, terms, scratch)
        finished = scratch[6]
        outputs = finished if finished.size else logical(result[None], self.problem.out_layout)[0]
        for k, pairs in enumerate(terms.outputs):
            self._output(sources, pairs, outputs[k], scratch[4], scratch[5])
        if finished.size:
            self.library.merge(finished, result)

    def _sources(self, image: Plane, terms: Terms, scratch: list[Plane]) -> list[Plane]:
        """Prepare the planes to filter: channels or mixtures of channels, padded if the library cannot pad."""
        split, cast, padded, mixed = scratch[:4]
        outside = [self.problem.outside] * self.problem.c
        if terms.mixes is not None:
            outside = [self.problem.outside * float(row.sum()) for row in terms.mixes]
            if cast.size and self.problem.x_layout == "NHWC":
                whole = cast.reshape(image.shape)
                np.copyto(whole, image)
                image = whole
            for row, target in zip(terms.mixes, mixed, strict=False):
                self.library.mix(self.problem, image, row, target)
            planes = list(mixed[: len(terms.mixes)])
        else:
            if split.size:
                self.library.split(image, split)
            channels = split if split.size else logical(image[None], self.problem.x_layout)[0]
            if cast.size:
                np.copyto(cast, channels)
            planes = list(cast if cast.size else channels)
        if self.where.pads:
            shape = (len(planes), *self.where.shape)
            room = padded.reshape(-1)[: math.prod(shape)].reshape(shape)
            for plane, value, target in zip(planes, outside, room, strict=True):
                self.library.pad(self.problem, plane, value, target)
            planes = list(room)
        return planes

    def _output(self, sources: list[Plane], pairs: Any, target: Plane, total: Plane, part: Plane) -> None:
        """Filter and add the planes of one output channel; store the outputs in `target`."""
        library, problem, where = self.library, self.problem, self.where
        (first, kernel), *rest = pairs
        if not rest and where.whole and target.dtype == self.given:
            library.correlate(problem, sources[first], kernel, where, target)
            return
        filtered = total[0]
        library.correlate(problem, sources[first], kernel, where, filtered)
        for i, (index, kernel) in enumerate(rest):
            library.correlate(problem, sources[index], kernel, where, part)
            if where.whole and i == len(rest) - 1:
                library.add(filtered, part, target)
                return
            library.add(filtered, part, filtered)
        library.store(_kept(problem, filtered), target)

    def _interleaved(self, image: Plane, result: Plane, terms: Terms, scratch: list[Plane]) -> None:
        """Filter all channels of an NHWC image in one call."""
        problem, where = self.problem, self.where
        if scratch[1].size:
            cast = scratch[1].reshape(image.shape)
            np.copyto(cast, image)
            image = cast
        if where.pads:
            padded = scratch[2].reshape(*where.shape, problem.c)
            self.library.pad(problem, image, problem.outside, padded)
            image = padded
        kernel = terms.outputs[0][0][1]
        if where.whole and result.dtype == self.given:
            self.library.correlate(problem, image, kernel, where, result)
            return
        filtered = scratch[4].reshape(*where.shape, problem.c)
        self.library.correlate(problem, image, kernel, where, filtered)
        self.library.store(_kept(problem, filtered), result)


def _kept(problem: Conv2dProblem, filtered: Plane) -> Plane:
    return filtered[:: problem.stride[0], :: problem.stride[1]][: problem.p, : problem.q]


def share_of_channel(problem: Conv2dProblem, w: NDArray[Any]) -> float:
    """Power of two, at most 1 / C, that scales channels so that their sum never overflows; 0 if none is possible.

    The filter is divided by it. Integers and float16 get the factor 1, because their sums have a wider dtype.
    """
    share = 2.0 ** -math.ceil(math.log2(problem.c_per_group)) if problem.x_dtype == w.dtype else 1.0
    return share if np.isfinite(w / share).all() else 0.0  # infinite products of several channels may give NaN


def in_range(correlate: Callable[[Plane, Plane], None], plane: Plane, target: Plane) -> None:
    """Filter a plane by a Fourier transform; if only its sums overflow, repeat this with the plane scaled by 2^-64."""
    correlate(plane, target)
    if plane.dtype.kind != "f":
        return
    if np.isfinite(target.sum()) or np.isfinite(target).all() or not np.isfinite(plane).all():
        return
    correlate(plane * plane.dtype.type(2.0**-64), target)
    target *= target.dtype.type(2.0**64)


def dilated(problem: Conv2dProblem, w: NDArray[Any]) -> NDArray[Any]:
    """Insert zeros between the taps of filters (K, C, R, S)."""
    if problem.dilation == (1, 1):
        return w
    spread = np.zeros((*w.shape[:2], problem.extent_h, problem.extent_w), w.dtype)
    spread[:, :, :: problem.dilation[0], :: problem.dilation[1]] = w
    return spread
