"""Filters in units give the bits of the image in memory: borders, strides, chunks, types, axes."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.imaging.pipeline.large import RANDOM, content, kept, names, opened, recipe, zarr_array

import convforge
from convforge.cli.values import parse_bytes
from convforge.imaging.image import ImageError
from convforge.imaging.pipeline.large import LargeFilter
from convforge.problem import PADDING_MODES

IMAGE = RANDOM.integers(0, 65536, (61, 53), dtype=np.uint16)
SMALL = 24_000  # bytes: several units of the images here


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


@pytest.mark.one_in(8)  # each type has kernels of its own to compile
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint32", "int64", "float16", "float32", "float64"])
def test_every_type_gives_the_bits_of_the_image_in_memory(tmp_path: Path, dtype: str) -> None:
    image = (RANDOM.normal(0, 40, (70, 33)) if dtype[0] == "f" else RANDOM.integers(0, 100, (70, 33))).astype(dtype)
    source = kept(tmp_path / "a.npy", image)
    for kernel, out in product(["laplacian", "gaussian:5:1"], [None, "int16"]):
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


@pytest.mark.parametrize(
    ("letters", "shape", "chunks", "options"),
    [
        ("YXC", (40, 30, 3), [16, 7, 2], {}),
        ("YXC", (40, 30, 3), [16, 7, 2], {"channels": "sum"}),
        ("YXC", (40, 30, 3), [16, 16, 3], {"gray": True}),
        ("CYX", (5, 20, 30), [2, 9, 30], {"stride": (2, 1)}),
        ("CYX", (5, 20, 30), [2, 9, 30], {"channels": "sum"}),
        ("TZYX", (3, 4, 20, 15), [1, 3, 10, 10], {}),
        ("TCZYX", (2, 3, 2, 20, 15), [1, 2, 1, 10, 10], {}),
        ("ZYXC", (4, 20, 15, 2), [3, 20, 15, 1], {}),
    ],
)
def test_bands_and_stacks_are_those_of_the_command(
    tmp_path: Path, letters: str, shape: Any, chunks: Any, options: Any
) -> None:
    image = RANDOM.integers(0, 256, shape, dtype=np.uint8)
    wanted = recipe("laplacian", axes=letters, **options)
    plain = kept(tmp_path / "a.npy", image)
    source = zarr_array(tmp_path / "a.zarr", image, chunks=chunks, names=list(letters.lower()))
    for steps, read, suffix in ((wanted, plain, ".zarr"), (recipe("laplacian", **options), source, ".npy")):
        run = LargeFilter(read, tmp_path / f"b{suffix}", steps, memory=SMALL)
        run()
        assert len(run.division) > 1 or suffix == ".zarr"
        _same_as_the_command(tmp_path, plain, run.target, wanted)
    run = LargeFilter(source, tmp_path / "c.zarr", recipe("laplacian", **options), memory=SMALL)
    run()
    assert "".join(opened(run.target).domain.labels).upper() == run.result.axes
    np.testing.assert_array_equal(content(run.target), content(tmp_path / "b.npy"))


@pytest.mark.parametrize("shape", [(30, 20, 1), (30, 20, 3), (2, 30, 20, 1), (2, 30, 20, 3)])
def test_unnamed_axes_are_those_of_the_command(tmp_path: Path, shape: Any) -> None:
    source = kept(tmp_path / "a.npy", RANDOM.integers(0, 256, shape, dtype=np.uint8))
    for options in ({}, {"channels": "sum"}):
        LargeFilter(source, tmp_path / "b.npy", recipe("laplacian", **options), memory=SMALL)()
        _same_as_the_command(tmp_path, source, tmp_path / "b.npy", recipe("laplacian", **options))


def test_bool_and_fortran_order_and_big_endian(tmp_path: Path) -> None:
    bits = RANDOM.integers(0, 2, (40, 30)).astype(bool)
    for name, array in (("bool", bits), ("fortran", np.asfortranarray(IMAGE)), ("big", IMAGE.astype(">u2"))):
        source = kept(tmp_path / f"{name}.npy", array)
        LargeFilter(source, tmp_path / "b.npy", recipe("laplacian"), memory=SMALL)()
        _same_as_the_command(tmp_path, source, tmp_path / "b.npy", recipe("laplacian"))


def test_a_kernel_larger_than_a_unit_and_than_the_image(tmp_path: Path) -> None:
    image = RANDOM.integers(0, 256, (5, 40), dtype=np.uint8)
    source = zarr_array(tmp_path / "a.zarr", image, chunks=[2, 3])
    taps = RANDOM.integers(-3, 4, (13, 9))
    for border in PADDING_MODES:
        LargeFilter(source, tmp_path / "b.zarr", recipe(taps, border=border), memory=SMALL)()
        np.testing.assert_array_equal(content(tmp_path / "b.zarr"), convforge.filter(image, taps, border=border))


def test_the_emulator_s_streams_give_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("cuda.core")
    source = kept(tmp_path / "a.npy", IMAGE)
    try:
        run = LargeFilter(source, tmp_path / "b.npy", recipe("laplacian", device="emulator"), memory=2 * SMALL)
    except RuntimeError as absent:
        pytest.skip(str(absent))
    run()
    np.testing.assert_array_equal(np.load(run.target), convforge.filter(IMAGE, "laplacian"))


# The result keeps the grid, the codecs and the attributes of the source.


def test_a_zarr_result_is_stored_like_its_source(tmp_path: Path) -> None:
    more = {"fill_value": 5, "attributes": {"microscope": {"gain": 3}}}
    source = zarr_array(tmp_path / "a.zarr", IMAGE, chunks=[8, 8], shards=[16, 8], names=["y", "x"], **more)
    convforge.filter_large(source, tmp_path / "b.zarr", "laplacian")
    before, after = (json.loads((path / "zarr.json").read_text()) for path in (source, tmp_path / "b.zarr"))
    assert before == after
    wider = recipe("laplacian", stride=(2, 2), out_dtype=np.dtype("float32"), scale=2.0)
    outcome = LargeFilter(source, tmp_path / "b.zarr", wider)()
    after = json.loads((tmp_path / "b.zarr" / "zarr.json").read_text())
    assert outcome.lost == ("attributes",)
    assert not after.get("attributes")
    grid = opened(tmp_path / "b.zarr").chunk_layout
    assert (grid.read_chunk.shape, grid.write_chunk.shape) == ((8, 8), (16, 8))


def test_version_2_stays_version_2(tmp_path: Path) -> None:
    metadata = {"shape": IMAGE.shape, "chunks": [9, 8], "dtype": ">u2", "compressor": {"id": "zlib", "level": 1}}
    opened(tmp_path / "a.zarr", version=2, metadata=metadata, create=True)[...] = IMAGE
    (tmp_path / "a.zarr" / ".zattrs").write_text('{"_ARRAY_DIMENSIONS": ["y", "x"], "by": "me"}')
    for out in (None, np.dtype("int16")):
        steps = recipe("laplacian", scale=2.0, out_dtype=out)
        outcome = LargeFilter(tmp_path / "a.zarr", tmp_path / "b.zarr", steps)()
        found = json.loads((tmp_path / "b.zarr" / ".zarray").read_text())
        assert (outcome.lost, found["chunks"], found["compressor"]["id"]) == ((), [9, 8], "zlib")
        found = json.loads((tmp_path / "b.zarr" / ".zattrs").read_text())
        assert found == {"_ARRAY_DIMENSIONS": ["y", "x"], "by": "me"}
        _same_as_the_command(tmp_path, kept(tmp_path / "a.npy", IMAGE), tmp_path / "b.zarr", steps)


def test_units_grow_with_the_memory_and_hold_whole_shards(tmp_path: Path) -> None:
    source = zarr_array(tmp_path / "a.zarr", IMAGE, chunks=[4, 4], shards=[8, 4])
    runs = [LargeFilter(source, tmp_path / "b.zarr", recipe("box:3"), memory=most) for most in (2000, 20_000, 10**9)]
    sizes = [run.division.unit for run in runs]
    assert sizes[0] < sizes[1] < sizes[2]
    assert all(unit[0] % 8 == 0 and unit[1] % 4 == 0 for unit in sizes)
    assert all(run.needs <= run.memory for run in runs)
    with pytest.raises(ValueError, match=r"a memory of 100 bytes is too small: one unit of 8 x 4 samples needs 1MB"):
        LargeFilter(source, tmp_path / "b.zarr", recipe("box:3"), memory=100)


def test_a_memory_too_small_is_told_as_the_option_takes_it(tmp_path: Path) -> None:
    image = np.ones((1500, 1500), np.uint16)
    source = zarr_array(tmp_path / "a.zarr", image, chunks=[50, 50], shards=[1500, 1500])
    with pytest.raises(ImageError) as caught:
        LargeFilter(source, tmp_path / "b.zarr", recipe("box:3"), memory=4_000_000)
    found = re.search(
        r"a memory of 4MB is too small: one unit of 1500 x 1500 samples needs (\d+MB); allow that much "
        r"\(--memory (\d+MB)\), or write \.npy, which needs 1MB$", str(caught.value),
    )  # fmt: skip
    assert found is not None
    assert found[1] == found[2]
    memory = parse_bytes(found[2])
    assert LargeFilter(source, tmp_path / "b.zarr", recipe("box:3"), memory=memory).needs <= memory
    assert LargeFilter(source, tmp_path / "b.npy", recipe("box:3"), memory=1_000_000).needs <= 1_000_000
    source = zarr_array(tmp_path / "c.zarr", image, chunks=[1500, 1500])
    with pytest.raises(ImageError, match=r"allow that much \(--memory \d+MB\)$"):
        LargeFilter(source, tmp_path / "b.zarr", recipe("box:3"), memory=4_000_000)


def test_a_fault_of_the_source_is_raised_once(tmp_path: Path) -> None:
    source = zarr_array(tmp_path / "a.zarr", np.ones((64, 64), np.uint8), chunks=[16, 16])
    (source / "c" / "1" / "2").write_bytes(b"no zstd")
    with pytest.raises(ImageError, match=f"^{re.escape(str(source))}: ") as caught:
        LargeFilter(source, tmp_path / "b.zarr", recipe("box:3"), memory=10**7)()
    seen: list[BaseException] = []
    error: BaseException | None = caught.value
    while error is not None:
        assert error not in seen, "an error that causes itself"
        seen.append(error)
        error = error.__cause__


def test_a_result_may_replace_its_source(tmp_path: Path) -> None:
    source = zarr_array(tmp_path / "a.zarr", IMAGE, chunks=[16, 16])
    convforge.filter_large(source, source, "laplacian")
    np.testing.assert_array_equal(content(source), convforge.filter(IMAGE, "laplacian"))
    assert names(tmp_path) == ["a.zarr"]
