"""Passes of a run: reduced copies, opacity, filters along Z, spacing; arrays are kept in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import ndimage
from tests.imaging.pipeline.in_memory import Kept, Shelf
from tests.imaging.pipeline.large import RANDOM, recipe

import convforge
from convforge.imaging.pipeline.large import LargeFilter
from convforge.imaging.pipeline.recipe import Depth
from convforge.imaging.selection import Selection
from convforge.imaging.windowed.result import factors_of
from convforge.problem import PADDING_MODES

GAUSSIAN = np.exp(-0.5 * (np.arange(-4, 5) / 1.3) ** 2)
GAUSSIAN /= GAUSSIAN.sum()


@pytest.fixture(autouse=True)
def journals(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals of URLs in a folder of the test; compiled kernels stay where they are."""
    from convforge.imaging.pipeline import large_plan

    monkeypatch.setattr(large_plan, "cache_root", lambda: tmp_path)


def filtered(array: Any, steps: Any, memory: int, **facts: Any) -> Kept:
    shelf = Shelf()
    source = shelf.put("a.kept", array, **facts)
    run = LargeFilter(source, "shelf://b.kept", steps, memory=memory, formats=(shelf.format,))
    outcome = run()
    assert outcome.units == run.units
    result = shelf.arrays["shelf://b.kept"]
    assert result.finished
    assert sum(len(each.windows) for each in (result, *result.levels)) == run.units
    return result


# Reduced copies.


def means(array: Any, factors: Any, dtype: Any) -> Any:
    """Means of whole and of cut blocks, rounded half to even."""
    for axis, by in enumerate(factors):
        blocks = -(-array.shape[axis] // by)
        more = [(0, blocks * by - size if at == axis else 0) for at, size in enumerate(array.shape)]
        padded = np.pad(array.astype(float), more, mode="edge")
        array = padded.reshape(*array.shape[:axis], blocks, by, *array.shape[axis + 1 :]).mean(axis + 1)
    return np.rint(array).astype(dtype) if np.dtype(dtype).kind in "iu" else array.astype(dtype)


@pytest.mark.parametrize(
    ("letters", "shape", "shards", "levels", "factors"),
    [
        ("YX", (101, 75), (16, 16), ((51, 38), (26, 19)), ((2, 2), (2, 2))),
        ("YX", (101, 75), (16, 32), ((50, 37), (12, 9)), ((2, 2), (4, 4))),
        ("CYX", (3, 64, 48), (1, 16, 16), ((3, 16, 12),), ((1, 4, 4),)),
        ("YXS", (60, 44, 3), (16, 16, 3), ((30, 22, 3),), ((2, 2, 1),)),
        ("TZYX", (2, 7, 40, 32), (1, 2, 16, 16), ((2, 4, 20, 16), (2, 2, 10, 8)), ((1, 2, 2, 2), (1, 2, 2, 2))),
    ],
)
def test_reduced_copies_are_means_of_the_copy_before(
    letters: str, shape: Any, shards: Any, levels: Any, factors: Any
) -> None:
    image = RANDOM.integers(0, 60000, shape, dtype=np.uint16)
    results = [
        filtered(image, recipe("gaussian:5:1"), memory, axes=letters, chunks=shards, shards=shards, levels=levels)
        for memory in (150_000, 10**9)
    ]
    assert len(results[0].windows) > len(results[1].windows)
    np.testing.assert_array_equal(results[0].array, convforge.filter(image, "gaussian:5:1", axes=letters))
    for result in results:
        before = result.array
        for level, by, wanted in zip(result.levels, factors, levels, strict=True):
            assert level.array.shape == wanted
            whole = means(before, by, np.uint16)[tuple(map(slice, wanted))]
            away = np.abs(level.array.astype(int) - whole)
            assert away.max() <= ("Z" in letters)  # a mean along Z is of sums in float32
            before = level.array
    for one, other in zip(results[0].levels, results[1].levels, strict=True):
        np.testing.assert_array_equal(one.array, other.array)


def test_factors_of_reduced_copies() -> None:
    for size in range(1, 200):
        for by in range(1, 9):
            for small in {max(size // by, 1), -(-size // by)}:
                found = factors_of("YX", (size, 64), (small, 32))
                assert found is not None
                # Every output has at least one pixel.
                assert (small - 1) * found[0] < size
    assert factors_of("YX", (100, 100), (70, 70)) is None
    assert factors_of("CYX", (4, 100, 100), (2, 50, 50)) is None


def test_copies_that_are_no_whole_part_become_halves() -> None:
    image = RANDOM.integers(0, 256, (100, 90), dtype=np.uint8)
    result = filtered(image, recipe("box:3"), 10**8, axes="YX", levels=((70, 63), (35, 31)))
    assert [level.array.shape for level in result.levels] == [(50, 45), (25, 22)]


# Opacity.


@pytest.mark.parametrize("shards", [(16, 16, 4), (16, 16, 1)])
def test_opacity_is_not_filtered(shards: Any) -> None:
    image = RANDOM.integers(0, 256, (61, 45, 4), dtype=np.uint8)
    for stride in ((1, 1), (2, 3)):
        steps = recipe("gaussian:5:1", stride=stride)
        result = filtered(image, steps, 100_000, axes="YXS", chunks=shards, shards=shards, alpha=True)
        assert len(result.windows) > 1
        wanted = convforge.filter(image[..., :3], "gaussian:5:1", stride=stride)
        np.testing.assert_array_equal(result.array[..., :3], wanted)
        np.testing.assert_array_equal(result.array[..., 3], image[:: stride[0], :: stride[1], 3])
    summed = filtered(image, recipe("box:3", channels="sum", scale=1 / 3), 10**8, axes="YXS", alpha=True)
    assert summed.array.shape == (61, 45, 2)
    np.testing.assert_array_equal(summed.array[..., 1], image[..., 3])
    wide = filtered(image, recipe("box:3", gray=True, out_dtype=np.dtype("float32")), 10**8, axes="YXS", alpha=True)
    np.testing.assert_array_equal(wide.array[..., 1], image[..., 3] / np.float32(255))


# Filters along Z.


@pytest.mark.parametrize("border", PADDING_MODES)
def test_a_filter_along_z_is_that_of_scipy(border: str) -> None:
    volume = RANDOM.integers(0, 60000, (2, 11, 40, 36), dtype=np.uint16)
    cval = 300.0 if border == "constant" else 0.0
    steps = recipe(np.outer(GAUSSIAN, GAUSSIAN), border=border, cval=cval, out_dtype=np.dtype("float32"),
                   depth=Depth.centred(GAUSSIAN))  # fmt: skip
    shards = (1, 2, 16, 16)
    results = [
        filtered(volume, steps, memory, axes="TZYX", chunks=shards, shards=shards) for memory in (700_000, 10**9)
    ]
    assert len(results[0].windows) > 8
    np.testing.assert_array_equal(results[0].array, results[1].array)
    mode = {"zeros": "constant", "reflect": "mirror", "symmetric": "reflect", "replicate": "nearest",
            "circular": "wrap"}.get(border, border)  # fmt: skip
    for found, plane in zip(results[0].array, volume, strict=True):
        wanted = plane.astype(np.float64)
        for axis in range(3):
            wanted = ndimage.correlate1d(wanted, GAUSSIAN, axis, mode=mode, cval=cval)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("letters", "shape"), [("ZYX", (9, 30, 28)), ("ZTYXC", (9, 2, 30, 28, 2)), ("CZYX", (2, 9, 30, 28))]
)
@pytest.mark.parametrize("dtype", ["uint8", "int32", "float64"])
def test_z_may_be_anywhere(letters: str, shape: Any, dtype: str) -> None:
    volume = RANDOM.integers(0, 200, shape).astype(dtype)
    taps = np.array([0.25, 0.5, 0.125])
    shards = tuple({"Z": 3, "Y": 8, "X": 14}.get(letter, 1) for letter in letters)
    steps = recipe("box:3", depth=Depth.centred(taps))
    result = filtered(volume, steps, 200_000, axes=letters, chunks=shards, shards=shards)
    assert len(result.windows) > 1
    wanted = volume.astype(np.float64)
    for letter, line in (("Y", np.ones(3) / 3), ("X", np.ones(3) / 3), ("Z", taps)):
        wanted = ndimage.correlate1d(wanted, line, letters.index(letter), mode="mirror")
    if dtype == "float64":
        np.testing.assert_allclose(result.array, wanted, rtol=1e-12)
    else:
        assert np.abs(result.array - wanted).max() <= 0.5 + 1e-3
    with pytest.raises(ValueError, match=r"has no axis Z \(YX\), along which the kernel reaches"):
        filtered(volume.reshape(30, -1), recipe("box:3", depth=Depth.centred(taps)), 10**8, axes="YX")


# What is known of the axes.


def test_spacing_and_channels_follow_the_filter() -> None:
    image = RANDOM.integers(0, 256, (2, 20, 30), dtype=np.uint8)
    facts: Any = {"axes": "CYX", "spacing": (None, 0.5, 0.25), "channels": ("DAPI", "GFP")}
    assert filtered(image, recipe("box:3"), 10**8, **facts).layout.spacing == (None, 0.5, 0.25)
    layout = filtered(image, recipe("box:3", stride=(2, 3)), 10**8, **facts).layout
    assert (layout.spacing, layout.channels) == ((None, 1.0, 0.75), ("DAPI", "GFP"))
    layout = filtered(image, recipe("box:3", channels="sum"), 10**8, **facts).layout
    assert (layout.axes, layout.spacing, layout.channels) == ("YX", (0.5, 0.25), ())


# Parts of an image.


@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
def test_a_region_has_the_bits_of_the_whole_result(stride: tuple[int, int]) -> None:
    image = RANDOM.integers(0, 60000, (3, 4, 90, 80), dtype=np.uint16)
    facts: Any = {"axes": "CZYX", "chunks": (1, 2, 16, 16), "shards": (1, 2, 16, 16), "levels": ((3, 4, 45, 40),)}
    facts |= {"channels": ("DAPI", "GFP", "RFP"), "spacing": (None, 2.0, 0.5, 0.5)}
    selection = Selection.of(region="10:71,-60:", channel="GFP", z="1:")
    steps = recipe("gaussian:7:1.5", stride=stride, border="symmetric", selection=selection)
    result = filtered(image, steps, 120_000, **facts)
    assert len(result.windows) > 2
    whole = convforge.filter(image, "gaussian:7:1.5", stride=stride, border="symmetric", axes="CZYX")
    rows, columns = (
        slice(-(-start // step), -(-stop // step))
        for (start, stop), step in zip([(10, 71), (20, 80)], stride, strict=True)
    )
    np.testing.assert_array_equal(result.array, whole[1, 1:, rows, columns])
    assert (result.layout.axes, result.layout.channels) == ("ZYX", ("GFP",))
    assert result.layout.spacing == (2.0, 0.5 * stride[0], 0.5 * stride[1])
    assert [level.array.shape[1] for level in result.levels] == [-(-result.array.shape[1] // 2)]


def test_a_part_of_the_planes_and_a_filter_along_z_do_not_mix() -> None:
    steps = recipe("box:3", depth=Depth.centred([0.5, 0.5]), selection=Selection.of(z="1:3"))
    with pytest.raises(ValueError, match=r"--z goes with filters of planes.*the result with --kernel identity --z"):
        filtered(np.zeros((5, 9, 9), np.uint8), steps, 10**8, axes="ZYX")
