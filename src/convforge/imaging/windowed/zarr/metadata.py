"""Metadata of Zarr arrays and groups of versions 2 and 3: read, checked, and made for a result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from convforge.imaging.axes import LETTERS
from convforge.imaging.image import ImageError
from convforge.imaging.windowed.contract import Layout, Place
from convforge.imaging.windowed.zarr.stores import AccessDenied, Store

ARRAY_DIMENSIONS = "_ARRAY_DIMENSIONS"  # xarray's attribute that names the axes of a version 2 array
LITTLE_ENDIAN = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}

# The index of a shard takes 16 bytes for each of its chunks, and is read and written whole.
MOST_CHUNKS_IN_A_SHARD = 2**22

KEYS = ("zarr.json", ".zarray", ".zgroup")
"""Files of which one makes a folder a Zarr array or group."""


@dataclass(frozen=True)
class Node:
    """An array or a group: its store, its version of Zarr, and its metadata without and with the user's attributes."""

    store: Store
    version: int
    is_array: bool
    metadata: Mapping[str, Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Place:
        return self.store.place

    @property
    def axes(self) -> str:
        """The letters of an array's axes, if it names all of them by letters of :data:`LETTERS`."""
        names = self.metadata.get("dimension_names") if self.version == 3 else self.attributes.get(ARRAY_DIMENSIONS)
        return letters_of_names(names)

    @property
    def fill_value(self) -> Any:
        return 0 if self.metadata.get("fill_value") is None else self.metadata["fill_value"]


def letters_of_names(names: Any) -> str:
    """Return the letters that names of axes spell, or an empty text if one of them is no letter.

    Examples
    --------
    >>> letters_of_names(["t", "y", "x"]), letters_of_names(["lat", "lon"])
    ('TYX', '')
    """
    letters = [str(name).upper() for name in names] if isinstance(names, list | tuple) else []
    return "".join(letters) if all(letter in LETTERS for letter in letters) else ""


def read_node(store: Store) -> Node | None:
    """Read the metadata of an array or a group; return None if there is neither."""
    denied: AccessDenied | None = None
    for key in KEYS:
        try:
            metadata = store.json(key)
        except AccessDenied as error:  # a public bucket that cannot be listed says it of objects that do not exist
            denied = denied or error
            continue
        if metadata is not None:
            return _node(store, key, metadata)
    if denied is not None:
        raise denied
    return None


def _node(store: Store, key: str, metadata: dict[str, Any]) -> Node:
    if key == "zarr.json":
        kind = metadata.get("node_type")
        if kind not in ("array", "group"):
            raise ImageError(
                f"{store.place}: zarr.json has the node_type {str(kind)[:80]!r}, and Zarr knows array and group"
            )
        attributes = _object(store, "zarr.json", metadata.get("attributes") or {})
        return Node(store, 3, kind == "array", metadata, attributes)
    try:
        attributes = store.json(".zattrs") or {}
    except AccessDenied:
        attributes = {}
    return Node(store, 2, key == ".zarray", metadata, attributes)


def _object(store: Store, key: str, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ImageError(f"{store.place}: attributes in {key} are {type(found).__name__}, and must be an object")
    return found


def for_tensorstore(node: Node) -> dict[str, Any]:
    """Return the metadata of an array in the form that tensorstore reads; ``ImageError`` for codecs that it lacks."""
    metadata = {name: value for name, value in node.metadata.items() if name != "attributes"}
    if absent := [name for name in REQUIRED[node.version] if name not in metadata or metadata[name] == []]:
        raise ImageError(f"{node.path}: the metadata have no {', '.join(absent)}; get it again from its source")
    if node.version == 3:
        _check_codecs(node, metadata.get("codecs"), _grid_shape(metadata))
        return metadata
    if filters := metadata.get("filters"):
        raise ImageError(f"{node.path}: filters of Zarr 2 are not supported, and the array has {_names(filters, 'id')}")
    compressor = metadata.get("compressor")
    if isinstance(compressor, dict):
        if compressor.get("id") not in ("zlib", "gzip", "blosc", "bz2", "zstd"):
            raise ImageError(
                f"{node.path}: is compressed by {_names([compressor], 'id')}, which is not supported; "
                "convert the array to zstd, gzip or blosc"
            )
        if compressor["id"] == "zstd":  # numcodecs says whether there is a checksum, which each frame says too
            metadata["compressor"] = {name: value for name, value in compressor.items() if name != "checksum"}
    return metadata


# tensorstore chooses a value of its own for what is absent.
REQUIRED = {
    2: ("shape", "chunks", "dtype", "compressor", "fill_value", "order"),
    3: ("shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs"),
}
CODECS = ("bytes", "transpose", "sharding_indexed", "zstd", "gzip", "blosc", "crc32c")


def _check_codecs(node: Node, codecs: Any, shape: Any, depth: int = 0) -> None:
    """Refuse codecs that are not supported, and shards of so many chunks that their index fills the memory."""
    if not isinstance(codecs, list):
        return  # tensorstore names the fault
    _check_order(node, [codec.get("name") if isinstance(codec, dict) else codec for codec in codecs])
    for codec in codecs:
        name = codec.get("name") if isinstance(codec, dict) else codec
        if name not in CODECS:
            raise ImageError(
                f"{node.path}: is encoded by {str(name)[:80]!r}, which is not supported; convert the array to "
                "zstd, gzip or blosc"
            )
        inner = codec.get("configuration") if isinstance(codec, dict) else None
        if name != "sharding_indexed":
            continue
        if not isinstance(inner, dict) or not {"chunk_shape", "codecs", "index_codecs"} <= set(inner):
            raise ImageError(f"{node.path}: the metadata of its shards are damaged; get it again from its source")
        if depth:
            raise ImageError(f"{node.path}: has shards inside shards, which are not supported")
        chunk = inner.get("chunk_shape")
        if _is_shape(shape) and _is_shape(chunk):
            count = math.prod(-(-side // part) for side, part in zip(shape, chunk, strict=False))
            if count > MOST_CHUNKS_IN_A_SHARD:
                raise ImageError(
                    f"{node.path}: a shard holds {count} chunks, more than {MOST_CHUNKS_IN_A_SHARD}; "
                    "convert the array to larger chunks"
                )
        _check_codecs(node, inner.get("codecs"), chunk, depth + 1)


def _check_order(node: Node, names: list[Any]) -> None:
    """Refuse blosc and shards inside another compression: the sizes that they name cannot be read before it."""
    for at, name in enumerate(names):
        if name in ("blosc", "sharding_indexed") and any(other != "crc32c" for other in names[at + 1 :]):
            raise ImageError(
                f"{node.path}: encodes {name} once more by {str(names[at + 1])[:80]!r}, which is not supported; "
                "convert the array to zstd, gzip or blosc"
            )


def _grid_shape(metadata: Mapping[str, Any]) -> Any:
    grid = metadata.get("chunk_grid")
    inner = grid.get("configuration") if isinstance(grid, dict) else None
    return inner.get("chunk_shape") if isinstance(inner, dict) else None


def _is_shape(found: Any) -> TypeGuard[list[int]]:
    return isinstance(found, list) and all(isinstance(side, int) and side > 0 for side in found)


def _names(codecs: Any, key: str) -> str:
    entries = codecs if isinstance(codecs, list) else [codecs]
    found = [codec.get(key) if isinstance(codec, dict) else codec for codec in entries]
    return ", ".join(str(name)[:80] for name in found)


def metadata_of_result(layout: Layout, names: list[str], version: int, like: Node | None, same: bool) -> dict[str, Any]:
    """Return the metadata of a new array.

    Parameters
    ----------
    layout : Layout
        With chunks and shards.
    names : list of str
        Of the axes; for version 3 only.
    version : int
        Of Zarr, 2 or 3.
    like : Node, optional
        An array of the same version whose codecs, fill value and names of chunks the new array takes.
    same : bool
        The samples are of the type of `like`; if not, version 3 gets other codecs, and the fill value is 0.
    """
    known: Mapping[str, Any] = {} if like is None else like.metadata
    if version == 2:
        return {
            "zarr_format": 2,
            "shape": layout.shape,
            "chunks": layout.chunks,
            "dtype": layout.dtype.newbyteorder("<").str,
            "compressor": known.get("compressor"),
            "fill_value": known.get("fill_value") if same else 0,
            "order": known.get("order", "C"),
            "filters": None,
            "dimension_separator": known.get("dimension_separator", "."),
        }
    chunks, shards = layout.chunks, layout.shards
    codecs: Any = [LITTLE_ENDIAN, ZSTD]
    if shards != chunks:
        inner = {"chunk_shape": chunks, "codecs": codecs, "index_codecs": [LITTLE_ENDIAN, {"name": "crc32c"}]}
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
    if same and "codecs" in known and len(known["shape"]) == len(layout.shape):
        codecs = known["codecs"]
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": layout.shape,
        "data_type": layout.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shards}},
        "chunk_key_encoding": known.get("chunk_key_encoding", {"name": "default"}),
        "codecs": codecs,
        "fill_value": known.get("fill_value", 0) if same else 0,
    }
    return metadata | ({"dimension_names": names} if names else {})


def array_with(store: Store, metadata: Mapping[str, Any], attributes: Mapping[str, Any]) -> Node:
    """Return the node of a new array of these metadata; nothing is written."""
    version = int(metadata["zarr_format"])
    return Node(store, version, True, metadata, attributes)


def write_group(store: Store, version: int, attributes: Mapping[str, Any]) -> None:
    """Write the metadata of a group, the attributes first, so that a group which exists is complete."""
    if version == 3:
        store.write("zarr.json", {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)})
        return
    store.write(".zattrs", dict(attributes))
    store.write(".zgroup", {"zarr_format": 2})
