"""Reader of Zarr arrays and of OME-Zarr images."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from convforge.imaging.image import Array, ImageError
from convforge.imaging.windowed.contract import Layout, Place, Region
from convforge.imaging.windowed.zarr.array import ZarrArray
from convforge.imaging.windowed.zarr.metadata import ARRAY_DIMENSIONS, KEYS, Node, read_node
from convforge.imaging.windowed.zarr.ome import MEMBERS, OmeImage, image_of, instead
from convforge.imaging.windowed.zarr.stores import Store, store_of

# Objects of a store whose versions count for the fingerprint; each takes a request.
SAMPLED = 32


class ZarrReader:
    """A Zarr array, or level 0 of an OME-Zarr image.

    Attributes
    ----------
    image : OmeImage or None
        Metadata of the image.
    levels : tuple of ZarrArray
        The array itself, or all levels of the image, largest first.
    """

    def __init__(self, place: Place) -> None:
        if isinstance(place, Path) and not place.is_dir():
            raise ImageError(f"{place}: is no folder of a Zarr array")
        self.path = place
        node = read_node(store_of(place))
        if node is None:
            raise ImageError(f"{place}: holds no {', '.join(KEYS[:2])} or {KEYS[2]}, so it is no Zarr array")
        self.node = node
        self.image = None if node.is_array else image_of(place, node.attributes)
        if not node.is_array and self.image is None:
            raise ImageError(f"{place}: is a Zarr group{_instead(node)}")
        self.levels = (ZarrArray(node),) if self.image is None else self._levels_of(self.image)
        self.array = self.levels[0]
        self.layout = self.array.layout if self.image is None else self._layout_of(self.image)
        self.is_bool = self.array.is_bool

    def _levels_of(self, image: OmeImage) -> tuple[ZarrArray, ...]:
        levels: list[ZarrArray] = []
        for level in image.levels:
            node = read_node(self.node.store.at(level.path))
            if node is None or not node.is_array:
                raise ImageError(f"{self.path}: holds no array {level.path}, which its metadata name; get it again")
            levels.append(ZarrArray(node))
            before, layout = levels[len(levels) > 1 and -2].layout, levels[-1].layout
            if layout.dtype != before.dtype or len(layout.shape) != len(before.shape):
                raise ImageError(f"{self.path}: the arrays of its levels differ in sample type or number of axes")
            if 0 in layout.shape and len(levels) > 1:
                raise ImageError(f"{self.path}: its level {level.path} has no pixel")
            if any(size > larger for size, larger in zip(layout.shape, before.shape, strict=True)):
                raise ImageError(f"{self.path}: its levels are not in order, from the largest to the smallest")
        return tuple(levels)

    def _layout_of(self, image: OmeImage) -> Layout:
        first = self.array.layout
        if image.axes and len(image.axes) != len(first.shape):
            if image.version[:3] not in ("0.1", "0.2"):
                raise ImageError(
                    f"{self.path}: its metadata name {len(image.axes)} axes, and level 0 has {len(first.shape)}"
                )
            image = self.image = replace(image, axes=())
        return Layout(
            first.shape, first.dtype, image.letters, first.chunks, first.shards,
            tuple(level.layout.shape for level in self.levels[1:]), image.spacing, image.channels,
        )  # fmt: skip

    @property
    def attributes(self) -> dict[str, Any]:
        """The user's attributes, without those that name the axes, and that OME-Zarr defines for an image."""
        defined = (ARRAY_DIMENSIONS,) if self.image is None else (ARRAY_DIMENSIONS, *MEMBERS)
        return {name: value for name, value in self.node.attributes.items() if name not in defined}

    def read(self, region: Region) -> Array:
        return self.array.read(region)

    def read_into(self, region: Region, out: Array) -> None:
        """Read a window into an array of its shape and type."""
        self.array.read_into(region, out)

    def fingerprint(self) -> str:
        """Return a digest of the metadata and of the files of level 0.

        On a local disk it covers names, sizes and times of the files. In an object store it covers the names of the
        objects, and the versions (ETags or generations) of some of them. Behind HTTP, and in a bucket that cannot be
        listed, it covers the metadata only.
        """
        digest = hashlib.sha256()
        for node in (self.node, *(level.node for level in self.levels)):
            digest.update(repr((node.version, node.metadata, node.attributes)).encode())
        store = self.array.node.store
        if isinstance(store.place, Path):
            for key in store.names() or ():
                facts = os.stat(f"{store.place}/{key}")
                digest.update(f"{key} {facts.st_size} {facts.st_mtime_ns}\n".encode(errors="surrogateescape"))
        elif (names := store.names()) is not None:
            digest.update("\n".join(names).encode())
            chosen = [key for key in names if self.array.is_chunk(key)]
            for version in store.versions(chosen[:: -(-len(chosen) // SAMPLED) or 1]):
                digest.update(version)
        return digest.hexdigest()

    @cached_property
    def missing(self) -> tuple[int, int] | None:
        """Number of chunks (or shards) of level 0 that are not stored, and of all; None if the store has no listing."""
        names = self.array.node.store.names()
        if names is None:
            return None
        held = sum(map(self.array.is_chunk, names))
        total = math.prod(self.array.grid)
        return total - held, total


def _instead(node: Node) -> str:
    """Return what to name instead of a group that is no image."""
    if found := instead(node.path, node.attributes):
        return f"; name an image in it, such as {found}"
    if isinstance(node.path, Path):
        inside = sorted(path.name for path in node.path.iterdir() if path.is_dir() and _is_array(path))
        if inside:
            return f"; name an array in it, such as {node.path / inside[0]}"
    return "; name an array in it"


def _is_array(path: Path) -> bool:
    try:
        node = read_node(Store(path))
    except ImageError:
        return False
    return node is not None and node.is_array


def is_zarr(path: Path) -> bool:
    """True for the folder of a Zarr array or group."""
    return any((path / name).is_file() for name in KEYS)


def is_own(path: Path) -> bool:
    """True for a Zarr array, and for an OME-Zarr image without other members, such as labels."""
    try:
        node = read_node(Store(path)) if path.is_dir() else None
        if node is None or node.is_array:
            return node is not None
        image = image_of(path, node.attributes)
    except ImageError:
        return False
    return image is not None and not others_in(node, image)


def others_in(node: Node, image: OmeImage) -> list[str]:
    """Return the names of a group's members that are not its levels; of an object store only those that OME defines."""
    levels = {level.path.split("/")[0] for level in image.levels}
    if isinstance(node.path, Path):
        return sorted(path.name for path in node.path.iterdir() if path.is_dir() and path.name not in levels)
    members = [name for name in ("labels", "OME") if name not in levels]
    return [name for name in members if read_node(node.store.at(name)) is not None]
