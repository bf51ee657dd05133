"""A format of windows that keeps arrays in memory, with reduced copies, spacing and alpha."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from convforge.imaging.windowed import Layout, Place, Region, Url, WindowFormat, WindowReader, WindowWriter


class Kept:
    """An array in memory, as reader and writer."""

    def __init__(self, place: Place, layout: Layout, array: Any = None) -> None:
        self.path, self.layout, self.attributes = place, layout, dict[str, Any]()
        self.array = np.zeros(layout.shape, layout.dtype) if array is None else array
        self.levels = [Kept(place, replace(layout, shape=shape, levels=())) for shape in layout.levels]
        self.finished = False
        self.windows: list[Region] = []

    def read(self, region: Region) -> Any:
        return np.array(self.array[region], order="C")

    def fingerprint(self) -> str:
        return ""

    def write(self, region: Region, array: Any) -> None:
        shards = self.layout.shards or (1,) * array.ndim
        for part, shard, size in zip(region, shards, self.layout.shape, strict=True):
            assert part.start % shard == 0
            assert part.stop % shard == 0 or part.stop == size
        assert all(part.stop - part.start == side for part, side in zip(region, array.shape, strict=True))
        self.array[region] = array
        self.windows.append(region)

    def finish(self) -> None:
        self.finished = True


@dataclass
class Shelf:
    """Arrays by their URL; `format` reads and writes them."""

    arrays: dict[str, Kept] = field(default_factory=dict)

    def put(self, name: str, array: Any, **facts: Any) -> Url:
        url = Url(f"shelf://{name}")
        self.arrays[url.text] = Kept(url, Layout(array.shape, array.dtype, **facts), array)
        return url

    @property
    def format(self) -> WindowFormat:
        def create(place: Place, layout: Layout, source: WindowReader) -> WindowWriter:
            return self.arrays.setdefault(str(place), Kept(place, layout))

        return WindowFormat(
            "shelf", (".kept",), lambda path: False, lambda place: self.arrays[str(place)],
            lambda layout, place, source: layout, create, create,
            schemes=frozenset({"shelf"}), written_schemes=frozenset({"shelf"}),
        )  # fmt: skip
