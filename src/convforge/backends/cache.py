"""Compiled kernels on disk: written whole or not at all, verified when read, the oldest dropped beyond a limit.

A file holds one line of JSON about the kernel, then its machine code. The line carries a digest of the code, so that a
file that was cut off or damaged is noticed and rebuilt.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from platformdirs import user_cache_dir

# Goes up when the files' form changes.
SCHEMA = 1
LIMIT_BYTES = 256 << 20


def cache_root() -> Path:
    """The folder of every cache: the user's, or what CONVFORGE_CACHE_DIR names."""
    return Path(os.environ.get("CONVFORGE_CACHE_DIR") or user_cache_dir("convforge", appauthor=False))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, in a folder that is made, so that any reader sees either all of it or what stood there before.

    Raises
    ------
    OSError
        It cannot be written; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


class DiskCache:
    """A folder of compiled kernels. Any number of processes may use it at once.

    Parameters
    ----------
    folder : Path, optional
        By default in the user's cache folder, which CONVFORGE_CACHE_DIR moves.
    limit_bytes : int
        Least recently used files are dropped beyond this.
    """

    def __init__(self, folder: Path | None = None, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = cache_root() / "cuda" if folder is None else folder
        self.limit_bytes = limit_bytes

    def key(self, *parts: str) -> str:
        """A file name for everything that decides what the code is."""
        text = json.dumps([SCHEMA, *parts])
        return hashlib.sha256(text.encode()).hexdigest()

    def load(self, key: str) -> tuple[dict[str, Any], bytes] | None:
        """What is stored about a kernel, and its code; None where there is no whole file."""
        path = self.folder / key
        try:
            head, _, code = path.read_bytes().partition(b"\n")
            about = json.loads(head)
            if about.pop("digest") != hashlib.sha256(code).hexdigest():
                return None
            os.utime(path)  # it was used now
        except (OSError, ValueError, KeyError, AttributeError):
            return None
        return about, code

    def store(self, key: str, about: dict[str, Any], code: bytes) -> None:
        """Keep a kernel; a folder that cannot be written keeps nothing, and nobody fails for it."""
        head = json.dumps({**about, "digest": hashlib.sha256(code).hexdigest()}).encode()
        try:
            write_whole(self.folder / key, head + b"\n" + code)
        except OSError:
            return
        self._trim()

    def files(self) -> list[Path]:
        """Every stored kernel."""
        return sorted(Path(entry.path) for entry in self._entries())

    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(size for _, size, _ in self._sizes())

    def clear(self) -> int:
        """Remove every kernel; how many there were."""
        files = self.files()
        for path in files:
            path.unlink(missing_ok=True)
        return len(files)

    def _entries(self) -> list[os.DirEntry[str]]:
        """The stored kernels; by scandir, as this happens with every kernel that is stored beside thousands."""
        try:
            with os.scandir(self.folder) as entries:
                return [entry for entry in entries if not entry.name.startswith(".") and entry.is_file()]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _sizes(self) -> list[tuple[float, int, str]]:
        """When each file was used last, and its bytes; files that another process drops meanwhile are left out."""
        found = []
        for entry in self._entries():
            try:
                stat = entry.stat()
            except OSError:
                continue
            found.append((stat.st_mtime, stat.st_size, entry.path))
        return found

    def _trim(self) -> None:
        sizes = self._sizes()
        total = sum(size for _, size, _ in sizes)
        if total <= self.limit_bytes:
            return
        for _, size, path in sorted(sizes):
            if total <= self.limit_bytes:
                return
            Path(path).unlink(missing_ok=True)
            total -= size
