"""A stand-in for a device's runtime, on which plans can be made of any device: nothing is compiled, nothing can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convforge.backends.facts import DeviceFacts
    from convforge.backends.fft import RealFft
    from convforge.backends.kernel import KernelSource
    from convforge.backends.runtime import LaunchInfo


class NoTransform:
    """A batch of transforms that takes no workspace and cannot run."""

    workspace_bytes = 0

    def __init__(self, fft: RealFft) -> None:
        self.kernel = "inverse" if fft.inverse else "forward"

    def __call__(self, data: Any, workspace: Any = None, stream: Any = None) -> None:
        """Refuse: there is no device.

        Raises
        ------
        RuntimeError
            Always.
        """
        raise RuntimeError(f"{self.kernel}: this plan was made without a device, so that nothing of it can run")


class Recording:
    """Notes what plans ask to be compiled, and the transforms that they ask for.

    It knows neither registers nor occupancy. So a plan compiles each kernel as it asks first, as if nothing spilled,
    and takes the grid that it takes where a device does not say how many blocks it holds.

    Attributes
    ----------
    facts : DeviceFacts
        Of the device for which plans are made.
    kernels : list of KernelSource
    transforms : list of RealFft
    """

    def __init__(self, facts: DeviceFacts) -> None:
        self.facts = facts
        self.kernels: list[KernelSource] = []
        self.transforms: list[RealFft] = []

    def compile(self, kernel: KernelSource) -> KernelSource:
        """Note a kernel; what is given back stands for it."""
        self.kernels.append(kernel)
        return kernel

    def describe(self, kernel: KernelSource, info: LaunchInfo) -> LaunchInfo:
        """The launch, of which nothing more is known."""
        return info

    def fft(self, fft: RealFft) -> NoTransform:
        """Note a batch of transforms."""
        self.transforms.append(fft)
        return NoTransform(fft)
