"""Winograd's minimal filtering: fewer products for a 3x3 filter, F(2x2, 3x3) and F(4x4, 3x3)."""

from convforge.algorithms.winograd.winograd import WinogradF2, WinogradF4

__all__ = ["WinogradF2", "WinogradF4"]
