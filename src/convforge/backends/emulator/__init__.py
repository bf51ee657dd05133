"""CUDA kernels on the CPU: the same .cu files through g++, one fiber per CUDA thread, with checks that no GPU makes.

It reports, with block and thread: barriers that not all threads reach, warp operations that lanes do not reach, indices
outside arrays, accesses outside dynamic shared memory, misaligned or invalid addresses, division by zero, too much
local memory, failed asserts. Missing barriers, missing waits for copies, and reads of unwritten memory show as poison,
or as results that change with the order of threads.

It cannot detect: races inside one warp's instruction, or between blocks; a pointer into other memory of the process; an
endless loop, such as a spin lock, because a thread runs until it waits; bank conflicts, coalescing, registers, time.
"""

from convforge.backends.emulator.absent import EmulatorUnavailable, why_absent
from convforge.backends.emulator.runtime import ORDERS, EmulatorError, EmulatorRuntime, emulator_runtime

__all__ = ["ORDERS", "EmulatorError", "EmulatorRuntime", "EmulatorUnavailable", "emulator_runtime", "why_absent"]
