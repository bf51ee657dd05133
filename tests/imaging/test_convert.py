"""Sample types: rounding, saturation, magnitudes, gray."""

from __future__ import annotations

from typing import Any

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convforge.imaging.convert import BLOCK, to_dtype, to_gray
from convforge.imaging.image import ImageError
from convforge.imaging.photographs import photograph

INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")


@pytest.mark.parametrize("dtype", INTEGERS)
def test_floats_round_to_even_and_saturate(dtype: str) -> None:
    ends = np.iinfo(dtype)
    source = np.array([0.5, 1.5, 2.5, np.nan, np.inf, -np.inf, 1e300, -1e300, float(ends.max), float(ends.min)])
    want = [0, 2, 2, 0, ends.max, ends.min, ends.max, ends.min, ends.max, ends.min]
    got = to_dtype(source, dtype)
    assert got.dtype == dtype
    assert got.tolist() == want


@settings(deadline=None)
@given(st.integers(-(2**63), 2**64 - 1), st.sampled_from(INTEGERS), st.sampled_from(INTEGERS), st.booleans())
def test_integers_are_exact(value: int, source: str, target: str, absolute: bool) -> None:
    ends = np.iinfo(source)
    value = min(max(value, ends.min), ends.max)
    want = abs(value) if absolute else value
    got = to_dtype(np.array([value], source), target, absolute=absolute)
    assert got.tolist() == [min(max(want, np.iinfo(target).min), np.iinfo(target).max)]


@settings(deadline=None)
@given(st.lists(st.floats(width=32), max_size=20), st.floats(-1e3, 1e3))
def test_scale_in_float64(values: list[float], scale: float) -> None:
    source = np.array(values, np.float32)
    want = [0 if v != v else round(min(max(v, -32768), 32767)) for v in (float(x) * scale for x in source)]
    assert to_dtype(source, np.int16, scale=scale).tolist() == want


def test_floats_keep_their_values() -> None:
    source = np.array([[-1.25, np.nan, np.inf, 70000.0]])
    np.testing.assert_array_equal(to_dtype(source, np.float32), source.astype(np.float32))
    np.testing.assert_array_equal(to_dtype(source, np.float16, absolute=True), [[1.25, np.nan, np.inf, np.inf]])
    np.testing.assert_array_equal(to_dtype(np.array([True, False]), np.uint8), [1, 0])


def test_shapes_blocks_and_new_memory() -> None:
    source = np.random.default_rng(0).normal(0, 200, (3, BLOCK // 2, 2)).transpose(2, 0, 1)
    want = np.clip(np.rint(source), 0, 255).astype(np.uint8)
    np.testing.assert_array_equal(to_dtype(source, np.uint8), want)
    assert not np.shares_memory(to_dtype(want, np.uint8), want)
    assert to_dtype(np.zeros((0, 3)), np.uint8).shape == (0, 3)
    assert to_dtype(7.6, np.uint8) == 8


@pytest.mark.parametrize(
    ("array", "dtype", "scale", "words"),
    [
        ([1j], "uint8", 1.0, "complex128"),
        ([1.0], "complex64", 1.0, "complex64"),
        ([1.0], "bool", 1.0, "bool"),
        ([1.0], "uint8", np.nan, "scale is nan"),
    ],
)
def test_refusals(array: Any, dtype: str, scale: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        to_dtype(array, dtype, scale=scale)


def test_gray_agrees_with_pillow() -> None:
    pixels = photograph("astronaut")
    pillow = np.asarray(PIL.Image.fromarray(pixels).convert("L")).astype(int)
    assert np.abs(to_gray(pixels).astype(int) - pillow).max() <= 1


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float16", "float32", "float64"])
def test_gray_keeps_type_and_white(dtype: str) -> None:
    top = 1 if np.dtype(dtype).kind == "f" else np.iinfo(dtype).max
    got = to_gray(np.full((2, 4, 5, 3), top, dtype))
    assert got.dtype == dtype
    np.testing.assert_allclose(got, np.full((2, 4, 5), top, dtype), rtol=1e-15 if dtype == "float64" else 0)


def test_gray_shapes() -> None:
    gray = np.ones((4, 5), np.uint8)
    np.testing.assert_array_equal(to_gray(gray), gray)
    np.testing.assert_array_equal(to_gray(gray[..., None]), gray)
    for shape in ((4, 5, 2), (4, 5, 4), (3,), (1, 1, 1, 1, 3)):
        with pytest.raises(ValueError, match="red, green and blue"):
            to_gray(np.zeros(shape))


def test_photograph_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImageError, match="did you mean 'astronaut'"):
        photograph("astronut")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImageError, match="pip install scikit-image"):
        photograph()
