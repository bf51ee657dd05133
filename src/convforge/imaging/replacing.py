"""Files that are replaced all or not at all, also where a signal ends the process or has killed an earlier one."""

from __future__ import annotations

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
from pathlib import Path
from typing import BinaryIO

if sys.platform != "win32":  # where a file that is open cannot be removed or renamed
    import fcntl

_NAME = re.compile(r"\.convforge-[0-9a-f]{12}\.tmp")

# A temporary file younger than this may have been made this moment and not be locked yet.
SWEPT_AFTER_SECONDS = 3600.0

# Windows has no SIGHUP.
_SIGNALS = [signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if name in signal.Signals.__members__]

_swept: set[Path] = set()


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `target`, which replaces it when the block ends well, and is removed if not.

    An existing target keeps its permissions. The temporary file is locked while it is written, so that other processes
    see that it is in use. Those of killed processes are removed, once a folder and process. ``OSError`` where the file
    cannot be made, written or renamed.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder, "a.txt")) as file:
    ...         size = file.write(b"done")
    ...     os.listdir(folder)
    ['a.txt']
    """
    if target.parent not in _swept:
        _swept.add(target.parent)
        sweep(target.parent)
    temporary = target.with_name(f".convforge-{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("x+b") as file:  # a plain open: the permissions are those the umask gives any new file
            _lock(file)
            yield file
            file.flush()
            os.fsync(file.fileno())
            if target.exists():
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
            if sys.platform != "win32":  # renamed while it is locked
                temporary.replace(target)
        if sys.platform == "win32":
            temporary.replace(target)
    finally:
        with suppress(OSError):  # after success there is none; a failure to clean up must not hide the failure itself
            temporary.unlink()


def sweep(folder: Path) -> None:
    """Remove this user's temporary files that are unchanged for an hour and locked by no process."""
    try:
        found = [entry for entry in os.scandir(folder) if _NAME.fullmatch(entry.name)]
    except OSError:  # a folder that may not be listed: the write itself reports what is wrong
        return
    for entry in found:
        with suppress(OSError):  # gone meanwhile, or in use
            facts = entry.stat(follow_symlinks=False)
            ours = stat.S_ISREG(facts.st_mode) and (sys.platform == "win32" or facts.st_uid == os.geteuid())
            if ours and time.time() - facts.st_mtime > SWEPT_AFTER_SECONDS:
                with open(entry.path, "rb") as file:
                    _lock(file, must=True)
                    if sys.platform != "win32":
                        os.unlink(entry.path)
                if sys.platform == "win32":
                    os.unlink(entry.path)


def _lock(file: BinaryIO, *, must: bool = False) -> None:
    """Lock an open file until it is closed; where a file system has no locks, only `must` fails."""
    if sys.platform != "win32":
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if must:
                raise


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Raise KeyboardInterrupt on SIGINT, SIGTERM and SIGHUP; the function that it gives tells if one came.

    The function is needed because a callback of a library may drop the exception. A signal that the process was started
    to ignore, as by nohup, stays ignored. Of SIGTERM and SIGHUP the first counts: they often come together.
    """
    came = False

    def interrupt(number: int, frame: object) -> None:
        nonlocal came
        repeated, came = came, True
        if not repeated or number == signal.SIGINT:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # other threads may not handle signals
        yield lambda: False
        return
    handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in handled}
    try:
        yield lambda: came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
