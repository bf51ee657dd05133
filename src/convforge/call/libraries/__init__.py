"""Adapters for NumPy, PyTorch, CuPy and JAX: an array's device, its stream, its library's memory.

No library is imported here: a caller with an array has imported its library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from convforge.call.libraries.adapters import Cupy, Jax, Numpy
from convforge.call.libraries.contract import Library
from convforge.call.libraries.torch_tensors import Torch

# Adapters by the module of their library.
_ADAPTERS: dict[str, Callable[[Any], Library]] = {"numpy": Numpy, "torch": Torch, "cupy": Cupy, "jax": Jax}


def library_of(value: Any, name: str) -> Library:
    """Return the library of an argument; ``TypeError`` for anything but an array of a known library."""
    kind: Any = type(value)
    library = _library(kind, _loaded())
    if library is None:
        raise TypeError(
            f"{name} must be a NumPy array, a PyTorch tensor, or an array of CuPy or JAX; got {kind.__name__}: "
            "convert it with numpy.asarray"
        )
    return library


@lru_cache(maxsize=256)
def cached_library(kind: Any) -> Library | None:
    """Return the library of a type of arrays if its calls can be cached; else None."""
    library = _library(kind, _loaded())
    return None if isinstance(library, Jax) else library


def _loaded() -> tuple[str, ...]:
    return tuple([module for module in _ADAPTERS if module in sys.modules])


@lru_cache(maxsize=256)
def _library(kind: Any, loaded: tuple[str, ...]) -> Library | None:
    return next((made for module in loaded if issubclass(kind, (made := _made(module)).arrays)), None)


@lru_cache(maxsize=len(_ADAPTERS))
def _made(module: str) -> Library:
    return _ADAPTERS[module](sys.modules[module])
