"""`convforge.filter_large`: its arguments mean what they mean for the command, and mistakes are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from tests.imaging.pipeline.large import kept, names

import convforge
from convforge.imaging.convert import to_gray
from convforge.imaging.files import ImageError, read_image

RANDOM = np.random.default_rng(8)
STACK = RANDOM.integers(0, 256, (3, 4, 40, 50), dtype=np.uint8)  # T Z Y X


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return kept(tmp_path / "a.npy", STACK)


def test_a_part_is_that_part_of_the_whole(source: Path, tmp_path: Path) -> None:
    whole = convforge.filter(STACK, "gaussian:5:1", axes="TZYX")
    rows_columns: tuple[slice, slice] = (slice(5, 30), slice(None, -10))
    for region in ("5:30,:-10", rows_columns):
        convforge.filter_large(
            source, tmp_path / "b.npy", "gaussian:5:1", axes="tzyx", region=region, time=-1, z=slice(1, 3)
        )
        np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), whole[-1, 1:3, 5:30, :-10])
    convforge.filter_large(source, tmp_path / "b.npy", "gaussian:5:1", axes="TCYX", channel="1:3", time="0")
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), whole[0, 1:3])


def test_gray_magnitude_and_scale(tmp_path: Path) -> None:
    photograph = RANDOM.integers(0, 256, (40, 50, 3), dtype=np.uint8)
    source = kept(tmp_path / "a.npy", photograph)
    convforge.filter_large(
        source, tmp_path / "b.npy", "sobel-x", gray=True, magnitude=True, scale=0.25, out_dtype="float64"
    )
    sums = convforge.filter(to_gray(photograph[None])[0], "sobel-x", out_dtype="float64")
    np.testing.assert_allclose(np.load(tmp_path / "b.npy"), np.abs(sums) / 4, rtol=1e-12, atol=1e-12)


def test_a_format_that_is_only_read_is_refused_with_what_to_write(source: Path, tmp_path: Path) -> None:
    for target in (tmp_path / "b.svs", "s3://images/b.svs"):
        with pytest.raises(ImageError, match=r"\.svs is only read; write b\.tif, or b\.ome\.tif for OME-TIFF"):
            convforge.filter_large(source, target, "box:3", axes="TZYX")


@pytest.mark.parametrize("suffix", [".tif", "PNG"])
def test_a_folder_of_slices(source: Path, tmp_path: Path, suffix: str) -> None:
    convforge.filter_large(source, tmp_path / "out", "box:3", axes="TZYX", time=0, slices=suffix)
    ending = suffix.lower().removeprefix(".")
    assert names(tmp_path / "out") == [f"000{at}.{ending}" for at in range(4)]
    found = [read_image(path).pixels for path in sorted((tmp_path / "out").iterdir())]
    np.testing.assert_array_equal(np.stack(found), convforge.filter(STACK[0], "box:3", axes="ZYX"))
    convforge.filter_large(tmp_path / "out", tmp_path / "c.npy", "identity")
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), np.stack(found))


def test_a_spacing_that_is_given_goes_before_that_of_the_file(tmp_path: Path) -> None:
    volume = STACK[:, 0].astype(np.uint16)
    sizes = {"PhysicalSizeX": 0.5, "PhysicalSizeY": 0.5, "PhysicalSizeZ": 1.0}
    tifffile.imwrite(tmp_path / "a.ome.tif", volume, ome=True, metadata={"axes": "ZYX", **sizes})
    given: Any = {"X": np.float32(0.25), "Y": 1}
    for spacing, kernel in ((None, "gaussian:1,2,2px"), (given, "gaussian:1,1,4px")):
        convforge.filter_large(tmp_path / "a.ome.tif", tmp_path / "b.npy", "gaussian:1,1,1um", spacing=spacing)
        np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), convforge.filter(volume, kernel, axes="ZYX"))


def test_paths_may_be_texts_and_progress_is_told(source: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    outcome = convforge.filter_large(
        str(source), str(tmp_path / "b.npy"), np.eye(3), axes="TZYX", memory=200_000,
        watch=lambda done, total, text: seen.append((done, total)),
    )  # fmt: skip
    assert outcome.units > 1
    assert seen[0] == (0, outcome.units)
    assert seen[-1] == (outcome.units, outcome.units)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"source": STACK}, TypeError, "source must be a path or a URL, not ndarray; convforge.filter filters arrays"),
        ({"target": 3}, TypeError, "target must be a path or a URL, not int"),
        ({"source": b"a.npy"}, TypeError, "source must be a path or a URL, not bytes"),
        ({"kernel": 3}, ValueError, "the kernel has shape ()"),
        ({"kernel": "gaussian:1um"}, ValueError, "samples along Y is not known"),
        ({"kernel": "gaussian:-1um"}, ValueError, "at least 0"),
        ({"spacing": 0.5}, TypeError, "spacing=0.5 must be a mapping"),
        ({"spacing": {"X": "1"}}, TypeError, "spacing['X']='1' must be a number"),
        ({"spacing": {"X": -1}}, ValueError, "each above 0"),
        ({"spacing": {"T": 1}}, ValueError, "letters Z, Y and X"),
        ({"slices": 3}, TypeError, "slices=3 must be a string"),
        ({"slices": ".zarr"}, ValueError, "slices='.zarr' is no suffix of images; choose one of .png"),
        ({"slices": ".tif", "target": "s3://bucket/out"}, ImageError, "local disk only"),
        ({"slices": ".jpg", "out_dtype": "uint16"}, ImageError, "JPEG holds uint8"),
        ({"gray": "yes"}, TypeError, "gray='yes' must be True or False"),
        ({"magnitude": 1}, TypeError, "magnitude=1 must be True or False"),
        ({"scale": "2"}, TypeError, "scale='2' must be a number"),
        ({"scale": float("nan")}, ValueError, "scale=nan must be a finite number"),
        ({"watch": True}, TypeError, "watch=True must be a function"),
        ({"memory": 1.5}, TypeError, "memory=1.5 must be a whole number"),
        ({"workers": 0}, ValueError, "workers=0 must be at least 1"),
        ({"algorithm": None}, TypeError, "algorithm=None must be a string"),
        ({"channels": "all"}, ValueError, "channels='all' is unknown"),
        ({"region": "5:2"}, ValueError, "is no region"),
        ({"z": 1.5}, TypeError, "z=1.5 must be an integer"),
        ({"z": 9}, ImageError, "--z 9 is out of range"),
        ({"sigma": 2}, TypeError, "filter_large has no argument 'sigma'"),
    ],
)  # fmt: skip
def test_mistakes(source: Path, tmp_path: Path, options: dict[str, Any], error: type[Exception], says: str) -> None:
    arguments: dict[str, Any] = {
        "source": source, "target": tmp_path / "b.npy", "kernel": "box:3", "axes": "TZYX", **options
    }  # fmt: skip
    if "slices" in options:
        arguments["target"] = options.get("target", tmp_path / "out")
    with pytest.raises(error) as caught:
        convforge.filter_large(**arguments)
    assert says in str(caught.value)
    assert names(tmp_path) == ["a.npy"]
