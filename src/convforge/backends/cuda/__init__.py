"""NVIDIA GPUs: facts, compiler and runtime, built on NVIDIA's cuda-core. No other package imports cuda-core."""

from convforge.backends.cuda.absent import CudaUnavailable, why_absent

__all__ = ["CudaUnavailable", "why_absent"]
