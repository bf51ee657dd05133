"""Element types and precision classes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Short name (in text forms) -> name of the element type in NumPy, ml_dtypes and PyTorch.
DTYPES: dict[str, str] = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u16": "uint16",
    "u8": "uint8",
}
SHORT_NAMES: dict[str, str] = {long: short for short, long in DTYPES.items()}

# 8-bit floats: methods with `takes_fp8` compute from them.
FP8 = frozenset({"float8_e4m3fn", "float8_e5m2"})

# Types that ml_dtypes adds to NumPy's.
ADDED = FP8 | {"bfloat16"}

# Largest number of elements for which 32-bit indices suffice.
WIDE = 2**31 - 1

# Bytes of the widest vector that a kernel loads or stores.
VECTOR_BYTES = 16

# Class of arithmetic -> its effect on the result. `strict` is always allowed.
PRECISIONS: dict[str, str] = {
    "strict": "RMS error at most twice a sequential FMA loop's in the accumulation type; full range; Inf and NaN kept",
    "separable": "the filter is replaced by its factors, rounded to the accumulation type",
    "winograd": "Winograd's transforms: fewer multiplications, a larger error constant",
    "fft": "products taken in the frequency domain: the error follows the largest value of a tile",
    "tf32": "factors rounded to TF32 (10 mantissa bits), accumulated in float32",
    "fp16": "factors rounded to float16, accumulated in float32",
    "bf16": "factors rounded to bfloat16, accumulated in float32",
    "fp8": "factors rounded to 8-bit floats; sums of 128 products each are added in float32",
    "fp8_fast": "factors rounded to 8-bit floats; whole sums in the tensor cores, which may keep as few as 14 bits",
    "epilogue32": "integer sums stay exact; their scale, bias and activation are computed in float32",
    "int8": "factors quantised to int8, accumulated in int32",
}

# Class -> class that a problem of it allows as well, because its arithmetic is the same but for more exact sums.
ALSO_ALLOWED: dict[str, str] = {"fp8_fast": "fp8"}


def allows(precision: str, own: str) -> bool:
    """True if a problem of class `precision` allows arithmetic of the class `own`.

    Examples
    --------
    >>> allows("tf32", "strict"), allows("fp8_fast", "fp8"), allows("fp8", "fp8_fast")
    (True, True, False)
    """
    return own in ("strict", precision, ALSO_ALLOWED.get(precision))


def is_integer(dtype: str) -> bool:
    """True if a NumPy type name names an integer type."""
    return dtype.startswith(("int", "uint"))


@cache
def itemsize(dtype: str) -> int:
    """Bytes of one element."""
    return numpy_dtype(dtype).itemsize


@cache
def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Return NumPy's dtype for a name. The first use of an ml_dtypes type registers all of them with NumPy."""
    if dtype in ADDED:
        import ml_dtypes  # noqa: F401  takes 5 ms
    return np.dtype(dtype)


def finfo(dtype: str | np.dtype[Any]) -> Any:
    """Limits of a float type, like :class:`numpy.finfo`, but also for types of ml_dtypes."""
    name = np.dtype(dtype).name
    if name not in ADDED:
        return np.finfo(name)
    import ml_dtypes

    return ml_dtypes.finfo(name)  # type: ignore[no-untyped-call]


def to_float(values: NDArray[np.floating[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Round float32 or float64 numbers to a float type once, ties to even.

    ml_dtypes rounds float64 twice, first to float32. So float64 is first rounded to odd: towards zero, with the last
    bit set where anything was lost (S. Boldo and G. Melquiond, *Emulation of a FMA and correctly rounded sums*, IEEE
    Trans. Comput. 57(4), 2008).
    """
    if dtype.name not in ADDED or values.dtype == np.float32:
        return values.astype(dtype)
    single = values.astype(np.float32)
    beyond, lost = np.abs(single) > np.abs(values), single != values
    bits = single.view(np.uint32)
    bits -= beyond
    bits |= lost & ~np.isnan(values)
    return single.astype(dtype)


def limits(dtype: str) -> tuple[int, int]:
    """Least and largest value of an integer type."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def magnitude(dtype: str) -> int:
    """Largest absolute value that an integer type holds."""
    low, high = limits(dtype)
    return max(-low, high)


def accumulation_dtype(x_dtype: str, w_dtype: str) -> str:
    """The type in which products are summed: int32 for two integer types, float64 if either is, else float32."""
    if is_integer(x_dtype) and is_integer(w_dtype):
        return "int32"
    return "float64" if "float64" in (x_dtype, w_dtype) else "float32"


def output_dtype(x_dtype: str, w_dtype: str) -> str:
    """The default type of the result: x's own if it is a float type of 16 bits or more, else the accumulation type.

    Sums of 8-bit floats soon exceed their range, and there is no scale as in PyTorch's ``_scaled_mm`` and cuBLAS.
    """
    return accumulation_dtype(x_dtype, w_dtype) if is_integer(x_dtype) or x_dtype in FP8 else x_dtype


def check_dtype(value: str, field: str) -> None:
    """Raise ``ValueError`` unless `value` is a key of :data:`SHORT_NAMES`; register the type with NumPy."""
    if value not in SHORT_NAMES:
        raise ValueError(
            f"{field}={value!r} is not an element type of convforge; cast the array to one of {', '.join(SHORT_NAMES)}"
        )
    numpy_dtype(value)
