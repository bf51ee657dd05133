"""Filters in units give the bits of the image in memory: borders, strides, chunks, types, axes."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.imaging.pipeline.large import RANDOM, content, kept, names, recipe, zarr_array

import convforge
from convforge.imaging.pipeline.large import LargeFilter
from convforge.problem import PADDING_MODES

IMAGE = RANDOM.integers(0, 65536, (61, 53), dtype=np.uint16)
SMALL = 16_000  # bytes: several units of the images here


@pytest.mark.parametrize("kernel", ["laplacian", "gaussian:7:1.5", pytest.param("box:4", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("border", PADDING_MODES)
def test_every_border_gives_the_bits_of_the_image_in_memory(tmp_path: Path, kernel: str, border: str) -> None:
    source = zarr_array(tmp_path / "a.zarr", IMAGE, chunks=[8, 8], shards=[16, 8])
    for number, (stride, suffix) in enumerate(product([(1, 1), (2, 3)], [".zarr", ".npy"])):
        options: dict[str, Any] = {"border": border, "stride": stride, "cval": 7.0 if border == "constant" else 0.0}
        run = LargeFilter(source, tmp_path / f"{number}{suffix}", recipe(kernel, **options), memory=SMALL)
        assert len(run.division) > 3
        outcome = run()
        assert (outcome.units, outcome.resumed) == (len(run.division), 0)
        wanted = convforge.filter(IMAGE, kernel, **options)
        np.testing.assert_array_equal(content(run.target), wanted)
    assert names(tmp_path) == ["0.zarr", "1.npy", "2.zarr", "3.npy", "a.zarr"]


@pytest.mark.one_in(4)  # each type has kernels of its own to compile
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint32", "int64", "float16", "float32", "float64"])
def test_every_type_gives_the_bits_of_the_image_in_memory(tmp_path: Path, dtype: str) -> None:
    image = (RANDOM.normal(0, 40, (70, 33)) if dtype[0] == "f" else RANDOM.integers(0, 100, (70, 33))).astype(dtype)
    source = kept(tmp_path / "a.npy", image)
    for kernel, out in product(["sobel-x", "gaussian:5:1"], [None, "int16"]):
        options = {"out_dtype": None if out is None else np.dtype(out), "magnitude": True, "scale": 0.37}
        run = LargeFilter(source, tmp_path / "b.npy", recipe(kernel, **options), memory=SMALL)
        assert len(run.division) > 1
        run()
        _same_as_the_command(tmp_path, source, run.target, recipe(kernel, **options))


def _same_as_the_command(folder: Path, source: Path, target: Path, steps: Any) -> None:
    from convforge.imaging.files import write_image
    from convforge.imaging.pipeline.lanes import Clock

    image = steps.read(source)
    write_image(folder / "wanted.npy", steps(image, Clock())[0])
    wanted, found = np.load(folder / "wanted.npy"), content(target)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(found, wanted)
