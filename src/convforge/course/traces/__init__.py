"""Traces of kernels on the emulator: the reads and writes of each thread."""

from convforge.course.traces.tracing import SharedUse, Touched, Trace, TracedLaunch, TracingRuntime, trace

__all__ = ["SharedUse", "Touched", "Trace", "TracedLaunch", "TracingRuntime", "trace"]
