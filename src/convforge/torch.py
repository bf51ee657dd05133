"""convforge in PyTorch: an operator with gradients, a layer, and replacement of a model's layers.

All of them call the operator ``torch.ops.convforge.conv2d``. So torch.compile has one node with a known result shape,
CUDA graphs capture the launches, and autograd computes the gradients. Layers of 8-bit integers, and the conversion of a
model to them, call ``torch.ops.convforge.quant_conv2d``, which is for inference.
"""

try:
    from convforge.integrations.torch_functional import Conv2d, conv2d
    from convforge.integrations.torch_quantize_linear import (
        DequantizeLinear,
        QuantizeLinear,
        dequantize_linear,
        quantize_linear,
    )
    from convforge.integrations.torch_quantized import QuantConv2d
    from convforge.integrations.torch_quantized_model import Quantized, QuantizedLayer, quantize
    from convforge.integrations.torch_replace import Layer, Replaced, replace
except ModuleNotFoundError as absent:
    if absent.name != "torch":
        raise
    raise ModuleNotFoundError(
        "convforge.torch needs PyTorch, which is not installed. Install it with: python -m pip install torch",
        name="torch",
    ) from None

__all__ = [
    "Conv2d",
    "DequantizeLinear",
    "Layer",
    "QuantConv2d",
    "QuantizeLinear",
    "Quantized",
    "QuantizedLayer",
    "Replaced",
    "conv2d",
    "dequantize_linear",
    "quantize",
    "quantize_linear",
    "replace",
]
