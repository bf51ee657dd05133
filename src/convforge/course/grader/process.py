"""Runs an untrusted process under limits of time and memory; its children end with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

# Seconds between two checks of a process: at a few GB/s it allocates little in between.
LOOK_S = 0.02
# Bytes kept of standard output and error.
TAIL = 4000


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a process."""

    code: int  # exit code; negative for a signal
    limit: str  # "time" or "memory" if it passed a limit; else empty
    seconds: float  # by the wall clock, start-up included
    output: str  # end of its standard error, or of its standard output

    @property
    def crash(self) -> str:
        """Name of the signal of a crash, or empty."""
        if self.code >= 0 or self.limit:
            return ""
        known = -self.code in signal.valid_signals()
        return signal.Signals(-self.code).name if known else f"signal {-self.code}"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a process."""

    seconds: float = 10.0  # for one run of a program, or one launch of a kernel
    memory_bytes: int = 4_000_000_000  # with its children (not on Windows); on Linux also of each file

    def words(self, ended: Ended) -> str:
        """Reason why a process was stopped or crashed, with advice; empty if it ended by itself."""
        if ended.limit == "time":
            return (
                f"it did not end within {self.seconds:g} s and was stopped; does every loop's variable change, and is "
                "its end reached? --timeout allows more"
            )
        if ended.limit == "memory":
            return f"it held more than {self.memory_bytes / 1e6:.0f} MB and was stopped; --memory allows more"
        if ended.crash:
            return f"it crashed ({ended.crash}), most often by an index outside of an array: compare each with its size"
        return ""


def run_limited(
    command: Sequence[str], limits: Limits, progress: Callable[[], object] | None = None, first_s: float = 0.0
) -> Ended:
    """Run a command until it ends or passes a limit. Raises ``OSError`` if it cannot be started.

    The time limit restarts whenever the value of `progress` changes. Before the first, `first_s` holds, if larger.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begin = time.monotonic()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=os.name == "posix"
        )
        try:
            limit = _wait(process, limits, progress, first_s)
        finally:  # kill its whole group
            if os.name == "posix":
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            process.wait()
        return Ended(process.returncode, limit, time.monotonic() - begin, _tail(err) or _tail(out))


def _wait(
    process: subprocess.Popen[bytes], limits: Limits, progress: Callable[[], object] | None, first_s: float
) -> str:
    """Wait for the end; return the exceeded limit, or an empty string."""
    if sys.platform == "linux":  # no core files, no larger files: an endless output must not fill the disk
        import resource

        sizes = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: limits.memory_bytes}
        # It may have ended, or have a lower limit already.
        with contextlib.suppress(ProcessLookupError, PermissionError, ValueError):
            for kind, size in sizes.items():
                resource.prlimit(process.pid, kind, (size, size))
    since, allowed = time.monotonic(), max(limits.seconds, first_s)
    last = progress() if progress else None
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_S)
            return ""
        if os.name == "posix" and resident_bytes(process.pid) > limits.memory_bytes:
            return "memory"
        if progress is not None and (now := progress()) != last:
            since, last, allowed = time.monotonic(), now, limits.seconds
        if time.monotonic() - since > allowed:
            return "time"


def resident_bytes(session: int) -> int:
    """Resident memory of a session's processes."""
    import psutil

    total = 0
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):  # it has ended, or is another's
            if os.getsid(process.pid) == session:
                total += process.memory_info().rss
    return total


def _tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL))
    return file.read().decode(errors="replace").strip()
