"""`convforge.filter` and `filter_many` of arrays whose axes are named by letters, against scipy.ndimage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import ndimage
from tests.kinds import maker

import convforge
from convforge.backends.cuda.arrays import DeviceArray
from convforge.imaging.axes import Axes

RANDOM = np.random.default_rng(7)
LAPLACIAN = np.array([[1, 1, 1], [1, -8, 1], [1, 1, 1]])


@pytest.mark.parametrize("stride", [1, (2, 3)])
@pytest.mark.parametrize(
    ("letters", "shape"),
    [
        ("YX", (11, 14)),
        ("ZYX", (5, 11, 14)),
        ("CYX", (5, 11, 14)),
        ("YXZ", (11, 14, 5)),
        ("TCYX", (2, 3, 11, 14)),
        ("CTYX", (3, 2, 11, 14)),
        ("CYXT", (3, 11, 14, 2)),
        ("TZCYX", (2, 3, 2, 11, 14)),
        ("TZYXC", (2, 3, 11, 14, 2)),
    ],
)
def test_named_axes_stay_where_they_are(letters: str, shape: tuple[int, ...], stride: Any) -> None:
    image = RANDOM.integers(0, 256, shape, dtype=np.uint8)
    rows, columns = letters.index("Y"), letters.index("X")
    steps = np.broadcast_to(stride, 2)
    planes = np.moveaxis(image, (rows, columns), (-2, -1))
    done = np.array(
        [ndimage.correlate(plane.astype(np.float64), LAPLACIAN, mode="mirror") for plane in planes.reshape(-1, 11, 14)]
    ).reshape(planes.shape)
    want = np.moveaxis(done[..., :: steps[0], :: steps[1]], (-2, -1), (rows, columns))
    options = {"stride": stride, "out_dtype": np.int16, "algorithm": "direct_naive"}
    found = convforge.filter(image, LAPLACIAN, axes=letters, **options)
    np.testing.assert_array_equal(found, want)
    (many,) = convforge.filter_many([image], LAPLACIAN, axes=letters.lower(), **options)
    np.testing.assert_array_equal(many, want)


@pytest.mark.parametrize(
    ("letters", "shape"),
    [("CYX", (3, 11, 14)), ("TCYX", (2, 3, 11, 14)), ("CTYX", (3, 2, 11, 14)), ("CTZYX", (3, 2, 2, 11, 14)),
     ("TYXS", (2, 11, 14, 3)), ("ZYX", (3, 11, 14))],
)  # fmt: skip
def test_named_bands_are_summed(letters: str, shape: tuple[int, ...]) -> None:
    image = RANDOM.integers(0, 256, shape, dtype=np.uint8)
    bands = letters.find("C") if "C" in letters else letters.find("S")
    summed = image.sum(bands, dtype=np.float64) if bands >= 0 else image
    want = [
        ndimage.correlate(plane.astype(np.float64), LAPLACIAN, mode="mirror") for plane in summed.reshape(-1, 11, 14)
    ]
    found = convforge.filter(image, LAPLACIAN, axes=letters, channels="sum", out_dtype=np.int32)
    np.testing.assert_array_equal(found, np.reshape(want, summed.shape))


@pytest.mark.parametrize("kind", ["torch", "jax"])
def test_named_axes_of_other_libraries(kind: str) -> None:
    image = RANDOM.normal(size=(2, 5, 11, 14)).astype(np.float32)
    found = convforge.filter(maker(kind)(image), "box:3", axes="TCYX")
    assert found.shape == image.shape
    np.testing.assert_array_equal(np.asarray(found), convforge.filter(image, "box:3", axes="TCYX"))


@pytest.mark.parametrize(
    ("letters", "options", "error", "says"),
    [
        (
            "TZYX",
            {},
            ValueError,
            "axes 'TZYX' name 4 axes, and the array has 3: its shape is (5, 11, 14); write --axes",
        ),
        ("QYX", {}, ValueError, "'Q' is no letter of an axis"),
        ("YXZ", {"channels": "sum"}, ValueError, "where bands are summed only they may follow YX; move Z to the front"),
        (3, {}, TypeError, "axes=3 must be a string"),
    ],
)
def test_axes_that_do_not_fit(letters: Any, options: dict[str, Any], error: Any, says: str) -> None:
    image = np.zeros((5, 11, 14), np.float32)
    for call in (convforge.filter, lambda x, *rest, **more: list(convforge.filter_many([x], *rest, **more))):
        with pytest.raises(error) as caught:
            call(image, "box:3", axes=letters, **options)  # type: ignore[operator]
        assert says in str(caught.value)


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("letters", ["YX", "CYX", "YXC", "ZYX", "TZCYX", "TZYXS", "TCZYX", "CTYX"])
def test_a_contiguous_array_on_a_gpu_is_read_where_it_is(letters: str, summed: bool) -> None:
    sizes = {"T": 2, "Z": 3, "C": 4, "S": 5, "Y": 8, "X": 9}
    shape = tuple(sizes[letter] for letter in letters)
    there = RANDOM.normal(size=shape).astype(np.float32)
    address = there.__array_interface__["data"][0]
    seen = DeviceArray.over(address, shape, None, there.dtype, there)
    if letters == "TCZYX" and summed:
        with pytest.raises(ValueError, match=r"do not follow each other in memory; make a contiguous copy .* axes TZ"):
            Axes(letters).for_filter(seen, summed=True)
        return
    stack = Axes(letters).for_filter(seen, summed=summed)
    want = Axes(letters).for_filter(there, summed=summed)
    assert (stack.address, stack.shape) == (address, want.shape)
    np.testing.assert_array_equal(np.lib.stride_tricks.as_strided(there, stack.shape, stack.strides), want)
