"""A stand-in for a GPU where kernels are only compiled, by NVRTC."""

from __future__ import annotations

import dataclasses
import os

import pytest

from convforge.backends.cuda.absent import why_no_compiler
from convforge.backends.cuda.compiler import Compiled, compile_kernel
from convforge.backends.facts import DeviceFacts
from convforge.backends.fft import RealFft
from convforge.backends.kernel import KernelSource
from convforge.backends.recording import NoTransform
from convforge.backends.runtime import LaunchInfo

# Where NVRTC is missing these tests are skipped at home; in CI they run, and fail.
compiled = pytest.mark.skipif(
    why_no_compiler() is not None and not os.environ.get("CI"), reason=why_no_compiler() or "NVRTC is there"
)

H200 = DeviceFacts("cuda", "H200", 132, 0, 60 << 20, 0, 141 << 30, 16, "sm_90", 232448, 233472, 65536, 2048)


class Compiling:
    """Stands in for a runtime where kernels are only compiled."""

    def __init__(self, architecture: str) -> None:
        self.facts = dataclasses.replace(H200, architecture=architecture)
        self.kernels: dict[str, Compiled] = {}

    def compile(self, kernel: KernelSource) -> Compiled:
        self.kernels[kernel.name] = compile_kernel(kernel, self.facts.architecture)
        return self.kernels[kernel.name]

    def fft(self, fft: RealFft) -> NoTransform:
        return NoTransform(fft)

    def describe(self, kernel: Compiled, info: LaunchInfo) -> LaunchInfo:
        return dataclasses.replace(info, registers=kernel.registers, spills=kernel.spill_bytes)
