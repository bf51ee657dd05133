"""convforge in PyTorch: an operator with gradients, layers, and models whose layers are replaced.

Public as ``convforge.torch``. Everything calls the operator ``torch.ops.convforge.conv2d``: PyTorch's compiler sees one
node with a known result, its graphs capture the launches, and its autograd finds the gradients.
"""

from convforge.integrations.torch_functional import Conv2d, conv2d
from convforge.integrations.torch_replace import Layer, Replaced, replace

__all__ = ["Conv2d", "Layer", "Replaced", "conv2d", "replace"]
