"""Selected planes of an array that is read in windows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convforge.imaging.selection import Selection, SelectionError
from convforge.imaging.windowed import Layout, Region
from convforge.imaging.windowed.selected import Selected

SHAPE = (4, 6, 8, 9, 3)
ARRAY = np.random.default_rng(3).integers(0, 2**16, SHAPE, dtype=np.uint16)
LAYOUT = Layout(
    SHAPE, ARRAY.dtype, "TZYXC", chunks=(1, 2, 4, 4, 3), shards=(1, 4, 8, 8, 3),
    levels=((4, 6, 4, 5, 3), (4, 3, 2, 3, 3)), spacing=(None, 2.0, 0.5, 0.5, None), channels=("DAPI", "GFP", "RFP"),
)  # fmt: skip


@dataclass
class Held:
    """An array in memory, as a reader."""

    array: Any
    layout: Layout
    path: Path = Path("held.zarr")
    attributes: dict[str, Any] = field(default_factory=lambda: {"by": "me"})
    windows: list[Region] = field(default_factory=list)

    def read(self, region: Region) -> Any:
        self.windows.append(region)
        return np.ascontiguousarray(self.array[region])

    def fingerprint(self) -> str:
        return "held"


def selected(letters: str = "TZYXC", layout: Layout = LAYOUT, array: Any = ARRAY, **words: Any) -> Selected:
    selection = Selection.of(**words)
    assert selection is not None
    return Selected(Held(array, layout), selection, letters)


@pytest.mark.parametrize(
    ("words", "index", "axes"),
    [
        ({"z": 2}, np.s_[:, 2], "TYXC"),
        ({"time": "1:3"}, np.s_[1:3], "TZYXC"),
        ({"time": -1, "z": 0, "channel": "GFP"}, np.s_[-1, 0, ..., 1], "YX"),
        ({"z": "1::2", "channel": "1:"}, np.s_[:, 1::2, ..., 1:], "TZYXC"),
        ({"region": "2:5,:"}, np.s_[:], "TZYXC"),
    ],
)
def test_windows_are_those_of_the_picked_planes(words: Any, index: Any, axes: str) -> None:
    reader, wanted = selected(**words), ARRAY[index]
    assert (reader.layout.shape, reader.layout.axes, reader.layout.dtype) == (wanted.shape, axes, ARRAY.dtype)
    whole = reader.read(tuple(slice(0, size) for size in wanted.shape))
    np.testing.assert_array_equal(whole, wanted)
    assert whole.flags.c_contiguous
    window = tuple(slice(size // 3, size // 3 + 1 + size // 2) for size in wanted.shape)
    clipped = tuple(slice(part.start, min(part.stop, size)) for part, size in zip(window, wanted.shape, strict=True))
    np.testing.assert_array_equal(reader.read(clipped), wanted[window])


def test_the_layout_follows() -> None:
    layout = selected(z="::2", time=0, channel="1:").layout
    assert layout.chunks == (2, 4, 4, 3)
    assert layout.shards == (4, 8, 8, 3)
    assert layout.spacing == (4.0, 0.5, 0.5, None)
    assert layout.channels == ("GFP", "RFP")
    assert layout.levels == ((3, 4, 5, 2), (2, 2, 3, 2))
    assert selected(channel="rfp").layout.channels == ("RFP",)


def test_adjacent_planes_are_read_at_once_and_others_one_by_one() -> None:
    reader = selected(z="1:5")
    reader.read(tuple(slice(0, size) for size in reader.layout.shape))
    assert len(reader.file.windows) == 1  # type: ignore[attr-defined]
    assert reader.shape_in_file((1, 4, 8, 9, 3)) == (1, 4, 8, 9, 3)
    assert selected(z="::2", time=1).shape_in_file((3, 8, 9, 3)) == (1, 1, 8, 9, 3)


def test_opacity_is_no_channel_and_stays() -> None:
    layout = Layout((8, 9, 4), np.dtype(np.uint8), "YXC", alpha=True)
    array = np.random.default_rng(4).integers(0, 256, (8, 9, 4), dtype=np.uint8)
    reader = selected("YXC", layout, array, channel=1)
    assert (reader.layout.shape, reader.layout.axes, reader.layout.alpha) == ((8, 9, 2), "YXC", True)
    np.testing.assert_array_equal(reader.read(np.s_[2:5, 0:9, 0:2]), array[2:5][..., [1, 3]])
    with pytest.raises(SelectionError, match=r"held.zarr: --channel 3 is out of range; there are 3 channels"):
        selected("YXC", layout, array, channel=3)


def test_what_does_not_change_is_the_files() -> None:
    reader = selected(z=1)
    assert reader.path == Path("held.zarr")
    assert (reader.attributes, reader.fingerprint()) == ({"by": "me"}, "held")
