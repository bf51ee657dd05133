"""`.npy` files in windows: read through memory maps, written run by run.

A map of the file lives only while a window is copied, so that the pages it touched do not count as this process's
memory. Writing does not use a map: on a full disk, a map ends the process with a signal, while a write raises an error.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from convforge.imaging.formats.npy import read_header
from convforge.imaging.image import SAMPLE_DTYPES, Array, ImageError, is_sample_dtype
from convforge.imaging.windowed.contract import Layout, Place, Region, WindowFormat, WindowReader, WindowWriter, local


class NpyReader:
    """A `.npy` file; bool samples become 0 and 255, as in `read_image`."""

    def __init__(self, path: Path) -> None:
        shape, self._by_columns, dtype, self._start = _header(path)
        if not is_sample_dtype(dtype) and dtype.kind != "b":
            raise ImageError(f"{path}: samples are {dtype}; convert the array to {SAMPLE_DTYPES} first")
        self.path, self.attributes = path, dict[str, Any]()
        self._stored = dtype
        self._opened = self.fingerprint()
        self.layout = Layout(shape, np.dtype(np.uint8) if dtype.kind == "b" else dtype.newbyteorder("="))
        needed, held = self._start + self.layout.nbytes, path.stat().st_size
        if needed > held:
            raise ImageError(
                f"{path}: truncated, shape {shape} of {dtype} needs {needed} bytes and the file holds {held}; "
                "get it again from its source"
            )

    def read(self, region: Region) -> Array:
        out = np.empty([part.stop - part.start for part in region], self.layout.dtype)
        self.read_into(region, out)
        return out

    def read_into(self, region: Region, out: Array) -> None:
        """Read a window into an array of its shape and type."""
        order: Literal["F", "C"] = "F" if self._by_columns else "C"
        try:
            if self.fingerprint() != self._opened:
                raise ImageError(f"{self.path}: was changed while it was read; do not change it meanwhile")
            mapped = np.memmap(self.path, self._stored, "r", self._start, self.layout.shape, order)
            if self._stored.kind == "b":
                np.multiply(mapped[region], np.uint8(255), out=out)
            else:
                out[...] = mapped[region]
        except OSError as error:
            raise ImageError(f"{self.path}: cannot be read ({error.strerror or error})") from error

    def fingerprint(self) -> str:
        facts = self.path.stat()
        return f"{facts.st_size} bytes, modified {facts.st_mtime_ns}"


class NpyWriter:
    """A `.npy` file of a fixed size, whose windows are written at their offsets."""

    def __init__(self, path: Path) -> None:
        shape, _, dtype, self._start = _header(path)
        self._path = path
        self.layout = Layout(shape, dtype)
        self.levels: tuple[WindowWriter, ...] = ()

    def write(self, region: Region, array: Array) -> None:
        shape, size = self.layout.shape, self.layout.dtype.itemsize
        array = np.ascontiguousarray(array, self.layout.dtype)
        # The trailing axes that are written whole, and the one before them, are contiguous in the file.
        whole = len(shape)
        while whole > 1 and region[whole - 1] == slice(0, shape[whole - 1]):
            whole -= 1
        runs = array.reshape(*array.shape[: whole - 1], -1)
        steps = [int(np.prod(shape[axis + 1 :], dtype=object)) * size for axis in range(len(shape))]
        origin = self._start + sum(part.start * step for part, step in zip(region, steps, strict=True))
        try:
            with self._path.open("r+b", buffering=0) as file:
                for index in np.ndindex(runs.shape[:-1]):
                    file.seek(origin + sum(at * step for at, step in zip(index, steps, strict=False)))
                    rest = runs[index].data.cast("B")
                    while rest:
                        rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
        except OSError as error:
            raise ImageError(f"{self._path}: cannot be written ({error.strerror or error})") from error

    def read(self, region: Region) -> Array:
        return NpyReader(self._path).read(region)

    def finish(self) -> None:
        pass


def arranged(layout: Layout, place: Place, source: WindowReader) -> Layout:
    """Return a layout whose shards are the source's chunks, or else rows of one plane: any window can be written."""
    at = layout.axes.index("X")
    rows = tuple(size if axis >= at else 1 for axis, size in enumerate(layout.shape))
    return replace(layout, chunks=None, shards=layout.chunks or rows, levels=())


def create(place: Place, layout: Layout, source: WindowReader) -> NpyWriter:
    """Make a file of the full size, which takes no space until it is written; refuse if the disk has too little."""
    path = local(place)
    try:
        free = shutil.disk_usage(path.parent).free
        if layout.nbytes > free:
            raise ImageError(f"{path}: needs {layout.nbytes} bytes and the disk has {free} free; choose another place")
        with path.open("wb") as file:
            header = {"descr": np.lib.format.dtype_to_descr(layout.dtype), "fortran_order": False}
            np.lib.format.write_array_header_2_0(file, {**header, "shape": layout.shape})
            file.truncate(file.tell() + layout.nbytes)
    except OSError as error:
        raise ImageError(f"{path}: cannot be written ({error.strerror or error}); choose another place") from error
    return NpyWriter(path)


def _header(path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, True for Fortran's order, element type and the offset of the first element."""
    try:
        with path.open("rb") as file:
            return *read_header(path, file), file.tell()
    except OSError as error:
        raise ImageError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ImageError:
        raise
    except Exception as error:  # the parser of the header raises many classes
        fault = " ".join(str(error).split())
        raise ImageError(f"{path}: truncated or damaged .npy ({fault}); get it again from its source") from error


FORMAT = WindowFormat(
    ".npy", (".npy",), Path.is_file, lambda place: NpyReader(local(place)), arranged, create,
    lambda place, layout, source: NpyWriter(local(place)),
)  # fmt: skip
