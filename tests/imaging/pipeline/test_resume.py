"""Runs in units that end early: a kill, an error, a changed command; and the memory that a run takes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.imaging.pipeline.large import RANDOM, content, kept, kill_a_run, names, opened, recipe, zarr_array

import convforge
from convforge.imaging.image import ImageError
from convforge.imaging.pipeline.journal import Journal
from convforge.imaging.pipeline.large import LargeFilter
from convforge.imaging.replacing import exchange
from convforge.imaging.windowed.result import publish

IMAGE = RANDOM.integers(0, 65536, (640, 80), dtype=np.uint16)
MEMORY = 90_000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return zarr_array(tmp_path / "a.zarr", IMAGE, chunks=[8, 8], shards=[16, 16])


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("suffix", [".zarr", pytest.param(".npy", marks=pytest.mark.thorough)])
def test_a_killed_run_is_resumed(tmp_path: Path, source: Path, suffix: str) -> None:
    target = tmp_path / f"b{suffix}"
    journal = kill_a_run(source, target, 6000)
    assert names(tmp_path) == ["a.zarr", f"b{suffix}.incomplete", f"b{suffix}.journal"]
    finished = len(journal.read_bytes().split(b"\n")) - 2
    with journal.open("ab") as file:
        file.write(b"19")  # a line that was cut off
    run = LargeFilter(source, target, recipe("laplacian"), memory=MEMORY)
    assert len(run.finished()) == finished
    outcome = run()
    assert 0 < outcome.units < len(run.division)
    assert (outcome.resumed, outcome.units + outcome.resumed) == (finished, len(run.division))
    np.testing.assert_array_equal(content(target), convforge.filter(IMAGE, "laplacian"))
    assert names(tmp_path) == ["a.zarr", f"b{suffix}"]


def test_only_units_in_the_journal_count_as_done(tmp_path: Path, source: Path) -> None:
    """Another unit is done again, although its shard is there, and a finished one is left alone."""
    target = tmp_path / "b.npy"
    run = _ended_early(source, target, after=3)
    (first, *_) = run.finished()
    written = np.load(tmp_path / "b.npy.incomplete", mmap_mode="r+")
    left = next(number for number in range(len(run.division)) if number not in run.finished())
    for number, value in ((first, 7), (left, 9)):
        written[run.division.region(number)] = value
    del written
    LargeFilter(source, target, recipe("laplacian"), memory=MEMORY)()
    wanted = convforge.filter(IMAGE, "laplacian")
    wanted[run.division.region(first)] = 7
    np.testing.assert_array_equal(np.load(target), wanted)


def _ended_early(source: Path, target: Path, after: int, **options: Any) -> LargeFilter:
    """A run that its watcher ends."""

    def watch(done: int, total: int, label: str) -> None:
        if done >= after:
            raise KeyboardInterrupt

    run = LargeFilter(source, target, recipe("laplacian", **options), memory=MEMORY, workers=1)
    with pytest.raises(KeyboardInterrupt):
        run(watch)
    assert not target.exists()
    return run


def test_a_changed_command_or_input_is_refused(tmp_path: Path, source: Path) -> None:
    target = tmp_path / "b.zarr"
    run = _ended_early(source, target, after=2)
    for steps, differs in (
        (recipe("laplacian", border="zeros"), "--border"),
        (recipe("sobel-x"), "--kernel"),
        (recipe("laplacian", out_dtype=np.dtype("int16"), scale=2.0), "--out-dtype, --scale"),
    ):
        with pytest.raises(ImageError, match=rf"an unfinished run differs in {differs}; repeat its command"):
            LargeFilter(source, target, steps, memory=MEMORY)()
    more = LargeFilter(source, target, recipe("laplacian"), memory=10 * MEMORY, workers=3)
    assert more.finished() == run.finished()
    assert more.division.unit == run.division.unit
    os.utime(source / "c" / "0" / "1", (1, 1))
    with pytest.raises(ImageError, match="differs in the content of IN"):
        LargeFilter(source, target, recipe("laplacian"), memory=MEMORY).finished()
    (tmp_path / "b.zarr.journal").unlink()
    assert LargeFilter(source, target, recipe("laplacian"), memory=MEMORY)().resumed == 0
    assert names(tmp_path) == ["a.zarr", "b.zarr"]


def test_a_run_that_was_killed_after_its_last_step(tmp_path: Path, source: Path) -> None:
    target, journal = tmp_path / "b.zarr", tmp_path / "b.zarr.journal"
    run = _ended_early(source, target, after=1)
    head = journal.read_text().splitlines()[0]
    LargeFilter(source, target, recipe("laplacian"), memory=MEMORY)()
    journal.write_text("\n".join([head, *map(str, range(len(run.division))), ""]))
    outcome = LargeFilter(source, target, recipe("laplacian"), memory=MEMORY)()
    assert (outcome.units, outcome.resumed) == (0, len(run.division))
    assert names(tmp_path) == ["a.zarr", "b.zarr"]


def test_a_result_of_another_run_and_no_journal_are_refused(tmp_path: Path, source: Path) -> None:
    target = tmp_path / "b.npy"
    _ended_early(source, target, after=1)
    np.save(tmp_path / "b.npy.incomplete.npy", IMAGE[:9])
    (tmp_path / "b.npy.incomplete.npy").rename(tmp_path / "b.npy.incomplete")
    with pytest.raises(ImageError, match=r"b\.npy\.incomplete: is of another result"):
        LargeFilter(source, target, recipe("laplacian"), memory=MEMORY)()
    (tmp_path / "b.npy.journal").write_text("shopping\nlist\n")
    with pytest.raises(ImageError, match=r"b\.npy\.journal: is no journal of a run; remove it"):
        LargeFilter(source, target, recipe("laplacian"), memory=MEMORY)()


@pytest.mark.skipif(sys.platform == "win32", reason="the lock is POSIX's")
def test_two_runs_do_not_write_the_same_result(tmp_path: Path, source: Path) -> None:
    path = tmp_path / "b.zarr.journal"
    journal = Journal(path, {}, {})
    with pytest.raises(ImageError, match="another process is writing this result"):
        LargeFilter(source, tmp_path / "b.zarr", recipe("laplacian"), memory=MEMORY)()
    journal.close()


@pytest.mark.skipif(sys.platform == "win32", reason="it limits the size of a file as POSIX does")
@pytest.mark.parametrize("suffix", [".zarr", ".npy"])
def test_a_full_disk_leaves_nothing_that_looks_finished(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    source = zarr_array(tmp_path / "a.zarr", IMAGE, chunks=[64, 80])
    target = tmp_path / f"b{suffix}"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    run = LargeFilter(source, target, recipe([[0, 0, 0], [0, 1, 0], [0, 0, 0]]), memory=MEMORY)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000 if suffix == ".zarr" else 50_000, before[1]))
    try:
        with pytest.raises(ImageError, match=rf"b{suffix}.*: cannot be (written|made) \(.*File too large"):
            run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(tmp_path) == ["a.zarr"]
    if suffix == ".npy":
        monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 9}))
        with pytest.raises(ImageError, match=f"needs {IMAGE.nbytes} bytes and the disk has 9 free"):
            run()
        assert names(tmp_path) == ["a.zarr"]


def test_a_damaged_chunk_is_named_and_the_rest_can_be_resumed(tmp_path: Path) -> None:
    source = zarr_array(tmp_path / "a.zarr", IMAGE, chunks=[16, 16])
    chunk = source / "c" / "30" / "1"
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:99])
    run = LargeFilter(source, tmp_path / "b.zarr", recipe("laplacian"), memory=MEMORY)
    with pytest.raises(ImageError, match=r"a\.zarr: a chunk is damaged or cannot be read \(.*a\.zarr/c/30/1"):
        run()
    assert names(tmp_path) == ["a.zarr", "b.zarr.incomplete", "b.zarr.journal"]


MEASURED = """
import resource, sys
import numpy as np
import convforge
from convforge.imaging.pipeline.heap import return_large_blocks

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

source, small, target, memory = sys.argv[1:]
return_large_blocks()
convforge.filter_large(small, small + ".out.zarr", "laplacian")
base = peak()
convforge.filter_large(source, target, "laplacian", memory=int(memory))
print(base, peak())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss is Linux's")
@pytest.mark.parametrize("suffix", [".zarr", pytest.param(".npy", marks=pytest.mark.thorough)])
def test_memory_stays_below_the_limit(tmp_path: Path, suffix: str) -> None:
    shape, limit = (12_000, 5000), 20_000_000
    source = zarr_array(
        tmp_path / "a.zarr", np.zeros((1, 1), np.uint16), chunks=[250, 250], shards=[1000, 1000], shape=shape
    )
    part = RANDOM.integers(0, 65536, (1000, shape[1]), dtype=np.uint16)
    for row in range(0, shape[0], 1000):
        opened(source, write=True)[row : row + 1000] = part
    kept(tmp_path / "small.npy", np.zeros((900, 900), np.uint16))
    target = tmp_path / f"b{suffix}"
    words = [str(source), str(tmp_path / "small.npy"), str(target), str(limit)]
    done = subprocess.run([sys.executable, "-c", MEASURED, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    base, peak = map(int, done.stdout.split())
    assert 5 * limit < np.prod(shape) * 2
    assert peak - base < limit


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
import convforge
from convforge.imaging.pipeline import large
from convforge.imaging.pipeline.journal import Journal
from convforge.imaging.windowed import result

source, target, way, at = sys.argv[1:]
rename, remove = Path.rename, shutil.rmtree

def kill(*given, **named):
    os.kill(os.getpid(), signal.SIGKILL)

def rmtree(path, **named):
    there = os.path.exists(path)
    remove(path, **named)
    if there:
        kill()

if way == "renames":
    result.exchange = lambda one, other: False
if at == "before":
    large.publish = kill
if at == "between":
    Path.rename = lambda path, name: kill() if path.suffix == ".incomplete" else rename(path, name)
if at == "after":
    result.remove_replaced = kill
if at == "removed":
    shutil.rmtree = rmtree
if at == "end":
    Journal.remove = kill
convforge.filter_large(source, target, "laplacian")
"""
THOROUGH = pytest.mark.thorough
KILLS = [
    ("exchange", "after"), ("renames", "between"), pytest.param("exchange", "before", marks=THOROUGH),
    pytest.param("exchange", "removed", marks=THOROUGH), pytest.param("exchange", "end", marks=THOROUGH),
    pytest.param("renames", "before", marks=THOROUGH), pytest.param("renames", "after", marks=THOROUGH),
    pytest.param("renames", "removed", marks=THOROUGH), pytest.param("renames", "end", marks=THOROUGH),
]  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="folders are exchanged on Linux; Windows has no SIGKILL")
@pytest.mark.parametrize(("way", "at"), KILLS)
def test_a_kill_while_a_folder_is_replaced(tmp_path: Path, source: Path, way: str, at: str) -> None:
    """The name has the old result or the new one, whole, and the next run of the command ends the work.

    Where folders cannot be exchanged, neither has the name for a moment.
    """
    old = np.full_like(IMAGE, 7)
    target = zarr_array(tmp_path / "b.zarr", old, chunks=[8, 8])
    if way == "exchange" and not exchange(target, zarr_array(tmp_path / "probe.zarr", old, chunks=[8, 8])):
        pytest.skip("the file system does not exchange folders")
    shutil.rmtree(tmp_path / "probe.zarr", ignore_errors=True)
    words = [sys.executable, "-c", KILLED, str(source), str(target), way, at]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    wanted = convforge.filter(IMAGE, "laplacian")
    if at == "between":
        assert not target.exists()
    else:
        np.testing.assert_array_equal(content(target), old if at == "before" else wanted)
    outcome = LargeFilter(source, target, recipe("laplacian"))()
    assert outcome.units == 0
    np.testing.assert_array_equal(content(target), wanted)
    assert names(tmp_path) == ["a.zarr", "b.zarr"]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("suffix", [".zarr", pytest.param(".npy", marks=THOROUGH)])
def test_an_image_that_replaces_itself_is_filtered_once(tmp_path: Path, source: Path, suffix: str) -> None:
    """A kill when the result has its name already: the same command does not filter the result."""
    place = source if suffix == ".zarr" else kept(tmp_path / "a.npy", IMAGE)
    words = [sys.executable, "-c", KILLED, str(place), str(place), "exchange", "end"]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    assert LargeFilter(place, place, recipe("laplacian"))().units == 0
    np.testing.assert_array_equal(content(place), convforge.filter(IMAGE, "laplacian"))
    assert not (tmp_path / f"a{suffix}.journal").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="folders are exchanged on Linux")
def test_a_folder_is_replaced_in_one_step(tmp_path: Path) -> None:
    """Another thread always finds a whole folder while others take its name."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    if not exchange(tmp_path / "one", tmp_path / "other"):
        pytest.skip("the file system does not exchange folders")
    place, ended, missing = tmp_path / "one", threading.Event(), []

    def look() -> None:
        while not ended.is_set():
            missing.extend([] if place.is_dir() else [1])

    looking = threading.Thread(target=look)
    looking.start()
    for _ in range(300):
        (tmp_path / "b").mkdir()
        publish(tmp_path / "b", place)
    ended.set()
    looking.join()
    assert (missing, names(tmp_path)) == ([], ["one", "other"])


def test_a_result_that_was_moved_meanwhile_is_not_taken_for_the_new_one(tmp_path: Path, source: Path) -> None:
    """Neither folder is the one that the journal names, so nobody knows which is the result."""
    target = zarr_array(tmp_path / "b.zarr", IMAGE[:9], chunks=[8, 8])
    run = _ended_early(source, tmp_path / "c.zarr", after=1)
    journal = tmp_path / "c.zarr.journal"
    journal.write_text("".join([f"{journal.read_text().splitlines()[0]}\n", *(f"{at}\n" for at in range(run.units))]))
    with journal.open("a") as file:
        file.write("result 1\n")
    shutil.copytree(target, tmp_path / "c.zarr")
    with pytest.raises(ImageError, match=r"c\.zarr\.incomplete: is of another result; remove it and .*journal"):
        LargeFilter(source, tmp_path / "c.zarr", recipe("laplacian"), memory=MEMORY)()


@pytest.mark.parametrize(
    ("victim", "said"),
    [
        (
            "a.zarr",
            r"a\.zarr: changed or was removed while it was read, so the result is not kept; remove .*b\.zarr\.j",
        ),
        ("b.zarr.incomplete", r"b\.zarr\.incomplete: (was removed while it was written; remove|cannot be written)"),
    ],
)
def test_a_folder_that_is_removed_meanwhile_is_noticed(tmp_path: Path, source: Path, victim: str, said: str) -> None:
    """Chunks that are not there are the fill value for Zarr, and its folders are made again when a chunk is written."""

    def watch(done: int, total: int, label: str) -> None:
        if 0 < done < total:
            shutil.rmtree(tmp_path / victim, ignore_errors=True)

    with pytest.raises(ImageError, match=said):
        LargeFilter(source, tmp_path / "b.zarr", recipe("laplacian"), memory=MEMORY, workers=1)(watch)
    assert not (tmp_path / "b.zarr").exists()
