"""The report of a run in units before and while it runs: bytes, notes, disk, expected time, interrupts."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tifffile
from tests.cli.commands import Ran
from tests.cli.filter.images import RANDOM
from tests.imaging.pipeline.large import act_after, interrupt, kept, names, recipe, zarr_array

from convforge.cli import filter_forecast
from convforge.cli.filter_forecast import SECONDS, Expected, size_text
from convforge.imaging.pipeline.large import LargeFilter
from convforge.imaging.selection import Selection

IMAGE = RANDOM.integers(0, 256, (96, 64), dtype=np.uint8)
EDGES = ("--kernel", "laplacian")


@pytest.fixture
def pyramid(tmp_path: Path) -> Path:
    """A tiled TIFF with one reduced copy."""
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        file.write(IMAGE, subifds=1, tile=(16, 16))
        file.write(IMAGE[::2, ::2], subfiletype=1, tile=(16, 16))
    return tmp_path / "a.tif"


def test_the_traffic_of_all_passes(pyramid: Path, tmp_path: Path) -> None:
    run = LargeFilter(pyramid, tmp_path / "b.tif", recipe("box:3", out_dtype=np.dtype(np.uint16)))
    assert run.traffic == [(96 * 64, 2 * 96 * 64), (2 * 96 * 64, 2 * 48 * 32)]
    assert size_text(run) == (
        "reads 6.1 kB, writes 12.3 kB, uncompressed; for the reduced copies 12.3 kB and 3.1 kB more"
    )


def test_a_region_reads_its_neighbours_and_a_picked_channel_one_channel(tmp_path: Path) -> None:
    source = kept(tmp_path / "a.npy", np.zeros((3, 96, 64), np.uint8))
    part = Selection.of(region="10:20,0:5", channel=1)
    run = LargeFilter(source, tmp_path / "b.npy", recipe("box:3", axes="CYX", selection=part))
    assert run.traffic == [(12 * 6, 10 * 5)]


def test_the_rate_counts_the_samples_that_are_read_and_not_the_whole_file(tmp_path: Path) -> None:
    source = kept(tmp_path / "a.npy", IMAGE)
    run = LargeFilter(source, tmp_path / "b.npy", recipe("box:3", selection=Selection.of(region="10:20,0:5")))
    assert run.traffic == [(12 * 6, 10 * 5)]
    outcome = run()
    assert outcome.rate.bytes_per_second * outcome.seconds < IMAGE.nbytes / 2, "122 bytes, and time to publish"


def test_size_comes_before_the_start(done: Callable[..., Ran], tmp_path: Path) -> None:
    source = kept(tmp_path / "a.npy", IMAGE)
    ran = done(source, tmp_path / "b.npy", *EDGES, "--memory", "1MB")
    assert ran.line("size") == "reads 6.1 kB, writes 6.1 kB, uncompressed"
    assert ran.out.index("\nsize") < ran.out.index("\nunits") < ran.out.index("\ndone")
    assert "\nexpected" not in ran.out, "a short run says no time"


def test_notes_of_the_formats_come_before_the_start(run: Callable[..., Ran], tmp_path: Path) -> None:
    source = zarr_array(tmp_path / "a.zarr", np.ones((64, 64), np.uint8), chunks=[16, 16])
    (source / "c" / "0" / "1").unlink()
    ran = run(source, tmp_path / "b.zarr", *EDGES)
    assert (ran.code, ran.err) == (0, "")
    assert ran.line("note").endswith(
        "1 of 16 chunks are not stored; they are read as the fill value 0, which is right for empty parts of an image; "
        "if there should be pixels, copy the array again from its origin"
    )
    assert ran.out.index("\nnote") < ran.out.index("\ndone")


def test_a_small_disk_is_a_warning(run: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int

    source = zarr_array(tmp_path / "a.zarr", IMAGE, chunks=[16, 16])
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(6000))
    ran = run(source, tmp_path / "b.zarr", *EDGES)
    warning = f"convforge: {tmp_path / 'b.zarr'}: its disk has 6.0 kB free, and the result takes 6.1 kB uncompressed\n"
    assert (ran.code, ran.err) == (0, warning)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(10**4))
    assert run(source, tmp_path / "b.zarr", *EDGES).err == ""


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_expected_time_follows_from_the_bytes_that_are_left(
    pyramid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = LargeFilter(pyramid, tmp_path / "b.tif", recipe("box:3"), memory=12_000, workers=1)
    first, second = (len(each.division) for each in run.passes)
    assert first == 24
    assert max(each.most for each in run.passes) < 10
    clock, total = Clock(), first + second
    expected = Expected(run, clock)
    expected(1, total, "")  # by an earlier run
    clock.now += 10_000  # the first unit waits for the compiler, which the others do not
    expected(2, total, "")
    clock.now += SECONDS - 0.1
    expected(12, total, "")
    assert capsys.readouterr().out == "", "it is too early"
    clock.now += 995.1
    expected(2, total, "")
    assert capsys.readouterr().out == "", "too few units are done"
    expected(12, total, "")
    # 10 of 24 units took 1000 s, at 2 bytes a sample. Left are 12 of them, and the copy, of 1.25 bytes a sample.
    minutes = round((12 / 24 * 2 + 1.25) / (10 / 24 * 2) * 1000 / 60)
    assert capsys.readouterr().out == f"expected    about {minutes} min more (after 12 of {total} units)\n"
    clock.now += 999
    expected(20, total, "")
    assert capsys.readouterr().out == "", "it is said again after twice the time"
    clock.now += 1
    expected(22, total, "")
    minutes = round((2 / 24 * 2 + 1.25) / (20 / 24 * 2) * 2000 / 60)
    assert capsys.readouterr().out == f"expected    about {minutes} min more (after 22 of {total} units)\n"


@pytest.mark.parametrize("stop_at", [3, 25])
def test_an_interrupt_keeps_what_is_finished_also_among_the_reduced_copies(
    run: Callable[..., Ran], done: Callable[..., Ran], pyramid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    stop_at: int,
) -> None:  # fmt: skip
    words = (*EDGES, "--memory", "12kB", "--jobs", "1")
    with monkeypatch.context() as patch:
        act_after(patch, stop_at, interrupt)
        ran = run(pyramid, tmp_path / "b.tif", *words)
    assert ran.code == 130
    said = ran.err.removeprefix(f"convforge: interrupted; {tmp_path / 'b.tif'} was not written, ")
    count = int(said.split()[0])
    assert stop_at <= count < 30
    assert said == f"{count} of 30 units are finished; the same command does the rest\n"
    assert names(tmp_path) == ["a.tif", "b.tif.incomplete", "b.tif.journal"]
    ran = done(pyramid, tmp_path / "b.tif", *words)
    assert ran.line("units").endswith(f"; {count} of 30 were finished before")
    assert ran.line("done").startswith(f"{30 - count} unit")
    done(pyramid, tmp_path / "c.tif", *EDGES)
    for level in range(2):
        resumed, whole = (tifffile.imread(tmp_path / name, series=0, level=level) for name in ("b.tif", "c.tif"))
        np.testing.assert_array_equal(resumed, whole)
    assert names(tmp_path) == ["a.tif", "b.tif", "c.tif"]


def test_an_interrupt_before_the_first_unit_leaves_nothing(
    run: Callable[..., Ran], pyramid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Any, watch: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(LargeFilter, "__call__", interrupted)
    ran = run(pyramid, tmp_path / "b.tif", *EDGES)
    assert (ran.code, ran.err) == (130, f"convforge: interrupted; {tmp_path / 'b.tif'} was not written\n")
    assert names(tmp_path) == ["a.tif"]


def test_a_terminal_has_the_bar_and_elsewhere_lines_say_the_time(
    run: Callable[..., Ran], pyramid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_forecast, "SECONDS", 0.0)
    words = (pyramid, tmp_path / "b.tif", *EDGES, "--memory", "12kB", "--jobs", "1")
    ran = run(*words)
    assert (ran.code, ran.err) == (0, "")
    first, *_ = re.findall(r"^expected +(.+)$", ran.out, re.MULTILINE)
    assert re.fullmatch(r"about \d+ s more \(after 5 of 30 units\)", first)
    assert ran.out.index("\nmemory") < ran.out.index("\nexpected") < ran.out.index("\ndone")
    monkeypatch.setenv("FORCE_COLOR", "1")
    ran = run(*words)
    assert ran.code == 0
    assert "30/30" in ran.err
    assert "\nexpected" not in ran.out
