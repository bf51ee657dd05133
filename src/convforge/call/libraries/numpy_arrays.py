"""NumPy's arrays."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.backends.runtime import CallerStream
from convforge.call.libraries.contract import Library
from convforge.problem.types import numpy_dtype


def is_masked(array: Any) -> bool:
    """True for NumPy's masked arrays; NumPy imports their module on first use."""
    return isinstance(array, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))


class Numpy(Library):
    kind = "a NumPy array"
    arrays: tuple[type, ...] = (np.ndarray,)

    def device(self, array: Any, name: str) -> str:
        return "cpu"

    def check(self, array: Any, name: str) -> None:
        if is_masked(array):
            raise TypeError(
                f"{name} is a masked array, whose mask would be lost; fill it first, as in {name}.filled(0)"
            )

    def dtype(self, array: Any) -> str:
        return _numpy_name(array.dtype)

    def view(self, array: Any, written: bool = False) -> NDArray[Any]:
        plain = np.asarray(array)
        if written or plain.dtype.isnative:
            return plain
        return plain.astype(plain.dtype.newbyteorder("="))

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> NDArray[Any]:
        return np.empty(shape, numpy_dtype(dtype))

    def zeros(self, shape: tuple[int, ...], dtype: str, device: str) -> NDArray[Any]:
        return np.zeros(shape, numpy_dtype(dtype))

    def empty_like(self, array: Any) -> NDArray[Any]:
        plain = np.asarray(array)
        return np.empty_like(plain, plain.dtype.newbyteorder("="))

    def cast(self, array: Any, dtype: str) -> NDArray[Any]:
        return np.array(array, numpy_dtype(dtype), order="C", copy=True)

    def copy(self, target: Any, source: Any) -> None:
        target[...] = source

    def stream(self, device: str) -> CallerStream:
        raise ValueError("NumPy has no streams")

    def signature(self, arrays: Sequence[Any]) -> tuple[list[Any], list[int]] | None:
        found: list[Any] = []
        for array in arrays:
            if type(array) is not np.ndarray or not array.dtype.isnative:
                return None
            found += (array.shape, array.dtype)
        return found, []


@lru_cache(maxsize=64)
def _numpy_name(dtype: np.dtype[Any]) -> str:
    return str(dtype if dtype.isnative else dtype.newbyteorder("="))
