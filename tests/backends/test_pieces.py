"""Kernel pieces: float16 by its bits, arrays as flat runs of elements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from convforge.algorithms.host.rows import float_to_half, half_to_float
from convforge.algorithms.host.views import logical, view
from convforge.backends.cpu.jit import jit


@jit
def widen(bits, out):
    for i in range(bits.size):
        out[i] = half_to_float(bits[i])


@jit
def narrow(values, out):
    for i in range(values.size):
        out[i] = float_to_half(values[i])


def test_all_65536_halves_become_the_float_that_they_are():
    bits = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    got = np.empty(65536, np.float32)
    widen(bits, got)
    expected = bits.view(np.float16).astype(np.float32)
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got[~nan].view(np.uint32), expected[~nan].view(np.uint32))  # signs of zero too
    np.testing.assert_array_equal(np.signbit(got[nan]), np.signbit(expected[nan]))


def narrowed_as_numpy_does(values: np.ndarray) -> None:
    got = np.empty(values.size, np.uint16)
    narrow(values, got)
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    nan = np.isnan(values)
    assert np.all(np.isnan(got[nan].view(np.float16)))
    np.testing.assert_array_equal(got[~nan], expected[~nan].view(np.uint16))


def test_every_half_its_neighbours_and_the_ties_between_round_as_in_numpy():
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = ((halves[:-1].astype(np.float64) + halves[1:]) / 2).astype(np.float32)
    near = [np.nextafter(v, np.float32(side)) for v in (halves, ties) for side in (np.inf, -np.inf)]
    values = np.concatenate([halves, ties, *near])
    narrowed_as_numpy_does(np.concatenate([values, -values]))


def test_the_limits_of_half():
    values = [65504, 65519.996, 65520, 65536, 1e38, np.inf, 2.0**-24, 2.0**-25, 2.0**-26, 3 * 2.0**-26, 2.0**-14, 6e-8,
              1e-45, 0.0, np.nan, 1.5 * 2.0**-25]  # fmt: skip
    numbers = np.array(values, np.float32)
    narrowed_as_numpy_does(np.concatenate([numbers, -numbers]))


def test_random_floats_of_every_exponent():
    rng = np.random.default_rng(0)
    narrowed_as_numpy_does(rng.integers(0, 1 << 32, 2_000_000, dtype=np.uint32).view(np.float32))
    narrowed_as_numpy_does((rng.standard_normal(500_000) * 2.0 ** rng.integers(-26, 17, 500_000)).astype(np.float32))


def test_doubles_beside_every_half_and_every_tie_are_rounded_once():
    """float32 has no number between a tie and what lies just beside it: by way of it the tie's even side would win."""
    halves = np.append(np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64), 65536.0)
    ties = (halves[:-1] + halves[1:]) / 2
    near = [np.nextafter(v, side) for v in (halves, ties) for side in (np.inf, -np.inf)]
    beyond_float32 = [v * (1 + step) for v in (halves, ties) for step in (2.0**-26, -(2.0**-26), 2.0**-50, -(2.0**-50))]
    values = np.concatenate([halves, ties, *near, *beyond_float32])
    with np.errstate(over="ignore"):
        twice = values.astype(np.float32).astype(np.float16)
        assert np.count_nonzero(twice != values.astype(np.float16)) > 50_000  # the test can fail
    narrowed_as_numpy_does(np.concatenate([values, -values]))


def test_the_limits_of_half_in_doubles():
    edges = np.array([65504, 65519.996, 65520, 65536, 3.4028235677973366e38, 1e39, 2.0**-14, 2.0**-24, 2.0**-25,
                      3 * 2.0**-26, 2.0**-126, 2.0**-149, 2.0**-150, 1e-60, 2.0**-1022])  # fmt: skip
    near = [np.nextafter(edges, side) for side in (np.inf, -np.inf)]
    values = np.concatenate([edges, *near, [0.0, 5e-324, np.finfo("f8").max, np.inf, np.nan]])
    narrowed_as_numpy_does(np.concatenate([values, -values]))


def test_random_doubles_of_every_exponent():
    rng = np.random.default_rng(0)
    narrowed_as_numpy_does(rng.integers(0, 1 << 64, 500_000, dtype=np.uint64).view(np.float64))
    narrowed_as_numpy_does(rng.standard_normal(500_000) * 2.0 ** rng.integers(-28, 17, 500_000))
    ties = (2 * rng.integers(1 << 10, 1 << 11, 500_000) + 1) * 2.0 ** rng.integers(-27, 5, 500_000)
    narrowed_as_numpy_does(ties * (1 + rng.choice([-1.0, 0.0, 1.0], 500_000) * 2.0 ** rng.integers(-52, -22, 500_000)))


def test_whole_sums_become_the_nearest_half():
    limits = np.iinfo(np.int32)
    narrowed_as_numpy_does(np.arange(-70_000, 70_000, dtype=np.int32))
    narrowed_as_numpy_does(np.array([limits.min, limits.min + 1, limits.max, 1 << 24, (1 << 24) + 1], np.int32))


@st.composite
def strided(draw):
    """A 4-D array cut out of a larger one: any steps, reversed, transposed, broadcast."""
    shape = draw(st.tuples(*[st.integers(1, 5)] * 4))
    dtype = draw(st.sampled_from(["float32", "float64", "uint8", "float16", "int16"]))
    steps = draw(st.tuples(*[st.sampled_from([1, 2, 3, -1, -2])] * 4))
    whole = np.arange(np.prod([3 * n for n in shape])).reshape([3 * n for n in shape]).astype(dtype)
    cut = whole[tuple(slice(None, None, step) for step in steps)]
    cut = cut[tuple(slice(0, n) for n in shape)]
    cut = cut.transpose(draw(st.permutations(range(4))))
    return np.broadcast_to(cut[:1], (3, *cut.shape[1:])) if draw(st.integers(0, 4)) == 0 else cut


@settings(deadline=None)
@given(strided(), st.sampled_from(["NCHW", "NHWC"]))
def test_a_view_finds_every_element_without_a_copy(array, layout):
    seen = view(array, layout)
    assert seen.half == (array.dtype == np.float16)
    assert seen.flat.ndim == 1
    assert np.shares_memory(seen.flat, array)
    expected = logical(array, layout)
    flat = seen.flat.view(np.float16) if seen.half else seen.flat
    base, *steps = seen.place
    for index in np.ndindex(expected.shape):
        assert flat[base + int(np.dot(index, steps))] == expected[index]
    assert 0 <= base < flat.size


@settings(deadline=None)
@given(hnp.arrays(np.float32, (1, 2, 3, 4), elements=st.floats(-9, 9, width=32)))
def test_unaligned_arrays_are_copied(array):
    raw = np.zeros(array.nbytes + 1, np.uint8)
    unaligned = raw[1:].view(np.float32).reshape(array.shape)
    unaligned[...] = array
    seen = view(unaligned, "NCHW")
    assert seen.flat.ctypes.data % 4 == 0
    np.testing.assert_array_equal(seen.flat[seen.place[0] :][: array.size].reshape(array.shape), array)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 0, 3, 4), (2, 3, 0, 0)])
def test_empty_arrays_have_an_empty_view(shape):
    assert view(np.empty(shape, np.float32), "NCHW").flat.size == 0


def test_a_view_of_a_read_only_array_is_the_same_memory_without_the_flag():
    """The flag is part of Numba's types: each kernel would be compiled once more."""
    array = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    array.flags.writeable = False
    for seen in (array, array[:, ::-1, 1:], array[..., ::2]):
        flat = view(seen, "NHWC").flat
        assert flat.flags.writeable
        assert np.shares_memory(flat, array)
