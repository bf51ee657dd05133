"""The numbers of a quantised convolution: scales and zero points, as in ONNX's QLinearConv and ConvInteger."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from convforge.problem.types import FP8, limits

# Element types of x, of w and of a quantised result.
BYTES = ("uint8", "int8")
# Element types of a result that has no scale and zero point of its own.
FLOATS = ("float16", "float32", "float64")
SUMS = "sums"  # of int32, or of float32 for 8-bit floats


@dataclass(frozen=True, eq=False)
class Quantization:
    """Scales and zero points of a convolution of 8-bit numbers: a number v stands for scale * (v - zero_point).

    The sums are exact integers, with the bias (int32, of scale x * w and zero point 0) among them::

        sum[n,k,p,q] = bias[k] + sum over c,r,s of (x[...] - x_zero_point) * (w[k,c,r,s] - w_zero_point[k])

    Padding stands for the number 0, so it has x's zero point. The result is one of three:

    - `output` is None: the sums, in int32. That is ONNX's ConvInteger.
    - `output` is a float type: multiplier[k] * sum with ``multiplier = float32(x_scale * w_scale)``, rounded once.
    - `output` is (scale, zero_point): ``saturate(rint(multiplier[k] * sum + zero_point))`` with ``multiplier =
      float32(float32(x_scale * w_scale) / scale)``, in float64, ties to even. That is ONNX's QLinearConv.

    An activation and a residual come before the rounding; docs/quantization.md has the formulas.

    8-bit floats (``float8_e4m3fn``, ``float8_e5m2``) have the zero point 0, sums and arithmetic in float32, and a bias
    of floats, which is a real number. Their convolutions need ``precision="fp8"`` or "fp8_fast".

    Parameters
    ----------
    x : (float, int)
        Scale and zero point of x.
    w : (float, int) or (array of shape (K,), array of shape (K,))
        Scale and zero point of w, or one for each output channel, or a mixture. Read on the host.
    output : None, {"float16", "float32", "float64"}, (float, int) or (float, int, {"uint8", "int8"})
        The result, see above. A quantised result has the type that a third element names, or that of a zero point of
        NumPy, or x's.
    residual : None or (float, int)
        Scale and zero point of the residual, which has the result's type. None: a result in floats or int32 adds the
        residual as it is, and a quantised result takes none.

    Raises
    ------
    TypeError, ValueError
        A scale is not a positive finite number, a zero point no whole number, a multiplier is 0 or infinite in
        float32, `output` is none of these forms, or int32 sums have a `residual`.

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
    residual: tuple[float, int] | None = None
    x_zero_point: int = field(init=False, repr=False)
    w_scale: NDArray[np.float32] = field(init=False, repr=False)  # () or (K,)
    w_zero_point: NDArray[np.int64] = field(init=False, repr=False)  # () or (K,)
    multiplier: NDArray[np.float32] = field(init=False, repr=False)  # () or (K,)
    zero_point: int = field(init=False, repr=False)  # of the result; 0 without one
    out_dtype: str = field(init=False, repr=False)  # of the result; empty: that of x
    real_multiplier: NDArray[np.float32] = field(init=False, repr=False)  # float32(x_scale * w_scale): () or (K,)
    out_scale: np.float32 = field(init=False, repr=False)  # of the result; 1 without one
    residual_scale: np.float32 = field(init=False, repr=False)  # 1 without one
    residual_multiplier: np.float32 = field(init=False, repr=False)  # float32(residual_scale / out_scale)
    residual_zero_point: int = field(init=False, repr=False)  # 0 without one

    def __post_init__(self) -> None:
        scale, zero = _two(self.x, "x")
        w_scale, w_zero = _two(self.w, "w")
        x_scale, scales = _scales(scale, "x"), _scales(w_scale, "w")
        out_scale, zero_point, out_dtype = self._output()
        if self.residual is not None and self.output is None:
            raise ValueError(f"residual={self.residual!r}: sums in int32 have no scale; they add a residual as it is")
        added_scale, added_zero = (1.0, 0) if self.residual is None else _two(self.residual, "residual")
        residual_scale, residual_zero = _scales(added_scale, "residual"), _zero_points(added_zero, "residual")
        if any(np.ndim(one) for one in (x_scale, zero, out_scale, zero_point, residual_scale, residual_zero)):
            raise ValueError(
                "x, the residual and the output have one scale and one zero point each; only w has them by channel"
            )
        with np.errstate(over="ignore", under="ignore"):
            real = scales * x_scale
            multiplier, residual_multiplier = real / out_scale, residual_scale / out_scale
        for number in (multiplier,) if self.residual is None else (multiplier, residual_multiplier):
            if not (np.isfinite(number) & (number > 0)).all():
                raise ValueError(f"the scales give the multiplier {number} in float32; it must be positive and finite")
        found: dict[str, Any] = {
            "x_zero_point": int(_zero_points(zero, "x")), "w_scale": scales,
            "w_zero_point": _zero_points(w_zero, "w"), "multiplier": np.asarray(multiplier, np.float32),
            "zero_point": int(zero_point), "out_dtype": out_dtype, "real_multiplier": np.asarray(real, np.float32),
            "out_scale": np.float32(out_scale), "residual_scale": np.float32(residual_scale),
            "residual_multiplier": np.float32(residual_multiplier), "residual_zero_point": int(residual_zero),
        }  # fmt: skip
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def _output(self) -> tuple[Any, Any, str]:
        """Scale, zero point and type of the result: 1 and 0 where it is not quantised."""
        given = self.output
        if given is None or isinstance(given, str):
            if given is not None and given not in FLOATS:
                raise ValueError(f"output={given!r} is unknown; choose {', '.join(FLOATS)}, a pair or None")
            return np.float32(1), 0, given or SUMS
        if not isinstance(given, tuple | list) or len(given) not in (2, 3):
            raise TypeError(f"output={given!r} must be (scale, zero_point), a float type's name or None")
        named = str(getattr(given[1], "dtype", ""))
        dtype = given[2] if len(given) == 3 else named if named in BYTES else ""
        if dtype not in ("", *BYTES, *FP8):
            raise ValueError(f"output={given!r}: the type must be one of {', '.join((*BYTES, *sorted(FP8)))}")
        return _scales(given[0], "output"), _zero_points(given[1], "output"), dtype

    def result_dtype(self, x_dtype: str) -> str:
        """Type of the result for an x of this type."""
        if self.out_dtype == SUMS:
            return "float32" if x_dtype in FP8 else "int32"
        return self.out_dtype or x_dtype

    def check_weights(self, dtype: str, k: int) -> None:
        """Raise ``TypeError`` or ``ValueError`` unless the numbers fit weights of this type for `k` output channels."""
        _check_type("w", dtype)
        for name, sizes in (("scale", self.w_scale), ("zero_point", self.w_zero_point)):
            if sizes.shape not in ((), (k,)):
                raise ValueError(
                    f"w has a {name} of shape {sizes.shape}; there are {k} output channels, so () or ({k},)"
                )
        for zero in np.unique(self.w_zero_point):
            _check_zero_point("w", dtype, int(zero))

    def check_input(self, dtype: str) -> None:
        """Raise ``TypeError`` or ``ValueError`` unless the numbers fit an x of this type and its result."""
        _check_type("x", dtype)
        _check_zero_point("x", dtype, self.x_zero_point)
        result = self.result_dtype(dtype)
        if isinstance(self.output, tuple | list) and (result in FP8) != (dtype in FP8):
            raise TypeError(f"the result is {result} and x is {dtype}; both must be integers or 8-bit floats")
        if result in (*BYTES, *FP8):
            _check_zero_point("output", result, self.zero_point)
            _check_zero_point("residual", result, self.residual_zero_point)

    def check_residual(self, given: bool) -> None:
        """Raise ``ValueError`` unless a call gives a residual if and only if this has its numbers, or needs none."""
        if self.residual is not None and not given:
            raise ValueError(f"the quantization has residual={self.residual!r}; give the call a residual too")
        if given and self.residual is None and isinstance(self.output, tuple | list):
            raise ValueError("a quantised result adds a residual by its scale and zero point: Quantization(residual=)")


def _check_type(name: str, dtype: str) -> None:
    if dtype not in (*BYTES, *FP8):
        raise TypeError(f"{name} is {dtype}; with quantization it must be one of {', '.join((*BYTES, *sorted(FP8)))}")


def _check_zero_point(name: str, dtype: str, zero: int) -> None:
    if dtype in FP8:
        if zero:
            raise ValueError(f"the zero point {zero} of {name} must be 0, because it is {dtype}")
        return
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
