"""Images of a folder that go in parts, as they do alone: structured TIFFs, and images beyond the limit of memory."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from tests.cli.commands import Ran
from tests.cli.filter.images import LAPLACIAN, RANDOM, SMALL, correlated, kept, saturated
from tests.imaging.pipeline.large import names, zarr_array

from convforge.imaging.files import read_image
from convforge.imaging.pipeline.large import LargeFilter

EDGES = ("--kernel", "laplacian", "--method", "direct_naive")
PIXELS = RANDOM.integers(0, 256, (150, 170), dtype=np.uint8)
WANTED = saturated(correlated(PIXELS, LAPLACIAN))


def pyramid(path: Path) -> Path:
    with tifffile.TiffWriter(path) as file:
        file.write(PIXELS, tile=(64, 64), subifds=1)
        file.write(PIXELS[::2, ::2], tile=(64, 64), subfiletype=1)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two photographs, and a TIFF of each structure that only units keep."""
    place = tmp_path / "in"
    (place / "more").mkdir(parents=True)
    kept(place, "a.png", SMALL)
    kept(place, "plain.tif", SMALL)
    tifffile.imwrite(place / "tiled.tif", PIXELS, tile=(64, 64), compression="zlib")
    tifffile.imwrite(place / "big.tif", PIXELS, bigtiff=True)
    tifffile.imwrite(place / "named.ome.tif", PIXELS, metadata={"axes": "YX", "PhysicalSizeX": 0.5})
    tifffile.imwrite(place / "always.btf", PIXELS)
    pyramid(place / "more" / "pyramid.tif")
    return place


def storage(path: Path) -> Any:
    """A TIFF without its UUID and the places of its tiles, which depend on the order in which they were finished."""
    with tifffile.TiffFile(path) as file:
        first = file.pages.first
        levels = [level.asarray().tolist() for level in file.series[0].levels]
        ome = re.sub(r"uuid:[0-9a-f-]+", "uuid", file.ome_metadata or "")
        return file.is_bigtiff, ome, first.is_tiled, int(first.compression), first.chunks, levels


LARGE = ("tiled.tif", "big.tif", "named.ome.tif", "always.btf", "more/pyramid.tif")


def test_each_file_is_what_it_is_alone(folder: Path, tmp_path: Path, done: Callable[..., Ran]) -> None:
    out, alone = tmp_path / "out", tmp_path / "alone"
    (alone / "more").mkdir(parents=True)
    ran = done(folder, out, *EDGES, "--recursive")
    assert ran.line("in") == f"{folder}: 7 images"
    assert ran.line("in parts") == "5 images, in 6 units"
    assert ran.line("method") == "direct_naive (7 images)"
    for name in ("a.png", "plain.tif"):
        done(folder / name, alone / name, *EDGES)
        assert (out / name).read_bytes() == (alone / name).read_bytes()
    for name in LARGE:
        done(folder / name, alone / name, *EDGES)
        assert storage(out / name) == storage(alone / name)
        np.testing.assert_array_equal(tifffile.imread(out / name), WANTED)
    assert names(out) == sorted(["a.png", "always.btf", "big.tif", "more", "named.ome.tif", "plain.tif", "tiled.tif"])
    assert names(out / "more") == ["pyramid.tif"]


def test_an_image_beyond_the_limit_of_memory_goes_in_parts_if_it_can(tmp_path: Path, run: Callable[..., Ran]) -> None:
    """A PNG cannot: it is refused before it is decoded, however small its file is."""
    place = tmp_path / "in"
    place.mkdir()
    values = np.random.default_rng(2).random((600, 700)).astype(np.float32)
    tifffile.imwrite(place / "large.tif", values, rowsperstrip=16)
    np.save(place / "large.npy", values)
    kept(place, "one-colour.png", np.zeros((4000, 4000), np.uint8))
    kept(place, "small.png", SMALL)
    assert (place / "one-colour.png").stat().st_size < 50_000
    ran = run(place, tmp_path / "out", *EDGES, "--memory", "4MB")
    assert (ran.code, ran.line("out")) == (1, f"{tmp_path / 'out'}: 3 images; 1 failed")
    assert ran.line("in parts").startswith("2 images")
    assert ran.err.startswith(f"convforge: {place / 'one-colour.png'}: takes ")
    assert "MB of memory, and the limit is 4 MB; allow more (--memory)" in ran.err
    assert ran.err.count("\n") == 1
    wanted = correlated(values, LAPLACIAN)
    for found in (tifffile.imread(tmp_path / "out" / "large.tif"), np.load(tmp_path / "out" / "large.npy")):
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    np.testing.assert_array_equal(
        read_image(tmp_path / "out" / "small.png").pixels, saturated(correlated(SMALL, LAPLACIAN))
    )


def test_more_samples_than_the_limit_are_refused_for_that_reason_first(tmp_path: Path, run: Callable[..., Ran]) -> None:
    place = tmp_path / "in"
    place.mkdir()
    kept(place, "one-colour.png", np.zeros((3000, 3000), np.uint8))
    ran = run(place, tmp_path / "out", *EDGES, "--memory", "4MB", "--max-pixels", "1000000")
    assert ran.code == 1
    assert "beyond the limit of 1000000" in ran.err


def test_slides_are_filtered_where_a_format_is_named(tmp_path: Path, done: Callable[..., Ran]) -> None:
    place = tmp_path / "in"
    place.mkdir()
    pyramid(place / "slide.svs")
    kept(place, "a.tif", SMALL)
    ran = done(place, tmp_path / "out", *EDGES)
    assert ran.line("in").endswith(
        "1 image; 1 other file left alone (.svs), 1 slide among them, which --format tif would filter"
    )
    assert names(tmp_path / "out") == ["a.tif"]
    assert done(place, tmp_path / "out", *EDGES, "--format", "tif").line("in") == f"{place}: 2 images"
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "out" / "slide.tif"), WANTED)


def test_the_files_of_an_array_are_no_images(tmp_path: Path, done: Callable[..., Ran]) -> None:
    place = tmp_path / "in"
    place.mkdir()
    kept(place, "a.png", SMALL)
    array = zarr_array(place / "b.zarr", PIXELS, chunks=[64, 64])
    kept(array, "thumbnail.png", SMALL)
    ran = done(place, tmp_path / "out", *EDGES, "--recursive")
    assert ran.line("in") == f"{place}: 1 image; 1 other file left alone (.zarr)"


def test_notes_and_losses_are_told_once_with_the_names(tmp_path: Path, done: Callable[..., Ran]) -> None:
    place = tmp_path / "in"
    place.mkdir()
    for at in range(5):
        colours = np.stack([PIXELS] * 3, axis=-1)
        tifffile.imwrite(place / f"{at}.tif", colours, tile=(64, 64), compression="jpeg", photometric="rgb")
    ran = done(place, tmp_path / "out", *EDGES)
    assert ran.line("note").endswith("(0.tif, 1.tif and 3 more)")
    assert "95" in ran.line("note")


def test_sub_folders_with_images_are_named(folder: Path, tmp_path: Path, run: Callable[..., Ran]) -> None:
    hint = "1 sub-folder with images left alone; --recursive filters it too"
    assert run(folder, tmp_path / "out", *EDGES).line("in") == f"{folder}: 6 images; {hint}"
    (folder / "notes.txt").touch()
    assert (
        run(folder, tmp_path / "out", *EDGES).line("in")
        == f"{folder}: 6 images; 1 other file left alone (.txt); {hint}"
    )
    assert "sub-folder" not in run(folder, tmp_path / "out", *EDGES, "--recursive").out


def test_an_interrupt_in_parts_names_the_image_and_its_units(
    folder: Path, tmp_path: Path, run: Callable[..., Ran], done: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, call = tmp_path / "out", LargeFilter.__call__

    def interrupted(self: LargeFilter, watch: Any, clock: Any) -> Any:
        def stop(finished: int, total: int, label: str) -> None:
            watch(finished, total, label)
            if self.target.name == "tiled.tif" and finished >= 2:
                signal.raise_signal(signal.SIGINT)

        return call(self, stop, clock)

    words = (*EDGES, "--memory", "300kB", "--jobs", "1")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    try:
        with monkeypatch.context() as patch:
            patch.setattr(LargeFilter, "__call__", interrupted)
            ran = run(folder, out, *words)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ran.code == 130
    first, last = ran.err.splitlines()
    assert first == "convforge: interrupted; waits until the reads, filters and writes in work are finished"
    found = re.fullmatch(
        rf"convforge: interrupted; 5 of 6 images were filtered, and every image in OUT is complete; of "
        rf"{re.escape(str(out / 'tiled.tif'))} (\d+) of (\d+) units are finished; the same command does the rest", last
    )  # fmt: skip
    assert found is not None, last
    assert 2 <= int(found[1]) < int(found[2])
    assert done(folder, out, *words).line("out") == f"{out}: 1 image; 5 were finished before"
    np.testing.assert_array_equal(tifffile.imread(out / "tiled.tif"), WANTED)


def test_two_that_would_become_one_are_refused(folder: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    kept(folder, "always.tif", SMALL)
    says = ("always.btf and", "always.tif would both become", str(tmp_path / "out" / "always.tif"))
    refused(2, folder, tmp_path / "out", *EDGES, "--format", "tif", says=says)
    assert not (tmp_path / "out").exists()


def test_a_large_image_that_fails_does_not_end_the_run(folder: Path, tmp_path: Path, run: Callable[..., Ran]) -> None:
    whole = (folder / "tiled.tif").read_bytes()
    (folder / "tiled.tif").write_bytes(whole[: len(whole) // 2])
    (folder / "cut.btf").write_bytes((folder / "always.btf").read_bytes()[:300])
    ran = run(folder, tmp_path / "out", *EDGES)
    assert ran.code == 1
    assert ran.line("out") == f"{tmp_path / 'out'}: 5 images; 2 failed"
    first, second = ran.err.splitlines()
    assert first.startswith(f"convforge: {folder / 'cut.btf'}: ")
    assert second.startswith(f"convforge: {folder / 'tiled.tif'}: ")
    assert not [name for name in names(tmp_path / "out") if name.endswith(".incomplete")]
