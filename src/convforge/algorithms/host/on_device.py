"""What all methods that run on a GPU share. The same method runs on the emulator: only its backend differs."""

from __future__ import annotations

from typing import TypeVar

from convforge.algorithms.contract import Algorithm, Config, P
from convforge.backends.facts import DeviceFacts
from convforge.errors import Reason
from convforge.problem import Conv2dProblem

C = TypeVar("C", bound=Config)


class OnDevice(Algorithm[P, C]):
    """A method whose kernels are CUDA C++.

    Parameters
    ----------
    backend : {"cuda", "emulator"}
    """

    def __init__(self, backend: str = "cuda") -> None:
        self.backend = backend


class DeviceConvolution(OnDevice[Conv2dProblem, C]):
    """A convolution on a device."""

    operation = "conv2d"

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        """See :class:`Algorithm`."""
        return None
