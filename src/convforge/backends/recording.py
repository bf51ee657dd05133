"""A recorder: a runtime for planning without a device, which compiles and runs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convforge.backends.facts import DeviceFacts
    from convforge.backends.fft import RealFft
    from convforge.backends.kernel import KernelSource
    from convforge.backends.runtime import LaunchInfo


class NoTransform:
    """A batch of transforms that cannot run."""

    workspace_bytes = 0

    def __init__(self, fft: RealFft) -> None:
        self.kernel = "inverse" if fft.inverse else "forward"

    def __call__(self, data: Any, workspace: Any = None, stream: Any = None) -> None:
        raise RuntimeError(f"{self.kernel}: this plan was made without a device, so that nothing of it can run")


class Recording:
    """Recorder of the kernels and transforms of plans, for a device with these facts.

    Registers and occupancy are unknown, so a plan uses the first variant of each kernel, as if nothing spilled.
    """

    def __init__(self, facts: DeviceFacts) -> None:
        self.facts = facts
        self.kernels: list[KernelSource] = []
        self.transforms: list[RealFft] = []

    def compile(self, kernel: KernelSource) -> KernelSource:
        self.kernels.append(kernel)
        return kernel

    def describe(self, kernel: KernelSource, info: LaunchInfo) -> LaunchInfo:
        return info

    def fft(self, fft: RealFft) -> NoTransform:
        self.transforms.append(fft)
        return NoTransform(fft)
