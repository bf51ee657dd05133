"""CPU kernels are compiled once a machine: what damage to their files, rivals and a full disk come to."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from convforge.backends import cache
from convforge.backends.cpu import jit as compiling

ROOT = Path(__file__).parents[2]

KERNELS = """
from convforge.backends.cpu.jit import jit

@jit
def twice(a):
    return 2 * a

@jit
def four_times(a):
    return twice(twice(a))
"""
# Two sets of types each; how many of the four were read from files.
CALLS = """
import sys
sys.path.insert(0, sys.argv[1])
from kernels import four_times, twice
assert (four_times(3), four_times(1.5), twice(2), twice(0.5)) == (12, 6.0, 4, 1.0)
print(sum(sum(k.stats.cache_hits.values()) for k in (twice, four_times)))
"""


def process(folder: Path) -> subprocess.Popen[str]:
    """A process that calls the kernels, with the folder's cache."""
    if not (folder / "kernels.py").exists():  # another process may read it just now
        (folder / "kernels.py").write_text(KERNELS)
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    environment = os.environ | {"CONVFORGE_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": path}
    command = [sys.executable, "-c", CALLS, str(folder)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read(folder: Path) -> int:
    """How many kernels a process takes from the cache, which must give right results."""
    out, said = (running := process(folder)).communicate(timeout=120)
    assert running.returncode == 0, said
    return int(out)


def files(folder: Path) -> list[Path]:
    """Everything in the cache."""
    return sorted(path for path in (folder / "cache").rglob("*") if path.is_file())


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "cut off": lambda whole: whole[: len(whole) // 2],
    "without its last byte": lambda whole: whole[:-1],
    "a byte changed": lambda whole: whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:],
    "garbage": lambda whole: b"no pickle" * 100,
    "zeros": lambda whole: bytes(len(whole)),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("first", [0, 3])
def test_damaged_files_are_made_again(tmp_path: Path, first: int) -> None:
    """Each file in a way of its own, as every process takes its second."""
    read(tmp_path)
    assert read(tmp_path) == 4
    kept, ways = files(tmp_path), [*DAMAGE.values()]
    for i, path in enumerate(kept):
        path.write_bytes(ways[(first + i) % len(ways)](path.read_bytes()))
    assert read(tmp_path) == 0, "something damaged was taken"
    assert files(tmp_path) == kept, "nothing half written"
    assert read(tmp_path) == 4, "it was not kept anew"


@pytest.mark.thorough
def test_a_folder_in_a_files_place_is_passed_over(tmp_path: Path) -> None:
    read(tmp_path)
    for path in files(tmp_path):
        path.unlink()
        path.mkdir()
    for _ in range(2):
        read(tmp_path)
    assert files(tmp_path) == []


@pytest.mark.thorough
def test_processes_compile_at_once(tmp_path: Path) -> None:
    for _ in range(2):
        running = [process(tmp_path) for _ in range(3)]
        ended = [(one.communicate(timeout=120)[1], one.returncode) for one in running]
        assert [code for _, code in ended] == [0, 0, 0], ended
    assert read(tmp_path) == 4
    assert all(path.suffix == ".nbc" for path in files(tmp_path)), "nothing half written"


def kernel(a: Any) -> Any:
    return a + 1


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("CONVFORGE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_full_disk_keeps_nothing_and_nobody_fails(apart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache, "write_whole", full)
    assert compiling.jit(kernel)(1) == 2
    assert list(apart.rglob("*.nbc")) == []


def test_without_a_digest_of_sources_nothing_is_kept(apart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "source_digest", lambda: None)
    assert compiling.jit(kernel)(1) == 2
    assert list(apart.rglob("*.nbc")) == []


def test_a_kernel_with_another_constant_is_another_kernel(apart: Path) -> None:
    """Bytecode alone does not tell: constants stand beside it."""
    for added in (1, 2):
        names: dict[str, Any] = {}
        exec(f"def other(a):\n    return a + {added}.5", names)
        assert compiling.jit(names["other"])(1) == 1.5 + added


def test_kernels_of_one_name_in_a_file_are_told_apart(apart: Path) -> None:
    """Types whose names are the same, and which are not."""
    from collections import namedtuple

    one, other = (namedtuple("Sizes", names) for names in ("first second", "second first"))

    def made() -> Any:
        def first(sizes: Any) -> Any:
            return sizes.first

        return compiling.jit(first)

    for _ in range(2):
        assert made()(one(1, 2)) == 1
        assert made()(other(1, 2)) == 2


def test_what_is_kept_can_be_forgotten(apart: Path) -> None:
    compiled: Any = compiling.jit(kernel)
    assert compiled(1) == 2
    assert len(list(apart.rglob("*.nbc"))) == 1
    compiled._cache.flush()
    assert list(apart.rglob("*.nbc")) == []
