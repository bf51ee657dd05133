"""Adapters for NumPy, PyTorch, CuPy and JAX: an array's device, its stream, its library's memory.

No library is imported here: a caller with an array has imported its library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np

from convforge.call.libraries.contract import Library
from convforge.call.libraries.cupy_arrays import Cupy
from convforge.call.libraries.jax_arrays import Jax
from convforge.call.libraries.numpy_arrays import Numpy
from convforge.call.libraries.torch_tensors import Torch


@lru_cache(maxsize=256)
def cached_library(kind: Any) -> Library | None:
    """Return the library of a type of arrays if its calls can be cached; else None."""
    make = _maker_of(kind)
    library = None if make is None else make()
    return None if isinstance(library, Jax) else library


def library_of(value: Any, name: str) -> Library:
    """Return the library of an argument; ``TypeError`` for anything but an array of a known library."""
    kind: Any = type(value)
    if (make := _maker_of(kind)) is None:
        raise TypeError(
            f"{name} must be a NumPy array, a PyTorch tensor, or an array of CuPy or JAX; got {kind.__name__}: "
            "convert it with numpy.asarray"
        )
    return make()


def _maker_of(kind: Any) -> Callable[[], Library] | None:
    return _maker(kind, tuple([module in sys.modules for module, _ in _OTHERS]))


@lru_cache(maxsize=256)
def _maker(kind: Any, loaded: tuple[bool, ...]) -> Callable[[], Library] | None:
    if issubclass(kind, np.ndarray):
        return _numpy
    for (_, make), here in zip(_OTHERS, loaded, strict=True):
        if here and issubclass(kind, make().arrays):
            return make
    return None


@cache
def _numpy() -> Library:
    return Numpy()


@cache
def _torch() -> Library:
    return Torch(sys.modules["torch"])


@cache
def _cupy() -> Library:
    return Cupy(sys.modules["cupy"])


@cache
def _jax() -> Library:
    return Jax(sys.modules["jax"])


# Modules, and the function that makes the Library of each.
_OTHERS: tuple[tuple[str, Callable[[], Library]], ...] = (("torch", _torch), ("cupy", _cupy), ("jax", _jax))
