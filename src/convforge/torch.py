"""convforge in PyTorch, as a module of its own: ``import convforge.torch``; ``from convforge.torch import Conv2d``."""

from convforge.integrations.torch import Conv2d, Layer, Replaced, conv2d, replace

__all__ = ["Conv2d", "Layer", "Replaced", "conv2d", "replace"]
