"""Zarr arrays of versions 2 and 3 in windows, by tensorstore.

tensorstore was chosen over zarr-python, with its own codecs and with those of zarrs: it reads and writes sharded arrays
about as fast as zarrs does, several times faster than zarr-python alone; it needs no library but NumPy and ml_dtypes,
which convforge has; and its threads and caches belong to an array, while zarr-python's settings belong to the process.
It writes a chunk or shard to a file of another name and renames it, so none is ever half written under its name.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

import numpy as np

from convforge.imaging.image import SAMPLE_DTYPES, Array, ImageError, is_sample_dtype
from convforge.imaging.windowed.contract import Layout, Region
from convforge.imaging.windowed.zarr.chunk_files import ChunkFiles, name_form
from convforge.imaging.windowed.zarr.metadata import Node, for_tensorstore
from convforge.imaging.windowed.zarr.stores import awaited, fault, tensorstore


class ZarrArray:
    """An open array.

    Parameters
    ----------
    node : Node
        Its metadata, which need not be in the store yet.
    write : bool
    order : tuple of int, optional
        The axis of the layout that each stored axis is; by default they are the same.
    """

    def __init__(self, node: Node, *, write: bool = False, order: tuple[int, ...] | None = None) -> None:
        self.node, self.path = node, node.path
        self.stored = _opened(node, write)
        shape, dtype = tuple(self.stored.shape), np.dtype(self.stored.dtype.numpy_dtype)
        if not is_sample_dtype(dtype) and dtype.kind != "b":
            raise ImageError(f"{self.path}: samples are {dtype}; convert the array to {SAMPLE_DTYPES} first")
        self.is_bool = dtype.kind == "b"
        self._at = at = [(order or range(len(shape))).index(axis) for axis in range(len(shape))]
        self._view = self.stored.transpose(at) if order else self.stored
        grid = self.stored.chunk_layout
        chunks, shards = grid.read_chunk.shape, grid.write_chunk.shape
        self._files = ChunkFiles(node, chunks, shards, self.stored.dtype.numpy_dtype.itemsize)
        self.layout = Layout(
            tuple(shape[i] for i in at), np.dtype(np.uint8) if self.is_bool else dtype, "" if order else node.axes,
            tuple(chunks[i] for i in at), tuple(shards[i] for i in at),
        )  # fmt: skip

    def read(self, region: Region) -> Array:
        """Return a window; bool samples become 0 and 255, as those of a `.npy` file."""
        out = np.empty([part.stop - part.start for part in region], self.layout.dtype)
        self.read_into(region, out)
        return out

    def read_into(self, region: Region, out: Array) -> None:
        """Read a window into an array of its shape and type."""
        if self.node.store.is_local:
            of_axis = dict(zip(self._at, region, strict=True))
            self._files.check([of_axis[axis] for axis in range(len(region))])
        try:
            into = tensorstore(self.path).array(out.view(np.bool_) if self.is_bool else out)
            awaited(into.write(self._view[region]))
        except Exception as error:
            raise ImageError(
                f"{self.path}: a chunk is damaged or cannot be read ({fault(error)}); get it again from its source"
                if self.node.store.is_local
                else f"{self.path}: a chunk is damaged, or the store does not answer ({fault(error)}); "
                "the same command goes on where this one ended"
            ) from error
        if self.is_bool:
            np.multiply(out, np.uint8(255), out=out)

    def write(self, region: Region, array: Array) -> None:
        try:
            # The array is not changed before the write is done, so that it need not be copied.
            awaited(self._view[region].write(array, can_reference_source_data_indefinitely=True))
        except Exception as error:
            raise ImageError(f"{self.path}: cannot be written ({fault(error)})") from error

    def create(self) -> None:
        """Write the metadata, which make this an array for others."""
        metadata, attributes = for_tensorstore(self.node), dict(self.node.attributes)
        if self.node.version == 3:
            self.node.store.write("zarr.json", metadata | ({"attributes": attributes} if attributes else {}))
            return
        if attributes:
            self.node.store.write(".zattrs", attributes)
        self.node.store.write(".zarray", metadata)

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Number of files along each stored axis."""
        sides = self.stored.chunk_layout.write_chunk.shape
        return tuple(-(-size // side) for size, side in zip(self.stored.shape, sides, strict=True))

    def is_chunk(self, name: str) -> bool:
        """True for the name of a chunk's or shard's file, relative to the array, that is inside the grid."""
        found = self._names.fullmatch(name)
        return found is not None and all(int(at) < count for at, count in zip(found.groups(), self.grid, strict=True))

    @cached_property
    def _names(self) -> re.Pattern[str]:
        """Form of the names of the chunks' files, such as c/0/12 or 0.12."""
        prefix, separator = name_form(self.node)
        parts = ([prefix] if prefix else []) + ["(0|[1-9][0-9]*)"] * len(self.grid)
        return re.compile(re.escape(separator).join(parts))


def _opened(node: Node, write: bool) -> Any:
    """Open an array by its metadata, which need not be stored; ``ImageError`` with tensorstore's reason."""
    spec: dict[str, Any] = {
        "driver": "zarr" if node.version == 2 else "zarr3",
        "kvstore": node.store.spec,
        "context": node.store.context,
        "metadata": for_tensorstore(node),
    }
    module = tensorstore(node.path)
    try:
        return awaited(module.open(spec, open=True, read=True, write=write, assume_metadata=True))
    except Exception as error:
        raise ImageError(f"{node.path}: is no Zarr array that can be read ({fault(error)})") from error
