"""The package without its sources on disk: compiled to .pyc alone, and inside a zip archive."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.backends.emulated import needs_emulator

from convforge.backends import sources

PACKAGE = Path(__file__).parents[2] / "src" / "convforge"

PROGRAM = """
import sys
import numpy as np
import convforge
from convforge.tuning.choices import _files_digest

assert convforge.__file__.startswith(sys.argv[1]), convforge.__file__
x, w = np.arange(16, dtype="f4").reshape(1, 1, 4, 4), np.ones((1, 1, 3, 3), "f4")
print(convforge.conv2d(x, w, algorithm="direct_naive", device=sys.argv[2])[0, 0].tolist())
if sys.argv[2] == "cpu":
    picture = np.arange(16, dtype="u1").reshape(4, 4)
    print(convforge.filter(picture, "box:3", border="zeros", algorithm="direct_naive")[1:3, 1:3].tolist())
assert len(_files_digest()) == 64
"""


def bytecode(folder: Path) -> Path:
    """A copy whose modules are .pyc files beside everything else."""
    copy = folder / "bytecode" / "convforge"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    assert compileall.compile_dir(copy, quiet=2, legacy=True)
    for source in copy.rglob("*.py"):
        source.unlink()
    return copy.parent


def archive(folder: Path) -> Path:
    """A zip archive of the package, and nothing else."""
    inside = folder / "inside" / "convforge"
    shutil.copytree(PACKAGE, inside, ignore=shutil.ignore_patterns("__pycache__"))
    return Path(shutil.make_archive(str(folder / "archive"), "zip", inside.parent))


def run(path: Path, device: str, cache: Path) -> list[str]:
    """Output of the program when the package is imported from `path`."""
    environment = os.environ | {"PYTHONPATH": str(path), "CONVFORGE_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, str(path), device], capture_output=True, text=True,
        env=environment, cwd=path.parent, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.thorough
@pytest.mark.parametrize("packed", [bytecode, archive])
def test_the_cpu_computes_and_keeps_its_kernels(packed: Callable[[Path], Path], tmp_path: Path) -> None:
    path, cache = packed(tmp_path), tmp_path / "cache"
    right = ["[[45.0, 54.0], [81.0, 90.0]]", "[[5, 6], [9, 10]]"]
    assert run(path, "cpu", cache) == right
    kept = {file: file.stat().st_mtime_ns for file in cache.rglob("*.nbc")}
    assert kept
    assert run(path, "cpu", cache) == right
    assert {file: file.stat().st_mtime_ns for file in cache.rglob("*.nbc")} == kept, "it was compiled again"


@pytest.mark.one_in(2)
@needs_emulator
@pytest.mark.parametrize("packed", [bytecode, archive])
def test_kernels_of_gpus_are_compiled(packed: Callable[[Path], Path], tmp_path: Path) -> None:
    assert run(packed(tmp_path), "emulator", tmp_path / "cache") == ["[[45.0, 54.0], [81.0, 90.0]]"]


def test_modules_of_a_frozen_program_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a source nor a .pyc is a file there: only the importer has the code."""

    def absent(path: Path) -> bytes:
        raise FileNotFoundError(path)

    monkeypatch.setattr(sources, "read_file", absent)
    names = ("__init__.py", "problem/__init__.py", "problem/conv2d.py", "problem/gemm.py")
    read = [sources.read_module(sources.PACKAGE / name) for name in names]
    assert len(set(read)) == 4
    assert read == [sources.read_module(sources.PACKAGE / name) for name in names]
    with pytest.raises(FileNotFoundError, match="naive"):
        sources.read_module(sources.PACKAGE / "algorithms/direct/naive.cu")
    with pytest.raises(FileNotFoundError, match="nothing"):
        sources.read_module(sources.PACKAGE / "problem/nothing.py")
