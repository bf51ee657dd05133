"""Depthwise convolution: every channel has filters of its own, and no sum goes over channels."""

from convforge.algorithms.depthwise.depthwise import Depthwise, DepthwiseConfig

__all__ = ["Depthwise", "DepthwiseConfig"]
