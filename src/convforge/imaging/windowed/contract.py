"""Contract of the formats that are read and written in windows: a layout, a reader, a writer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from convforge.imaging.image import Array

Region = tuple[slice, ...]
"""A window of an array: one slice for each axis, with start and stop, without step."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape, sample type and grid of an array in a file.

    `axes` are the letters of :data:`convforge.imaging.axes.LETTERS` that the file names, or empty. `chunks` is the
    shape of the smallest piece that can be read, `shards` of the smallest that can be written alone; None means any.
    The last chunk of an axis may extend beyond the array.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axes: str = ""
    chunks: tuple[int, ...] | None = None
    shards: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize


class WindowReader(Protocol):
    """An array in a file, read window by window from several threads."""

    @property
    def path(self) -> Path: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def attributes(self) -> dict[str, Any]:
        """The user's metadata."""

    def read(self, region: Region) -> Array:
        """Return a window as a new C-contiguous array in native byte order; ``ImageError`` if it cannot be read."""

    def fingerprint(self) -> str:
        """Return a text that changes when the content changes."""


class WindowWriter(Protocol):
    """An array in a file, written window by window from several threads; no two windows share a shard."""

    @property
    def layout(self) -> Layout: ...

    def write(self, region: Region, array: Array) -> None:
        """Write a window of whole shards. When this returns, it is on the disk; ``ImageError`` if it fails."""


@dataclass(frozen=True, slots=True)
class WindowFormat:
    """A format whose arrays are read and written in windows.

    `arranged` returns a layout with the shards that this format gives it. `create` makes an empty array of such a
    layout, with the compression and the attributes of the source as far as it can, and returns its writer; `reopen`
    returns the writer of such an array again. `is_own` is true for a path that holds an array of this format, which a
    result may replace.
    """

    name: str
    suffix: str
    is_own: Callable[[Path], bool]
    open: Callable[[Path], WindowReader]
    arranged: Callable[[Layout], Layout]
    create: Callable[[Path, Layout, WindowReader], WindowWriter]
    reopen: Callable[[Path], WindowWriter]
    keeps_attributes: bool
