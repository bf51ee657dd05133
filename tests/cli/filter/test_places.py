"""Which images go in units: the rule, for files of all formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from tests.cli.commands import Ran
from tests.imaging.pipeline.large import names

from convforge.cli import filter_large as command
from convforge.cli.filter_large import is_large
from convforge.imaging.files import write_image
from convforge.imaging.image import MAX_PIXELS, Image
from convforge.imaging.windowed import Url
from convforge.imaging.windowed.slices import SliceFolder

IMAGE = np.random.default_rng(5).integers(0, 256, (64, 48), dtype=np.uint8)


def written(folder: Path, name: str, *, cut: bool = False, **options: Any) -> Path:
    """A TIFF; `cut` takes away its end."""
    tifffile.imwrite(folder / name, IMAGE, **options)
    if cut:
        (folder / name).write_bytes((folder / name).read_bytes()[:-200])
    return folder / name


@pytest.mark.parametrize(
    ("name", "options", "large"),
    [
        ("plain.tif", {}, False),
        ("tiled.tif", {"tile": (16, 16)}, True),
        ("big.tiff", {"bigtiff": True}, True),
        ("a.ome.tif", {"ome": True}, True),
        ("cut.tif", {"tile": (16, 16), "cut": True}, False),
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


def test_reduced_copies_are_seen_in_a_chain_and_in_a_directory_of_the_first(tmp_path: Path) -> None:
    for name, subifds in (("chain.tif", 0), ("tree.tif", 1)):
        with tifffile.TiffWriter(tmp_path / name) as file:
            file.write(IMAGE, subifds=subifds)
            file.write(IMAGE[::2, ::2], subfiletype=1)
        assert is_large(tmp_path / name, tmp_path / "b.tif", None, MAX_PIXELS)


@pytest.mark.parametrize("names", [("a.npy", "b.npy"), ("a.tif", "b.tif"), ("a.npy", "b.tif")])
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


@pytest.mark.parametrize(
    ("source", "target", "large"),
    [
        ("a.npy", "b.ome.tif", True),
        ("a.tif", "b.OME.TIFF", True),
        ("a.tif", "b.btf", True),
        ("a.btf", "b.tif", True),
        ("a.svs", "b.npy", True),
        ("a.png", "b.ome.tif", False),
        ("palette.tif", "b.ome.tif", False),
        ("a.tif", "b.npy", False),
    ],
)
def test_a_name_that_promises_more_than_memory_writes_goes_in_units(
    tmp_path: Path, source: str, target: str, large: bool
) -> None:
    np.save(tmp_path / "a.npy", IMAGE)
    write_image(tmp_path / "a.png", Image(IMAGE))
    written(tmp_path, "palette.tif", photometric="palette", colormap=np.zeros((3, 256), "u2"))
    for name in ("a.tif", "a.btf", "a.svs"):
        written(tmp_path, name)
    assert is_large(tmp_path / source, tmp_path / target, None, MAX_PIXELS) == large


@pytest.mark.parametrize(("source", "name"), [("a.tif", "b.ome.tif"), ("a.tif", "b.btf"), ("a.svs", "b.tif")])
def test_the_result_is_what_its_name_promises(tmp_path: Path, done: Callable[..., Ran], source: str, name: str) -> None:
    ran = done(written(tmp_path, source), tmp_path / name, "--kernel", "identity")
    assert "\nunits" in ran.out
    with tifffile.TiffFile(tmp_path / name) as file:
        assert file.is_ome == (name == "b.ome.tif")
        np.testing.assert_array_equal(file.asarray(), IMAGE)


@pytest.mark.parametrize(
    "words",
    [
        ("tiled.tif", "b.svs"),
        ("tiled.tif", "b.SVS", "--memory", "1GB"),
        ("tiled.tif", "b.ndpi", "--format", "tif"),
        ("a.svs", "b.scn"),
        ("a.png", "b.lsm"),
        ("-", "b.stk"),
        ("slices", "b.svs"),
    ],
)
def test_a_format_that_is_only_read_is_refused_with_what_to_write(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("tiled.tif", "a.svs"):
        written(tmp_path, name, tile=(16, 16))
    (tmp_path / "slices").mkdir()
    for name in ("a.png", "slices/0.png", "slices/1.png"):
        write_image(tmp_path / name, Image(IMAGE))
    before = names(tmp_path)
    suffix = Path(words[1]).suffix.lower()
    says = f"{words[1]}: {suffix} is only read; write b.tif, or b.ome.tif for OME-TIFF"
    refused(2, *words, "--kernel", "box:3", says=(says,))
    refused(2, "a.svs", "a.png", "b.svs", "--kernel", "box:3", says=("OUT must name one; b.svs names an image",))
    assert names(tmp_path) == before


@pytest.mark.parametrize("memory", [(), ("--memory", "1GB")])
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("long.tif", "b.ome.tif"), ("b.ome.tif: OME-TIFF has no samples of int64", "--out-dtype")),
        (("cmyk.tif", "b.tif"), ("cmyk.tif: CMYK colours", "convert the image")),
        (("mixed.tif", "b.tif"), ("mixed.tif: pages of different shapes",)),
    ],
)
def test_a_tiff_that_is_refused_leaves_nothing(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...],
    says: tuple[str, ...], memory: tuple[str, ...],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "a.tif")
    tifffile.imwrite("long.tif", IMAGE.astype(np.int64))
    tifffile.imwrite("cmyk.tif", np.zeros((64, 64, 4), np.uint8), photometric="separated", tile=(32, 32))
    with tifffile.TiffWriter("mixed.tif") as file:
        file.write(IMAGE, tile=(16, 16))
        file.write(IMAGE[:50, :30], tile=(16, 16))
    before = names(tmp_path)
    refused(1, *words, "--kernel", "box:3", *memory, says=says)
    assert names(tmp_path) == before
