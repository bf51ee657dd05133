"""Replace files completely or not at all, even if a signal ends the process."""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

if sys.platform != "win32":  # Windows cannot remove or rename an open file
    import fcntl

_NAME = re.compile(r"\.convforge-[0-9a-f]{12}\.tmp")

# Minimum age of files that are removed: a new temporary file may not be locked yet.
SWEPT_AFTER_SECONDS = 3600.0

# Of the system call renameat2: relative paths begin at the current folder; both names exist, and are exchanged.
_HERE, _RENAME_EXCHANGE = -100, 2

# Least time between two SIGINT that both count: a program that runs this one may send it twice at once, to the process
# and to its group, as `timeout` does.
REPEATED_AFTER_SECONDS = 1.0

# Windows has no SIGHUP.
_SIGNALS = [signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if name in signal.Signals.__members__]

_swept: set[Path] = set()


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """Open a temporary file in the folder of `target`; it replaces `target` if the block succeeds, else it is removed.

    An existing target keeps its permissions. The temporary file is locked while it is written, so that other processes
    do not remove it. Temporary files of killed processes are removed, once per folder and process. ``OSError`` if the
    file cannot be made, written or renamed.
    """
    if target.parent not in _swept:
        _swept.add(target.parent)
        sweep(target.parent)
    temporary = target.with_name(f".convforge-{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("x+b") as file:  # open() applies the umask, tempfile would not
            lock(file)
            yield file
            file.flush()
            os.fsync(file.fileno())
            if target.exists():
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
            if sys.platform != "win32":  # rename while the file is locked
                temporary.replace(target)
        if sys.platform == "win32":
            temporary.replace(target)
    finally:
        with suppress(OSError):  # after success the file is gone; a cleanup error must not hide the first error
            temporary.unlink()


def sweep(folder: Path) -> None:
    """Remove this user's temporary files that have not changed for an hour and are not locked."""
    try:
        found = [entry for entry in os.scandir(folder) if _NAME.fullmatch(entry.name)]
    except OSError:  # a folder without read access: the write reports the fault
        return
    for entry in found:
        with suppress(OSError):  # already removed, or in use
            facts = entry.stat(follow_symlinks=False)
            ours = stat.S_ISREG(facts.st_mode) and (sys.platform == "win32" or facts.st_uid == os.geteuid())
            if ours and time.time() - facts.st_mtime > SWEPT_AFTER_SECONDS:
                with open(entry.path, "rb") as file:
                    lock(file, must=True)
                    if sys.platform != "win32":
                        os.unlink(entry.path)
                if sys.platform == "win32":
                    os.unlink(entry.path)


@cache
def _renameat2() -> Callable[..., int] | None:
    """Return the C library's function; None where there is none: other systems than Linux, glibc before 2.28."""
    if sys.platform != "linux":
        return None
    try:
        return ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two files or folders in one step; False if the system or the file system cannot do it."""
    renameat2 = _renameat2()
    if renameat2 is None:
        return False
    return renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), ctypes.c_uint(_RENAME_EXCHANGE)) == 0


def lock(file: BinaryIO, *, must: bool = False) -> None:
    """Lock an open file until it is closed, except on Windows; raise ``OSError`` for a failure only if `must`."""
    if sys.platform != "win32":
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if must:
                raise


@contextmanager
def interrupts(heard: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Raise KeyboardInterrupt on SIGINT, SIGTERM and SIGHUP; the yielded function is true after one.

    `heard` is called at the first signal, before the exception is raised. Callers need the yielded function because a
    library's callback may suppress the exception. Signals that are ignored at the start, as under nohup, stay ignored.
    After the first signal only a SIGINT a second later raises again: signals often arrive together, and a second
    exception would end the cleanup that the first one has begun.
    """
    came: float | None = None

    def interrupt(number: int, frame: object) -> None:
        nonlocal came
        now, before = time.monotonic(), came
        came = now if before is None else before
        if before is None:
            heard()
        if before is None or (number == signal.SIGINT and now - before >= REPEATED_AFTER_SECONDS):
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only the main thread can handle signals
        yield lambda: False
        return
    handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in handled}
    try:
        yield lambda: came is not None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
