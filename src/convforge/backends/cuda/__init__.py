"""NVIDIA GPUs: facts, compiler and runtime on NVIDIA's cuda-core. The only package that imports it."""

from convforge.backends.cuda.absent import CudaUnavailable, why_absent

__all__ = ["CudaUnavailable", "why_absent"]
