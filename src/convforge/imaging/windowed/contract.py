"""Contract of the formats that are read and written in windows: a place, a layout, a reader, a writer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import numpy as np

from convforge.imaging.image import Array, ImageError

Region = tuple[slice, ...]
"""A window of an array: one slice for each axis, with start and stop, without step."""


@dataclass(frozen=True, slots=True)
class Url:
    """The address of a file or an array that is not on a local disk, such as s3://bucket/cells.zarr."""

    text: str

    @property
    def scheme(self) -> str:
        return self.text.partition("://")[0].lower()

    @property
    def name(self) -> str:
        return PurePosixPath(self.text.partition("?")[0]).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    def __str__(self) -> str:
        return self.text


Place = Path | Url


def place_of(text: str | Place) -> Place:
    """Return a local path, or the URL that a text spells; `file://` is a local path.

    Examples
    --------
    >>> place_of("s3://bucket/cells.zarr").suffix
    '.zarr'
    >>> place_of("file:///data/cells.zarr")
    PosixPath('/data/cells.zarr')
    """
    if isinstance(text, Url | Path):
        return text
    if text.startswith("file://"):
        return Path(text.removeprefix("file://"))
    return Url(text) if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+://", text) else Path(text)


def local(place: Place) -> Path:
    """Return a local path; ``ImageError`` for a URL."""
    if isinstance(place, Url):
        raise ImageError(f"{place}: this format is read and written on a local disk only; copy the file there first")
    return place


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
    levels: tuple[tuple[int, ...], ...] = ()  # shapes of the reduced copies (the pyramid), largest first
    spacing: tuple[float | None, ...] = ()  # distance of the samples along each axis in micrometres; () is unknown
    channels: tuple[str, ...] = ()  # names of the channels; () is unknown
    alpha: bool = False  # the last band is opacity, which no filter changes
    origin: tuple[int, ...] = ()  # of a result: index of its first sample in the source, along each axis; () is 0
    steps: tuple[int, ...] = ()  # of a result: distance of its samples in samples of the source; () is unknown
    # Bytes that a chunk takes while it is decoded, and one of a result while it is encoded, beside its samples.
    decoding: int = field(default=0, compare=False)
    encoding: int = field(default=0, compare=False)
    respaced: str = ""  # of a result: letters of the axes whose spacing the user named, instead of the source's

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize

    @property
    def spacing_by_letter(self) -> dict[str, float]:
        """Distance of the samples in micrometres by the letter of the axis, where it is known."""
        return {letter: gap for letter, gap in zip(self.axes, self.spacing, strict=False) if gap}


class Windows(Protocol):
    """An array that is read window by window from several threads."""

    def read(self, region: Region) -> Array:
        """Return a window as a new C-contiguous array in native byte order; ``ImageError`` if it cannot be read."""


def read_into(source: Windows, region: Region, out: Array) -> None:
    """Read a window into an array of its shape and type: directly, if the source has a method `read_into`."""
    direct = getattr(source, "read_into", None)
    if direct is None:
        np.copyto(out, source.read(region))
    else:
        direct(region, out)


class WindowReader(Windows, Protocol):
    """An array in a file."""

    @property
    def path(self) -> Place: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def attributes(self) -> dict[str, Any]:
        """The user's metadata."""

    def fingerprint(self) -> str:
        """Return a text that changes when the content changes."""


class WindowWriter(Windows, Protocol):
    """An array in a file, written window by window from several threads; no two windows share a shard.

    A window that was written can be read: the reduced copies are made of it.
    """

    @property
    def layout(self) -> Layout: ...

    @property
    def levels(self) -> Sequence[WindowWriter]:
        """The reduced copies, largest first, as the layout lists them; each is written in windows too.

        They have the shards of the whole image, or smaller ones where one covers a copy.
        """

    def write(self, region: Region, array: Array) -> None:
        """Write a window of whole shards. When this returns, it is on the disk; ``ImageError`` if it fails."""

    def finish(self) -> None:
        """Complete the result after the last window. Until then an object store shows no array."""


def no_metadata(source: WindowReader, layout: Layout) -> tuple[str, ...]:
    """Return what of a source a format without metadata loses."""
    lost: tuple[str, ...] = ("attributes",) if source.attributes else ()
    lost += ("reduced copies (the pyramid)",) if source.layout.levels and not layout.levels else ()
    return lost + (("spacing",) if any(layout.spacing) else ())


@dataclass(frozen=True, slots=True)
class WindowFormat:
    """A format whose arrays are read and written in windows.

    `arranged` returns a layout with the shards and the levels that this format gives a result of that layout, at that
    place, of that source. `create` makes an empty array of such a layout, with the compression and the attributes of
    the source as far as it can, and returns its writer; `reopen` returns the writer of such an array again. `is_own` is
    true for a path that holds an array of this format, which a result may replace. `lost` names what of a source a
    result of this layout does not keep; `beside` names what a source of this format holds beside the image, which a
    result of this layout in another format does not keep. Before a run the user is shown `notes` on a result of this
    layout, and `source_notes` on a source.
    """

    name: str
    suffixes: tuple[str, ...]  # of files that it reads and writes
    is_own: Callable[[Path], bool]
    open: Callable[[Place], WindowReader]
    arranged: Callable[[Layout, Place, WindowReader], Layout]
    create: Callable[[Place, Layout, WindowReader], WindowWriter]
    reopen: Callable[[Place, Layout, WindowReader], WindowWriter]
    lost: Callable[[WindowReader, Layout], tuple[str, ...]] = field(default=no_metadata)
    schemes: frozenset[str] = frozenset()  # of URLs that it reads
    written_schemes: frozenset[str] = frozenset()  # of URLs that it writes
    notes: Callable[[WindowReader, Layout], tuple[str, ...]] = field(default=lambda source, layout: ())
    source_notes: Callable[[WindowReader], tuple[str, ...]] = field(default=lambda source: ())
    beside: Callable[[WindowReader, Layout], tuple[str, ...]] = field(default=lambda source, layout: ())
    reads: tuple[str, ...] = ()  # suffixes of files that it reads and does not write
