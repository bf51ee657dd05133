"""What both depthwise kernels share on the host: which problems are theirs."""

from __future__ import annotations

from typing import TypeVar

from convforge.algorithms.contract import Config
from convforge.algorithms.include.on_device import DeviceConvolution
from convforge.backends.facts import DeviceFacts
from convforge.problem import Conv2dProblem

C = TypeVar("C", bound=Config)


class DepthwiseConvolution(DeviceConvolution[C]):
    """A convolution whose groups are its channels, on a device."""

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> str | None:
        """See :class:`Algorithm`."""
        if problem.groups != problem.c:
            return f"a filter must see one channel: groups={problem.groups} must equal C={problem.c}"
        return super().refuses(problem, facts)
