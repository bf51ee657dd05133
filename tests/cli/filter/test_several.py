"""`convforge filter IN... OUT`: several images to a folder, each under its own name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.cli.commands import Ran
from tests.cli.filter.images import LAPLACIAN, SMALL, correlated, kept, saturated
from tests.imaging.pipeline.large import content, names, zarr_array

from convforge.imaging.files import read_image
from convforge.imaging.pipeline.folder_journal import NAME

EDGES = ("--kernel", "laplacian", "--method", "direct_naive")
WANTED = saturated(correlated(SMALL, LAPLACIAN))


def test_images_of_several_folders_go_to_one(tmp_path: Path, done: Callable[..., Ran]) -> None:
    (tmp_path / "more").mkdir()
    sources = [kept(tmp_path, "a.png", SMALL), kept(tmp_path / "more", "b.tif", SMALL[::-1])]
    ran = done(*sources, tmp_path / "out", *EDGES)
    assert names(tmp_path / "out") == ["a.png", "b.tif"]
    np.testing.assert_array_equal(read_image(tmp_path / "out" / "a.png").pixels, WANTED)
    assert (ran.line("in"), ran.line("out")) == ("2 images", f"{tmp_path / 'out'}: 2 images")
    assert "of their time" in ran.out
    done(*sources, tmp_path / "out", *EDGES, "--format", "npy", "--jobs", 1)
    assert names(tmp_path / "out") == ["a.npy", "a.png", "b.npy", "b.tif"]


def test_large_images_follow_one_by_one(tmp_path: Path, done: Callable[..., Ran]) -> None:
    large = [zarr_array(tmp_path / f"{name}.zarr", SMALL[..., at], chunks=[8, 8]) for at, name in enumerate("xy")]
    ran = done(kept(tmp_path, "a.png", SMALL), *large, tmp_path / "out", *EDGES, "--memory", "100kB")
    assert names(tmp_path / "out") == ["a.png", "x.zarr", "y.zarr"]
    for at, name in enumerate("xy"):
        np.testing.assert_array_equal(content(tmp_path / "out" / f"{name}.zarr"), WANTED[..., at])
    assert (ran.line("in"), ran.line("out")) == ("3 images", f"{tmp_path / 'out'}: 3 images")
    assert ran.line("in parts") == "2 images, in 2 units"
    assert ran.line("pixels").startswith(f"{23 * 31 * 5 / 1000:.1f} kB in")


def test_failures_are_told_at_the_end_and_the_rest_is_done(tmp_path: Path, run: Callable[..., Ran]) -> None:
    good = kept(tmp_path, "a.png", SMALL)
    (tmp_path / "bad.png").write_bytes(b"")
    (tmp_path / "bad.zarr").mkdir()
    sources = (tmp_path / "none.png", tmp_path / "bad.png", tmp_path / "bad.zarr", good)
    ran = run(*sources, tmp_path / "out", *EDGES)
    assert ran.code == 1
    assert names(tmp_path / "out") == [NAME, "a.png"]
    lines = ran.err.splitlines()
    assert [line.partition(": ")[2].partition(":")[0] for line in lines] == [
        str(tmp_path / name) for name in ("bad.png", "bad.zarr", "none.png")
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("a.png", "more/a.png", "out"), ("a.png and more/a.png would both become out/a.png",)),
        (("a.png", "b.tif", "a.png", "out"), ("would both become out/a.png",)),
        (("a.png", "more/b.tif", "more"), ("more/b.tif would overwrite more/b.tif, which is to be filtered too",)),
        (("a.png", "b.tif", "c.png"), ("several images go to a folder", "c.png names an image")),
        (("a.png", "b.tif", "c.zarr"), ("c.zarr names an image",)),
        (("a.png", "b.tif", "notes"), ("notes: is a file, and several images go to a folder",)),
        (("a.png", "more", "out"), ("more: is a folder; several IN are images",)),
        (("a.png", "-", "out"), ("- (standard input) is one image",)),
        (("a.png", "b.tif", "-"), ("there are 2 images, so OUT must name a local folder; - is none",)),
        (("a.png", "b.tif", "s3://bucket/out"), ("OUT must name a local folder; s3://bucket/out is none",)),
        (("a.png", "b.tif", "out", "--recursive"), ("--recursive goes with one folder",)),
        (("a.png",), ("a.png is the only name; write IN and OUT",)),
    ],
)
def test_bad_use_begins_nothing(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...],
    says: tuple[str, ...],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more").mkdir()
    kept(tmp_path, "a.png", SMALL)
    kept(tmp_path, "b.tif", SMALL)
    kept(tmp_path / "more", "a.png", SMALL)
    kept(tmp_path / "more", "b.tif", SMALL)
    (tmp_path / "notes").touch()
    refused(2, *words, *EDGES, says=says)
    assert names(tmp_path) == ["a.png", "b.tif", "more", "notes"]
