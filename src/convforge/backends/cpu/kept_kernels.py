"""Numba's compiled kernels on disk: a file for each set of argument types, written atomically, verified when read.

In Numba's own cache a truncated file stops every later process, and two processes may use one file for different types.
"""

from __future__ import annotations

import hashlib
import marshal
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba.core import event
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from convforge.backends.cache import cache_folder, keep
from convforge.backends.notices import compiling
from convforge.backends.sources import PACKAGE

_DIGEST_BYTES = hashlib.sha256().digest_size


class KeptKernels(_Cache):  # type: ignore[misc]
    """Cache that a dispatcher reads before it compiles a kernel, and writes afterwards; unused if `sources` is None."""

    def __init__(self, function: Any, sources: str | None) -> None:
        self._code, self._sources = function.__code__, sources
        module = Path(self._code.co_filename).stem
        plain = "".join(sign for sign in function.__qualname__ if sign not in "<>")[-60:]
        self.name = f"{module}.{plain}"
        self._stamp = _stamp(function)

    @property
    def cache_path(self) -> str:
        """The folder of the kernel's files, or empty."""
        return str(self._folder or "")

    @property
    def _folder(self) -> Path | None:
        folder = None if self._sources is None else cache_folder("numba")
        return None if folder is None else folder / str(self._sources)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load a kernel without importing Numba's compiler modules; None without a valid file."""
        if (path := self._path(sig, target_context.codegen())) is None:
            return None
        try:
            stored = path.read_bytes()
        except OSError:
            return None
        content = stored[_DIGEST_BYTES:]
        if hashlib.sha256(content).digest() != stored[:_DIGEST_BYTES]:
            return None
        rtsys.initialize(target_context)
        kept_sig, payload = pickle.loads(content)
        return CompileResult._rebuild(target_context, *payload) if kept_sig == sig else None  # type names may be equal

    def save_overload(self, sig: Any, data: Any) -> None:
        path = self._path(sig, data.codegen)
        if path is None or data.library.has_dynamic_globals or any(not part.can_cache for part in data.lifted):
            return
        content: bytes = dumps((sig, data._reduce()))
        keep(path, hashlib.sha256(content).digest() + content)

    def flush(self) -> None:
        if (folder := self._folder) is not None:
            for path in folder.glob(f"{self.name}.*.nbc"):
                path.unlink(missing_ok=True)

    def enable(self) -> None:
        """Do nothing: kernels are always kept."""

    def disable(self) -> None:
        raise NotImplementedError("compiled kernels are kept as long as a folder can be used")

    def _path(self, sig: Any, codegen: Any) -> Path | None:
        if (folder := self._folder) is None:
            return None
        key = repr((numba.__version__, self._stamp, sig, codegen.magic_tuple()))
        return folder / f"{self.name}.{hashlib.sha256(key.encode()).hexdigest()[:32]}.nbc"


def _stamp(function: Any) -> str:
    """Return a digest of a kernel's bytecode, its closure, and its file if that is outside the package."""
    code = function.__code__
    digest = hashlib.sha256(marshal.dumps(code, 2))
    digest.update(dumps([cell.cell_contents for cell in function.__closure__ or ()]))
    if not (file := Path(code.co_filename)).is_relative_to(PACKAGE):
        with suppress(OSError):  # without a source
            digest.update(file.read_bytes())
    return digest.hexdigest()


class _Watch(event.Listener):  # type: ignore[misc]
    """Shows a notice while one of our kernels is compiled; NUMBA_DISABLE_JIT is off meanwhile."""

    def __init__(self) -> None:
        self._depth = 0
        self._said: Any = None
        self._disabled = 0

    def on_start(self, event: Any) -> None:
        if (kept := _kept(event)) is not None:
            if self._depth == 0:
                self._said = compiling(f"the CPU kernel {kept.name}", kept.cache_path or None)
                self._said.__enter__()
                self._disabled, numba.config.DISABLE_JIT = numba.config.DISABLE_JIT, 0
            self._depth += 1

    def on_end(self, event: Any) -> None:
        if _kept(event) is not None:
            self._depth -= 1
            if self._depth == 0:
                numba.config.DISABLE_JIT = self._disabled
                self._said.__exit__(None, None, None)


def _kept(event: Any) -> KeptKernels | None:
    cache = getattr(event.data["dispatcher"], "_cache", None) if event.data else None
    return cache if isinstance(cache, KeptKernels) else None


event.register("numba:compile", _Watch())
