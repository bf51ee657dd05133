"""convforge in PyTorch: an operator with gradients, layers, and models whose layers are replaced.

Everything calls the operator ``torch.ops.convforge.conv2d``: PyTorch's compiler sees one node with a known result, its
graphs capture the launches, and its autograd finds the gradients.
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
