"""Traces of kernels on the emulator: the reads and writes of each thread."""

from convforge.course.traces.runtime import SharedUse, TracedLaunch, TracingRuntime
from convforge.course.traces.traced import Touched, Trace, trace

__all__ = ["SharedUse", "Touched", "Trace", "TracedLaunch", "TracingRuntime", "trace"]
