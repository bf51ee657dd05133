"""Files of windows that are read, and copied window by window."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from convforge.imaging.windowed import Layout, Region, WindowReader, WindowWriter, format_of, open_windows
from convforge.imaging.windowed.result import result_layout

RANDOM = np.random.default_rng(71)
PLAIN: dict[str, Any] = {"metadata": None, "software": False}


@contextmanager
def within(nbytes: float) -> Iterator[None]:
    """Fail if the objects that Python makes in the block take so many bytes at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < nbytes
    finally:
        tracemalloc.stop()


def whole(file: WindowReader | WindowWriter) -> Any:
    """All samples of a file."""
    return file.read(tuple(slice(0, size) for size in file.layout.shape))


def part(array: Any) -> Region:
    """A random window of an array."""
    ends = [sorted(RANDOM.choice(size + 1, 2, replace=False).tolist()) for size in array.shape]
    return tuple(slice(start, stop) for start, stop in ends)


def regions(layout: Layout) -> list[Region]:
    """The shards of a layout in random order."""
    starts = (range(0, size, side) for size, side in zip(layout.shape, layout.shards or layout.shape, strict=True))
    found = [
        tuple(
            slice(start, min(start + side, size))
            for start, side, size in zip(corner, layout.shards or layout.shape, layout.shape, strict=True)
        )
        for corner in itertools.product(*starts)
    ]
    return [found[at] for at in RANDOM.permutation(len(found))]


def layout_for(source: WindowReader, target: Path, axes: str = "", **changed: Any) -> Layout:
    """The layout of a copy of a file."""
    layout = source.layout
    letters = axes or layout.axes
    sizes = dict(zip(letters, layout.shape, strict=True))
    bands = sizes.get("S", sizes.get("C", 1))
    result = result_layout(layout, letters, layout.dtype, named=True, bands=bands, stride=(1, 1))
    result = replace(result, levels=layout.levels, spacing=layout.spacing, channels=layout.channels, alpha=layout.alpha)
    kind = format_of(target)
    assert kind is not None
    return kind.arranged(replace(result, **changed), target, source)


def begun(source: WindowReader, target: Path, layout: Layout) -> WindowWriter:
    """The writer of an empty copy of a file, under the name that a run gives it."""
    kind = format_of(target)
    assert kind is not None
    return kind.create(incomplete(target), layout, source)


def incomplete(target: Path) -> Path:
    return target.with_name(f"{target.name}.incomplete")


def filled(writer: WindowWriter, array: Any) -> None:
    """Write all windows in random order."""
    for region in regions(writer.layout):
        writer.write(region, array[region])


def copied(path: Path, target: Path, **changed: Any) -> tuple[WindowReader, Layout, Any]:
    """Copy a file window by window; give its reader, the layout of the copy, and the samples by the writer's `read`."""
    source = open_windows(path)
    layout = layout_for(source, target, **changed)
    writer = begun(source, target, layout)
    filled(writer, whole(source).astype(layout.dtype))
    back = whole(writer)
    for number, level in enumerate(writer.levels, start=2):
        filled(level, np.full(level.layout.shape, number, layout.dtype))
    writer.finish()
    incomplete(target).rename(target)
    return source, layout, back


def noise(*shape: int, dtype: Any = np.uint8) -> Any:
    return (RANDOM.random(shape) * 250).astype(dtype)


def each(*options: Any) -> Iterator[Any]:
    return itertools.product(*options)
