"""Separable filters: computes a low-rank filter as a few passes along rows and columns."""

from convforge.algorithms.separable.separable import Separable

__all__ = ["Separable"]
