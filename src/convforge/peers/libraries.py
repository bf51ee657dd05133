"""Opens NVIDIA's libraries: those of PyTorch's wheels, of conda's folders or of the system."""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

from convforge.errors import Reason

# Name of a library -> its title, and its wheel.
PACKAGES = {
    "cublas": ("cuBLAS", "nvidia-cublas"),
    "cudnn": ("cuDNN", "nvidia-cudnn-cu13"),
    "nppc": ("NPP", "nvidia-npp"),
    "nppif": ("NPP", "nvidia-npp"),
}


@cache
def shared_library(name: str) -> ctypes.CDLL | None:
    """Open one of :data:`PACKAGES`; None where it is not installed."""
    if name == "cudnn":  # cuda.pathfinder does not look for it, and it opens cuBLAS by name
        shared_library("cublas")
        return _first_that_opens([*_in_wheels(name), "libcudnn.so.9", "libcudnn.so"])
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError:
        return None
    try:
        found = load_nvidia_dynamic_lib(name).abs_path
    except DynamicLibNotFoundError:  # it searches only Python's own folders, not the others on its path
        return _first_that_opens(_in_wheels(name))
    return None if found is None else ctypes.CDLL(found)


def missing_library(name: str, *symbols: str) -> Reason | None:
    """The refusal of a library that is absent or lacks one of these functions; None if it is usable."""
    title, package = PACKAGES[name]
    library = shared_library(name)
    if library is None:
        return Reason("{name} is not installed: pip install {package}", name=title, package=package)
    gone = [symbol for symbol in symbols if not hasattr(library, symbol)]
    if gone:
        return Reason(
            "the {title} that is installed has no {function} any more: install an older one to measure it",
            title=title,
            function=gone[0],
        )
    return None


def signature(library: Any, name: str, *arguments: Any, result: Any = ctypes.c_int) -> Any:
    """A function of a library with its argument types; most functions return a status."""
    function = getattr(library, name)
    function.argtypes, function.restype = arguments, result
    return function


def _in_wheels(name: str) -> list[str]:
    """Files of a library in the wheels' common folder ``nvidia``, the newest first."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    return sorted((str(file) for folder in folders for file in Path(folder).glob(f"*/lib/lib{name}.so*")), reverse=True)


def _first_that_opens(files: list[str]) -> ctypes.CDLL | None:
    for file in files:
        try:
            return ctypes.CDLL(file)
        except OSError:  # it, or a library that it needs, is missing
            continue
    return None
