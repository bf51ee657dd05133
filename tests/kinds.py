"""Makers of host arrays of each library from NumPy arrays; a missing library skips the test, in CI it fails."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

KINDS = ("numpy", "torch", "jax")


def module(name: str) -> Any:
    """Import an optional library; if it is missing, skip the test, or fail in CI."""
    if importlib.util.find_spec(name) is None:
        if os.environ.get("CI"):
            pytest.fail(f"continuous integration installs {name}, and it is not here")
        pytest.skip(f"{name} is not installed", allow_module_level=True)
    return importlib.import_module(name)


def maker(kind: str) -> Callable[[Any], Any]:
    """Return the function that makes an array of a kind from a NumPy array."""
    if kind == "numpy":
        return np.asarray
    if kind == "torch":
        torch = module("torch")
        return lambda array: torch.from_numpy(np.array(array))
    jax = module("jax")
    return lambda array: jax.numpy.array(array)
