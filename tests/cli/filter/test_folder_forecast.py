"""The size and the expected time of a run over many files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.commands import Ran
from tests.cli.filter.images import RANDOM, SMALL, kept

from convforge.cli import filter_folder_forecast
from convforge.cli.filter_folder_forecast import IN_LINE, ON_BAR, FolderForecast
from convforge.imaging.windowed import Place

WORDS = ("--kernel", "laplacian", "--method", "direct_naive")
NAMES = ("a.npy", "b.npy", "c.npy", "d.npy", "e.npy")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Bar:
    """The last progress that a forecast has shown."""

    last: tuple[int, int, str] | None = None

    def __call__(self, done: int, total: int, label: str) -> None:
        self.last = (done, total, label)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "in"
    place.mkdir()
    for name in NAMES:
        kept(place, name, SMALL)
    return place


def forecast(bar: Bar, clock: Clock, sizes: list[int], before: int = 0, in_lines: bool = True) -> FolderForecast:
    places: dict[Place, int] = {Path(name): size for name, size in zip(NAMES, sizes, strict=False)}
    found = FolderForecast(places, before, bar, in_lines=in_lines, clock=clock)
    found.start()
    return found


def test_the_size_of_the_files_comes_before_the_first_image(
    folder: Path, tmp_path: Path, done: Callable[..., Ran]
) -> None:
    total = sum(path.stat().st_size for path in folder.iterdir())
    ran = done(folder, tmp_path / "out", *WORDS)
    assert ran.line("size") == f"{total / 1000:.1f} kB of files"
    assert ran.out.index("\nkernel") < ran.out.index("\nsize") < ran.out.index("\nmemory") < ran.out.index("\nout")
    assert "\nexpected" not in ran.out, "a short run says no time"


def test_a_run_that_continues_says_how_much_is_left(folder: Path, tmp_path: Path, run: Callable[..., Ran]) -> None:
    (folder / "b.npy").write_bytes(b"")
    assert run(folder, tmp_path / "out", *WORDS).code == 1
    kept(folder, "b.npy", RANDOM.integers(0, 256, (40, 40), dtype="uint8"))
    ran = run(folder, tmp_path / "out", *WORDS)
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert ran.line("size") == (
        f"{sum(sizes.values()) / 1000:.1f} kB of files; 4 images finished before, {sizes['b.npy'] / 1000:.1f} kB are "
        "left"
    )


def test_a_source_that_cannot_be_read_counts_nothing(folder: Path, tmp_path: Path, run: Callable[..., Ran]) -> None:
    for name in NAMES[1:]:
        (folder / name).unlink()
    (folder / "gone.png").symlink_to(folder / "nowhere.png")
    ran = run(folder, tmp_path / "out", *WORDS)
    assert (ran.code, ran.line("size")) == (1, f"{(folder / 'a.npy').stat().st_size / 1000:.1f} kB of files")


def test_the_expected_time_follows_from_the_bytes_that_are_left(capsys: pytest.CaptureFixture[str]) -> None:
    bar, clock = Bar(), Clock()
    run = forecast(bar, clock, [100, 1000, 2000, 4000, 8000], before=2)
    assert bar.last == (2, 7, "")
    clock.now += 10_000  # the first image waits for the compiler, which the others do not
    run.finish(Path("a.npy"))
    assert bar.last == (3, 7, "")
    clock.now += 10
    run.finish(Path("b.npy"))
    assert bar.last == (4, 7, "about 2 min more")  # 14 kB at 100 B/s
    assert capsys.readouterr().out == "expected    about 2 min more (after 4 of 7 images)\n"
    clock.now += 5
    run.finish(Path("c.npy"))  # 12 kB at 200 B/s
    assert bar.last == (5, 7, "about 60 s more")
    assert capsys.readouterr().out == "", "too early for a second line"
    clock.now += 5
    run.finish(Path("d.npy"))  # 8 kB at 350 B/s
    assert capsys.readouterr().out == "expected    about 23 s more (after 6 of 7 images)\n"
    clock.now += 100
    run.finish(Path("e.npy"))
    assert bar.last == (7, 7, "")
    assert capsys.readouterr().out == ""


def test_a_terminal_gets_no_lines_and_a_short_time_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    bar, clock = Bar(), Clock()
    run = forecast(bar, clock, [100] * 5, in_lines=False)
    run.finish(Path("a.npy"))
    clock.now += 0.9 * ON_BAR
    run.finish(Path("b.npy"))
    assert bar.last == (2, 5, "")
    clock.now += IN_LINE
    run.finish(Path("c.npy"))
    assert bar.last is not None
    assert bar.last[2].endswith(" more")
    assert capsys.readouterr().out == ""


def test_an_image_in_units_counts_by_the_units_that_an_earlier_run_has_left() -> None:
    bar, clock = Bar(), Clock()
    run = forecast(bar, clock, [1000, 1000], in_lines=False)
    watch = run.units(Path("a.npy"), "big.tif")
    watch(10, 20, "1 GB/s")
    assert bar.last == (0, 2, "big.tif: 10/20 units")
    clock.now += 50
    watch(12, 20, "1 GB/s")  # of 1000 bytes for 10 units
    clock.now += 30
    watch(15, 20, "1 GB/s")
    assert bar.last == (0, 2, "about 2 min more; big.tif: 15/20 units")  # 1500 bytes at 10 B/s
    run.finish(Path("a.npy"))
    assert bar.last == (1, 2, "about 38 s more")  # 1000 bytes; 800 took 30 s


def test_an_image_that_fails_first_has_not_waited_for_the_compiler() -> None:
    bar, clock = Bar(), Clock()
    run = forecast(bar, clock, [100, 100, 100, 100], in_lines=False)
    run.finish(Path("a.npy"), failed=True)
    clock.now += 10_000
    run.finish(Path("b.npy"))
    assert bar.last == (2, 4, "")
    clock.now += 10
    run.finish(Path("c.npy"))
    assert bar.last == (3, 4, "about 10 s more")


def test_images_of_unknown_size_count_as_the_mean_of_the_others() -> None:
    bar, clock = Bar(), Clock()
    run = forecast(bar, clock, [100, 0, 300, 0], in_lines=False)
    run.finish(Path("a.npy"))
    clock.now += 20
    run.finish(Path("b.npy"))
    assert bar.last == (2, 4, "about 50 s more")  # 500 bytes at 10 B/s


def test_a_pipe_gets_lines_and_a_terminal_the_bar(
    folder: Path, tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_folder_forecast, "IN_LINE", 0.0)
    monkeypatch.setattr(filter_folder_forecast, "ON_BAR", 0.0)
    words = (*WORDS, "--jobs", 1)
    ran = run(folder, tmp_path / "out", *words)
    assert (ran.code, ran.err) == (0, "")
    lines = re.findall(r"^expected +about \d+ s more \(after (\d) of 5 images\)$", ran.out, re.MULTILINE)
    assert lines
    assert lines[0] == "2"
    monkeypatch.setenv("FORCE_COLOR", "1")
    ran = run(folder, tmp_path / "other", *words)
    assert ran.code == 0
    assert "5/5" in ran.err
    assert "\nexpected" not in ran.out
