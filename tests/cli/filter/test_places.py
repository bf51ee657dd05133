"""Which images go in units: the rule, for files of all formats."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from convforge.cli import filter_large as command
from convforge.cli.filter_large import is_large
from convforge.imaging import windowed
from convforge.imaging.image import MAX_PIXELS, ImageError
from convforge.imaging.windowed import Layout, Url, WindowFormat, npy
from convforge.imaging.windowed.slices import SliceFolder

IMAGE = np.random.default_rng(5).integers(0, 256, (64, 48), dtype=np.uint8)


@dataclass
class TiffReader:
    """What the rule needs of a reader of TIFF in windows."""

    path: Path

    def __post_init__(self) -> None:
        with tifffile.TiffFile(self.path) as file:
            if file.pages.first.colormap is not None:
                raise ImageError(f"{self.path}: palette")

    @property
    def layout(self) -> Layout:
        return Layout(tifffile.imread(self.path).shape, np.dtype(np.uint8))


@pytest.fixture
def tiff_in_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let units know TIFF, whether or not they do."""
    known = WindowFormat(
        "TIFF",
        (".tif", ".tiff"),
        Path.is_file,
        TiffReader,
        npy.arranged,
        npy.create,
        npy.FORMAT.reopen,  # type: ignore[arg-type]
    )
    formats = (known, *windowed.FORMATS)
    monkeypatch.setattr(windowed.format_of, "__defaults__", (formats,))
    monkeypatch.setattr(windowed.open_windows, "__defaults__", (formats,))


def written(folder: Path, name: str, **options: Any) -> Path:
    tifffile.imwrite(folder / name, IMAGE, **options)
    return folder / name


@pytest.mark.usefixtures("tiff_in_units")
@pytest.mark.parametrize(
    ("name", "options", "large"),
    [
        ("plain.tif", {}, False),
        ("tiled.tif", {"tile": (16, 16)}, True),
        ("big.tiff", {"bigtiff": True}, True),
        ("a.ome.tif", {"ome": True}, True),
        ("palette.tif", {"tile": (16, 16), "photometric": "palette", "colormap": np.zeros((3, 256), "u2")}, False),
    ],
)
def test_a_tiff_that_has_more_than_pixels_goes_in_units(
    tmp_path: Path, name: str, options: dict[str, Any], large: bool
) -> None:
    source = written(tmp_path, name, **options)
    assert is_large(source, tmp_path / "b.tif", None, MAX_PIXELS) == large
    assert not is_large(source, tmp_path / "b.png", None, MAX_PIXELS)
    assert not is_large(source, tmp_path / "b.npy", None, MAX_PIXELS)
    assert is_large(source, tmp_path / "b.tif", 10**9, MAX_PIXELS)


@pytest.mark.usefixtures("tiff_in_units")
def test_reduced_copies_are_seen_in_a_chain_and_in_a_directory_of_the_first(tmp_path: Path) -> None:
    for name, subifds in (("chain.tif", 0), ("tree.tif", 1)):
        with tifffile.TiffWriter(tmp_path / name) as file:
            file.write(IMAGE, subifds=subifds)
            file.write(IMAGE[::2, ::2], subfiletype=1)
        assert is_large(tmp_path / name, tmp_path / "b.tif", None, MAX_PIXELS)


@pytest.mark.parametrize("names", [("a.npy", "b.npy"), ("a.tif", "b.tif"), ("a.npy", "b.tif")])
@pytest.mark.usefixtures("tiff_in_units")
def test_more_samples_than_the_limit_go_in_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    np.save(tmp_path / "a.npy", IMAGE)
    written(tmp_path, "a.tif")
    source, target = (tmp_path / name for name in names)
    monkeypatch.setattr(command, "MAX_PIXELS", IMAGE.size - 1)
    assert is_large(source, target, None, IMAGE.size - 1)
    assert not is_large(source, target, None, IMAGE.size), "a raised limit lets it into memory"
    assert not is_large(source, target, None, 10), "a limit below the default refuses"
    assert not is_large(source, tmp_path / "b.png", None, IMAGE.size - 1)


def test_what_only_units_know_goes_in_units(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", IMAGE)
    source = tmp_path / "a.npy"
    for large in (Url("s3://bucket/a.npy"), tmp_path / "b.zarr", SliceFolder.of(tmp_path / "out", ".tif")):
        assert is_large(source, large, None, MAX_PIXELS)
        assert is_large(large, source, None, MAX_PIXELS)
    (tmp_path / "slices").mkdir()
    assert is_large(tmp_path / "slices", tmp_path / "b.npy", None, MAX_PIXELS)
    assert not is_large(source, tmp_path / "slices", None, MAX_PIXELS), "a mistake that is said where files are written"
    assert not is_large(tmp_path / "none.npy", tmp_path / "b.npy", None, MAX_PIXELS)
