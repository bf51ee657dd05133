"""A part of an image in memory is that part of the whole result, bit for bit; alpha and metadata follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from tests.imaging.pipeline.large import recipe

from convforge.imaging.files import Image, ImageError, Metadata, read_image, write_image
from convforge.imaging.pipeline.lanes import Clock
from convforge.imaging.selection import Selection

RANDOM = np.random.default_rng(41)
STACK = RANDOM.integers(0, 2**16, (2, 3, 4, 22, 26), dtype=np.uint16)  # TZCYX


def result(path: Path, *, part: dict[str, Any] | None = None, kernel: Any = "laplacian", **options: Any) -> Image:
    chosen = recipe(kernel, selection=Selection.of(**(part or {})), **options)
    done, _ = chosen(chosen.read(path), Clock())
    return done


@pytest.mark.parametrize("border", ["reflect", "symmetric", "replicate", "circular", "zeros"])
@pytest.mark.parametrize("region", ["0:7,20:31", "5:6,9:10", "-3:,:", ":,4:9"])
def test_a_region_is_a_part_of_the_whole_result(tmp_path: Path, border: str, region: str) -> None:
    path = tmp_path / "a.png"
    write_image(path, Image(RANDOM.integers(0, 256, (23, 31, 3), dtype=np.uint8)))
    options = {"kernel": RANDOM.integers(-9, 9, (5, 7)), "border": border, "algorithm": "direct_naive"}
    whole = result(path, **options)
    part = result(path, part={"region": region}, **options)
    rows, columns = Selection.of(region=region).rows_columns(23, 31)  # type: ignore[union-attr]
    np.testing.assert_array_equal(part.pixels, whole.pixels[rows, columns])


@pytest.mark.parametrize("method", ["auto", "separable", "direct_naive"])
def test_floats_are_equal_bit_for_bit_too(tmp_path: Path, method: str) -> None:
    np.save(tmp_path / "a.npy", RANDOM.normal(size=(40, 50)).astype(np.float32))
    options = {"kernel": "gaussian:9:1.7", "algorithm": method, "stride": (3, 2), "border": "constant", "cval": 2.0}
    whole = result(tmp_path / "a.npy", **options)
    part = result(tmp_path / "a.npy", part={"region": "4:31,7:50"}, **options)
    np.testing.assert_array_equal(part.pixels, whole.pixels[2:11, 4:25])


def test_bands_are_summed_and_magnitudes_scaled_as_in_the_whole(tmp_path: Path) -> None:
    write_image(tmp_path / "a.tif", Image(RANDOM.integers(0, 2**16, (20, 21, 5), dtype=np.uint16)))
    for options in (
        {"channels": "sum", "magnitude": True, "scale": 0.25},
        {"channels": "sum", "out_dtype": np.dtype("f8")},
    ):
        whole = result(tmp_path / "a.tif", **options)
        part = result(tmp_path / "a.tif", part={"region": "3:17,:5"}, **options)
        np.testing.assert_array_equal(part.pixels, whole.pixels[3:17, :5])


def test_alpha_follows_and_values_in_pixels_do_not_stay(tmp_path: Path) -> None:
    pixels, alpha = (
        RANDOM.integers(0, 256, (20, 21, 3), dtype=np.uint8),
        RANDOM.integers(0, 256, (20, 21), dtype=np.uint8),
    )
    metadata = Metadata((300, 450), description="leaf")
    write_image(tmp_path / "a.png", Image(pixels, alpha, metadata))
    part = result(
        tmp_path / "a.png", part={"region": "5:16,3:", "channel": -1}, stride=(2, 3), algorithm="direct_naive"
    )
    assert part.alpha is not None
    np.testing.assert_array_equal(part.alpha, alpha[6:16:2, 3::3])
    assert part.pixels.shape == part.alpha.shape
    assert part.metadata.resolution == pytest.approx((39.37, 88.585))  # a centimetre
    assert part.metadata.description == "leaf"


def test_planes_of_a_stack_are_picked_by_the_names_of_its_axes(tmp_path: Path) -> None:
    names = {"axes": "TZCYX", "Channel": {"Name": ["DAPI", "GFP", "RFP", "Cy5"]}}
    tifffile.imwrite(tmp_path / "ome.tif", STACK, ome=True, metadata=names)
    tifffile.imwrite(tmp_path / "imagej.tif", STACK, imagej=True, metadata={"axes": "TZCYX"})
    np.save(tmp_path / "a.npy", STACK)
    identity = {"kernel": "identity"}
    for name, channel in (("ome.tif", "GFP"), ("imagej.tif", 1)):
        part = result(tmp_path / name, part={"channel": channel, "time": 1, "z": "1:"}, **identity)
        np.testing.assert_array_equal(part.pixels, STACK[1, 1:, 1])
        assert (part.pages, part.metadata.description) == (True, "")
    part = result(tmp_path / "a.npy", part={"channel": "::2", "z": 2}, axes="TZCYX", **identity)
    write_image(tmp_path / "b.npy", part)
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), STACK[:, 2, ::2])
    with pytest.raises(ImageError, match=r"ome.tif: --channel Cy3 is no channel; the channels are DAPI, GFP, RFP, Cy5"):
        result(tmp_path / "ome.tif", part={"channel": "Cy3"}, **identity)


def test_pages_without_a_name_are_depth_or_time_as_asked(tmp_path: Path) -> None:
    write_image(tmp_path / "a.tif", Image(STACK[0, :, 0], pages=True))
    for words in ({"z": 2}, {"time": 2}):
        part = result(tmp_path / "a.tif", part=words, kernel="identity")
        assert not part.pages
        np.testing.assert_array_equal(part.pixels, STACK[0, 2, 0])
    with pytest.raises(ImageError, match=r"a.tif: --z 3 is out of range; there are 3 along Z"):
        result(tmp_path / "a.tif", part={"z": 3})
    write_image(tmp_path / "b.tif", read_image(tmp_path / "a.tif"))
    with pytest.raises(ImageError, match=r"b.tif: --time 0 picks from an axis T, and the axes are ZYX"):
        result(tmp_path / "b.tif", part={"z": 0, "time": 0})
