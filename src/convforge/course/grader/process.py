"""Runs an untrusted process, with its children, under limits of time and memory."""

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

# Seconds between checks of a process; at a few GB/s, it can allocate only little memory between them.
LOOK_S = 0.02
# Bytes kept from the end of standard output and error.
TAIL = 4000


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a process."""

    code: int  # exit code; negative for a signal
    limit: str  # "time" or "memory" if it exceeded a limit, else empty
    seconds: float  # wall-clock time, including start-up
    output: str  # end of standard error or, if empty, of standard output

    @property
    def crash(self) -> str:
        """Name of the signal if it crashed, else empty."""
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
        """Return the reason why a process was stopped or crashed, with advice; empty if it ended by itself."""
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
    """Run a command until it ends or exceeds a limit; ``OSError`` if it cannot be started.

    The time limit restarts whenever the value of `progress` changes. Until then, the limit is at least `first_s`.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begin = time.monotonic()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=os.name == "posix"
        )
        try:
            limit = _wait(process, limits, progress, first_s)
        finally:  # kill the whole process group
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
    if sys.platform == "linux":  # no core files, and a size limit for others: endless output must not fill the disk
        import resource

        sizes = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: limits.memory_bytes}
        # The process may have ended already, or have a lower limit.
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
    """Return the resident memory of all processes in a session, in bytes."""
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
