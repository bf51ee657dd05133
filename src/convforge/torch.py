"""convforge for PyTorch as a separate module: ``import convforge.torch``; ``from convforge.torch import Conv2d``."""

try:
    from convforge.integrations.torch import Conv2d, Layer, Replaced, conv2d, replace
except ModuleNotFoundError as absent:
    if absent.name != "torch":
        raise
    raise ModuleNotFoundError(
        "convforge.torch needs PyTorch, which is not installed. Install it with: python -m pip install torch",
        name="torch",
    ) from None

__all__ = ["Conv2d", "Layer", "Replaced", "conv2d", "replace"]
