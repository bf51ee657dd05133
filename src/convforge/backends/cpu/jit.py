"""Numba's compiler, as all CPU kernels use it: no interpreter lock, FMA allowed, compiled once a machine.

Numba's own cache does not notice a change in a function that a kernel calls from another file. The cache therefore
lives in a folder named by a digest of every kernel source, so that no stale code is ever run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from platformdirs import user_cache_dir

from convforge.backends.cpu.inlining import KernelCompiler
from convforge.backends.cpu.kept_kernels import KeptKernels

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

# "contract" lets a product and a sum become one FMA; nothing is reordered, NaN and Inf keep their meaning.
FASTMATH = {"contract"}
# Files of this folder that hold kernels, or parts of them.
CALLED = ("backends/cpu/inlining.py", "backends/cpu/jit.py", "backends/cpu/simd.py", "backends/cpu/waiting.py")


@cache
def cache_folder() -> Path:
    """Where compiled CPU kernels are kept; CONVFORGE_CACHE_DIR moves it."""
    root = os.environ.get("CONVFORGE_CACHE_DIR") or user_cache_dir("convforge", appauthor=False)
    return Path(root) / "numba" / _source_digest()


@cache
def _source_digest() -> str:
    digest = hashlib.sha256(f"numba {numba.__version__}".encode())
    package = Path(__file__).parents[2]
    others = (package / name for name in ("check/loops.py", "check/scans.py", *CALLED))
    for source in sorted([*package.glob("algorithms/**/*.py"), *others]):
        digest.update(source.relative_to(package).as_posix().encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def jit(function: Kernel) -> Kernel:
    """Compile a kernel on its first call for each set of argument types, and keep it on disk."""
    return _compiled(function, FASTMATH)


def inlined(function: Kernel) -> Kernel:
    """A part of a kernel that is copied into it before it is compiled.

    Parts compiled by themselves are optimised once alone and again in everything that calls them, so each level of
    calls would double the time that a kernel takes to compile.
    """
    part: Kernel = numba.njit(function, inline="always", fastmath=FASTMATH, error_model="numpy")
    return part


def jit_exact(function: Kernel) -> Kernel:
    """Like :func:`jit`, but every product and every sum is rounded by itself, as error-free arithmetic needs."""
    return _compiled(function, False)


def _compiled(function: Kernel, fastmath: Any) -> Kernel:
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(cache_folder())  # read once, here, where the kernel's folder is told
    try:
        compiled: Any = numba.njit(
            function, nogil=True, fastmath=fastmath, error_model="numpy", pipeline_class=KernelCompiler
        )
        compiled._cache = KeptKernels(function)
    except RuntimeError:  # Numba's word where no folder can be written: it is compiled in every process
        pass
    finally:
        numba.config.CACHE_DIR = before
    return cast(Kernel, compiled)
