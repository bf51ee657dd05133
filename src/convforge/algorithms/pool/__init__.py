"""Max pooling."""

from convforge.algorithms.pool.pool import MaxPoolRows

__all__ = ["MaxPoolRows"]
