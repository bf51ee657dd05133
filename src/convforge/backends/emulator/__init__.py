"""CUDA kernels on the CPU: the same .cu files through g++, one fiber a CUDA thread, with checks that no GPU makes.

It reports, with block and thread: barriers that not all threads reach, warp operations that lanes do not come to,
indices outside of arrays, anything outside of dynamic shared memory, addresses that are misaligned or no memory at all,
division by zero, too much local memory, failed asserts. It shows, as poison or as results that change with the order of
the threads: barriers and waits for copies that are forgotten, memory that is read before it is written.

It cannot see: races inside one warp's instruction, or between blocks; a pointer that strays into other memory of the
process; a loop that never ends, such as one that spins until another thread writes, for a thread runs until it waits;
bank conflicts, coalescing, registers, time.
"""

from convforge.backends.emulator.absent import EmulatorUnavailable, why_absent
from convforge.backends.emulator.runtime import ORDERS, EmulatorError, EmulatorRuntime, emulator_runtime

__all__ = ["ORDERS", "EmulatorError", "EmulatorRuntime", "EmulatorUnavailable", "emulator_runtime", "why_absent"]
