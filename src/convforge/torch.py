"""convforge in PyTorch: an operator with gradients, a layer, and replacement of a model's layers.

All of them call the operator ``torch.ops.convforge.conv2d``. So torch.compile has one node with a known result shape,
CUDA graphs capture the launches, and autograd computes the gradients.
"""

try:
    from convforge.integrations.torch_functional import Conv2d, conv2d
    from convforge.integrations.torch_replace import Layer, Replaced, replace
except ModuleNotFoundError as absent:
    if absent.name != "torch":
        raise
    raise ModuleNotFoundError(
        "convforge.torch needs PyTorch, which is not installed. Install it with: python -m pip install torch",
        name="torch",
    ) from None

__all__ = ["Conv2d", "Layer", "Replaced", "conv2d", "replace"]
