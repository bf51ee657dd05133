"""Kernels are compiled once a machine: the cache, what it does about damage and rivals, and what a missing g++ says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.emulated import needs_emulator, run, source

from convforge.backends.cache import DiskCache
from convforge.backends.emulator import EmulatorRuntime, EmulatorUnavailable, compiler, emulator_runtime, why_absent
from convforge.backends.kernel import KernelSource

SIMPLE = "args.out[threadIdx.x] = 2 * args.x[threadIdx.x];"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what g++ compiles from here on."""
    names: list[str] = []
    real = compiler._compiled

    def counted(text: str, flags: tuple[str, ...], name: str) -> bytes:
        names.append(name)
        return real(text, flags, name)

    monkeypatch.setattr(compiler, "_compiled", counted)
    return names


@needs_emulator
def test_a_kernel_is_compiled_once(tmp_path: Path, compiled: list[str]) -> None:
    disk = DiskCache(tmp_path / "cache")
    first = compiler.compile_kernel(source(tmp_path, SIMPLE), disk)
    assert compiler.compile_kernel(source(tmp_path, SIMPLE), disk) == first
    assert len(compiled) == 1
    compiler.compile_kernel(source(tmp_path, SIMPLE.replace("2", "3")), disk)
    assert len(compiled) == 2


@needs_emulator
@pytest.mark.parametrize("name", ["_room_digest", "compiler_version", "_processor"])
def test_what_decides_the_code_decides_the_key(
    name: str, tmp_path: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskCache(tmp_path / "cache")
    compiler.compile_kernel(source(tmp_path, SIMPLE), disk)
    monkeypatch.setattr(compiler, name, lambda: "another")
    compiler.compile_kernel(source(tmp_path, SIMPLE), disk)
    assert len(compiled) == 2


@needs_emulator
@pytest.mark.parametrize(
    "damage", [lambda code: code[:-100], lambda code: b"", lambda code: code[:-9] + b"x" + code[-8:]]
)
def test_a_damaged_file_is_built_again(damage: Any, tmp_path: Path, compiled: list[str]) -> None:
    disk = DiskCache(tmp_path / "cache")
    right = compiler.compile_kernel(source(tmp_path, SIMPLE), disk)
    (path,) = (tmp_path / "cache").iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert compiler.compile_kernel(source(tmp_path, SIMPLE), disk) == right
    assert len(compiled) == 2
    compiler.compile_kernel(source(tmp_path, SIMPLE), disk)
    assert len(compiled) == 2


IN_A_PROCESS = """
import sys
import numpy as np
from pathlib import Path
from tests.backends.emulated import run, source
out = run(source(Path(sys.argv[1]), {body!r}), np.ones(64, np.float32), np.zeros(64, np.float32))
assert (out == 2).all()
"""


@pytest.mark.thorough
@needs_emulator
def test_processes_compile_at_once(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = os.environ | {"CONVFORGE_CACHE_DIR": str(tmp_path), "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    folders = [tmp_path / str(i) for i in range(3)]
    for folder in folders:
        folder.mkdir()
    command = [sys.executable, "-c", IN_A_PROCESS.format(body=SIMPLE)]
    processes = [subprocess.Popen([*command, str(folder)], env=environment) for folder in folders]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    left = [path.name for path in (tmp_path / "emulator").iterdir()]
    assert len(left) == 2, left  # the scheduler and the kernel, and nothing half written


@needs_emulator
def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CONVFORGE_CACHE_DIR", str(tmp_path / "file"))
    out = run(source(tmp_path, SIMPLE + " // nowhere else"), np.ones(64, np.float32), np.zeros(64, np.float32))
    assert (out == 2).all()


@needs_emulator
def test_instances_have_constants_of_their_own(tmp_path: Path, compiled: list[str]) -> None:
    kernel = source(tmp_path, "args.out[threadIdx.x] = taps[0];", before="__constant__ float taps[1];")
    runtime = EmulatorRuntime()
    one = runtime.compile(kernel)
    other = runtime.instance(one)
    assert runtime.compile(kernel) is one
    assert one.symbol("taps")[0] != other.symbol("taps")[0]
    assert len(compiled) <= 1


@needs_emulator
def test_the_compilers_words_come_back(tmp_path: Path) -> None:
    with pytest.raises(compiler.CompileError, match=r"tried.cu:1:.*'wrong' was not declared"):
        EmulatorRuntime().compile(source(tmp_path, "args.out[0] = wrong;"))
    kernel = source(tmp_path, "extern __shared__ float tile[];")
    with pytest.raises(compiler.CompileError, match="DYNAMIC_SHARED"):
        EmulatorRuntime().compile(kernel)


def test_a_missing_compiler_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt-get install g++" in (why_absent() or "")
    emulator_runtime.cache_clear()
    with pytest.raises(EmulatorUnavailable, match="apt-get install g"):
        emulator_runtime()
    kernel = KernelSource(str(tmp_path / "none.cu"), "none", (), source(tmp_path, "").arguments, "Args")
    (tmp_path / "none.cu").write_text("struct Args {};")
    with pytest.raises(EmulatorUnavailable, match="apt-get install g"):
        compiler.compile_kernel(kernel)


def test_other_systems_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert "WSL" in (why_absent() or "")
