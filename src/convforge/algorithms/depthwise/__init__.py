"""Depthwise convolution: every channel has its own filters, and no sum goes over channels."""

from convforge.algorithms.depthwise.depthwise import Depthwise, DepthwiseConfig

__all__ = ["Depthwise", "DepthwiseConfig"]
