"""Depthwise convolution: every channel has its own filters, and sums never include other channels."""

from convforge.algorithms.depthwise.depthwise import Depthwise, DepthwiseConfig

__all__ = ["Depthwise", "DepthwiseConfig"]
