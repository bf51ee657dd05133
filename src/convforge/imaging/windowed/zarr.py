"""Zarr arrays of versions 2 and 3 in windows, by tensorstore.

tensorstore was chosen over zarr-python, with its own codecs and with those of zarrs: it reads and writes sharded arrays
about as fast as zarrs does, several times faster than zarr-python alone; it needs no library but NumPy and ml_dtypes,
which convforge has; and its threads and caches belong to an array, while zarr-python's settings belong to the process.
It writes a chunk or shard to a file of another name and renames it, so none is ever half written under its name.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from convforge.imaging.axes import LETTERS
from convforge.imaging.image import SAMPLE_DTYPES, Array, ImageError, is_sample_dtype
from convforge.imaging.windowed.contract import (
    Layout,
    Place,
    Region,
    WindowFormat,
    WindowReader,
    WindowWriter,
    local,
    no_metadata,
)

# Grid of a new array whose source has none: shards of 2048 x 2048 pixels, in chunks of 256 x 256.
CHUNK, SHARD = 256, 2048

ARRAY_DIMENSIONS = "_ARRAY_DIMENSIONS"  # xarray's attribute that names the axes of a version 2 array
LITTLE_ENDIAN = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}

# Threads of one array that decode and encode, and that wait for the disk.
CONTEXT = {"data_copy_concurrency": {"limit": 4}, "file_io_concurrency": {"limit": 8}}


def is_zarr(path: Path) -> bool:
    """True for the folder of a Zarr array or group."""
    return any((path / name).is_file() for name in ("zarr.json", ".zarray", ".zgroup"))


def is_array(path: Path) -> bool:
    if (path / ".zarray").is_file():
        return True
    return (path / "zarr.json").is_file() and _json(path / "zarr.json").get("node_type") == "array"


class _Store:
    """An open array of either version."""

    def __init__(self, path: Path, *, write: bool) -> None:
        if not path.is_dir():
            raise ImageError(f"{path}: is no folder of a Zarr array")
        if not is_zarr(path):
            raise ImageError(f"{path}: holds no zarr.json, .zarray or .zgroup, so it is no Zarr array")
        if not is_array(path):
            inside = sorted(found.name for found in path.iterdir() if is_array(found))
            hint = f"name an array in it, such as {path / inside[0]}" if inside else "name an array in it"
            raise ImageError(f"{path}: is a Zarr group; {hint}")
        self.path = path
        self.version = 2 if (path / ".zarray").is_file() else 3
        self.metadata = _json(path / (".zarray" if self.version == 2 else "zarr.json"))
        self.store = _opened(path, self.version, open=True, read=True, write=write)
        shape, dtype = tuple(self.store.shape), np.dtype(self.store.dtype.numpy_dtype)
        if not is_sample_dtype(dtype) and dtype.kind != "b":
            raise ImageError(f"{path}: samples are {dtype}; convert the array to {SAMPLE_DTYPES} first")
        self.is_bool = dtype.kind == "b"
        grid = self.store.chunk_layout
        self.layout = Layout(
            shape, np.dtype(np.uint8) if self.is_bool else dtype, self._axes(),
            tuple(grid.read_chunk.shape), tuple(grid.write_chunk.shape),
        )  # fmt: skip

    @property
    def attributes(self) -> dict[str, Any]:
        if self.version == 3:
            return dict(self.metadata.get("attributes") or {})
        return _json(self.path / ".zattrs") if (self.path / ".zattrs").is_file() else {}

    def _axes(self) -> str:
        """Return the letters of the axes if the array names all of them by letters of :data:`LETTERS`."""
        names = self.metadata.get("dimension_names") if self.version == 3 else self.attributes.get(ARRAY_DIMENSIONS)
        letters = [str(name).upper() for name in names or ()]
        return "".join(letters) if letters and all(letter in LETTERS for letter in letters) else ""


class ZarrReader(_Store):
    """A Zarr array; bool samples become 0 and 255, as those of a `.npy` file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, write=False)

    def read(self, region: Region) -> Array:
        try:
            window: Array = np.ascontiguousarray(self.store[region].read().result())
        except Exception as error:
            raise ImageError(
                f"{self.path}: a chunk is damaged or cannot be read ({_fault(error)}); get it again from its source"
            ) from error
        return window.astype(np.uint8) * np.uint8(255) if self.is_bool else window

    def fingerprint(self) -> str:
        """Return a digest of the names, sizes and times of all files."""
        digest = hashlib.sha256()
        for place, folders, files in os.walk(self.path):
            folders.sort()
            for name in sorted(files):
                facts = os.stat(os.path.join(place, name))
                named = os.path.join(os.path.relpath(place, self.path), name)
                digest.update(f"{named} {facts.st_size} {facts.st_mtime_ns}\n".encode())
        return digest.hexdigest()


class ZarrWriter(_Store):
    """A Zarr array whose shards are written whole."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, write=True)
        self.levels: tuple[WindowWriter, ...] = ()

    def write(self, region: Region, array: Array) -> None:
        try:
            self.store[region].write(array).result()
        except Exception as error:
            raise ImageError(f"{self.path}: cannot be written ({_fault(error)})") from error

    def read(self, region: Region) -> Array:
        return ZarrReader(self.path).read(region)

    def finish(self) -> None:
        pass


def arranged(layout: Layout) -> Layout:
    """Return a layout with a grid: the source's, or else squares of one plane with all bands."""
    layout = replace(layout, levels=())
    if layout.chunks is not None:
        return layout
    chunks, shards = [], []
    for letter, size in zip(layout.axes, layout.shape, strict=True):
        chunk = min(CHUNK, size) if letter in "YX" else size if letter in "CS" else 1
        chunks.append(chunk)
        shards.append(min(SHARD, -(-size // chunk) * chunk) if letter in "YX" else chunk)
    return replace(layout, chunks=tuple(chunks), shards=tuple(shards))


def create(place: Place, layout: Layout, source: WindowReader) -> ZarrWriter:
    """Make an empty array with the grid of the layout, and version, compression and attributes of a Zarr source.

    A source of the same sample type and number of axes passes on its codecs unchanged. Attributes are copied if the
    shape is the same, because they may describe it.
    """
    path, known = local(place), source if isinstance(source, ZarrReader) else None
    attributes = source.attributes if layout.shape == source.layout.shape else {}
    attributes = {name: value for name, value in attributes.items() if name != ARRAY_DIMENSIONS}
    names = [letter.lower() for letter in layout.axes]
    try:
        if known is not None and known.version == 2:
            attributes |= {ARRAY_DIMENSIONS: names} if names else {}
            _opened(path, 2, create=True, metadata=_metadata_2(layout, known))
            if attributes:
                (path / ".zattrs").write_text(json.dumps(attributes), encoding="utf-8")
        else:
            metadata = _metadata_3(layout, known) | {"attributes": attributes}
            _opened(path, 3, create=True, metadata=metadata | ({"dimension_names": names} if names else {}))
    except OSError as error:
        raise ImageError(f"{path}: cannot be written ({error.strerror or error}); choose another place") from error
    return ZarrWriter(path)


def _metadata_2(layout: Layout, source: ZarrReader) -> dict[str, Any]:
    same = layout.dtype == source.layout.dtype and not source.is_bool
    return {
        "shape": layout.shape,
        "chunks": layout.chunks,
        "dtype": layout.dtype.newbyteorder("<").str,
        "compressor": source.metadata.get("compressor"),
        "fill_value": source.metadata.get("fill_value") if same else 0,
        "order": source.metadata.get("order", "C"),
        "filters": None,
        "dimension_separator": source.metadata.get("dimension_separator", "."),
    }


def _metadata_3(layout: Layout, source: ZarrReader | None) -> dict[str, Any]:
    chunks, shards = layout.chunks, layout.shards
    codecs: list[dict[str, Any]] = [LITTLE_ENDIAN, ZSTD]
    if shards != chunks:
        inner = {"chunk_shape": chunks, "codecs": codecs, "index_codecs": [LITTLE_ENDIAN, {"name": "crc32c"}]}
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
    fill: Any = 0
    metadata: dict[str, Any] = {}
    if source is not None:
        if layout.dtype == source.layout.dtype and not source.is_bool:
            fill = source.metadata["fill_value"]
            if len(layout.shape) == len(source.layout.shape):
                codecs = source.metadata["codecs"]
        metadata["chunk_key_encoding"] = source.metadata["chunk_key_encoding"]
    return metadata | {
        "shape": layout.shape,
        "data_type": layout.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shards}},
        "codecs": codecs,
        "fill_value": fill,
    }


def _opened(path: Path, version: int, **options: Any) -> Any:
    """Open or create an array; ``ImageError`` with tensorstore's reason."""
    try:
        import tensorstore
    except ModuleNotFoundError as error:
        raise ImageError(f"{path}: Zarr needs tensorstore; get it with: pip install 'convforge[zarr]'") from error
    metadata = options.pop("metadata", None)
    spec: dict[str, Any] = {
        "driver": "zarr" if version == 2 else "zarr3",
        "kvstore": {"driver": "file", "path": f"{path}{os.sep}"},
        "context": CONTEXT,
    }
    spec |= {} if metadata is None else {"metadata": metadata}
    try:
        return tensorstore.open(spec, **options).result()
    except Exception as error:
        what = "cannot be made" if "create" in options else "is no Zarr array that can be read"
        raise ImageError(f"{path}: {what} ({_fault(error)})") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ImageError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise ImageError(f"{path}: truncated or damaged ({error}); get it again from its source") from error
    if not isinstance(found, dict):
        raise ImageError(f"{path}: holds {type(found).__name__}, and metadata of Zarr are an object")
    return found


def _fault(error: Exception) -> str:
    """Return tensorstore's message on one line, without its status code and its details in brackets."""
    text = re.sub(r"^[A-Z_]+: ", "", " ".join(str(error).split()))
    return re.sub(r" \[[a-z_]+='.*", "", text)


def lost(source: WindowReader, layout: Layout) -> tuple[str, ...]:
    return no_metadata(source, layout) if layout.shape != source.layout.shape else ()


FORMAT = WindowFormat(
    "Zarr", (".zarr",), is_array, lambda place: ZarrReader(local(place)), arranged, create,
    lambda place, layout, source: ZarrWriter(local(place)), lost,
)  # fmt: skip
