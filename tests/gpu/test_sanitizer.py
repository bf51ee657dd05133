"""compute-sanitizer over every method: addresses, races, reads of what was not written, barriers. It must also be able
to find them: planted faults are found."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.gpu.present import need_gpu

from convforge.algorithms import ON_DEVICE

need_gpu()

SMOKE = Path(__file__).with_name("smoke.py")
TIMEOUT_S = 540


def find_sanitizer() -> str | None:
    """Path of compute-sanitizer: from PATH, the toolkit, or NVIDIA's wheel."""
    found = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    room = importlib.util.find_spec("nvidia")
    folders = [] if room is None else list(room.submodule_search_locations or ())
    wheels = (str(path) for folder in folders for path in Path(folder).glob("*/bin/compute-sanitizer"))
    return found or next(wheels, None)


FOUND = find_sanitizer()
pytestmark = pytest.mark.skipif(
    FOUND is None,
    reason="compute-sanitizer is not installed: pip install nvidia-cuda-sanitizer-api, or the CUDA toolkit",
)


def sanitize(tool: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the smoke set under a tool of the sanitizer."""
    command = [str(FOUND), "--tool", tool, "--error-exitcode", "1", sys.executable, str(SMOKE), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_nothing_is_found(tool: str) -> None:
    done = sanitize(tool)
    said = f"{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    assert done.returncode == 0, said
    for algorithm in ON_DEVICE:
        if algorithm.backend == "cuda":
            assert f"\n{algorithm.name} " in f"\n{done.stdout}", f"{algorithm.name} did not run:\n{said}"


@pytest.mark.parametrize("tool, fault", [("memcheck", "overrun"), ("initcheck", "unwritten")])
def test_a_planted_fault_is_found(tool: str, fault: str) -> None:
    done = sanitize(tool, fault)
    assert done.returncode != 0, f"{tool} let {fault!r} pass:\n{done.stdout[-4000:]}"
    assert "ERROR SUMMARY" in done.stdout + done.stderr, f"{tool} did not run:\n{done.stdout[-4000:]}{done.stderr}"
