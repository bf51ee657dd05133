"""Sizes that the files of chunks and shards name, read before tensorstore decodes them.

tensorstore decodes zstd, gzip and bz2 in a stream, and stops behind the bytes of a chunk. But it reads a file whole, as
large as it is, and decodes blosc to the size that its header names, so that a file of some bytes could fill the memory.
Local files are checked before they are read. In an object store the check would take one more request for each chunk.
"""

from __future__ import annotations

import itertools
import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from convforge.imaging.image import ImageError
from convforge.imaging.windowed.zarr.metadata import Node

# Encoded chunks take at most twice their size, and this many bytes more.
MORE = 2**20

ABSENT = 2**64 - 1  # position and size of a chunk that a shard does not hold
BLOSC_HEADER = struct.Struct("<4xI8x")  # versions, flags, size of a sample; decoded bytes; block, encoded bytes


class ChunkFiles:
    """The files of a local array.

    Parameters
    ----------
    node : Node
        An array whose codecs :func:`~convforge.imaging.windowed.zarr.metadata.for_tensorstore` has checked.
    chunks, shards : sequence of int
        Sides of a chunk and of a file, along the stored axes.
    itemsize : int
        Bytes of a sample.
    """

    def __init__(self, node: Node, chunks: Sequence[int], shards: Sequence[int], itemsize: int) -> None:
        self.node, self._root = node, str(node.path)
        self.shards, self.chunks = tuple(shards), tuple(chunks)
        self._decoded = math.prod(self.chunks) * itemsize
        codecs = node.metadata.get("codecs") or []
        sharding = next((codec for codec in codecs if _name(codec) == "sharding_indexed"), None)
        self._turned = sharding is not None and _name(codecs[0]) == "transpose"
        self._index = None if sharding is None else _Index(node, sharding["configuration"], self._grid_of_shard())
        inner = codecs if sharding is None else sharding["configuration"]["codecs"]
        compressor = node.metadata.get("compressor") or {}
        self._is_blosc = "blosc" in (compressor.get("id"), *map(_name, inner))
        whole = math.prod(self.shards) * itemsize + (0 if self._index is None else self._index.size)
        self._largest_file, self._largest = 2 * whole + MORE, 2 * self._decoded + MORE
        self.prefix, self.separator = name_form(node)

    def _grid_of_shard(self) -> tuple[int, ...]:
        return tuple(side // part for side, part in zip(self.shards, self.chunks, strict=True))

    def check(self, region: Sequence[slice]) -> None:
        """Raise ``ImageError`` if a file that a window of the stored array touches would take too much memory."""
        touched = [
            range(part.start // side, -(-part.stop // side)) for part, side in zip(region, self.shards, strict=True)
        ]
        for at in itertools.product(*touched):
            name = self.name(at)
            try:
                self._check_file(name, at, region)
            except FileNotFoundError:  # the fill value
                continue
            except OSError as error:
                raise ImageError(f"{self.node.path}: {name} cannot be read ({error.strerror or error})") from error

    def name(self, at: tuple[int, ...]) -> str:
        """Return the name of a file, such as c/0/12 or 0.12."""
        parts = [self.prefix] if self.prefix else []
        return self.separator.join([*parts, *map(str, at)]) or "0"

    def _check_file(self, name: str, at: tuple[int, ...], region: Sequence[slice]) -> None:
        path = f"{self._root}/{name}"
        if self._index is None and not self._is_blosc:
            self._check_size(name, os.stat(path).st_size)
            return
        file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            size = os.fstat(file).st_size
            self._check_size(name, size)
            for start, count in ((0, size),) if self._index is None else self._entries(file, size, at, region):
                if count > self._largest:
                    raise self._damaged(name, f"has a chunk of {count} bytes", f"{self._decoded} with compression")
                head = _pread(file, start, BLOSC_HEADER.size) if self._is_blosc else b""
                if len(head) == BLOSC_HEADER.size and (named := BLOSC_HEADER.unpack(head)[0]) > self._largest:
                    raise self._damaged(name, f"has a chunk whose blosc header names {named} bytes", f"{self._decoded}")
        finally:
            os.close(file)

    def _check_size(self, name: str, size: int) -> None:
        if size > self._largest_file:
            raise self._damaged(name, f"has {size} bytes", f"{self._largest_file} at most")

    def _damaged(self, name: str, fault: str, expected: str) -> ImageError:
        return ImageError(
            f"{self.node.path}: {name} {fault}, and {expected} are expected; it is damaged or was made to exhaust "
            "memory, get it again from its source"
        )

    def _entries(self, file: int, size: int, at: tuple[int, ...], region: Sequence[slice]) -> Iterator[tuple[int, int]]:
        """Yield positions and sizes of the chunks of a shard that a window touches; of a turned shard, of all."""
        index, grid = self._index, self._grid_of_shard()
        if index is None or size < index.size:  # a truncated file: tensorstore names the fault
            return
        whole = tuple(slice(0, count) for count in grid)
        wanted = whole if self._turned else self._inside(at, region)
        flat = index.read(file, size, wanted, grid)
        yield from map(tuple, flat[~(flat == ABSENT).all(axis=1)].tolist())

    def _inside(self, at: tuple[int, ...], region: Sequence[slice]) -> tuple[slice, ...]:
        """Return the chunks of a shard that a window touches."""
        found = []
        for place, part, side, chunk in zip(at, region, self.shards, self.chunks, strict=True):
            first, last = max(part.start - place * side, 0), min(part.stop - place * side, side)
            found.append(slice(first // chunk, -(-last // chunk)))
        return tuple(found)


class _Index:
    """The index of a shard: positions and sizes of its chunks."""

    def __init__(self, node: Node, configuration: Mapping[str, Any], grid: tuple[int, ...]) -> None:
        codecs = configuration["index_codecs"]
        names = [_name(codec) for codec in codecs] if isinstance(codecs, list) else []
        if names not in (["bytes"], ["bytes", "crc32c"]):
            raise ImageError(
                f"{node.path}: the index of its shards is encoded by {', '.join(map(str, names))}, and bytes and "
                "crc32c are supported; convert the array"
            )
        settings = codecs[0].get("configuration") if isinstance(codecs[0], dict) else None
        endian = settings.get("endian") if isinstance(settings, dict) else "little"
        self._dtype = np.dtype(">u8" if endian == "big" else "<u8")
        self._at_start = configuration.get("index_location") == "start"
        self.size = math.prod(grid) * 16 + 4 * (len(names) - 1)

    def read(self, file: int, size: int, wanted: tuple[slice, ...], grid: tuple[int, ...]) -> npt.NDArray[np.uint64]:
        """Return positions and sizes (n, 2) of the wanted chunks; of the index, the part that holds them is read."""
        first = int(np.ravel_multi_index([part.start for part in wanted], grid)) if grid else 0
        last = int(np.ravel_multi_index([part.stop - 1 for part in wanted], grid)) if grid else 0
        begin = 0 if self._at_start else size - self.size
        data = _pread(file, begin + 16 * first, 16 * (last + 1 - first))
        held = np.frombuffer(data[: len(data) // 16 * 16], self._dtype).reshape(-1, 2).astype(np.uint64)
        chosen = np.arange(math.prod(grid)).reshape(grid)[wanted].ravel() - first
        return held[chosen[chosen < len(held)]]


def name_form(node: Node) -> tuple[str, str]:
    """Return the first part of the names of chunks, which may be empty, and the separator of their numbers."""
    if node.version == 2:
        return "", node.metadata.get("dimension_separator") or "."
    encoding = node.metadata["chunk_key_encoding"]
    prefix, separator = ("", ".") if encoding["name"] == "v2" else ("c", "/")
    return prefix, encoding.get("configuration", {}).get("separator", separator)


def _name(codec: Any) -> Any:
    return codec.get("name") if isinstance(codec, dict) else codec


def _pread(file: int, at: int, count: int) -> bytes:
    if at >= 2**63:
        return b""
    if hasattr(os, "pread"):
        return os.pread(file, count, at)
    os.lseek(file, at, os.SEEK_SET)
    return os.read(file, count)
