"""Element types and precision classes: the words that problems are written in."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

# Short name (in text forms) -> NumPy's name. bfloat16 has no NumPy type: only device arrays carry it.
DTYPES: dict[str, str] = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u16": "uint16",
    "u8": "uint8",
}
SHORT_NAMES: dict[str, str] = {long: short for short, long in DTYPES.items()}

# Two bytes of bfloat16 as NumPy sees them: it has no such type, but arrays of them have shape, strides and a place.
BFLOAT16 = np.dtype([("bfloat16", np.uint16)])

# Elements of an array beyond which places in it need 64 bits.
WIDE = 2**31 - 1

# Bytes of the widest vector that a kernel loads or stores.
VECTOR_BYTES = 16

# What each class of arithmetic is allowed to do to the result. `strict` is always allowed.
PRECISIONS: dict[str, str] = {
    "strict": "RMS error at most twice a sequential FMA loop's in the accumulation type; full range; Inf and NaN kept",
    "separable": "the filter is replaced by its factors, rounded to the accumulation type",
    "winograd": "Winograd's transforms: fewer multiplications, a larger error constant",
    "fft": "products taken in the frequency domain: the error follows the largest value of a tile",
    "tf32": "factors rounded to TF32 (10 mantissa bits), accumulated in float32",
    "fp16": "factors rounded to float16, accumulated in float32",
    "bf16": "factors rounded to bfloat16, accumulated in float32",
    "int8": "factors quantised to int8, accumulated in int32",
}


def is_integer(dtype: str) -> bool:
    """Whether the element type of this NumPy name is an integer type."""
    return dtype.startswith(("int", "uint"))


@cache
def itemsize(dtype: str) -> int:
    """Bytes of one element."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """How NumPy sees an element type; bfloat16 as :data:`BFLOAT16`."""
    return BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)


def limits(dtype: str) -> tuple[int, int]:
    """Least and largest value of an integer type."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def magnitude(dtype: str) -> int:
    """Largest absolute value that an integer type holds."""
    low, high = limits(dtype)
    return max(-low, high)


def accumulation_dtype(x_dtype: str, w_dtype: str) -> str:
    """The type that products are summed in: int32 for two integer types, else float32, or float64 if either is."""
    if is_integer(x_dtype) and is_integer(w_dtype):
        return "int32"
    return "float64" if "float64" in (x_dtype, w_dtype) else "float32"


def output_dtype(x_dtype: str, w_dtype: str) -> str:
    """The default type of the result: x's own where it is a float type, else the accumulation type."""
    return accumulation_dtype(x_dtype, w_dtype) if is_integer(x_dtype) else x_dtype


def check_dtype(value: str, field: str) -> None:
    """Raise ``ValueError`` unless `value` names an element type that problems may have."""
    if value not in SHORT_NAMES:
        raise ValueError(
            f"{field}={value!r} is not an element type of convforge; cast the array to one of {', '.join(SHORT_NAMES)}"
        )
