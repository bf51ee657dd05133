"""Two-dimensional max pooling, on CPUs and GPUs."""

from convforge.algorithms.pool.pool import MaxPoolRows

__all__ = ["MaxPoolRows"]
