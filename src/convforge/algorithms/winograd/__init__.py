"""Winograd's minimal filtering, F(2x2, 3x3) and F(4x4, 3x3): fewer products for 3x3 filters."""

from convforge.algorithms.winograd.winograd import WinogradF2, WinogradF4

__all__ = ["WinogradF2", "WinogradF4"]
