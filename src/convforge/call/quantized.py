"""The weights and the epilogue of a quantised convolution: :class:`Quantization` in the terms of a problem.

The kernels compute ``multiplier * sum + offset`` in float64 and round it once, half to even. `offset` is ``multiplier *
bias + zero_point``. All of this is exact for sums and biases below 2^28 and multipliers from 2^-20 to 1, so the result
is that of the definition.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.call.arrays import Home, dtype_name
from convforge.call.dispatch import at_home, runtime_of
from convforge.problem.quantization import Quantization
from convforge.problem.types import is_integer, limits


class QuantizedWeights:
    """Views of weights without a zero point, and of the operands of the epilogue, for one filter on one device."""

    def __init__(self, quantization: Quantization, home: Home, w: Any, bias: Any) -> None:
        view = home.read(w, "w", (4,))
        self.quantization = quantization
        self.w_dtype, self.k = dtype_name(view), int(view.shape[0])
        self.w = _without_zero_point(quantization.w_zero_point, home, w, view)
        vector = None if bias is None else home.read(bias, "bias", (1,))
        if vector is not None and (dtype_name(vector) != "int32" or vector.shape != (self.k,)):
            raise TypeError(
                f"bias is {dtype_name(vector)} of shape {vector.shape}; with quantization it must be int32 of shape "
                f"({self.k},), of scale x * w"
            )
        offset = np.zeros(self.k)
        if vector is not None:
            offset += vector if home.on_host else _downloaded(vector, home)
        self.operands: dict[str, Any] = {}
        if quantization.output is not None:
            multiplier = quantization.multiplier.astype(np.float64)
            self.operands["scale"] = home.upload(multiplier.reshape(-1) if multiplier.ndim else multiplier)
            offset = multiplier * offset + quantization.zero_point
        if offset.any():
            self.operands["bias"] = home.upload(offset)

    def fields(self, x_dtype: str, activation: Any) -> dict[str, Any]:
        """Arguments of :func:`convforge.call.arguments.conv2d_problem` for an x of this type."""
        quantization = self.quantization
        quantization.check(x_dtype, self.w_dtype, self.k)
        result = quantization.result_dtype(x_dtype)
        if activation is not None and is_integer(result):
            _check_saturating(activation, result, quantization)
            activation = None
        scale = "none" if quantization.output is None else "channel" if quantization.multiplier.ndim else "tensor"
        return {
            "out_dtype": result, "x_zero_point": quantization.x_zero_point, "scale": scale,
            "has_bias": "bias" in self.operands, "activation": activation,
        }  # fmt: skip


def quantized_weights(quantization: Any, home: Home, w: Any, bias: Any) -> QuantizedWeights:
    """Make :class:`QuantizedWeights`, on the GPU of the arrays if they are on one."""
    if not isinstance(quantization, Quantization):
        raise TypeError(f"quantization={quantization!r} must be a convforge.Quantization")
    with at_home(home.runs_on(None)):
        return QuantizedWeights(quantization, home, w, bias)


def _downloaded(view: Any, home: Home) -> NDArray[Any]:
    stream: Any = home.stream()
    if stream.capturing:
        raise RuntimeError("a bias on a GPU is read on the host; make a Filter before the graph is captured")
    found: NDArray[Any] = runtime_of(home.device).download(view, stream)  # type: ignore[call-arg]
    return found


def _without_zero_point(zeros: NDArray[np.int64], home: Home, w: Any, view: Any) -> Any:
    """A view of the weights minus their zero points, in the narrowest type that holds every difference."""
    if not zeros.any():
        return view
    dtype = "int8" if dtype_name(view) == "uint8" and (zeros == 128).all() else "int16"
    shape = (-1, 1, 1, 1) if zeros.ndim else ()
    if home.on_host:
        return (np.asarray(view, np.int16) - zeros.reshape(shape).astype(np.int16)).astype(dtype)
    shifted = home.library.cast(w, "int16") - home.library.from_host(zeros.reshape(shape).astype(np.int16), home.device)
    return home.library.view(home.library.cast(shifted, dtype))


def _check_saturating(activation: Any, dtype: str, quantization: Quantization) -> None:
    """Raise ``ValueError`` unless the result's saturation is the activation."""
    low = limits(dtype)[0]
    if activation == "identity":
        return
    if activation == "relu" and quantization.output is not None and quantization.zero_point == low:
        return  # every number below the zero point, 0, saturates to it
    raise ValueError(
        f"activation={activation!r} of a result in {dtype} with the zero point {quantization.zero_point}: only a relu "
        f"whose zero point is {low}, the least value, is exact; ask for output='float32'"
    )
