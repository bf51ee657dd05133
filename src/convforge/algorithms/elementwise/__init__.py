"""Elementwise operations: ReLU alone. Fused, it is part of every convolution's epilogue."""

from convforge.algorithms.elementwise.relu import Relu

__all__ = ["Relu"]
