"""Files of the package, read from a folder or a zip archive, as sources or as .pyc files only."""

from __future__ import annotations

import atexit
import errno
import marshal
import os
import shutil
import tempfile
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def read_file(path: Path) -> bytes:
    """Read a file of the package, or another file. Raises ``OSError`` if it does not exist."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if not path.is_relative_to(PACKAGE):
            raise
        return _inside(path).read_bytes()


def read_module(path: Path) -> bytes:
    """Return a module's source, else its bytecode, as input of digests; ``OSError`` without both."""
    for candidate in (path, path.with_suffix(".pyc")):
        try:
            return read_file(candidate)
        except OSError:
            continue
    name = ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    spec = find_spec(name) if path.suffix == ".py" else None
    get_code = getattr(spec and spec.loader, "get_code", None)
    if get_code is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return marshal.dumps(get_code(name), 2)


def modules(folder: Path) -> list[tuple[str, bytes]]:
    """Return (path in the package, content) of each module in a folder: of sources, else of bytecode."""
    found = _files(folder)
    for suffix in (".py", ".pyc"):
        if chosen := [(name, file.read_bytes()) for name, file in found if name.endswith(suffix)]:
            return chosen
    return []


def kernels(folder: Path) -> list[tuple[str, bytes]]:
    """Return (path in the package, content) of each CUDA C++ file in a folder."""
    return [(name, file.read_bytes()) for name, file in _files(folder) if name.endswith((".cu", ".cuh"))]


@cache
def on_disk(folder: Path) -> Path:
    """Return a folder of the package for compilers: itself, or a copy that lasts as long as the process."""
    if folder.is_dir():
        return folder
    files = [file for file in _inside(folder).iterdir() if file.is_file()]
    copy = Path(tempfile.mkdtemp(prefix="convforge-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    for file in files:
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def _inside(path: Path) -> Traversable:
    return resources.files("convforge").joinpath(*path.relative_to(PACKAGE).parts)


def _files(folder: Path) -> list[tuple[str, Traversable]]:
    """Return (path in the package, file) of each file below a folder, sorted by path."""
    found: list[tuple[str, Traversable]] = []
    waiting = [(folder.relative_to(PACKAGE).as_posix(), _inside(folder))]
    while waiting:
        name, place = waiting.pop()
        if not place.is_dir():
            found.append((name, place))
        elif not name.endswith("__pycache__"):
            waiting += ((f"{name}/{entry.name}", entry) for entry in place.iterdir())
    return sorted(found, key=lambda pair: pair[0])
