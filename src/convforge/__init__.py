"""convforge: 2D convolution by every method the field knows, checked against float64 before it is timed.

`import convforge` loads none of its parts: each public name loads what it needs when it is first asked for.
"""

from __future__ import annotations as _annotations

import sys as _sys
from importlib import import_module as _import_module
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from convforge.backends.forks import no_fork as _no_fork

if _TYPE_CHECKING:
    from convforge.api import Filter, algorithms, conv2d, gemm, max_pool2d, relu
    from convforge.errors import UnsupportedProblem
    from convforge.imaging.filtering import filter  # noqa: A004
    from convforge.imaging.pipeline import filter_large, filter_many
    from convforge.problem import Conv2dProblem, Epilogue, GemmProblem, Pool2dProblem, Quantization, parse_problem

__version__ = "0.1.0.dev0"

__all__ = [
    "Conv2dProblem",
    "Epilogue",
    "Filter",
    "GemmProblem",
    "Pool2dProblem",
    "Quantization",
    "UnsupportedProblem",
    "algorithms",
    "conv2d",
    "filter",
    "filter_large",
    "filter_many",
    "gemm",
    "max_pool2d",
    "parse_problem",
    "relu",
]

_MODULES = {
    "convforge.api": ("Filter", "algorithms", "conv2d", "gemm", "max_pool2d", "relu"),
    "convforge.errors": ("UnsupportedProblem",),
    "convforge.imaging.filtering": ("filter",),
    "convforge.imaging.pipeline": ("filter_large", "filter_many"),
    "convforge.problem": ("Conv2dProblem", "Epilogue", "GemmProblem", "Pool2dProblem", "Quantization", "parse_problem"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def _load(name: str) -> _Any:
    with _no_fork():  # a child that is forked meanwhile would have half a module, and its lock
        return getattr(_import_module(_MODULE_OF[name]), name)


def __getattr__(name: str) -> _Any:
    """A public name, from the module that has it; also convforge.torch and convforge.dask, which import a library."""
    if name in ("torch", "dask"):
        return _import_module(f"convforge.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, _load(name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(_ModuleType):
    """This package. Its `algorithms` is the function, and never the folder of that name, which Python would set."""

    @property
    def algorithms(self) -> _Any:
        return _load("algorithms")

    @algorithms.setter
    def algorithms(self, folder: _ModuleType) -> None:
        pass


_sys.modules[__name__].__class__ = _Package
