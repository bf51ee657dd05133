"""`convforge filter` of a folder of slices to one array, and of an array to a folder of slices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.cli.commands import Ran
from tests.cli.filter.images import LAPLACIAN, RANDOM, SMALL, correlated, kept, saturated
from tests.imaging.pipeline.large import content, names, zarr_array

from convforge.imaging.files import read_image

EDGES = ("--kernel", "laplacian", "--method", "direct_naive")
STACK = RANDOM.integers(0, 256, (11, 20, 31), dtype=np.uint8)
WANTED = np.stack([saturated(correlated(plane, LAPLACIAN)) for plane in STACK])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Slices whose order of names as texts is another one."""
    place = tmp_path / "slices"
    place.mkdir()
    for at, plane in enumerate(STACK):
        kept(place, f"s{at}.tif", plane)
    return place


@pytest.mark.parametrize("name", ["volume.zarr", "volume.npy"])
def test_a_folder_becomes_one_array(folder: Path, tmp_path: Path, done: Callable[..., Ran], name: str) -> None:
    ran = done(folder, tmp_path / name, *EDGES, "--memory", "100kB", "--jobs", 2)
    np.testing.assert_array_equal(content(tmp_path / name), WANTED)
    assert ran.line("in").startswith(f"{folder}: 11 x 20 x 31 uint8")
    assert "(ZYX)" in ran.line("units")


def test_the_letters_may_be_others(folder: Path, tmp_path: Path, done: Callable[..., Ran]) -> None:
    ran = done(folder, tmp_path / "movie.zarr", *EDGES, "--axes", "tyx")
    assert "(TYX)" in ran.line("units")
    np.testing.assert_array_equal(content(tmp_path / "movie.zarr"), WANTED)


@pytest.mark.parametrize("suffix", ["tif", "png", "npy"])
def test_an_array_becomes_a_folder(tmp_path: Path, done: Callable[..., Ran], suffix: str) -> None:
    source = zarr_array(tmp_path / "a.zarr", STACK, chunks=[4, 8, 8], names=["z", "y", "x"])
    for _ in range(2):  # the second run replaces the first
        done(source, tmp_path / "out", *EDGES, "--format", suffix)
        assert names(tmp_path / "out") == [f"{at:04}.{suffix}" for at in range(11)]
        found = [read_image(tmp_path / "out" / name).pixels for name in names(tmp_path / "out")]
        np.testing.assert_array_equal(found, WANTED)
    assert names(tmp_path) == ["a.zarr", "out"]


def test_a_folder_to_a_folder_stays_one_image_after_the_other(
    folder: Path, tmp_path: Path, done: Callable[..., Ran]
) -> None:
    kept(folder, "other.png", SMALL)
    (tmp_path / "out.npy").mkdir()
    for out in (tmp_path / "out", tmp_path / "out.npy"):
        assert done(folder, out, *EDGES).line("in") == f"{folder}: 12 images"
        assert names(out) == names(folder)


@pytest.mark.parametrize(
    ("code", "words", "says"),
    [
        (1, ("slices", "b.zarr"), ("slices/s0.tif: is 31 x 20 pixels of 1 x uint8, and other.png is 31 x 23",)),
        (1, ("empty", "b.zarr"), ("empty: holds no image",)),
        (2, ("slices", "b.zarr", "--recursive"), ("--recursive goes with a folder of images; slices is one stack",)),
        (2, ("slices", "b.zarr", "--format", "png"), ("--format goes with a folder of images or of slices",)),
        (2, ("a.zarr", "b.zarr", "--format", "png"), ("--format goes with a folder of images or of slices",)),
        (2, ("a.png", "b.png", "--format", "png"), ("--format goes with a folder",)),
        (1, ("a.zarr", "full", "--format", "tif"), ("full: holds notes.txt, which is no slice",)),
        (1, ("a.zarr", "out", "--format", "jpg", "--out-dtype", "int16"), ("out/0000.jpg: JPEG holds uint8",)),
        (2, ("a.zarr", "out"), ("out: no ending to tell the format", "--format tif")),
        (2, ("a.zarr", "empty"), ("empty: no ending to tell the format", "--format tif")),
        (1, ("s3://bucket/a.png", "b.png"), ("s3://bucket/a.png: cannot be read in parts",)),
        (1, ("ftp://host/a.npy", "b.npy"), ("ftp://host/a.npy: .npy is not read from ftp://",)),
        (1, ("a.npy", "ftp://host/b.npy"), ("ftp://host/b.npy: .npy is not written to ftp://",)),
    ],
)
def test_mistakes(
    folder: Path, tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, code: int,
    words: tuple[str, ...], says: tuple[str, ...],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    kept(folder, "other.png", SMALL)
    kept(tmp_path, "a.png", SMALL)
    kept(tmp_path, "a.npy", SMALL)
    zarr_array(tmp_path / "a.zarr", STACK, chunks=[4, 8, 8], names=["z", "y", "x"])
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    before = names(tmp_path)
    refused(code, *words, *EDGES, says=says)
    assert names(tmp_path) == before
