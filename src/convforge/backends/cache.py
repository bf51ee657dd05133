"""Caches on disk: their folders, and compiled kernels in them.

The process runs machine code from a cache. So its folder is created private, and not used if others may write to it. A
file of DiskCache is a line of JSON with a digest of the code, then the machine code. Files are written atomically.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from platformdirs import user_cache_dir

from convforge.backends.notices import say_once

SCHEMA = 1  # increased when the files' format changes
LIMIT_BYTES = 256 << 20


def cache_root() -> Path:
    """The root folder of all caches: the user's cache folder, or CONVFORGE_CACHE_DIR."""
    return Path(os.environ.get("CONVFORGE_CACHE_DIR") or user_cache_dir("convforge", appauthor=False))


def cache_folder(kind: str) -> Path | None:
    """The folder of one cache ("numba", "cuda", "emulator", "tuned"), which may not exist yet; None if unusable."""
    root = cache_root()
    fault: object = "there is no home folder" if str(root).startswith("~") else None
    try:
        fault = fault or _fault(root) or _fault(root / kind)
    except (OSError, ValueError) as failed:  # ValueError for a NUL in the name
        fault = getattr(failed, "strerror", None) or failed
    if fault is None:
        return root / kind
    say_once(
        f"the cache folder {_short(root)} cannot be used: {fault}. Compiled kernels and tuned choices last as long as "
        "this process; CONVFORGE_CACHE_DIR names another folder"
    )
    return None


def _fault(folder: Path) -> str | None:
    """The reason why a folder cannot be used; None if it can, or does not exist yet."""
    try:
        about = folder.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(about.st_mode):
        return "it is no folder"
    if not os.access(folder, os.R_OK | os.X_OK):
        return f"{_short(folder)} may not be entered"
    if hasattr(os, "geteuid"):  # Windows has no such owners, and protects a user's folders itself
        if about.st_uid not in (os.geteuid(), 0):  # files of root are as trustworthy as Python itself
            return f"{_short(folder)} is another user's, whose code would be run"
        if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"other users may write to {_short(folder)}, and their code would be run; chmod go-w mends that"
    return None


def make_private(folder: Path) -> None:
    """Make a folder and its missing parents, each private; existing folders stay unchanged. Raises ``OSError``."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        with suppress(FileExistsError):  # another process was faster; if it made no folder, the next step fails
            each.mkdir(mode=0o700)


def _short(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 200 else f"{text[:197]}..."


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file atomically, and make its folder. Raises ``OSError`` and leaves nothing behind on failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def keep(path: Path, data: bytes) -> bool:
    """Write a file of a cache by :func:`write_whole`; return True, or log the failure once and return False."""
    try:
        make_private(path.parent)
        write_whole(path, data)
    except OSError as fault:
        say_once(
            f"{_short(path.parent)} cannot be written ({fault.strerror or fault}): what is compiled or tuned from now "
            "on lasts as long as this process; CONVFORGE_CACHE_DIR names another folder"
        )
        return False
    return True


def file_sizes(folder: Path) -> list[int]:
    """Return the bytes of each file below a folder; skip files that another process removes meanwhile."""
    sizes = []
    for inside, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                sizes.append(os.stat(os.path.join(inside, name)).st_size)
    return sizes


def remove_folder(folder: Path) -> None:
    """Remove a folder of a cache, even if other processes remove its files too. Raises ``OSError`` on failure."""

    def missed(_: object, __: str, failed: tuple[type[BaseException], BaseException, object]) -> None:
        if not isinstance(failed[1], FileNotFoundError):
            raise failed[1]

    shutil.rmtree(folder, onerror=missed)


class DiskCache:
    """Compiled kernels in a folder (None: keep nothing), for several processes; the least recently used are removed."""

    def __init__(self, folder: Path | None, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes

    def key(self, *parts: str) -> str:
        """Return a file name: a digest of everything that determines the code."""
        return hashlib.sha256(json.dumps([SCHEMA, *parts]).encode()).hexdigest()

    def load(self, key: str) -> tuple[dict[str, Any], bytes] | None:
        """Read a kernel's stored facts and its code; None without a valid file."""
        if self.folder is None:
            return None
        with suppress(OSError, ValueError, KeyError, AttributeError):
            head, _, code = (self.folder / key).read_bytes().partition(b"\n")
            about = json.loads(head)
            if about.pop("digest") == hashlib.sha256(code).hexdigest():
                os.utime(self.folder / key)  # marks its last use
                return about, code
        return None

    def store(self, key: str, about: dict[str, Any], code: bytes) -> None:
        """Write a kernel; do nothing if the folder cannot be written."""
        head = json.dumps({**about, "digest": hashlib.sha256(code).hexdigest()}).encode()
        if self.folder is not None and keep(self.folder / key, head + b"\n" + code):
            self._trim()

    def _trim(self) -> None:
        """Remove the least recently used files beyond the limit; skip those that another process removes meanwhile."""
        sizes = []
        with suppress(OSError), os.scandir(self.folder) as entries:  # for speed: the folder may have thousands of files
            for entry in entries:
                with suppress(OSError):
                    if not entry.name.startswith(".") and entry.is_file():
                        sizes.append((entry.stat().st_mtime, entry.stat().st_size, entry.path))
        beyond = sum(size for _, size, _ in sizes) - self.limit_bytes
        for _, size, path in sorted(sizes) if beyond > 0 else ():
            if beyond > 0:
                Path(path).unlink(missing_ok=True)
                beyond -= size
