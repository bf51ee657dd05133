"""Gaussians by sigma in pixels and in units of length, and filters of volumes, against SciPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage
from tests.imaging.pipeline.large import recipe

import convforge
from convforge.imaging.image import Image
from convforge.imaging.kernels import KernelError, lengths_along, load_kernel
from convforge.imaging.pipeline.lanes import Clock
from convforge.imaging.pipeline.recipe import Depth
from convforge.imaging.sigmas import SigmasError, spacing_from

RANDOM = np.random.default_rng(5)
VOLUME = RANDOM.integers(0, 60000, (9, 40, 50), dtype=np.uint16)


@pytest.mark.parametrize(
    ("text", "spacing", "sigmas"),
    [
        ("gaussian:2px", {}, (2.0, 2.0)),
        ("gaussian:2,0.7px", {}, (2.0, 0.7)),
        ("gaussian:0.5um", {"Y": 0.25, "X": 0.5}, (2.0, 1.0)),
        ("Gaussian:500nm", {"Y": 0.25, "X": 0.5}, (2.0, 1.0)),
        ("gaussian:0.001,0mm", {"Y": 0.5}, (2.0, 0.0)),
    ],
)
def test_planes_are_those_of_scipy(text: str, spacing: Any, sigmas: Any) -> None:
    kernel = load_kernel(text, spacing)
    assert kernel.depth is None
    image = RANDOM.normal(0, 1, (40, 50))
    wanted = ndimage.gaussian_filter(image, sigmas, mode="mirror")
    np.testing.assert_allclose(convforge.filter(image, kernel.values), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gaussian:0.5um", "the distance of the samples along Y is not known, so 0.5 um"),
        ("gaussian:0,0px", "at least 0, and one above 0"),
        ("gaussian:-1px", "at least 0, and one above 0"),
        ("gaussian:1,2,3,4px", "4 values; write Y,X or Z,Y,X"),
        ("gaussian:1e9px", "more than 2047"),
        ("gaussian:1--2px", "no list of numbers"),
        ("gaussian:2", "gaussian:SIZE:SIGMA"),
    ],
)
def test_mistakes(text: str, says: str) -> None:
    with pytest.raises(KernelError, match=says):
        load_kernel(text)


@pytest.mark.parametrize("border", ["mirror", "nearest", "zeros"])
@pytest.mark.parametrize("dtype", ["uint16", "float32", "float64"])
def test_a_volume_is_that_of_scipy(border: str, dtype: str) -> None:
    image = VOLUME.astype(dtype)
    found = convforge.filter(image, "gaussian:1.5,1,2px", border=border, axes="ZYX")
    mode = {"zeros": "constant"}.get(border, border)
    wanted = ndimage.gaussian_filter(image.astype(np.float64), (1.5, 1, 2), mode=mode)
    assert found.dtype == image.dtype
    np.testing.assert_allclose(found, wanted, rtol={"float64": 1e-10}.get(dtype, 1e-5), atol=0.51 * (dtype == "uint16"))


def test_a_volume_in_units_has_the_bits_of_the_volume_in_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", VOLUME)
    for kernel, spacing in (("gaussian:1.5,1,2px", None), ("gaussian:3,1,1um", {"Z": 2.0, "Y": 1.0, "X": 0.5})):
        outcome = convforge.filter_large(
            tmp_path / "a.npy", tmp_path / "b.npy", kernel, axes="ZYX", memory=1_000_000, spacing=spacing
        )
        assert outcome.units > 1
        wanted = convforge.filter(VOLUME, "gaussian:1.5,1,2px", axes="ZYX")
        np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), wanted)


def test_axes_strides_and_bands_of_a_volume() -> None:
    image = RANDOM.normal(0, 1, (2, 9, 3, 20, 24))
    found = convforge.filter(image, "gaussian:1,1,1px", axes="TZCYX", stride=(2, 3), channels="sum")
    wanted = ndimage.gaussian_filter(image.sum(2), (0, 1, 1, 1), mode="mirror")[:, :, ::2, ::3]
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
    for axes in (None, "TYXC"):
        with pytest.raises(ValueError, match="reaches along Z; name the axes"):
            convforge.filter(image[:, :, 0], "gaussian:1,1,1px", axes=axes)
    with pytest.raises(ValueError, match="reaches along Z"):
        list(convforge.filter_many([image[0, 0, 0]], "gaussian:1,1,1px"))


def test_an_image_in_memory_is_not_filtered_along_z() -> None:
    depth = Depth.centred((0.25, 0.5, 0.25))
    volume = recipe("box:3", depth=depth)
    with pytest.raises(ValueError, match="an image in memory is filtered plane by plane"):
        volume(Image(VOLUME, pages=True), Clock())


@pytest.mark.parametrize(
    ("text", "letters"),
    [("gaussian:1,2,3um", "ZYX"), ("gaussian:0,1um", "X"), ("Gaussian:1nm", "YX"), ("gaussian:1,2,3px", ""),
     ("gaussian:5:1", ""), ("box:3", ""), ("1 1; 1 1", "")],
)  # fmt: skip
def test_axes_whose_spacing_is_needed(text: str, letters: str) -> None:
    assert lengths_along(text) == letters


@pytest.mark.parametrize("text", ["", "0", "-1", "1,2,3,4", "1;2", "nan", "1e999", "1,,2", "2um"])
def test_a_spacing_that_is_none(text: str) -> None:
    with pytest.raises(SigmasError, match="is no spacing; write the distance"):
        spacing_from(text)
