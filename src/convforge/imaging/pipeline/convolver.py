"""One kernel over many images: images of the same size and type share one plan and one prepared filter."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.contract import Plan, PreparedFilter
from convforge.call.arguments import IntPair
from convforge.call.dispatch import find_plan, prepared_plan
from convforge.imaging.filtering import plan_filter
from convforge.imaging.pipeline.clock import Clock
from convforge.imaging.pipeline.lanes import Lane
from convforge.problem import compile_key
from convforge.problem.types import VECTOR_BYTES

# Side of the part of an image on which kernels are compiled before a whole one is timed.
WARM_SIDE = 1024


@dataclass(frozen=True, slots=True)
class Convolved:
    """The sums of an image as (T, P, Q, K), the plan that took them, and what it made of the weights."""

    sums: NDArray[Any]
    plan: Plan
    prepared: PreparedFilter


class Convolver:
    """Filters (T, H, W, C) stacks with one kernel, on whichever lane it is given. Safe from many threads.

    Parameters
    ----------
    taps : array of shape (R, S)
    channels, border, cval, stride, device, algorithm
        As in :func:`convforge.filter`.
    clock : Clock
        Gets the seconds of "plan", "first call" (on a part of the first image of a kind, on which its kernels are
        compiled or read from the cache), and those of the lane.
    """

    def __init__(
        self,
        taps: NDArray[Any],
        *,
        channels: str,
        border: str,
        cval: float,
        stride: IntPair,
        device: str | None,
        algorithm: str,
        clock: Clock,
    ) -> None:
        self._taps, self._clock, self._device = taps, clock, device
        self._options: dict[str, Any] = {
            "channels": channels, "border": border, "cval": cval, "stride": stride, "algorithm": algorithm,
        }  # fmt: skip
        self._prepared: dict[Any, PreparedFilter] = {}
        self._compiled: set[Any] = set()
        self._lock = threading.Lock()

    def __call__(self, lane: Lane, image: NDArray[Any], out_dtype: Any, axes: str | None = None) -> Convolved:
        """Filter one image, or stack of images.

        Raises
        ------
        ValueError, TypeError
            As :func:`convforge.filter`.
        """
        with self._lock:  # or two lanes would compile the same
            with self._clock("plan"):
                plan, x, w = plan_filter(
                    image, self._taps, out_dtype=out_dtype, device=self._device, axes=axes, **self._options
                )
                prepared = self._prepare(plan, w)
            self._compile(lane, plan, x, w)
        return Convolved(lane(plan, x, prepared, self._clock), plan, prepared)

    def _prepare(self, plan: Plan, w: NDArray[Any]) -> PreparedFilter:
        prepared = prepared_plan(plan, w, self._prepared)
        plan.runtime.synchronize()  # it was prepared on the runtime's stream, and is used on the lane's
        return prepared

    def _compile(self, lane: Lane, plan: Plan, x: NDArray[Any], w: NDArray[Any]) -> None:
        """Run the same method and config on a part of the first image of a kind."""
        config = "" if plan.runtime.facts.backend == "cpu" else str(plan.config)  # no constants of the CPU's kernels
        kind = (plan.algorithm.key, compile_key(plan.problem), config)
        if kind in self._compiled:
            return
        with self._clock("first call"):
            side = max(WARM_SIDE, 2 * max(self._taps.shape))
            width = side + (x.shape[2] - side) % (VECTOR_BYTES * plan.problem.stride[1])  # rows of the same vectors
            part = np.ascontiguousarray(x[:1, :side, :width])
            small = plan.problem.replace(n=1, h=part.shape[1], w=part.shape[2])
            warm = find_plan(small, plan.algorithm.name, plan.config, self._device, None)
            lane(warm, part, self._prepare(warm, w), Clock())
        self._compiled.add(kind)
