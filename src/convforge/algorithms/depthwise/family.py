"""What the depthwise kernels share on the host: which problems are theirs."""

from __future__ import annotations

from typing import TypeVar

from convforge.algorithms.contract import Config
from convforge.algorithms.include.divide import LIMIT_BITS
from convforge.algorithms.include.on_device import DeviceConvolution
from convforge.backends.facts import DeviceFacts
from convforge.problem import Conv2dProblem

C = TypeVar("C", bound=Config)

# Planes that keep a GPU busy where a block has whole ones.
BUSY_PLANES = 512


class DepthwiseConvolution(DeviceConvolution[C]):
    """A convolution whose groups are its channels, on a device."""

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> str | None:
        """See :class:`Algorithm`."""
        if problem.groups != problem.c:
            return f"a filter must see one channel: groups={problem.groups} must equal C={problem.c}"
        return super().refuses(problem, facts)


def whole_planes_refusal(problem: Conv2dProblem) -> str | None:
    """Why blocks cannot have whole planes, an output's own each; None if they can."""
    if problem.x_layout != "NCHW" or problem.out_layout != "NCHW":
        return f"planes must lie by themselves: NCHW, not {problem.x_layout} and {problem.out_layout}"
    if problem.k != problem.c:
        return f"an output must have a plane of its own: K={problem.k} must equal C={problem.c}"
    if (planes := problem.n * problem.k) >= 2**LIMIT_BITS:
        return f"{planes} planes are more than a launch counts"
    return None


def idle_for_planes(problem: Conv2dProblem) -> float:
    """How much longer a call takes where blocks have whole planes and there are too few for all SMs."""
    return max(1.0, BUSY_PLANES / max(problem.n * problem.c, 1))
