"""A run on one file that gets a signal while it writes: the old file stays, and no temporary one."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.filter.images import RANDOM, hear_signals, kept

from convforge.imaging.files import read_image

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="these signals are POSIX's")


@contextmanager
def writing(folder: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """`convforge filter` over the only file of a folder, which takes long to encode, once it has begun to write."""
    source = kept(folder, "a.npy", RANDOM.integers(0, 256, (3000, 3000, 3), dtype=np.uint8))
    command = [sys.executable, "-m", "convforge", "filter", str(source), str(folder / "b.png"), "--kernel", "identity"]
    options.setdefault("preexec_fn", hear_signals)
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    try:
        until = time.monotonic() + 120
        while not list(folder.glob(".convforge-*.tmp")):
            assert running.poll() is None, running.communicate()
            assert time.monotonic() < until
            time.sleep(0.002)
        yield running
    finally:
        running.kill()
        running.communicate()


@pytest.mark.parametrize(
    "name", ["SIGTERM", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("SIGINT", "SIGHUP"))]
)
def test_no_temporary_file_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / "b.png").write_bytes(b"what was there")
    with writing(tmp_path) as running:
        running.send_signal(signal.Signals[name])
        said, complaint = running.communicate(timeout=120)
    assert (running.returncode, said, complaint) == (
        130,
        "",
        f"convforge: interrupted; {tmp_path / 'b.png'} was not written\n",
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "b.png"]
    assert (tmp_path / "b.png").read_bytes() == b"what was there"


def test_what_is_ignored_from_the_start_stays_ignored(tmp_path: Path) -> None:
    """As under nohup."""
    with writing(tmp_path, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as running:
        running.send_signal(signal.SIGHUP)
        _, complaint = running.communicate(timeout=120)
    assert (running.returncode, complaint) == (0, "")
    assert read_image(tmp_path / "b.png").width == 3000
