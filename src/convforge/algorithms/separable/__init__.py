"""Separable filters: a filter of low rank as a few passes along the rows and down the columns."""

from convforge.algorithms.separable.separable import Separable

__all__ = ["Separable"]
