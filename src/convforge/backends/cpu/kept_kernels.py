"""Numba's compiled kernels on disk: a file for each set of argument types, written whole, verified when it is read.

Numba's own files are an index for each kernel and numbered files beside it. One that was cut off stops every later
process, and two processes that compile at once may each take the same number for other types.
"""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.core.serialize import dumps

from convforge.backends.cache import write_whole

_DIGEST_BYTES = hashlib.sha256().digest_size


class KeptKernels(FunctionCache):  # type: ignore[misc]
    """Where a dispatcher looks for a kernel before it compiles it, and keeps what it compiled."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        locator = self._impl.locator
        self._cache_file = _Files(Path(self.cache_path), self._impl.filename_base, locator.get_source_stamp())

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled kernel; a folder that cannot be written, or is full, keeps nothing, and nobody fails."""
        try:
            super().save_overload(sig, data)
        except OSError:
            return


class _Files:
    """The files of one kernel: a digest, then key and code as Numba pickles them. The name follows from the key."""

    def __init__(self, folder: Path, kernel: str, stamp: Any) -> None:
        self._folder, self._kernel, self._stamp = folder, kernel, stamp

    def load(self, key: Any) -> Any:
        """What was kept under a key; None where there is nothing, or something that was cut off or damaged."""
        try:
            stored = self._path(key).read_bytes()
        except OSError:
            return None
        content = stored[_DIGEST_BYTES:]
        if hashlib.sha256(content).digest() != stored[:_DIGEST_BYTES]:
            return None
        kept_key, data = pickle.loads(content)
        return data if kept_key == key else None  # types of one name may differ

    def save(self, key: Any, data: Any) -> None:
        """Keep something under a key; raises ``OSError`` where that is not possible."""
        content: bytes = dumps((key, data))
        write_whole(self._path(key), hashlib.sha256(content).digest() + content)

    def flush(self) -> None:
        """Forget everything that is kept of the kernel."""
        for path in self._folder.glob(f"{self._kernel}.*.nbc"):
            path.unlink(missing_ok=True)

    def _path(self, key: Any) -> Path:
        name = hashlib.sha256(repr((numba.__version__, self._stamp, key)).encode()).hexdigest()[:32]
        return self._folder / f"{self._kernel}.{name}.nbc"
