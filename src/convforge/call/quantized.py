"""The weights and the epilogue of a quantised convolution: :class:`Quantization` in the terms of a problem.

The kernels compute ``activation(multiplier * sum + offset + r * residual) + zero_point`` in float64 and round it once,
half to even. `offset` is ``multiplier * bias - r * residual_zero_point``. Without an activation it holds the zero point
too. All of this is exact for sums and biases below 2^28 and multipliers from 2^-20 to 1, so the result is that of the
definition; docs/quantization.md has the limits for a residual.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.call.arguments import Activation, epilogue_of
from convforge.call.arrays import Home, dtype_name
from convforge.call.dispatch import at_home, runtime_of
from convforge.problem.borders import padding_mode_of
from convforge.problem.quantization import Quantization
from convforge.problem.types import FP8, is_integer, limits

LARGEST_DIFFERENCE = 255  # of two numbers of 8 bits
# Activations that commute with a positive scale: they may be computed in units of the output.
LINEAR_PIECES = ("identity", "relu", "leaky_relu", "clipped_relu")


class QuantizedWeights:
    """Views of weights without a zero point, and the epilogue with its operands, for one filter on one device."""

    def __init__(self, quantization: Quantization, home: Home, w: Any, bias: Any, activation: Activation) -> None:
        stream = home.stream()
        sends = quantization.output is not None or bias is not None or quantization.w_zero_point.any()
        if stream is not None and stream.capturing and sends:
            raise RuntimeError("quantization sends numbers to the GPU; make a Filter before the graph is captured")
        view = home.read(w, "w", (4,))
        self.quantization, self.k = quantization, int(view.shape[0])
        quantization.check_weights(dtype_name(view), self.k)
        self.w = _without_zero_point(quantization.w_zero_point, home, w, view)
        self._floats = dtype_name(view) in FP8
        self._end = _Epilogue(quantization, activation, self._floats)
        offset = np.zeros(self.k) + self._end.offset(_bias(home, bias, self.k, self._floats))
        self.operands: dict[str, Any] = {}
        operand = np.float32 if self._floats else np.float64  # types of the sums' epilogue
        if quantization.output is not None:
            multiplier = self._end.multiplier.astype(operand)
            self.operands["scale"] = home.upload(multiplier.reshape(-1) if multiplier.ndim else multiplier)
        if offset.any():
            self.operands["bias"] = home.upload(offset.astype(operand))

    def fields(self, x_dtype: str, padding_mode: str) -> dict[str, Any]:
        """Arguments of :func:`convforge.call.arguments.conv2d_problem` for an x of this type."""
        quantization = self.quantization
        quantization.check_input(x_dtype)
        if (x_dtype in FP8) != self._floats:
            raise TypeError(f"x is {x_dtype} and w {dtype_name(self.w)}; both must be integers or 8-bit floats")
        result = quantization.result_dtype(x_dtype)
        scale = "none" if quantization.output is None else "channel" if quantization.multiplier.ndim else "tensor"
        if padding_mode_of(padding_mode, "padding_mode") == "constant":
            padding_mode = "zeros"  # both stand for the number 0
        return {
            "out_dtype": result, "x_zero_point": quantization.x_zero_point, "padding_mode": padding_mode,
            "scale": scale, "has_bias": "bias" in self.operands, "activation": self._end.activation(result),
            "residual_scale": 1.0 if quantization.residual is None else self._end.residual_multiplier,
            "out_scale": self._end.out_scale, "out_zero_point": self._end.zero_point,
            "w_bound": LARGEST_DIFFERENCE if dtype_name(self.w) == "int16" else 0,
        }  # fmt: skip

    @property
    def amax_scale(self) -> float:
        """Factor that turns the largest absolute value, in the units of the epilogue, into a real number."""
        return self._end.unit


class _Epilogue:
    """The numbers of a quantised epilogue.

    An activation of linear pieces is computed in units of the output, so `multiplier` contains 1 / scale. Others need
    the real number: their value is divided by the output's scale. An activation that saturation replaces is dropped.
    """

    def __init__(self, quantization: Quantization, activation: Activation, floats: bool) -> None:
        self._given, self._zero_point = epilogue_of(activation), quantization.zero_point
        self._floats = floats
        self._is_quantized = isinstance(quantization.output, tuple | list)
        in_units = self._given.activation in LINEAR_PIECES
        self.multiplier = (quantization.multiplier if in_units else quantization.real_multiplier).astype(np.float64)
        self.residual_multiplier = float(quantization.residual_multiplier if in_units else quantization.residual_scale)
        self.out_scale = 1.0 if in_units else float(quantization.out_scale)
        self.unit = float(quantization.out_scale) if in_units else 1.0  # of the value before it is divided by out_scale
        self._residual = self.residual_multiplier * quantization.residual_zero_point
        self._real = 1 / float(quantization.out_scale) if in_units else 1.0  # factor of a bias that is a real number
        self._sums = quantization.output is None
        self._alpha = self._given.alpha
        if self._given.activation == "clipped_relu" and self._alpha is not None:
            self._alpha /= float(quantization.out_scale)
        # Zero point -128 belongs to int8. With the zero point 0 it makes no difference where it is added.
        folds = self._given.activation == "identity" or self._saturates("int8")
        self.zero_point = 0 if folds else self._zero_point

    def offset(self, bias: NDArray[Any] | int) -> NDArray[Any] | float:
        """The epilogue's bias from that of the layer, which is one of the sums."""
        if self._sums:
            return bias
        factor = self._real if self._floats else self.multiplier
        offset: NDArray[Any] | float = factor * bias + (self._zero_point - self.zero_point) - self._residual
        return offset

    def activation(self, dtype: str) -> Activation:
        """The activation of a result of this type, with its parameter in the units where it is computed."""
        name = self._given.activation
        if name == "identity" or (self._is_quantized and self._saturates(dtype)):
            return None
        return name if self._alpha is None else (name, self._alpha)

    def _saturates(self, dtype: str) -> bool:
        """True if saturation of a result of this type is the activation."""
        if not is_integer(dtype):
            return False
        low, high = limits(dtype)
        if self._zero_point != low:
            return False
        if self._given.activation == "relu":
            return True
        # Rounding is monotonic, so every number from the limit on is stored as the largest value, with it or without.
        alpha = self._alpha
        return self._given.activation == "clipped_relu" and bool(np.rint((alpha or 0.0) + self._zero_point) >= high)


def quantized_weights(
    quantization: Any, home: Home, w: Any, bias: Any, activation: Activation, *, kept: bool = False
) -> QuantizedWeights:
    """Make :class:`QuantizedWeights` on the device of the arrays; wait for it if they are kept for any stream."""
    if not isinstance(quantization, Quantization):
        raise TypeError(f"quantization={quantization!r} must be a convforge.Quantization")
    with at_home(home.runs_on(None)):
        made = QuantizedWeights(quantization, home, w, bias, activation)
        if kept and not home.on_host:
            runtime_of(home.device).synchronize(home.stream())
        return made


def _bias(home: Home, bias: Any, k: int, floats: bool) -> NDArray[Any] | int:
    """The bias of a quantised layer on the host; 0 without one. Of 8-bit `floats` it is a real number."""
    if bias is None:
        return 0
    vector = home.read(bias, "bias", (1,))
    if floats and is_integer(dtype_name(vector)):
        raise TypeError(f"bias is {dtype_name(vector)}; with 8-bit floats it must be a float type")
    if not floats and dtype_name(vector) != "int32":
        raise TypeError(f"bias is {dtype_name(vector)}; with quantization it must be int32, of scale x * w")
    if vector.shape != (k,):
        raise ValueError(f"bias has shape {vector.shape}; there are {k} output channels")
    return np.asarray(vector if home.on_host else _downloaded(vector, home), np.float64)


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
