"""convforge: 2D convolution by every method the field knows, checked against float64 before it is timed."""

from __future__ import annotations as _annotations

from types import ModuleType as _ModuleType

from convforge.api import Filter, algorithms, conv2d, gemm, max_pool2d, relu
from convforge.errors import UnsupportedProblem
from convforge.filtering import filter  # noqa: A004
from convforge.pipeline import filter_many
from convforge.problem import Conv2dProblem, Epilogue, GemmProblem, Pool2dProblem, parse_problem

__version__ = "0.1.0.dev0"

__all__ = [
    "Conv2dProblem",
    "Epilogue",
    "Filter",
    "GemmProblem",
    "Pool2dProblem",
    "UnsupportedProblem",
    "algorithms",
    "conv2d",
    "filter",
    "filter_many",
    "gemm",
    "max_pool2d",
    "parse_problem",
    "relu",
]


def __getattr__(name: str) -> _ModuleType:
    """convforge.torch, which imports PyTorch, once it is asked for."""
    if name == "torch":
        from importlib import import_module

        return import_module("convforge.torch")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
