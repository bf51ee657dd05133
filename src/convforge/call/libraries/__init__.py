"""Adapters for NumPy, PyTorch, CuPy and JAX: an array's device, its stream, its library's memory.

No library is imported here: an array of one is only ever met once its library has been.
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
def replaying(kind: Any) -> Library | None:
    """The library of a type of arrays whose calls can be made again; None where it has no such."""
    make = _maker(kind, tuple([module in sys.modules for module, _ in _OTHERS]))
    library = None if make is None else make()
    return None if isinstance(library, Jax) else library


def library_of(value: Any, name: str) -> Library:
    """The library of an argument.

    Raises
    ------
    TypeError
        It is no array of a library that convforge knows.
    """
    kind: Any = type(value)
    make = _maker(kind, tuple([module in sys.modules for module, _ in _OTHERS]))
    if make is None:
        raise TypeError(
            f"{name} must be a NumPy array, a PyTorch tensor, or an array of CuPy or JAX; got {kind.__name__}: "
            "convert it with numpy.asarray"
        )
    return make()


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


# Modules, and what makes the Library of each.
_OTHERS: tuple[tuple[str, Callable[[], Library]], ...] = (("torch", _torch), ("cupy", _cupy), ("jax", _jax))
