"""`convforge filter DIR OUTDIR`: every image as if filtered alone, failures listed at the end, no file half written."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.commands import Ran
from tests.cli.filter.images import LAPLACIAN, RANDOM, SMALL, correlated, hear_signals, kept, saturated
from tests.cli.filter.test_mistakes import _bomb

from convforge.backends.cuda import why_absent as why_no_gpu
from convforge.backends.emulator import why_absent
from convforge.imaging.files import read_image
from convforge.imaging.pipeline.folder import shares_of
from convforge.imaging.pipeline.folder_journal import NAME

WORDS = ("--kernel", "laplacian", "--method", "direct_naive")
DEVICES = [
    "cpu",
    pytest.param("emulator", marks=pytest.mark.skipif(why_absent() is not None, reason=str(why_absent()))),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images of several formats, sizes and types; two other files."""
    place = tmp_path / "in"
    place.mkdir()
    kept(place, "rgb.png", SMALL, alpha=SMALL[..., 0])
    kept(place, "turned.png", SMALL[::-1])
    kept(place, "photo.jpg", SMALL[:16])
    kept(place, "deep.png", RANDOM.integers(0, 2**16, (14, 20), dtype=np.uint16))
    kept(place, "pages.tif", np.stack([SMALL, SMALL // 2]), pages=True)
    kept(place, "float.tif", RANDOM.normal(size=(9, 12)).astype(np.float32))
    kept(place, "wide.npy", RANDOM.integers(0, 2**31, (7, 8), dtype=np.uint32))
    (place / "notes.txt").write_text("not an image")
    (place / ".thumb.png").write_bytes(b"hidden")
    return place


IMAGES = ("deep.png", "float.tif", "pages.tif", "photo.jpg", "rgb.png", "turned.png", "wide.npy")


def files(folder: Path) -> list[str]:
    """Every file below a folder, hidden ones too."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.one_in(6)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "words",
    [
        WORDS,
        ("--kernel", "gaussian:5:1.1", "--stride", "2", "--border", "circular"),
        ("--kernel", "sobel-x", "--abs", "--scale", "0.5", "--channels", "sum", "--method", "direct_naive"),
    ],
    ids=["laplacian", "blur", "edges"],
)
def test_every_image_is_what_it_is_alone(
    folder: Path, tmp_path: Path, done: Callable[..., Ran], device: str, words: tuple[str, ...]
) -> None:
    out, alone = tmp_path / "new" / "out", tmp_path / "alone"
    alone.mkdir()
    ran = done(folder, out, *words, "--device", device, "--jobs", 3)
    assert files(out) == list(IMAGES)
    for name in IMAGES:
        done(folder / name, alone / name, *words, "--device", device)
        assert (out / name).read_bytes() == (alone / name).read_bytes(), name
    assert ran.line("in") == f"{folder}: 7 images; 2 other files left alone (.txt, hidden)"
    assert ran.line("out") == f"{out}: 7 images"


def test_the_report_says_what_was_done_how_fast_and_where_the_time_went(
    folder: Path, tmp_path: Path, done: Callable[..., Ran], run: Callable[..., Ran]
) -> None:
    for name in IMAGES[:3] + IMAGES[6:]:
        (folder / name).unlink()
    ran = done(folder, tmp_path / "out", *WORDS, "--out-dtype", "uint8", "--channels", "sum")
    pixels = 3 * (16 + 23 + 23) * 31
    assert ran.line("kernel") == (
        "laplacian, 3x3, bands summed where there are several, border reflect (edge pixel not repeated)"
    )
    assert ran.line("method") == "direct_naive (3 images)"
    assert ran.line("pixels") == f"{pixels / 1000:.1f} kB in, {pixels / 3000:.1f} kB out"
    read, written = (sum(path.stat().st_size for path in place.glob("[a-z]*.[pj]*g")) for place in
                     (folder, tmp_path / "out"))  # fmt: skip
    assert ran.line("files") == f"{read / 1000:.1f} kB in, {written / 1000:.1f} kB out"
    seconds = float(ran.line("time").removesuffix(" s"))
    rate = re.fullmatch(r"(\S+) images/s, (\S+) GB/s of pixels, in and out", ran.line("rate"))
    assert rate is not None
    assert float(rate[1]) == pytest.approx(3 / seconds, rel=0.02)
    assert float(rate[2]) == pytest.approx(pixels * 4 / 3 / 1e9 / seconds, rel=0.02)
    assert re.match(
        r"(decode|encode|plan|first call \(.*\)|filter): the longest work of \d+ (lanes?|threads?) ", ran.line("limit")
    )
    stages = re.findall(r"^(\w[\w ]*?) +([\d.e-]+) s +(\d+) +(\d+)%$", ran.out, re.MULTILINE)
    assert [stage for stage, *_ in stages] == ["decode", "plan", "first call", "filter", "encode"]
    for _, busy, threads, share in stages:
        assert float(share) == pytest.approx(100 * float(busy) / int(threads) / seconds, abs=1.5)
        assert float(share) <= 101


@pytest.mark.skipif(why_absent() is not None, reason=str(why_absent()))
def test_a_device_s_copies_are_stages_of_their_own(folder: Path, tmp_path: Path, done: Callable[..., Ran]) -> None:
    ran = done(folder, tmp_path / "out", *WORDS, "--device", "emulator")
    stages = re.findall(r"^(\w[\w ]*?) +[\d.e-]+ s +\d+ +\d+%$", ran.out, re.MULTILINE)
    assert stages == ["decode", "plan", "first call", "upload", "filter", "download", "encode"]


def test_the_busiest_stage_is_measured_by_its_threads() -> None:
    shares = shares_of({"filter": 3.0, "decode": 8.0, "encode": 2.0}, 4.0, {"files": 4, "lanes": 1})
    assert [(share.stage, share.of_time) for share in shares] == [("decode", 0.5), ("filter", 0.75), ("encode", 0.125)]


def spoil(folder: Path) -> dict[str, str]:
    """Files that cannot be filtered, by name, and a word of why."""
    whole = (folder / "rgb.png").read_bytes()
    (folder / "empty.png").write_bytes(b"")
    (folder / "cut.png").write_bytes(whole[:900])
    (folder / "bomb.png").write_bytes(_bomb())
    (folder / "text.jpg").write_text("This is no image.")
    (folder / "a-folder.png").mkdir()
    (folder / "gone.tif").symlink_to(folder / "nowhere.tif")
    return {
        "bomb.png": "out of proportion", "cut.png": "truncated", "empty.png": "0 bytes", "gone.tif": "no such file",
        "text.jpg": "not an image",
    }  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
def test_bad_files_are_told_at_the_end_and_the_rest_is_done(
    folder: Path, tmp_path: Path, run: Callable[..., Ran], device: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "cut.png").write_bytes(b"what was there")
    bad = spoil(folder)
    ran = run(folder, out, *WORDS, "--device", device)
    assert ran.code == 1
    lines = ran.err.splitlines()
    assert len(lines) == len(bad)
    for line, (name, why) in zip(lines, sorted(bad.items()), strict=True):
        assert line.startswith(f"convforge: {folder / name}: "), line
        assert why in line
    assert ran.line("out") == f"{out}: 7 images; 5 failed"
    assert files(out) == sorted([*IMAGES, "cut.png", NAME])
    assert (out / "cut.png").read_bytes() == b"what was there", "only a complete result replaces a file"
    np.testing.assert_array_equal(read_image(out / "turned.png").pixels, saturated(correlated(SMALL[::-1], LAPLACIAN)))


def test_the_endings_of_other_files_are_named(folder: Path, tmp_path: Path, done: Callable[..., Ran]) -> None:
    for name in ("a.HEIC", "b.heic", "c.webp", "README", "d.gif"):
        (folder / name).touch()
    wanted = f"{folder}: 7 images; 7 other files left alone (.heic, .gif, .txt, .webp, ...)"
    assert done(folder, tmp_path / "out", *WORDS).line("in") == wanted


def test_all_bad_is_told_too(tmp_path: Path, run: Callable[..., Ran]) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "empty.png").touch()
    ran = run(tmp_path / "in", tmp_path / "out", *WORDS)
    assert (ran.code, ran.line("method"), ran.line("pixels")) == (1, "none", "0 bytes in, 0 bytes out")
    assert not {"rate", "limit", "stage"} & {text[:12].strip() for text in ran.out.splitlines()}
    assert "0 bytes" in ran.err


def test_what_a_format_or_a_method_cannot_do_is_that_images_failure(
    folder: Path, tmp_path: Path, run: Callable[..., Ran]
) -> None:
    ran = run(folder, tmp_path / "out", *WORDS, "--format", "jpg")
    assert ran.code == 1
    assert files(tmp_path / "out") == [NAME, "photo.jpg", "turned.jpg"]
    for name, why in {"rgb": "no alpha", "deep": "uint16", "float": "float32", "pages": "one page"}.items():
        assert re.search(rf"^convforge: .*{name}\.\w+: .*{why}", ran.err, re.MULTILINE), ran.err
    ran = run(folder, tmp_path / "other", *WORDS, "--method", "gemm_1x1")
    assert ran.code == 1
    assert "rgb.png: --method gemm_1x1 cannot filter this image (gemm_1x1: the filter is 3x3" in ran.err


@pytest.mark.thorough  # Numba compiles the method for every type
def test_a_method_that_rounds_sums_floats_whatever_the_images_hold(
    folder: Path, tmp_path: Path, done: Callable[..., Ran]
) -> None:
    done(folder, tmp_path / "floats", *WORDS, "--method", "separable", "--out-dtype", "float32", "--format", "tif")
    assert len(files(tmp_path / "floats")) == len(IMAGES)


def test_sub_folders_only_where_asked(folder: Path, tmp_path: Path, done: Callable[..., Ran]) -> None:
    (folder / "more" / "deeper").mkdir(parents=True)
    kept(folder / "more" / "deeper", "rgb.png", SMALL)
    out = folder / "out"
    done(folder, out, *WORDS)
    assert files(out) == list(IMAGES)
    ran = done(folder, out, *WORDS, "--recursive", "--format", "tif")
    assert ran.line("in").startswith(f"{folder}: 8 images;"), "results in OUT are not read"
    assert (out / "more" / "deeper" / "rgb.tif").is_file()


@pytest.mark.parametrize(
    "code, words, says",
    [
        (2, ("out", "--format", "gif"), ("--format 'gif'", "png")),
        (2, ("out", "--jobs", "0"), ("--jobs", "greater than or equal to 1")),
        (2, ("out", "--max-pixels", "0"), ("--max-pixels", "greater than or equal to 1")),
        (2, ("out", "--kernel", "lapacian"), ("did you mean 'laplacian'",)),
        (2, ("in",), ("is the folder of the images",)),
        (2, ("in/../in",), ("is the folder of the images",)),
        (2, ("out.png",), ("is a folder, so OUT must name one", "out.png")),
        (2, ("in/notes.txt",), ("is a file", "name a folder")),
        (1, ("in/notes.txt/out",), ("cannot be made", "Not a directory")),
    ],
)
def test_bad_use_begins_nothing(
    folder: Path, tmp_path: Path, refused: Callable[..., str], code: int, words: tuple[str, ...], says: tuple[str, ...]
) -> None:
    before = files(tmp_path)
    refused(code, folder, tmp_path / words[0], *WORDS, *words[1:], says=says)
    assert files(tmp_path) == before
    assert not (tmp_path / "out").exists()


def test_two_images_that_would_become_one_file_are_refused(
    folder: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    kept(folder, "rgb.jpg", SMALL)
    says = ("rgb.jpg and", "rgb.png would both become", str(tmp_path / "out" / "rgb.png"))
    refused(2, folder, tmp_path / "out", *WORDS, "--format", "png", says=says)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_may_not_be_written_is_a_failure(
    folder: Path, tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: (Path(path) != out or mode == os.R_OK) and access(path, mode))
    refused(1, folder, out, *WORDS, says=(f"{out}: cannot be written", "permission"))
    assert files(out) == []


def test_a_folder_without_images_is_a_failure(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "notes.txt").touch()
    kept(tmp_path / "in" / "deep", "a.png", SMALL)
    refused(1, tmp_path / "in", tmp_path / "out", *WORDS, says=("holds no image", "1 other file", "--recursive"))
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(why_no_gpu() is None, reason="there is a GPU")
@pytest.mark.parametrize("name", ["in", "in/rgb.png"])
def test_a_device_that_is_not_here_is_one_line(
    folder: Path, tmp_path: Path, refused: Callable[..., str], name: str
) -> None:
    reason = why_no_gpu()
    assert reason is not None
    refused(1, tmp_path / name, tmp_path / f"{name}.out" / "b.png", *WORDS, "--device", "cuda", says=(reason,))
    assert not (tmp_path / f"{name}.out").exists()


@pytest.mark.parametrize("count", [0, -1])
def test_a_number_of_jobs_is_checked_for_a_file_too(tmp_path: Path, refused: Callable[..., str], count: int) -> None:
    words = (kept(tmp_path, "a.png", SMALL), tmp_path / "b.png", *WORDS, "--jobs", count)
    refused(2, *words, says=("--jobs", "greater than or equal to 1"))


@pytest.mark.parametrize("option", [("--recursive",), ("--format", "png"), ("--jobs", "2")])
def test_options_of_folders_are_refused_for_a_file(
    tmp_path: Path, refused: Callable[..., str], option: tuple[str, ...]
) -> None:
    refused(2, kept(tmp_path, "a.png", SMALL), tmp_path / "b.png", *WORDS, *option, says=(option[0], "a folder"))


def test_a_full_disk_leaves_every_old_image(
    folder: Path, tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in IMAGES:
        (out / name).write_bytes(b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    ran = run(folder, out, *WORDS, "--jobs", 1)
    assert ran.code == 1
    failed = ran.err.count("No space left")
    assert 1 <= failed < len(IMAGES), "no further image begins"
    assert ran.line("out") == f"{out}: 0 images; {failed} failed; {len(IMAGES) - failed} not begun"
    assert ran.err.endswith(f"convforge: {out}: the disk is full; make room, and the same command does the rest\n")
    assert files(out) == list(IMAGES), "no temporary file stays"
    assert {(out / name).read_bytes() for name in IMAGES} == {b"old"}


def test_too_little_memory_fails_an_image(
    folder: Path, tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    from convforge.algorithms.contract import Plan

    call = Plan.__call__

    def exhausted(self: Plan, x: Any, *rest: Any, **more: Any) -> Any:
        if x["x"].shape[0] == 2:
            raise MemoryError
        return call(self, x, *rest, **more)

    monkeypatch.setattr(Plan, "__call__", exhausted)
    ran = run(folder, tmp_path / "out", *WORDS)
    assert ran.code == 1
    assert ran.err.startswith(f"convforge: {folder / 'pages.tif'}: there is not enough memory")
    assert ran.err.count("\n") == 1


def test_a_fault_that_is_no_images_ends_it_all(
    folder: Path, tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    from convforge.algorithms.contract import Plan

    def broken(*words: Any, **more: Any) -> Any:
        raise RuntimeError("the device fell off the bus")

    monkeypatch.setattr(Plan, "__call__", broken)
    with pytest.raises(RuntimeError, match="fell off"):
        run(folder, tmp_path / "out", *WORDS)
    assert files(tmp_path / "out") == []


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT is POSIX's")
@pytest.mark.parametrize(
    "name", ["SIGTERM", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("SIGINT", "SIGHUP"))]
)
def test_an_interrupt_leaves_no_half_file(tmp_path: Path, name: str) -> None:
    """Interrupt a run, as by Ctrl-C, a shutdown or a closed terminal, after some results: each is whole, and no thread
    stays.
    """
    place, out = tmp_path / "in", tmp_path / "out"
    place.mkdir()
    pixels = RANDOM.integers(0, 256, (600, 600, 3), dtype=np.uint8)
    for i in range(60):
        kept(place, f"{i:02}.png", pixels)
    command = [sys.executable, "-m", "convforge", "filter", str(place), str(out), *WORDS]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hear_signals
    )
    try:
        until = time.monotonic() + 120
        while len(list(out.glob("[0-9]*.png"))) < 3:
            assert running.poll() is None, running.communicate()
            assert time.monotonic() < until
            time.sleep(0.005)
        running.send_signal(signal.Signals[name])
        said, complaint = running.communicate(timeout=120)
    finally:
        running.kill()
    assert running.returncode == 130
    assert [text.split()[0] for text in said.splitlines()] == ["in", "kernel", "size", "memory"], "no report"
    there = [name for name in files(out) if name != NAME]
    assert 3 <= len(there) < 60
    assert re.fullmatch(
        r"convforge: interrupted; waits until the reads, filters and writes in work are finished\n"
        rf"convforge: interrupted; {len(there)} of 60 images were filtered, .* complete; the same command .*\n",
        complaint,
    )
    for file in there:
        assert read_image(out / file).pixels.shape == pixels.shape, "a temporary or half a file stays"


def test_a_terminal_is_shown_a_bar(folder: Path, tmp_path: Path) -> None:
    """Under a terminal on standard error alone."""
    pty = pytest.importorskip("pty", reason="pseudo-terminals are POSIX's")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "convforge", "filter", str(folder), str(tmp_path / "out"), *WORDS]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # Linux's way to say that the other end was closed
        pass
    finally:
        os.close(ours)
    running.communicate(timeout=120)
    assert running.returncode == 0
    assert b"7/7" in shown
