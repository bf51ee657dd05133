"""The weights and the epilogue of a quantised convolution: :class:`Quantization` in the terms of a problem.

The kernels compute ``multiplier * sum + offset`` in float64 and round it once, half to even. `offset` is ``multiplier *
bias + zero_point``. All of this is exact for sums and biases below 2^28 and multipliers from 2^-20 to 1, so the result
is that of the definition.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.call.arrays import Home, dtype_name
from convforge.call.dispatch import at_home, runtime_of
from convforge.problem.borders import padding_mode_of
from convforge.problem.quantization import BYTES, Quantization
from convforge.problem.types import WIDE, limits, magnitude


class QuantizedWeights:
    """Views of weights without a zero point, and of the operands of the epilogue, for one filter on one device."""

    def __init__(self, quantization: Quantization, home: Home, w: Any, bias: Any) -> None:
        stream = home.stream()
        sends = quantization.output is not None or bias is not None or quantization.w_zero_point.any()
        if stream is not None and stream.capturing and sends:
            raise RuntimeError("quantization sends numbers to the GPU; make a Filter before the graph is captured")
        view = home.read(w, "w", (4,))
        self.quantization, self.k = quantization, int(view.shape[0])
        quantization.check_weights(dtype_name(view), self.k)
        self.w = _without_zero_point(quantization.w_zero_point, home, w, view)
        vector = None if bias is None else home.read(bias, "bias", (1,))
        offset = np.zeros(self.k)
        if vector is not None:
            if dtype_name(vector) != "int32":
                raise TypeError(f"bias is {dtype_name(vector)}; with quantization it must be int32, of scale x * w")
            if vector.shape != (self.k,):
                raise ValueError(f"bias has shape {vector.shape}; there are {self.k} output channels")
            offset += vector if home.on_host else _downloaded(vector, home)
        self.operands: dict[str, Any] = {}
        if quantization.output is not None:
            multiplier = quantization.multiplier.astype(np.float64)
            self.operands["scale"] = home.upload(multiplier.reshape(-1) if multiplier.ndim else multiplier)
            offset = multiplier * offset + quantization.zero_point
        if offset.any():
            self.operands["bias"] = home.upload(offset)

    def fields(self, x_dtype: str, activation: Any, padding_mode: str) -> dict[str, Any]:
        """Arguments of :func:`convforge.call.arguments.conv2d_problem` for an x of this type."""
        quantization = self.quantization
        quantization.check_input(x_dtype)
        taps, largest = math.prod(self.w.shape[1:]), magnitude(x_dtype) + abs(quantization.x_zero_point)
        if dtype_name(self.w) == "int16" and taps * largest * magnitude("int16") > WIDE:
            raise ValueError(
                f"without its zero points w is int16, and {taps} products with it can exceed int32; quantise w with "
                "the zero point 0, or 128 for uint8"
            )
        result = quantization.result_dtype(x_dtype)
        if activation is not None and result in BYTES:
            _check_saturating(activation, result, quantization)
            activation = None
        scale = "none" if quantization.output is None else "channel" if quantization.multiplier.ndim else "tensor"
        constant = padding_mode_of(padding_mode, "padding_mode") == "constant"
        return {
            "out_dtype": result, "x_zero_point": quantization.x_zero_point, "scale": scale,
            "has_bias": "bias" in self.operands, "activation": activation,
            "padding_value": quantization.x_zero_point if constant else 0,
        }  # fmt: skip


def quantized_weights(quantization: Any, home: Home, w: Any, bias: Any, *, kept: bool = False) -> QuantizedWeights:
    """Make :class:`QuantizedWeights` on the device of the arrays; wait for it if they are kept for any stream."""
    if not isinstance(quantization, Quantization):
        raise TypeError(f"quantization={quantization!r} must be a convforge.Quantization")
    with at_home(home.runs_on(None)):
        made = QuantizedWeights(quantization, home, w, bias)
        if kept and not home.on_host:
            runtime_of(home.device).synchronize(home.stream())
        return made


def _downloaded(view: Any, home: Home) -> NDArray[Any]:
    runtime: Any = runtime_of(home.device)  # that of a GPU takes a stream
    found: NDArray[Any] = runtime.download(view, home.stream())
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
    if activation == "relu" and quantization.zero_point == low:
        return  # every number below the zero point, 0, saturates to it
    raise ValueError(
        f"activation={activation!r} of a result in {dtype} with the zero point {quantization.zero_point}: only a relu "
        f"whose zero point is {low}, the least value, is exact; ask for output='float32'"
    )
