"""A stranger's process under limits of time and memory; whatever it started ends with it."""

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
from pathlib import Path
from typing import IO

# Between two looks at a process: memory is taken at a few GB/s, so that little is taken in between.
LOOK_S = 0.02
# Of standard output and error, what is kept.
TAIL = 4000


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended.

    Attributes
    ----------
    code : int
        Its exit code; negative where a signal ended it.
    limit : str
        "time" or "memory" where a limit did; else empty.
    seconds : float
        By the wall clock, start-up included.
    said : str
        The end of what it wrote to standard error, or else to standard output.
    """

    code: int
    limit: str
    seconds: float
    said: str

    @property
    def crash(self) -> str:
        """The name of the signal that ended it by itself, or empty."""
        if self.code >= 0 or self.limit:
            return ""
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a process may take.

    Attributes
    ----------
    seconds : float
        Of one run of a program, or of one launch of a kernel.
    memory_bytes : int
        That it and its children may hold in memory together (on Linux; elsewhere there is no such limit), and that a
        file which it writes may have.
    """

    seconds: float = 10.0
    memory_bytes: int = 4_000_000_000

    def words(self, ended: Ended) -> str:
        """Why a process did not end by itself, and what to do; empty where it did."""
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
    """Run a command until it ends, or takes too long or too much.

    Parameters
    ----------
    progress : callable
        Where it is given, the time begins anew whenever what it gives changes.
    first_s : float
        Until it changes for the first time, so much time is allowed where that is more.

    Raises
    ------
    OSError
        It cannot be started.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begin = time.monotonic()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=os.name == "posix"
        )
        try:
            limit = _wait(process, limits, progress, first_s)
        finally:
            _end(process)
        taken = time.monotonic() - begin
        return Ended(process.returncode, limit, taken, _tail(err) or _tail(out))


def _wait(
    process: subprocess.Popen[bytes], limits: Limits, progress: Callable[[], object] | None, first_s: float
) -> str:
    """Wait for the end; the limit that came first, or empty."""
    linux = sys.platform == "linux"
    if linux:
        _limit_files(process.pid, limits.memory_bytes)
    since, allowed = time.monotonic(), max(limits.seconds, first_s)
    seen = progress() if progress else None
    while True:
        try:
            process.wait(LOOK_S)
            return ""
        except subprocess.TimeoutExpired:
            pass
        if linux and resident_bytes(process.pid) > limits.memory_bytes:
            return "memory"
        if progress is not None and (now := progress()) != seen:
            since, seen, allowed = time.monotonic(), now, limits.seconds
        if time.monotonic() - since > allowed:
            return "time"


def _limit_files(pid: int, nbytes: int) -> None:
    """No core files, and none larger than this: an endless output must not fill the disk."""
    import resource

    try:
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (nbytes, nbytes))
    except (ProcessLookupError, PermissionError, ValueError):  # it has ended, or has a lower limit already
        return


def resident_bytes(session: int) -> int:
    """Memory that the processes of a session hold, from /proc."""
    total = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                stat = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            if int(stat[3]) == session:  # fields 6 and 24 of proc(5)
                total += int(stat[21]) * os.sysconf("SC_PAGE_SIZE")
    return total


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and all of its group, those that it left behind too."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def _tail(file: IO[bytes]) -> str:
    """The end of what was written to a file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL))
    return file.read().decode(errors="replace").strip()
