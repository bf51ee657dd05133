"""The numbers of a quantised convolution: scales and zero points, as in ONNX's QLinearConv and ConvInteger."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from convforge.problem.types import limits

# Element types of x, of w and of a quantised result.
BYTES = ("uint8", "int8")
# Element types of a result that has no scale and zero point of its own.
FLOATS = ("float16", "float32", "float64")


@dataclass(frozen=True, eq=False)
class Quantization:
    """Scales and zero points of a convolution of 8-bit integers: a number v stands for scale * (v - zero_point).

    The sums are exact integers, with the bias (int32, of scale x * w and zero point 0) among them::

        sum[n,k,p,q] = bias[k] + sum over c,r,s of (x[...] - x_zero_point) * (w[k,c,r,s] - w_zero_point[k])

    Padding stands for the number 0, so it has x's zero point. The result is one of three:

    - `output` is None: the sums, in int32. That is ONNX's ConvInteger.
    - `output` is a float type: multiplier[k] * sum with ``multiplier = float32(x_scale * w_scale)``, rounded once.
    - `output` is (scale, zero_point): ``saturate(rint(multiplier[k] * sum + zero_point))`` with ``multiplier =
      float32(float32(x_scale * w_scale) / scale)``, in float64, ties to even. That is ONNX's QLinearConv.

    Parameters
    ----------
    x : (float, int)
        Scale and zero point of x.
    w : (float, int) or (array of shape (K,), array of shape (K,))
        Scale and zero point of w, or one for each output channel, or a mixture. Read on the host.
    output : None, {"float16", "float32", "float64"}, (float, int) or (float, int, {"uint8", "int8"})
        The result, see above. A quantised result has x's type unless a third element names its type.

    Raises
    ------
    TypeError, ValueError
        A scale is not a positive finite number, a zero point no whole number, or `output` none of these forms.

    Examples
    --------
    >>> import convforge
    >>> x, w = np.full((1, 1, 2, 2), 130, np.uint8), np.full((1, 1, 2, 2), 3, np.int8)
    >>> q = Quantization(x=(0.5, 128), w=(0.25, 0), output=(2.0, 10))
    >>> convforge.conv2d(x, w, quantization=q).item()  # 4 * (130 - 128) * 3 = 24; 0.5 * 0.25 / 2 * 24 + 10 = 11.5
    12
    """

    x: tuple[float, int]
    w: tuple[ArrayLike, ArrayLike]
    output: tuple[float, int] | tuple[float, int, str] | str | None = None
    x_scale: np.float32 = field(init=False, repr=False)
    x_zero_point: int = field(init=False, repr=False)
    w_scale: NDArray[np.float32] = field(init=False, repr=False)  # () or (K,)
    w_zero_point: NDArray[np.int64] = field(init=False, repr=False)  # () or (K,)
    multiplier: NDArray[np.float32] = field(init=False, repr=False)  # () or (K,)
    zero_point: int = field(init=False, repr=False)  # of the result; 0 without one

    def __post_init__(self) -> None:
        scale, zero = _two(self.x, "x")
        w_scale, w_zero = _two(self.w, "w")
        x_scale, scales = _scales(scale, "x"), _scales(w_scale, "w")
        multiplier, zero_point = scales * x_scale, 0
        if isinstance(self.output, str):
            if self.output not in FLOATS:
                raise ValueError(f"output={self.output!r} is unknown; choose {', '.join(FLOATS)}, a pair or None")
        elif self.output is not None:
            if not isinstance(self.output, tuple | list) or len(self.output) not in (2, 3):
                raise TypeError(f"output={self.output!r} must be (scale, zero_point), a float type's name or None")
            multiplier = multiplier / _scales(self.output[0], "output")
            zero_point = int(_zero_points(self.output[1], "output"))
            if len(self.output) == 3 and self.output[2] not in BYTES:
                raise ValueError(f"output={self.output!r}: the type must be one of {', '.join(BYTES)}")
        if x_scale.ndim or np.ndim(zero):
            raise ValueError("x has one scale and one zero point; scales for each channel of x have no exact sum")
        found: dict[str, Any] = {
            "x_scale": np.float32(x_scale), "x_zero_point": int(_zero_points(zero, "x")), "w_scale": scales,
            "w_zero_point": _zero_points(w_zero, "w"), "multiplier": np.asarray(multiplier, np.float32),
            "zero_point": zero_point,
        }  # fmt: skip
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def result_dtype(self, x_dtype: str) -> str:
        """Type of the result for an x of this type."""
        if isinstance(self.output, tuple | list):
            return self.output[2] if len(self.output) == 3 else x_dtype
        return self.output or "int32"

    def check(self, x_dtype: str, w_dtype: str, k: int) -> None:
        """Raise ``TypeError`` or ``ValueError`` unless the numbers fit these element types and `k` output channels."""
        for name, dtype in (("x", x_dtype), ("w", w_dtype)):
            if dtype not in BYTES:
                raise TypeError(f"{name} is {dtype}; with quantization it must be one of {', '.join(BYTES)}")
        for name, sizes in (("scale", self.w_scale), ("zero_point", self.w_zero_point)):
            if sizes.shape not in ((), (k,)):
                raise ValueError(
                    f"w has a {name} of shape {sizes.shape}; there are {k} output channels, so () or ({k},)"
                )
        result = self.result_dtype(x_dtype)
        zeros = [("x", x_dtype, self.x_zero_point), *(("w", w_dtype, int(z)) for z in np.unique(self.w_zero_point))]
        for name, dtype, zero in (*zeros, *([("output", result, self.zero_point)] if result in BYTES else ())):
            low, high = limits(dtype)
            if not low <= zero <= high:
                raise ValueError(f"the zero point {zero} of {name} must be a value of {dtype}, {low} to {high}")


def _two(value: Any, name: str) -> tuple[Any, Any]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{name}={value!r} must be a pair (scale, zero_point)")
    return value[0], value[1]


def _scales(value: Any, name: str) -> NDArray[np.float32]:
    scales = np.asarray(value)
    if scales.dtype.kind not in "fiu" or scales.ndim > 1:
        raise TypeError(f"the scale {value!r} of {name} must be a number, or for w an array of one axis")
    scales = scales.astype(np.float32)
    if not (np.isfinite(scales) & (scales > 0)).all():
        raise ValueError(f"the scale {value!r} of {name} must be positive and finite in float32")
    return scales


def _zero_points(value: Any, name: str) -> NDArray[np.int64]:
    zeros = np.asarray(value)
    if zeros.dtype.kind not in "iu" or zeros.ndim > 1:
        raise TypeError(f"the zero point {value!r} of {name} must be a whole number, or for w an array of one axis")
    return zeros.astype(np.int64)
