"""Depthwise convolution: every channel has filters of its own, and no sum goes over channels."""
