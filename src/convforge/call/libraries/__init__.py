"""Adapters for arrays of NumPy, PyTorch, CuPy and JAX: device, stream and memory allocation.

No library is imported here: a caller who passes an array has already imported its library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from convforge.call.libraries.adapters import Cupy, Jax, Numpy
from convforge.call.libraries.contract import Library
from convforge.call.libraries.torch_tensors import Torch

# Adapter of each library, by the library's module name.
_ADAPTERS: dict[str, Callable[[Any], Library]] = {"numpy": Numpy, "torch": Torch, "cupy": Cupy, "jax": Jax}


def library_of(value: Any, name: str) -> Library:
    """Return the library of an array; ``TypeError`` unless it is an array of a supported library."""
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
    """Return the library of an array type if the adapter is loaded and its calls can be cached, else None."""
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
