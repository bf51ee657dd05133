"""Selections: texts and values become parts of an image, and nonsense is refused before a file is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convforge.imaging.selection import Selection, SelectionError

SIZES = {"T": 5, "Z": 9, "Y": 20, "X": 30, "C": 3}
NAMES = ("DAPI", "488", "GFP")


def of(**words: Any) -> Selection:
    selection = Selection.of(**words)
    assert selection is not None
    return selection


@pytest.mark.parametrize(
    "text", ["0:5,1:4", ":,:", "-5:,:-3", "3:100,2:", " 1 : 2 , 3 : 4 ", (slice(0, 5), slice(None, 9))]
)
def test_a_region_means_what_numpy_means(text: Any) -> None:
    array = np.arange(20 * 30).reshape(20, 30)
    rows, columns = of(region=text).rows_columns(20, 30)
    wanted = eval(f"array[{text}]") if isinstance(text, str) else array[text]
    np.testing.assert_array_equal(array[rows, columns], wanted)
    assert None not in (rows.start, rows.stop, columns.start, columns.stop)


@pytest.mark.parametrize("region", ["0:20,0:30", "3:9,4:21", "5:6,6:7", "-7:,:-2"])
@pytest.mark.parametrize("stride", [(1, 1), (2, 3), (1, 5), (6, 6)])
def test_with_a_stride_the_region_has_the_pixels_whose_centre_it_holds(region: str, stride: tuple[int, int]) -> None:
    rows, columns = of(region=region).rows_columns(20, 30)
    inside = np.zeros((20, 30), bool)
    inside[rows, columns] = True
    inside = inside[:: stride[0], :: stride[1]]
    if not inside.any():
        with pytest.raises(SelectionError, match="no pixel of the result"):
            of(region=region).in_result(20, 30, stride)
        return
    found = np.zeros(inside.shape, bool)
    found[of(region=region).in_result(20, 30, stride)] = True
    np.testing.assert_array_equal(found, inside)


def test_an_index_removes_its_axis_and_a_slice_keeps_it() -> None:
    assert of(z="3", time="-1", channel="0").picks(SIZES) == {"Z": 3, "T": 4, "C": 0}
    assert of(z="2:4", time="::2", channel="1:").picks(SIZES) == {
        "Z": range(2, 4),
        "T": range(0, 5, 2),
        "C": range(1, 3),
    }
    assert of(z=np.int64(-2), channel=slice(0, 2)).picks(SIZES) == {"Z": 7, "C": range(2)}


@pytest.mark.parametrize(
    ("channel", "index"), [("DAPI", 0), ("488", 1), ("gfp", 2), ("1", 1), ("-1", 2), (2, 2), (" GFP ", 2)]
)
def test_a_channel_has_a_name_or_an_index(channel: Any, index: int) -> None:
    assert of(channel=channel).picks(SIZES, NAMES) == {"C": index}


def test_channels_are_those_of_c_else_of_s_else_one() -> None:
    assert of(channel=1).picks({"C": 2, "Y": 4, "X": 4, "S": 3}) == {"C": 1}
    assert of(channel=1).picks({"Y": 4, "X": 4, "S": 3}) == {"S": 1}
    assert of(channel=0).picks({"Y": 4, "X": 4}) == {}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"region": "0:5"}, "rows and columns as slices, like 0:512"),
        ({"region": "0:5,3"}, "no region"),
        ({"region": "0:5,0:5,0:5"}, "no region"),
        ({"region": "a:b,0:5"}, "no region"),
        ({"region": ""}, "no region"),
        ({"region": "0:9:2,0:5"}, "--stride leaves out"),
        ({"z": "three"}, "--z 'three' is no index and no slice"),
        ({"z": ""}, "--z '' is no index"),
        ({"z": "1.5"}, "no index"),
        ({"z": "1:2:3:4"}, "no index"),
        ({"time": "::0"}, "a step is at least 1"),
        ({"time": slice(None, None, -1)}, "a step is at least 1"),
        ({"channel": ""}, "names no channel"),
        ({"channel": "1:2:3:4"}, "no index and no slice"),
    ],
)
def test_nonsense_is_refused_before_any_image_is_known(words: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        Selection.of(**words)
    assert not isinstance(caught.value, SelectionError)


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match=r"z=1.5 must be an integer, a slice or a text"):
        Selection.of(z=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"z": 9}, "--z 9 is out of range; there are 9 along Z, with indices 0 to 8"),
        ({"time": -6}, "--time -6 is out of range; there are 5 along T"),
        ({"z": "5:5"}, "--z 5:5 is empty"),
        ({"channel": 3}, "--channel 3 is out of range; there are 3 channels"),
        ({"channel": "Cy5"}, r"--channel Cy5 is no channel; the channels are DAPI, 488, GFP, with indices 0 to 2"),
    ],
)
def test_what_the_image_has_not_is_refused(words: Any, says: str) -> None:
    with pytest.raises(SelectionError, match=says):
        of(**words).picks(SIZES, NAMES)


def test_names_that_the_file_does_not_give() -> None:
    with pytest.raises(SelectionError, match="the file names no channels, with indices 0 to 2"):
        of(channel="GFP").picks(SIZES)
    with pytest.raises(SelectionError, match=r"names 2 channels; give the index of one: \[0, 2\]"):
        of(channel="A").picks(SIZES, ("A", "B", "A"))
    with pytest.raises(SelectionError, match="--z 1 picks from an axis Z, and the axes are TYXC; name the axes"):
        of(z=1).picks({"T": 5, "Y": 20, "X": 30, "C": 3})
    with pytest.raises(SelectionError, match=r"--region 30:,: holds no pixel of the 30 x 20"):
        of(region="30:,:").rows_columns(20, 30)


def test_no_selection_and_its_text() -> None:
    assert Selection.of() is None
    assert str(of(region=(slice(None, 5), slice(-9, None)), channel="GFP", z=slice(0, 9, 2), time=-1)) == (
        "--region :5,-9: --channel GFP --z 0:9:2 --time -1"
    )
