"""QuantizeLinear and DequantizeLinear of ONNX for PyTorch: functions, and modules whose numbers are buffers."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from convforge.problem.quantization import BYTES, Quantization
from convforge.problem.types import limits


def quantize_linear(x: Any, scale: Any, zero_point: Any, dtype: Any = "uint8") -> Any:
    """Quantise a tensor: ``saturate(rint(x / scale) + zero_point)``, ties to even, as ONNX's QuantizeLinear.

    Parameters
    ----------
    x : tensor of a float type
        Read as float32; the division is that of float32. Infinities saturate; the result of a NaN is undefined.
    scale : float or tensor
        Positive. A tensor must broadcast with x.
    zero_point : int or tensor
        Value that stands for 0; a value of `dtype`.
    dtype : {"uint8", "int8"} or torch.dtype

    Returns
    -------
    tensor of `dtype`, of x's shape and memory format

    Raises
    ------
    TypeError, ValueError
        x is not of a float type, or `dtype` is another type.

    Examples
    --------
    >>> import torch
    >>> quantize_linear(torch.tensor([-9.0, 0.25, 0.75, 1e9]), 0.5, 10).tolist()
    [0, 10, 12, 255]
    """
    if isinstance(x, fx.Proxy):  # a symbolic trace records this call
        return torch.overrides.handle_torch_function(quantize_linear, (x,), x, scale, zero_point, dtype)
    if not x.is_floating_point():
        raise TypeError(f"x is {x.dtype}; quantize_linear takes float tensors")
    name = byte_name(dtype, "dtype")
    low, high = limits(name)
    scale = _scale_on(x.device, scale)
    if torch.compiler.is_compiling():  # Triton's division of float32 is not exact; that of float64 is, rounded to it
        quotient = (x.to(torch.float64) / scale.to(torch.float64)).to(torch.float32)
    else:
        quotient = x.to(torch.float32) / scale
    return quotient.round_().add_(zero_point).clamp_(low, high).to(getattr(torch, name))


def dequantize_linear(x: Any, scale: Any, zero_point: Any, dtype: Any = torch.float32) -> Any:
    """Return the numbers that integers stand for: ``(x - zero_point) * scale``, as ONNX's DequantizeLinear.

    Parameters
    ----------
    x : tensor of uint8, int8 or int32
    scale, zero_point
        As in :func:`quantize_linear`.
    dtype : torch.dtype
        Type of the result, which is computed in float32 and rounded to it.

    Returns
    -------
    tensor of `dtype`, of x's shape and memory format

    Raises
    ------
    TypeError
        x is of a float type.

    Examples
    --------
    >>> import torch
    >>> dequantize_linear(torch.tensor([0, 10, 12], dtype=torch.uint8), 0.5, 10).tolist()
    [-5.0, 0.0, 1.0]
    """
    if isinstance(x, fx.Proxy):  # a symbolic trace records this call
        return torch.overrides.handle_torch_function(dequantize_linear, (x,), x, scale, zero_point, dtype)
    if x.is_floating_point():
        raise TypeError(f"x is {x.dtype}; dequantize_linear takes integers")
    numbers = x - zero_point if x.dtype == torch.int32 else x.to(torch.float32).sub_(zero_point)
    return (numbers * _scale_on(x.device, scale)).to(dtype)


class WithScales(nn.Module):  # type: ignore[misc]
    """A module whose float32 buffers keep their type where a model changes its own, as in ``model.half()``."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, now in self._buffers.items():
            if now is not None and now.dtype != before[name].dtype:
                self._buffers[name] = before[name].to(now.device)
        return self


class _Linear(WithScales):
    scale: Any
    zero_point: Any

    def __init__(self, scale: Any, zero_point: Any, device: Any) -> None:
        super().__init__()
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32, device=device).clone())
        self.register_buffer("zero_point", torch.as_tensor(zero_point, dtype=torch.int32, device=device).clone())


class QuantizeLinear(_Linear):
    """:func:`quantize_linear` as a module; scale (float32) and zero point (int32) are buffers.

    Parameters
    ----------
    scale, zero_point, dtype
        As in :func:`quantize_linear`.
    device
        Device of the buffers.

    Raises
    ------
    ValueError, TypeError
        The scale is not positive, the zero point no value of the type, or the type no 8-bit one.

    Examples
    --------
    >>> import torch
    >>> QuantizeLinear(0.5, 10)(torch.tensor([0.75])).item()
    12
    """

    def __init__(self, scale: Any, zero_point: Any, dtype: Any = "uint8", device: Any = None) -> None:
        self_dtype = byte_name(dtype, "dtype")
        Quantization(x=(on_host(scale), on_host(zero_point)), w=(1.0, 0)).check_input(self_dtype)
        super().__init__(scale, zero_point, device)
        self.dtype = self_dtype

    def forward(self, input: Any) -> Any:  # noqa: A002 - as in PyTorch's modules
        """Quantise; see :func:`quantize_linear`."""
        return quantize_linear(input, self.scale, self.zero_point, self.dtype)

    def extra_repr(self) -> str:
        return f"dtype={self.dtype}"


class DequantizeLinear(_Linear):
    """:func:`dequantize_linear` as a module; scale (float32) and zero point (int32) are buffers.

    Parameters
    ----------
    scale, zero_point, dtype
        As in :func:`dequantize_linear`.
    device
        Device of the buffers.

    Examples
    --------
    >>> import torch
    >>> DequantizeLinear(0.5, 10)(torch.tensor([12], dtype=torch.uint8)).item()
    1.0
    """

    def __init__(self, scale: Any, zero_point: Any, dtype: Any = torch.float32, device: Any = None) -> None:
        Quantization(x=(on_host(scale), on_host(zero_point)), w=(1.0, 0))
        super().__init__(scale, zero_point, device)
        self.dtype = dtype

    def forward(self, input: Any) -> Any:  # noqa: A002 - as in PyTorch's modules
        """Return the numbers; see :func:`dequantize_linear`."""
        return dequantize_linear(input, self.scale, self.zero_point, self.dtype)


def byte_name(dtype: Any, name: str) -> str:
    """Return "uint8" or "int8" for a name or a type of PyTorch."""
    found = str(dtype).removeprefix("torch.")
    if found not in BYTES:
        raise ValueError(f"{name}: the type {dtype!r} must be one of {', '.join(BYTES)}")
    return found


def _scale_on(device: Any, scale: Any) -> Any:
    """Return a scale as a float32 tensor: to divide by a number, CUDA multiplies by its inverse, which is not exact."""
    if isinstance(scale, torch.Tensor):
        return scale.to(device, torch.float32)
    return torch.full((), scale, dtype=torch.float32, device=device)  # by a kernel: a CUDA graph can capture it


def on_host(value: Any) -> Any:
    """Return a tensor as a number, or as an array of NumPy; anything else unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.item() if value.dim() == 0 else value.detach().cpu().numpy()
