"""Time and peak memory of whole processes, and of their children."""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter

import pytest

from convforge.benchmark.processes import ended

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory are read from Linux's /proc")

# A child that holds 100 MB while its parent waits for it.
CHILD = "a = b'1' * 100_000_000; import time; time.sleep(0.3)"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}], check=True)"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_the_peak_is_that_of_the_process_and_not_that_of_its_parent() -> None:
    held = bytearray(b"1") * 200_000_000  # here: it must not count there
    small, large = ended(python("pass")), ended(python("a = b'1' * 100_000_000; del a"))
    assert len(held) == 200_000_000
    assert (small.code, large.code) == (0, 0)
    assert small.peak_bytes < 50_000_000
    assert 100_000_000 < large.peak_bytes < 150_000_000
    assert large.gpu_bytes is None


def test_children_count() -> None:
    assert 100_000_000 < ended(python(PARENT)).peak_bytes < 200_000_000


def test_seconds_of_cores_are_those_of_the_process_and_its_children() -> None:
    busy = "import time\nwhile time.process_time() < 0.4: pass"
    found = ended(python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"))
    assert 0.4 < found.cpu_s < 1.5
    assert ended(python("import time; time.sleep(0.5)")).cpu_s < 0.4


def test_output_and_status() -> None:
    found = ended(python("import os, sys; print(os.environ['A']); sys.exit('broken')"), {"A": "one"})
    assert (found.code, found.output, found.errors) == (1, "one\n", "broken\n")


def test_a_process_with_children_is_stopped_after_its_time(tmp_path: Path) -> None:
    mark = tmp_path / "written"
    child = f"import time, pathlib; time.sleep(2); pathlib.Path({str(mark)!r}).touch()"
    begin = perf_counter()
    found = ended(python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"), limit_s=0.5)
    assert found.code is None
    while perf_counter() - begin < 2.7:
        ended(python("import time; time.sleep(0.2)"))
    assert not mark.exists()


def test_memory_of_gpus_counts_beyond_that_before_the_start() -> None:
    used = iter([50, 60, 90, *[70] * 1000])
    assert ended(python("import time; time.sleep(0.1)"), gpu_bytes=lambda: next(used)).gpu_bytes == 40
