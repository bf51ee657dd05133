"""Views of arrays in GPU memory, on addresses that nothing may read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convforge.backends.cuda.arrays import DeviceArray

ADDRESS = 0x10000


def array() -> DeviceArray:
    """An array of 4 x 6 float32 at an address that the host cannot read."""
    return DeviceArray.at(ADDRESS, 96, None).view(np.float32).reshape(4, 6)


@pytest.mark.parametrize(
    ("index", "shape", "offset"),
    [
        (1, (6,), 24), (np.int32(2), (6,), 48), ((1, 2), (), 32), ((..., 2), (4,), 8), ((3, 5, ...), (), 92),
        (slice(1, 3), (2, 6), 24), ((slice(None), None, slice(None, None, 2)), (4, 1, 3), 0),
    ],
)  # fmt: skip
def test_a_view_begins_at_its_first_element(index: Any, shape: tuple[int, ...], offset: int) -> None:
    view = array()[index]
    assert (view.shape, view.address) == (shape, ADDRESS + offset)


@pytest.mark.parametrize("index", [[0, 1], True, (slice(None), [1]), np.array([0, 1]), np.bool_(True), "x"])
def test_an_index_that_would_copy_is_refused(index: Any) -> None:
    with pytest.raises(IndexError, match="indexed by integers and slices"):
        array()[index]
