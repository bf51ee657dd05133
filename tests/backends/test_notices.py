"""Lines about compiling: after a second, once, on a terminal or as a record of the log."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.backends.emulated import needs_emulator, source

from convforge.backends import notices
from convforge.backends.cache import DiskCache
from convforge.backends.cuda.compiler import Compiled, kept
from convforge.backends.kernel import KernelSource


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "PATIENCE_S", 0.02)
    monkeypatch.setattr(notices, "_quiet", False)


def compile_for(seconds: float, kept_in: object = Path("/cache")) -> None:
    with notices.compiling("direct.rows", kept_in):
        time.sleep(seconds)


def test_a_terminal_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    compile_for(0.3)
    assert terminal.getvalue() == f"convforge: compiling direct.rows; kept in {Path('/cache')} for the next time\n"


def test_what_is_compiled_soon_is_not_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "PATIENCE_S", 0.5)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    compile_for(0.0)
    time.sleep(0.7)
    assert terminal.getvalue() == ""


def test_elsewhere_it_is_a_record_of_the_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with caplog.at_level(logging.INFO, logger="convforge"):
        compile_for(0.3, None)
    assert stream.getvalue() == ""
    assert [(record.name, record.levelname, record.getMessage()) for record in caplog.records] == [
        ("convforge", "INFO", "compiling direct.rows; not kept: no cache can be used")
    ]


def test_who_shows_progress_hears_nothing_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    notices.quiet()
    compile_for(0.3)
    assert terminal.getvalue() == ""


def test_nvrtc_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And what the disk has is compiled by nobody, so nothing is said."""
    kernel = source(tmp_path, "")
    terminal, disk = Terminal(), DiskCache(tmp_path / "cache")
    monkeypatch.setattr(sys, "stderr", terminal)

    def slow(kernel: KernelSource, architecture: str) -> Compiled:
        time.sleep(0.3)
        return Compiled(kernel.name, architecture, b"code", 1, 0, 0, 0, 0)

    assert kept(kernel, "sm_90", "13.0", slow, disk).code == b"code"
    assert terminal.getvalue() == f"convforge: compiling tried for sm_90; kept in {disk.folder} for the next time\n"
    assert kept(kernel, "sm_90", "13.0", slow, disk).code == b"code"
    assert terminal.getvalue().count("\n") == 1


PROGRAM = """
import logging, sys
import numpy as np
from convforge.backends import notices
from convforge.backends.cache import DiskCache
from convforge.backends.cuda.compiler import Compiled, kept
from convforge.backends.kernel import KernelSource
notices.PATIENCE_S = 0.05
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s: %(message)s")
import convforge
x = np.ones((1, 1, 3, 3), "f4")
convforge.conv2d(x, x, algorithm="direct_naive", device=sys.argv[1])
"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("device", [pytest.param("emulator", marks=needs_emulator), "cpu"])
def test_each_compiler_is_named(device: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, device], capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"CONVFORGE_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    what = "the CPU kernel cpu." if device == "cpu" else "algorithms/direct/naive.cu for the emulator"
    assert any(line.startswith(f"convforge: compiling {what}") for line in done.stdout.splitlines()), done.stdout
    assert str(tmp_path) in done.stdout
    assert done.stderr == ""
