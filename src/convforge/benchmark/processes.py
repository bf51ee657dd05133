"""Time and peak memory of a whole process with its children."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

# Seconds between two readings of the memory.
EVERY_S = 0.01


class Ended(NamedTuple):
    """A process that has ended."""

    code: int | None  # exit status; None if it was stopped after its time
    seconds: float
    cpu_s: float  # of all its cores, and of its children that have ended
    peak_bytes: int  # of resident memory: its own and that of its children, each at its peak
    gpu_bytes: int | None  # most memory in use on the GPUs, beyond that before the start; None if not read
    output: str
    errors: str


def ended(
    command: Sequence[str], environment: Mapping[str, str] | None = None, limit_s: float | None = None,
    gpu_bytes: Callable[[], int] | None = None,
) -> Ended:  # fmt: skip
    """Run a command to its end and measure it; after `limit_s` seconds it is stopped.

    Peaks of resident memory (VmHWM) are read from Linux's /proc every 10 ms. ``OSError`` if the command cannot be
    started; ``RuntimeError`` on other systems.

    Examples
    --------
    >>> import sys
    >>> found = ended([sys.executable, "-c", "a = b'1' * 100_000_000; print(len(a))"])
    >>> found.code, found.output.strip(), 100_000_000 < found.peak_bytes < 150_000_000
    (0, '100000000', True)
    """
    if sys.platform != "linux":
        raise RuntimeError("peaks of memory are read from Linux's /proc")
    peaks: dict[int, int] = {}
    before = most = gpu_bytes() if gpu_bytes else 0
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        begin, cpu_before = perf_counter(), _cpu_seconds()
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=errors, start_new_session=True)
        stopped = False
        try:
            while True:
                for pid in _tree(process.pid):
                    peaks[pid] = max(peaks.get(pid, 0), _peak_of(pid))
                if gpu_bytes:
                    most = max(most, gpu_bytes())
                with suppress(subprocess.TimeoutExpired):
                    process.wait(EVERY_S)
                    break
                if limit_s is not None and perf_counter() - begin > limit_s:
                    stopped = True
                    break
            seconds = perf_counter() - begin
        finally:
            _stop(process)
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    code = None if stopped else process.returncode
    return Ended(
        code, seconds, _cpu_seconds() - cpu_before, sum(peaks.values()), most - before if gpu_bytes else None, *texts
    )


def _cpu_seconds() -> float:
    """Return the CPU seconds of all children of this process that have ended."""
    import resource  # of Unix alone

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        for pid in _tree(process.pid)[1:]:
            with suppress(OSError):
                subprocess.run(["kill", "-9", str(pid)], check=False)
        process.kill()
        process.wait()


def _tree(pid: int) -> list[int]:
    """Return a process and its descendants."""
    found = [pid]
    for parent in found:
        with suppress(OSError):
            for children in Path(f"/proc/{parent}/task").glob("*/children"):
                found += map(int, children.read_text().split())
    return found


def _peak_of(pid: int) -> int:
    """Return the peak of a process's resident memory in bytes; 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
