"""What both depthwise kernels share on the host: which problems are theirs, registers, alignment of arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from convforge.algorithms.contract import Config
from convforge.algorithms.include.conv import Strides
from convforge.algorithms.include.on_device import DeviceConvolution
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem

C = TypeVar("C", bound=Config)

# Blocks that a multiprocessor of any architecture can hold.
MOST_BLOCKS_HELD = 16


class DepthwiseConvolution(DeviceConvolution[C]):
    """A convolution whose groups are its channels, on a device."""

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> str | None:
        """See :class:`Algorithm`."""
        if problem.groups != problem.c:
            return f"a filter must see one channel: groups={problem.groups} must equal C={problem.c}"
        return super().refuses(problem, facts)


def compiled(runtime: Runtime, source: KernelSource, threads: int, resident: int) -> Any:
    """The kernel with BLOCKS, how many blocks a multiprocessor must be able to hold: `resident` threads of them.

    That bounds the registers of a thread. Where it leaves so few that numbers would spill to memory, fewer threads are
    asked for.
    """
    whole = -(-threads // 32) * 32  # registers are given to warps
    resident = min(resident, runtime.facts.threads or resident, MOST_BLOCKS_HELD * whole)
    while True:
        blocks = max(1, resident // whole)
        kernel = runtime.compile(replace(source, constants=(*source.constants, *constants(BLOCKS=blocks))))
        if blocks == 1 or not runtime.describe(kernel, LaunchInfo(source.name, (1,), (threads,))).spills:
            return kernel
        resident = min(resident * 3 // 4, (blocks - 1) * whole)


def is_aligned(
    address: int | None, strides: Strides, axes: dict[str, int], inner: str, vector: int, nbytes: int
) -> bool:
    """Whether the elements of an array lie side by side along an axis, and vectors of them at multiples of their size.

    Parameters
    ----------
    axes : dict of str to int
        Sizes of the other axes: where there is but one, its stride does not matter.
    inner : str
        The axis that vectors lie along.
    """
    if vector > 1 and getattr(strides, inner) != 1:
        return False
    even = all(size <= 1 or getattr(strides, axis) % vector == 0 for axis, size in axes.items())
    return even and (address or 0) % (vector * nbytes) == 0
