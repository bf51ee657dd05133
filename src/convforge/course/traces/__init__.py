"""What each thread of a kernel does: its reads and writes, seen while the kernel runs on the emulator."""

from convforge.course.traces.runtime import SharedUse, TracedLaunch, TracingRuntime
from convforge.course.traces.traced import Touched, Trace, trace

__all__ = ["SharedUse", "Touched", "Trace", "TracedLaunch", "TracingRuntime", "trace"]
