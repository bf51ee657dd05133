"""Stored measurements: in memory, on disk between processes, and in shipped files.

A choice is a JSON file, named by its bucket, in a folder named by its environment. Files are replaced atomically. A
file that cannot be read, or is of another environment, is renamed, and the bucket is measured again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from convforge.algorithms import algorithms
from convforge.backends.cache import cache_folder, keep, write_whole
from convforge.backends.facts import DeviceFacts
from convforge.backends.forks import after_fork_in_child
from convforge.backends.sources import PACKAGE, kernels, modules
from convforge.problem import Problem, tuning_key

SCHEMA = 1  # increased when the files' format changes
LEVELS = ("auto", "max")  # levels that measure; the more thorough is last
MOST = 4096  # choices that a process keeps in memory
# Fields of the environment that must be equal to use a shipped file; for the user's own cache all must be equal.
SHIPPED = ("backend", "device", "architecture", "cores", "methods")
# Backend -> packages with versions that are part of an environment.
_PACKAGES = {"cpu": ("numpy", "numba", "scipy"), "cuda": ("cuda-core", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")}


@dataclass(frozen=True, slots=True)
class Tried:
    """Outcome of one candidate."""

    algorithm: str
    config: str
    ours: bool  # False for another library's method
    predicted_s: float
    seconds: float | None = None  # median of a call, with preparation of weights
    spread: float = 0.0  # half the interquartile range over the median
    workspace_bytes: int | None = None
    tied: bool = False  # level with the fastest in the final
    fault: str = ""  # reason why `seconds` is None
    wrong: bool = False  # wrong result: the method is not used for this bucket, even by rule

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Tried:
        """Read the fields from JSON; ``TypeError`` or ``ValueError`` for an invalid table."""
        tried = cls(**table)
        numbers = (tried.predicted_s, tried.spread, tried.seconds or 0.0, tried.workspace_bytes or 0)
        texts = (tried.algorithm, tried.config, tried.fault)
        right = all(isinstance(n, int | float) and n >= 0 for n in numbers) and all(isinstance(s, str) for s in texts)
        if not right:
            raise ValueError(f"{table} is no candidate's record")
        return tried


class Bucket(NamedTuple):
    """Key of a choice in an environment: tuning key, workspace limit of the search, True if peers were candidates."""

    key: str
    workspace_limit: int | None = None
    peers: bool = False

    def __str__(self) -> str:
        limit = "" if self.workspace_limit is None else f" within {self.workspace_limit} B"
        return f"{self.key}{limit}{' with peers' if self.peers else ''}"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Stored outcome of one search."""

    bucket: Bucket
    environment: dict[str, str]  # of :func:`environment_of`
    level: str  # "auto" or "max"
    problem: str  # text form of the measured problem
    tried: tuple[Tried, ...]  # the chosen candidate first
    spent_s: float = 0.0  # seconds of the search
    origin: str = ""  # the shipped file; empty for a search on this machine
    fault: str = ""  # reason why nothing could be measured; this outcome stays in memory only

    def to_table(self) -> dict[str, Any]:
        """Return a table for JSON, without the environment."""
        return {
            "bucket": self.bucket.key, "workspace_limit": self.bucket.workspace_limit, "peers": self.bucket.peers,
            "level": self.level, "problem": self.problem, "spent_s": round(self.spent_s, 3),
            "tried": [asdict(tried) for tried in self.tried],
        }  # fmt: skip

    @classmethod
    def from_table(cls, table: Mapping[str, Any], environment: Mapping[str, str], origin: str = "") -> SearchResult:
        """Read the table of :meth:`to_table`; ``KeyError``, ``TypeError`` or ``ValueError`` if invalid."""
        limit, level = table["workspace_limit"], table["level"]
        if level not in LEVELS or not (limit is None or isinstance(limit, int)) or not isinstance(table["bucket"], str):
            raise ValueError(
                f"level={level!r}, workspace_limit={limit!r} and bucket={table['bucket']!r} are no choice's"
            )
        bucket = Bucket(table["bucket"], limit, bool(table["peers"]))
        tried = tuple(Tried.from_table(row) for row in table["tried"])
        return cls(bucket, dict(environment), level, str(table["problem"]), tried, float(table["spent_s"]), origin)


def environment_of(operation: str, facts: DeviceFacts) -> dict[str, str]:
    """Everything except the problem that determines a measurement: device, driver, our methods, libraries."""
    return {
        "operation": operation, "backend": facts.backend, "device": facts.name, "architecture": facts.architecture,
        "cores": str(facts.cores), "driver": facts.driver, "methods": _methods(operation, facts.backend),
        "libraries": _libraries(facts.backend),
    }  # fmt: skip


@cache
def _methods(operation: str, backend: str) -> str:
    """A digest of the names of our methods of an operation, and of all files of methods and kernels."""
    ours = [a.name for a in algorithms() if (a.operation, a.backend) == (operation, backend)]
    return hashlib.sha256(json.dumps([ours, _files_digest()]).encode()).hexdigest()[:16]


@cache
def _files_digest() -> str:
    digest, folder = hashlib.sha256(), PACKAGE / "algorithms"
    for name, content in (*modules(folder), *kernels(folder)):
        digest.update(f"{name}\0".encode() + content)
    return digest.hexdigest()


@cache
def _libraries(backend: str) -> str:
    from importlib import metadata

    found = []
    for name in _PACKAGES.get(backend, ()):
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ", ".join(found)


class Choices:
    """The stored choices, by default in the user's cache folder. Safe for several threads and processes."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._kept: dict[tuple[Path | None, str, str], SearchResult] = {}
        self._shipped: dict[str, list[SearchResult]] = {}
        self._seen, self._every = "", 0
        self._of: dict[str, int] = {}
        self.unlock()

    def unlock(self) -> None:
        """Replace the lock in a forked process, where the thread that held it does not exist."""
        self._lock = threading.RLock()

    def generation(self, key: str) -> int:
        """Return a counter that grows with every new choice for a tuning key, and when any choice may have changed."""
        return self._every + self._of.get(key, 0)

    def find(self, operation: str, facts: DeviceFacts, bucket: Bucket, level: str) -> SearchResult | None:
        """Find the choice for a bucket at this level or a more thorough one: measured here, else shipped."""
        shipped, folder = self._all_shipped(), self._folder
        if not self._kept and not shipped and (folder is None or not folder.is_dir()):
            return None  # nothing was ever tuned: skip the environment; its digests take time
        where = environment_of(operation, facts)
        own = self._own(folder, where, bucket)
        others = (one for one in shipped.get(str(bucket), []) if _alike(one.environment, where, SHIPPED))
        enough = LEVELS[LEVELS.index(level) :]
        return next((one for one in (own, *others) if one is not None and one.level in enough), None)

    def remember(self, found: SearchResult, *, disk: bool = True) -> None:
        """Store a search, unless a more thorough one is stored."""
        folder, name = self._folder, _file(found.environment, found.bucket)
        with self._lock:
            before = self._own(folder, found.environment, found.bucket)
            if before is not None and LEVELS.index(before.level) > LEVELS.index(found.level):
                return
            while len(self._kept) >= MOST:
                self._kept.pop(next(iter(self._kept)))
            self._kept[folder, name, str(found.bucket)] = found
            self._of[found.bucket.key] = self._of.get(found.bucket.key, 0) + 1
        if disk and folder is not None:
            keep(folder / name, _json([found]))

    def load(self, path: str | os.PathLike[str]) -> int:
        """See :func:`convforge.tuning.load`."""
        found = read(Path(path))
        with self._lock:
            for one in found:
                known = [old for old in self._shipped.get(str(one.bucket), []) if old.environment != one.environment]
                self._shipped[str(one.bucket)] = [one, *known]
            self._every += 1
        return len(found)

    def forget(self) -> None:
        """Forget choices in memory and loaded files; the disk is unchanged."""
        with self._lock:
            self._kept.clear()
            self._shipped.clear()
            self._seen = ""
            self._every += 1

    def _all_shipped(self) -> dict[str, list[SearchResult]]:
        """Return the loaded choices, after loading the files that CONVFORGE_TUNED names."""
        named = os.environ.get("CONVFORGE_TUNED", "")
        if named != self._seen:
            with self._lock:
                self._seen = named
                for path in filter(None, named.split(os.pathsep)):
                    try:
                        self.load(path)
                    except (OSError, ValueError) as fault:
                        warnings.warn(f"CONVFORGE_TUNED: {fault}; it is not used", stacklevel=2)
        return self._shipped

    @property
    def _folder(self) -> Path | None:
        return self.folder or cache_folder("tuned")

    def _own(self, folder: Path | None, where: Mapping[str, str], bucket: Bucket) -> SearchResult | None:
        """Find a choice of this machine in memory, else on disk; rename a file that cannot be read."""
        key = (folder, _file(where, bucket), str(bucket))
        with self._lock:
            if key in self._kept or folder is None:
                return self._kept.get(key)
            path = folder / key[1]
            try:
                (found,) = [replace(one, origin="") for one in read(path)]
                if found.bucket != bucket or not _alike(found.environment, where, tuple(where)):
                    raise ValueError(f"{path} is of another bucket or environment")
            except OSError:
                return None
            except ValueError:
                with suppress(OSError):
                    os.replace(path, path.with_suffix(".aside"))
                return None
            self._kept[key] = found
            return found


def read(path: Path) -> list[SearchResult]:
    """Read the choices of a file; ``OSError``, or ``ValueError`` for a damaged file or another version."""
    try:
        table = json.loads(path.read_bytes())
        if table["schema"] != SCHEMA:
            raise ValueError(f"it is of schema {table['schema']!r}; this version reads {SCHEMA}")
        return [
            SearchResult.from_table(row, {str(k): str(v) for k, v in part["environment"].items()}, str(path))
            for part in table["tuned"]
            for row in part["choices"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as fault:
        raise ValueError(f"{path} holds no tuned choices that can be read: {type(fault).__name__}: {fault}") from None


def write(path: Path, found: Iterable[SearchResult]) -> int:
    """Merge choices into a file, where new ones replace old ones; return the number of choices in the file.

    Raises ``OSError``, or ``ValueError`` for a file of another kind, which stays unchanged.
    """
    merged: dict[tuple[str, str], SearchResult] = {}
    for one in (*(read(path) if path.exists() else ()), *found):
        merged[str(one.bucket), json.dumps(one.environment, sort_keys=True)] = one
    write_whole(path, _json(merged.values()))
    return len(merged)


def _json(found: Iterable[SearchResult]) -> bytes:
    """Return JSON of the choices, grouped by environment."""
    parts: dict[str, dict[str, Any]] = {}
    for one in found:
        key = json.dumps(one.environment, sort_keys=True)
        part = parts.setdefault(key, {"environment": one.environment, "choices": []})
        part["choices"].append(one.to_table())
    for part in parts.values():
        part["choices"].sort(key=lambda row: (row["bucket"], row["workspace_limit"] or -1, row["peers"]))
    return (json.dumps({"schema": SCHEMA, "tuned": list(parts.values())}, indent=1) + "\n").encode()


def _alike(a: Mapping[str, str], b: Mapping[str, str], names: Iterable[str]) -> bool:
    return all(a.get(name) == b.get(name) for name in names)


def _file(where: Mapping[str, str], bucket: Bucket) -> str:
    """Path of a bucket's file within the cache: readable names, made unique by digests."""
    device = re.sub(r"[^a-z0-9]+", "-", where["device"].lower()).strip("-")[:40]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", str(bucket))[:80]
    return f"{device}-{_short(json.dumps(where, sort_keys=True))}/{name}-{_short(str(bucket))}.json"


key_of = lru_cache(maxsize=MOST)(tuning_key)


@lru_cache(maxsize=MOST)
def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def bucket_of(problem: Problem, workspace_limit: int | None = None, *, peers: bool = False) -> Bucket:
    return Bucket(key_of(problem), workspace_limit, peers)


CHOICES = Choices()
after_fork_in_child(CHOICES.unlock)
