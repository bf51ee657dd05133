"""Temporary files: those of killed processes are swept, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from convforge.imaging import replacing as module
from convforge.imaging.files import Image, write_image
from convforge.imaging.replacing import SWEPT_AFTER_SECONDS, replacing, sweep

NAME = ".convforge-0123456789ab.tmp"


def left(path: Path, seconds: float = SWEPT_AFTER_SECONDS + 60) -> Path:
    """A file that was last written so long ago."""
    path.write_bytes(b"half of it")
    os.utime(path, (time.time() - seconds,) * 2)
    return path


def test_what_a_killed_process_left_is_swept_by_the_next_write(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom convforge.imaging.replacing import replacing\n"
        "with replacing(Path(sys.argv[1])) as file:\n    file.write(b'half'); file.flush()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.png")], env=environment, check=False)
    (stale,) = tmp_path.iterdir()
    write_image(tmp_path / "a.png", Image(np.zeros((2, 3), np.uint8)))
    assert stale.exists(), "too young to tell"
    left(stale)
    module._swept.clear()
    write_image(tmp_path / "a.png", Image(np.zeros((2, 3), np.uint8)))
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.skipif(sys.platform == "win32", reason="locks are POSIX's")
def test_what_a_live_process_writes_stays(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom convforge.imaging.replacing import replacing\n"
        "with replacing(Path(sys.argv[1])) as file:\n    file.write(b'all of it'); file.flush()\n"
        "    print('written', flush=True); input()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "a.png")], env=environment, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        assert running.stdout.readline() == "written\n"
        (temporary,) = tmp_path.iterdir()
        os.utime(temporary, (0, 0))
        sweep(tmp_path)
        assert temporary.exists()
        running.communicate("\n")
    assert (tmp_path / "a.png").read_bytes() == b"all of it"


@pytest.mark.parametrize(
    "name", [".convforge-0123456789abc.tmp", ".convforge-0123456789AB.tmp", "convforge-0123456789ab.tmp", "notes.tmp"]
)
def test_what_is_not_ours_stays(tmp_path: Path, name: str) -> None:
    left(tmp_path / name)
    left(tmp_path / NAME)
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of POSIX")
def test_folders_links_and_pipes_stay(tmp_path: Path) -> None:
    target = left(tmp_path / "notes.txt")
    (tmp_path / NAME).symlink_to(target)
    (tmp_path / ".convforge-0123456789ac.tmp").mkdir()
    os.mkfifo(tmp_path / ".convforge-0123456789ad.tmp")
    before = sorted(tmp_path.iterdir())
    sweep(tmp_path)
    assert sorted(tmp_path.iterdir()) == before
    sweep(tmp_path / "missing")


def test_a_young_one_stays(tmp_path: Path) -> None:
    left(tmp_path / NAME, SWEPT_AFTER_SECONDS - 60)
    sweep(tmp_path)
    assert (tmp_path / NAME).exists()


def test_a_folder_is_looked_through_once(tmp_path: Path) -> None:
    for _ in range(2):
        with replacing(tmp_path / "a") as file:
            file.write(b"1")
        left(tmp_path / NAME)
    assert (tmp_path / NAME).exists()


@pytest.mark.skipif(sys.platform == "win32", reason="these signals are POSIX's")
def test_a_signal_that_comes_twice_raises_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with module.interrupts() as interrupted:
            assert not interrupted()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert interrupted()
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            now = module.REPEATED_AFTER_SECONDS
            signal.raise_signal(signal.SIGTERM)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
