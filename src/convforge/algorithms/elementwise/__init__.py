"""Elementwise operations: only ReLU. Other methods fuse it into their epilogue."""

from convforge.algorithms.elementwise.relu import Relu

__all__ = ["Relu"]
