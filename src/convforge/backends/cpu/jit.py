"""Numba's compiler with the options of all CPU kernels: GIL released, FMA allowed, compiled once per machine.

Numba's cache does not notice a change in a function of another file, so a digest of all kernels names our folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

import numba

from convforge.backends.cpu.kept_kernels import KeptKernels
from convforge.backends.sources import PACKAGE, modules, read_module

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

# "contract" lets a product and a sum become one FMA; nothing is reordered, NaN and Inf keep their meaning.
FASTMATH = {"contract"}
# Files outside the methods' folder that hold kernels, or parts of them.
CALLED = (
    *("backends/cpu/inlining.py", "backends/cpu/jit.py", "backends/cpu/simd.py", "backends/cpu/simd_pairs.py"),
    *("backends/cpu/waiting.py", "verify/loops.py", "verify/scans.py"),
)


@cache
def source_digest() -> str | None:
    """Return a digest of every kernel source and of Numba's version; None without sources."""
    digest = hashlib.sha256(f"numba {numba.__version__}".encode())
    if not (found := modules(PACKAGE / "algorithms")):
        return None
    for name, text in (*found, *((name, read_module(PACKAGE / name)) for name in CALLED)):
        digest.update(name.encode())
        digest.update(text)
    return digest.hexdigest()[:16]


def jit(function: Kernel) -> Kernel:
    """Compile a kernel on its first call for each set of argument types, and keep it on disk."""
    return _compiled(function, FASTMATH)


def inlined(function: Kernel) -> Kernel:
    """Inline a function into the kernels that call it; otherwise LLVM optimises it alone, and again in every caller."""
    return cast(Kernel, _dispatcher(function, inline="always", fastmath=FASTMATH))


def jit_exact(function: Kernel) -> Kernel:
    """Like :func:`jit`, but without FMA, as error-free arithmetic needs."""
    return _compiled(function, False)


def _compiled(function: Kernel, fastmath: Any) -> Kernel:
    compiled = _dispatcher(function, nogil=True, fastmath=fastmath, pipeline_class=_compiler)
    compiled._cache = KeptKernels(function, source_digest())
    return cast(Kernel, compiled)


def _compiler(*arguments: Any) -> Any:
    """The compiler of one kernel; its module, which loads Numba's compiler, is imported on first use."""
    from convforge.backends.cpu.inlining import KernelCompiler

    return KernelCompiler(*arguments)


def _dispatcher(function: Any, **options: Any) -> Any:
    """Numba's dispatcher of a function. It ignores NUMBA_DISABLE_JIT, because kernels cannot run as Python."""
    disabled = numba.config.DISABLE_JIT
    numba.config.DISABLE_JIT = 0
    try:
        return numba.njit(function, error_model="numpy", **options)
    finally:
        numba.config.DISABLE_JIT = disabled
