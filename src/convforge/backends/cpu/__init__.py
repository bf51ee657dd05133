"""The CPU: Numba kernels over a pool of threads."""

from convforge.backends.cpu.facts import cpu_facts
from convforge.backends.cpu.runtime import CpuRuntime, cpu_runtime

__all__ = ["CpuRuntime", "cpu_facts", "cpu_runtime"]
