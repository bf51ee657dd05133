"""The format Zarr: arrays and OME-Zarr images of Zarr versions 2 and 3, on a disk or in an object store."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from convforge.imaging.image import Array, ImageError
from convforge.imaging.windowed.contract import (
    Layout,
    Place,
    Region,
    WindowFormat,
    WindowReader,
    WindowWriter,
)
from convforge.imaging.windowed.zarr.array import ZarrArray
from convforge.imaging.windowed.zarr.metadata import (
    ARRAY_DIMENSIONS,
    Node,
    array_with,
    metadata_of_result,
    read_node,
    write_group,
)
from convforge.imaging.windowed.zarr.ome import section
from convforge.imaging.windowed.zarr.ome_result import (
    attributes_of_result,
    halved,
    kept_axes,
    new_attributes,
    new_axes,
    omero_of_result,
    order_of,
)
from convforge.imaging.windowed.zarr.reader import ZarrReader, is_own, is_zarr, others_in
from convforge.imaging.windowed.zarr.stores import READ_SCHEMES, WRITTEN_SCHEMES, Store, store_of

# Grid of a new array whose source has none: shards of 2048 x 2048 pixels, in chunks of 256 x 256.
CHUNK, SHARD = 256, 2048

INCOMPLETE = ".incomplete"

__all__ = ["FORMAT", "ZarrReader", "ZarrWriter", "is_zarr"]


class ZarrWriter:
    """A Zarr array, or level 0 of an OME-Zarr image, whose shards are written whole.

    Parameters
    ----------
    array : ZarrArray
    levels : sequence of ZarrArray
        The reduced copies.
    publish : callable
        Writes the metadata, at the end.
    """

    def __init__(self, array: ZarrArray, levels: Sequence[ZarrArray], publish: Callable[[], None]) -> None:
        self._array, self._publish, self.layout = array, publish, array.layout
        self.levels: tuple[WindowWriter, ...] = tuple(ZarrWriter(level, (), lambda: None) for level in levels)

    def write(self, region: Region, array: Array) -> None:
        self._array.write(region, array)

    def read(self, region: Region) -> Array:
        return self._array.read(region)

    def read_into(self, region: Region, out: Array) -> None:
        """Read a window that was written before into an array of its shape and type."""
        self._array.read_into(region, out)

    def finish(self) -> None:
        self._publish()


def arranged(layout: Layout, place: Place, source: WindowReader) -> Layout:
    """Return a layout with the grid of a Zarr source, or else squares of one plane, and with the levels of the result.

    An OME-Zarr source has levels, of which the layout brings the shapes. A new OME-Zarr image gets levels of half the
    size. A plain array has neither levels nor spacing nor names of channels.
    """
    known = source if isinstance(source, ZarrReader) else None
    if known is None or layout.chunks is None:
        layout = _with_grid(layout)
    if known is not None and known.image is not None:
        return replace(layout, levels=layout.levels[: len(known.levels) - 1])
    if _is_image(place, source):
        order_of(place, layout)
        return halved(layout)
    return replace(layout, levels=(), spacing=(), channels=())


def _with_grid(layout: Layout) -> Layout:
    """Return a layout in squares of one plane, with all bands that follow the columns."""
    chunks, shards, within = [], [], layout.axes.index("X")
    for at, (letter, size) in enumerate(zip(layout.axes, layout.shape, strict=True)):
        chunk = min(CHUNK, size) if letter in "YX" else size if letter in "CS" and at > within else 1
        chunks.append(chunk)
        shards.append(min(SHARD, -(-size // chunk) * chunk) if letter in "YX" else chunk)
    return replace(layout, chunks=tuple(chunks), shards=tuple(shards))


def _is_image(place: Place, source: WindowReader) -> bool:
    """True if the result is an OME-Zarr image: that of an OME-Zarr source always, others by their name."""
    if isinstance(source, ZarrReader) and source.image is not None:
        return True
    return place.name.removesuffix(INCOMPLETE).lower().endswith(".ome.zarr")


class _Result:
    """The metadata of a result at a place; the same arguments give the same metadata."""

    def __init__(self, place: Place, layout: Layout, source: WindowReader) -> None:
        self.store, self.layout, self.source = store_of(place), layout, source
        self.known = source if isinstance(source, ZarrReader) else None
        self.same_type = self.known is not None and self.known.layout.dtype == layout.dtype and not self.known.is_bool
        self.order: tuple[int, ...] | None = None
        self.group: tuple[int, dict[str, Any]] | None = None  # version of Zarr, attributes
        attributes = dict(source.attributes) if layout.shape == source.layout.shape else {}
        if not _is_image(place, source):
            self.arrays = [self._array(self.store, layout, _names(layout), attributes)]
            return
        if self.known is not None and self.known.image is not None:
            image, version = self.known.image, self.known.node.version
            paths = [level.path for level in image.levels[: len(layout.levels) + 1]]
            attributes |= attributes_of_result(image, source.layout, layout, paths)
            kept = kept_axes(source.layout, layout)
            names = [image.axes[at]["name"] for at in kept] if kept and image.axes else _names(layout)
            stored = layout
        else:
            version, self.order = 3, order_of(place, layout)
            stored = _permuted(layout, self.order)
            paths = [str(level) for level in range(len(layout.levels) + 1)]
            title = re.sub(r"\.ome\.zarr$", "", place.name.removesuffix(INCOMPLETE), flags=re.IGNORECASE)
            attributes |= new_attributes(title, source.layout, stored, paths)
            names = [axis["name"] for axis in new_axes(stored)]
        self.group = version, attributes
        self.arrays = [
            self._array(self.store.at(path), self._level(stored, level), names, self._attributes_of(level), level)
            for level, path in enumerate(paths)
        ]

    def _level(self, layout: Layout, level: int) -> Layout:
        """Return the layout of a level, with the grid of the source's level if units of whole shards can write it."""
        if not level:
            return layout
        own = replace(layout, shape=layout.levels[level - 1], levels=())
        kept = None if self.known is None or self.known.image is None else kept_axes(self.source.layout, layout)
        if self.known is None or kept is None:
            chunks = tuple(map(min, layout.chunks or own.shape, own.shape))
            whole = [-(-size // side) * side for size, side in zip(own.shape, chunks, strict=True)]
            return replace(own, chunks=chunks, shards=tuple(map(min, layout.shards or whole, whole)))
        if not self._keeps_grid(own, level):
            return own
        like = self.known.levels[level].layout
        grid = [part and tuple(part[at] for at in kept) for part in (like.chunks, like.shards)]
        return replace(own, chunks=grid[0], shards=grid[1])

    def _keeps_grid(self, layout: Layout, level: int) -> bool:
        """True if the source's level has chunks and shards that divide those of level 0, or one that covers the level.

        A unit is a window of whole shards of level 0, for all levels; two units must not write one shard. None is
        larger than those of level 0, because a unit's memory is counted by them.
        """
        kept = kept_axes(self.source.layout, self.layout)
        if self.known is None or kept is None:
            return False
        like = self.known.levels[level].layout
        return all(
            base is not None
            and own is not None
            and all(
                side % own[at] == 0 or size <= own[at] <= side
                for side, at, size in zip(base, kept, layout.shape, strict=True)
            )
            for base, own in ((layout.chunks, like.chunks), (layout.shards, like.shards))
        )

    def _attributes_of(self, level: int) -> dict[str, Any]:
        """Return the attributes of the source's level, if they can be true of the result's."""
        if self.known is None or self.known.image is None or self.source.layout.shape != self.layout.shape:
            return {}
        return dict(self.known.levels[level].node.attributes)

    def _array(self, store: Store, layout: Layout, names: list[str], attributes: Any, level: int = 0) -> Node:
        attributes = {name: value for name, value in attributes.items() if name != ARRAY_DIMENSIONS}
        like = None
        if self.known is not None and self.order is None:
            level = min(level, len(self.known.levels) - 1)
            like = self.known.levels[level if self._keeps_grid(layout, level) else 0].node
        version = 3 if like is None else like.version
        if version == 2 and names and (self.group is None or ARRAY_DIMENSIONS in (like.attributes if like else {})):
            attributes |= {ARRAY_DIMENSIONS: names}
        return array_with(store, metadata_of_result(layout, names, version, like, self.same_type), attributes)

    def publish(self) -> None:
        """Write the metadata of all arrays, and then those of the group."""
        for node in self.arrays:
            ZarrArray(node, write=True).create()
        if self.group is not None:
            write_group(self.store, *self.group)

    def check(self) -> None:
        """Raise ``ImageError`` if the metadata are gone: tensorstore makes a folder again that was removed."""
        for store in (self.store, *(node.store for node in self.arrays)):
            if read_node(store) is None:
                raise ImageError(
                    f"{store.place}: was removed while it was written; remove what is left of it and its journal"
                )

    def writer(self, nodes: Sequence[Node], publish: Callable[[], None]) -> ZarrWriter:
        first, *levels = (ZarrArray(node, write=True, order=self.order) for node in nodes)
        return ZarrWriter(first, levels, publish)


def _names(layout: Layout) -> list[str]:
    return [letter.lower() for letter in layout.axes]


def _permuted(layout: Layout, order: tuple[int, ...]) -> Layout:
    def turned(part: Any) -> Any:
        return tuple(part[at] for at in order) if part else part

    return replace(
        layout, shape=turned(layout.shape), axes="".join(turned(layout.axes)), chunks=turned(layout.chunks),
        shards=turned(layout.shards), levels=tuple(map(turned, layout.levels)), spacing=turned(layout.spacing),
        origin=turned(layout.origin), steps=turned(layout.steps),
    )  # fmt: skip


def create(place: Place, layout: Layout, source: WindowReader) -> ZarrWriter:
    """Make an empty array or image with the grid of the layout, like a Zarr source.

    A source of the same sample type and number of axes passes on its codecs unchanged. Attributes are copied if the
    shape is the same, because they may describe it. In an object store the metadata are written at the end.
    """
    result = _Result(place, layout, source)
    if isinstance(place, Path):
        result.publish()
        return result.writer(result.arrays, result.check)
    for store in (result.store, *(node.store for node in result.arrays if result.group)):
        if read_node(store) is not None:
            raise ImageError(f"{store.place}: exists; remove it first, or name another place")
    return result.writer(result.arrays, result.publish)


def reopen(place: Place, layout: Layout, source: WindowReader) -> ZarrWriter:
    """Open the array or image that `create` made with the same arguments."""
    result = _Result(place, layout, source)
    if not isinstance(place, Path):
        return result.writer(result.arrays, result.publish)
    nodes = [read_node(node.store) for node in result.arrays]
    if any(node is None or not node.is_array for node in nodes):
        raise ImageError(f"{place}: holds no array that an earlier run has begun; remove it and its journal")
    return result.writer([node for node in nodes if node], result.check)


def lost(source: WindowReader, layout: Layout) -> tuple[str, ...]:
    """Return what of a source a result of this layout does not keep."""
    image, before = source.image if isinstance(source, ZarrReader) else None, source.layout
    parts = {
        "attributes": source.attributes and layout.shape != before.shape,
        "reduced copies (the pyramid)": before.levels and not layout.levels,
        "spacing": (any(before.spacing) or layout.respaced) and not any(layout.spacing) and image is None,
        "the role of the last band as opacity": layout.alpha,
        "names of channels": before.channels and not layout.channels and image is None,
    }
    found = [name for name, is_lost in parts.items() if is_lost]
    if not isinstance(source, ZarrReader) or image is None:
        return tuple(found)
    if image.omero and omero_of_result(image, source.layout, layout) is None:
        found.append("settings of the channels (omero)")
    found += ["the role as labels (image-label)"] if "image-label" in section(source.node.attributes) else []
    return (*found, *others_in(source.node, image))


def source_notes(source: WindowReader) -> tuple[str, ...]:
    """Return how many chunks of a Zarr source are not stored, which may be empty or lost, and what to do."""
    if not isinstance(source, ZarrReader):
        return ()
    fill = source.array.node.fill_value
    remedy = (
        "which is right for empty parts of an image; if there should be pixels, copy the array again from its origin"
    )
    if source.missing is None:
        return (
            f"{source.path}: the store has no listing, so chunks that are not stored cannot be counted; they are read "
            f"as the fill value {fill}, {remedy}",
        )
    missing, total = source.missing
    if not missing:
        return ()
    kind = "chunks" if source.array.layout.chunks == source.array.layout.shards else "shards"
    return (
        f"{source.path}: {missing} of {total} {kind} are not stored; they are read as the fill value {fill}, {remedy}",
    )


FORMAT = WindowFormat(
    "Zarr", (".zarr",), is_own, ZarrReader, arranged, create, reopen, lost, READ_SCHEMES, WRITTEN_SCHEMES,
    source_notes=source_notes,
)  # fmt: skip
