"""A folder whose run was killed, or in which images failed: the same command does the rest, and nothing twice."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile
from tests.cli.commands import Ran
from tests.cli.filter.images import RANDOM, SMALL, kept

from convforge.imaging.pipeline.folder_journal import NAME

WORDS = ("--kernel", "gaussian:5:1.1", "--method", "direct_naive")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "in"
    (place / "more").mkdir(parents=True)
    for at in range(12):
        kept(place / "more" if at % 3 == 0 else place, f"{at:02}.{('png', 'tif', 'jpg')[at % 3]}", SMALL[: 10 + at])
    return place


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def times(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()
    }


def kill(place: Path, out: Path, *words: str, after: Callable[[], bool]) -> None:
    """Run the command in a process of its own and kill it as soon as `after` is true."""
    command = [sys.executable, "-m", "convforge", "filter", str(place), str(out), *WORDS, "--jobs", "2", *words]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    try:
        while not after():
            assert running.poll() is None, running.communicate()
            assert time.monotonic() < until
            time.sleep(0.002)
    finally:
        running.kill()
        running.communicate()


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_after_a_kill_the_same_command_does_the_rest(tmp_path: Path, done: Callable[..., Ran]) -> None:
    place, out = tmp_path / "in", tmp_path / "out"
    (place / "more").mkdir(parents=True)
    pixels = RANDOM.integers(0, 256, (500, 500, 3), dtype=np.uint8)
    for at in range(40):
        kept(place / "more" if at % 2 else place, f"{at:02}.png", np.roll(pixels, at, 0))
    kill(place, out, "--recursive", after=lambda: lines(out / NAME) > 5)
    finished = lines(out / NAME) - 1
    assert 5 <= finished < 40
    before = times(out)
    ran = done(place, out, *WORDS, "--recursive")
    assert ran.line("out") == f"{out}: {40 - finished} images; {finished} were finished before"
    done(place, tmp_path / "whole", *WORDS, "--recursive")
    for temporary in out.rglob(".convforge-*.tmp"):  # of the killed process; they are swept after an hour
        temporary.unlink()
    assert contents(out) == contents(tmp_path / "whole"), "and the journal is removed"
    same = [name for name, at in times(out).items() if before.get(name) == at]
    assert len(same) == finished, "finished images are not written again"


@pytest.mark.thorough
def test_a_kill_inside_a_large_image_loses_no_finished_unit(tmp_path: Path, done: Callable[..., Ran]) -> None:
    place, out = tmp_path / "in", tmp_path / "out"
    place.mkdir()
    kept(place, "a.png", SMALL)
    tifffile.imwrite(place / "large.tif", RANDOM.integers(0, 256, (6000, 4000), dtype=np.uint8), tile=(256, 256))
    kill(place, out, "--memory", "5MB", after=lambda: lines(out / "large.tif.journal") > 4)
    assert lines(out / NAME) == 2
    assert not (out / "large.tif").exists()
    ran = done(place, out, *WORDS, "--memory", "5MB")
    assert ran.line("out") == f"{out}: 1 image; 1 were finished before"
    done(place, tmp_path / "whole", *WORDS)
    np.testing.assert_array_equal(tifffile.imread(out / "large.tif"), tifffile.imread(tmp_path / "whole" / "large.tif"))
    assert sorted(contents(out)) == ["a.png", "large.tif"]


def fail(folder: Path) -> None:
    """Leave a journal: one image cannot be read."""
    (folder / "broken.png").write_bytes(b"")


def test_after_failures_only_these_are_done_again(
    folder: Path, tmp_path: Path, run: Callable[..., Ran], done: Callable[..., Ran]
) -> None:
    fail(folder)
    out = tmp_path / "out"
    assert run(folder, out, *WORDS).line("out") == f"{out}: 8 images; 1 failed"
    before = times(out)
    again = run(folder, out, *WORDS)
    assert (again.code, again.line("out")) == (1, f"{out}: 0 images; 8 were finished before; 1 failed")
    assert times(out) == before
    kept(folder, "broken.png", SMALL)
    assert done(folder, out, *WORDS).line("out") == f"{out}: 1 image; 8 were finished before"
    assert not (out / NAME).exists()
    assert done(folder, out, *WORDS).line("out") == f"{out}: 9 images", "a finished run is done again"


def test_what_changed_since_is_done_again(folder: Path, tmp_path: Path, run: Callable[..., Ran]) -> None:
    """A source, a result that was removed, and one that another program has replaced."""
    fail(folder)
    out = tmp_path / "out"
    run(folder, out, *WORDS)
    first = contents(out)
    kept(folder, "01.tif", SMALL[:5])
    (out / "02.jpg").unlink()
    (out / "04.tif").write_bytes(b"another")
    assert run(folder, out, *WORDS).line("out") == f"{out}: 3 images; 5 were finished before; 1 failed"
    now = contents(out)
    assert [name for name in sorted(first) if now[name] != first[name] and name != NAME] == ["01.tif"]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("--stride", "2"), "--stride"),
        (("--abs", "--scale", "0.5"), "--abs, --scale"),
        (("--kernel", "box:3"), "--kernel"),
        (("--region", "0:5,0:5"), "--region, --channel, --z or --time"),
    ],
)
def test_other_options_begin_anew_and_are_named(
    folder: Path, tmp_path: Path, run: Callable[..., Ran], words: tuple[str, ...], names: str
) -> None:
    fail(folder)
    out = tmp_path / "out"
    run(folder, out, *WORDS)
    ran = run(folder, out, *WORDS, *words)
    assert ran.line("out") == f"{out}: 8 images; 1 failed"
    assert ran.err.splitlines()[0] == (
        f"convforge: {out}: an unfinished run differs in {names}; all images are filtered again"
    )
    (folder / "broken.png").unlink()
    run(folder, tmp_path / "alone", *WORDS, *words)
    assert {**contents(out), NAME: b""} == {**contents(tmp_path / "alone"), NAME: b""}


@pytest.mark.parametrize("words", [("--jobs", "1"), ("--memory", "50MB"), ("--max-pixels", "1000000")])
def test_options_that_change_no_pixel_continue(
    folder: Path, tmp_path: Path, run: Callable[..., Ran], words: tuple[str, ...]
) -> None:
    fail(folder)
    out = tmp_path / "out"
    run(folder, out, *WORDS)
    assert run(folder, out, *WORDS, *words).line("out") == f"{out}: 0 images; 8 were finished before; 1 failed"


def test_another_format_is_another_result(folder: Path, tmp_path: Path, run: Callable[..., Ran]) -> None:
    fail(folder)
    out = tmp_path / "out"
    run(folder, out, *WORDS)
    assert run(folder, out, *WORDS, "--format", "tif").line("out").startswith(f"{out}: 4 images; 4 were finished")


def test_several_files_are_continued_too(folder: Path, tmp_path: Path, run: Callable[..., Ran]) -> None:
    fail(folder)
    out = tmp_path / "out"
    sources = [folder / name for name in ("01.tif", "broken.png", "02.jpg")]
    run(*sources, out, *WORDS)
    assert run(*sources, out, *WORDS).line("out") == f"{out}: 0 images; 2 were finished before; 1 failed"
    ran = run(*sources, folder / "04.tif", out, *WORDS)
    assert ran.line("out") == f"{out}: 1 image; 2 were finished before; 1 failed"


def test_a_full_disk_ends_no_run_and_the_next_does_the_rest(
    folder: Path, tmp_path: Path, run: Callable[..., Ran], done: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full after four images; no further one begins."""
    out, sync, left = tmp_path / "out", os.fsync, [4]

    def full(handle: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    ran = run(folder, out, *WORDS, "--recursive", "--jobs", 1)
    assert ran.line("out").startswith(f"{out}: 4 images; ")
    assert ran.line("out").endswith(" not begun")
    assert ran.err.endswith("the disk is full; make room, and the same command does the rest\n")
    monkeypatch.setattr(os, "fsync", sync)
    ran = done(folder, out, *WORDS, "--recursive")
    assert ran.line("out") == f"{out}: 8 images; 4 were finished before"


def test_names_of_any_bytes_are_continued_and_printed_in_a_line(
    folder: Path, tmp_path: Path, run: Callable[..., Ran]
) -> None:
    fail(folder)
    whole = (folder / "01.tif").read_bytes()
    for name in (b"a b'\".tif", b"new\nline.tif", b"caf\xe9.tif"):
        try:
            Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(whole)
        except OSError:
            pytest.skip("a file system that wants UTF-8")
    Path(os.fsdecode(os.fsencode(folder) + b"/bad\xe9\n.tif")).touch()
    out = tmp_path / "out"
    ran = run(folder, out, *WORDS)
    assert ran.line("out") == f"{out}: 11 images; 2 failed"
    assert ran.err.splitlines()[0].startswith(f"convforge: {folder}/bad\\udce9 .tif: is empty")
    assert ran.err.count("\n") == 2
    assert run(folder, out, *WORDS).line("out") == f"{out}: 0 images; 11 were finished before; 2 failed"
