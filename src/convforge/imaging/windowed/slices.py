"""A folder of images of one size as one stack, a file for each plane: read and written in windows.

The files of a folder that is read are in the natural order of their names: img2.tif comes before img10.tif. A folder
that is written has the names 0000.tif, 0001.tif and so on.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from convforge.imaging.axes import Axes
from convforge.imaging.files import WRITABLE_SUFFIXES, check_holds, header_of, read_image, write_image
from convforge.imaging.image import Array, Image, ImageError, alpha_as
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
from convforge.imaging.windowed.slice_spacing import kept_spacing, metadata_of_slices, spacing_of_slices

# Decoded planes that a reader keeps, because several windows of a plane are read one after the other.
CACHED_BYTES = 64 * 2**20

# Least number of digits in the name of a slice.
DIGITS = 4


def natural_key(name: str) -> tuple[tuple[str | int, ...], str]:
    """Return a sort key that orders the numbers in names by their value.

    Examples
    --------
    >>> sorted(["img10.tif", "img2.tif", "img1.tif"], key=natural_key)
    ['img1.tif', 'img2.tif', 'img10.tif']
    """
    parts = re.split(r"(\d+)", name)
    return tuple(int(part) if at % 2 else part.casefold() for at, part in enumerate(parts)), name


def slices_in(folder: Path) -> tuple[Path, ...]:
    """Return the images of a folder in natural order; hidden files, other files and sub-folders are ignored."""
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.is_file()]
    except OSError as error:
        raise ImageError(f"{folder}: cannot be read ({error.strerror or error})") from error
    images = (name for name in names if name[0] != "." and Path(name).suffix.lower() in WRITABLE_SUFFIXES)
    return tuple(folder / name for name in sorted(images, key=natural_key))


class SliceReader:
    """The stack (Z, Y, X) or (Z, Y, X, C) of a folder's images; opacity is the last band.

    The headers of all files are compared first, and one file of each kind of header is decoded. ``ImageError`` if the
    folder holds no image, if a file has more than one plane, or if two files differ in shape or sample type.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.attributes = path, dict[str, Any]()
        self.files = slices_in(path)
        if not self.files:
            raise ImageError(f"{path}: holds no image of {', '.join(WRITABLE_SUFFIXES)}")
        first = self._first_of_all(self.files)
        plane = _with_alpha(first)
        shape = (len(self.files), *plane.shape)
        self.layout = Layout(
            shape, plane.dtype, "ZYXC"[: len(shape)], chunks=(1, *plane.shape), shards=(1, *plane.shape),
            spacing=spacing_of_slices(self.files[0], first.metadata, len(shape)), alpha=first.alpha is not None,
        )  # fmt: skip
        self._planes = _Cache(self._decoded, max(1, CACHED_BYTES // max(plane.nbytes, 1)))

    def _first_of_all(self, files: Iterable[Path]) -> Image:
        """Return the first image; every other one has its shape and type."""
        known: dict[Hashable, Path] = {}
        first: Image | None = None
        for path in files:
            if (header := header_of(path)) in known:
                continue
            known[header] = path
            image = _read(path)
            if first is None:
                first = image
            elif (here := _kind(image)) != (there := _kind(first)):
                other = next(iter(known.values())).name
                raise ImageError(
                    f"{path}: is {here}, and {other} is {there}; a folder of slices has images of one shape and type"
                )
        assert first is not None
        return first

    def read(self, region: Region) -> Array:
        planes, *rest = region
        window = np.empty(tuple(part.stop - part.start for part in region), self.layout.dtype)
        for at, number in enumerate(range(planes.start, planes.stop)):
            window[at] = self._planes(number)[tuple(rest)]
        return window

    def _decoded(self, number: int) -> Array:
        plane = _with_alpha(_read(self.files[number]))
        if plane.shape != self.layout.shape[1:] or plane.dtype != self.layout.dtype:
            raise ImageError(f"{self.files[number]}: was replaced while it was read; do not change it meanwhile")
        return plane

    def fingerprint(self) -> str:
        """Return a digest of the names, sizes and times of all files."""
        digest = hashlib.sha256()
        for path in self.files:
            facts = path.stat()
            digest.update(f"{path.name} {facts.st_size} {facts.st_mtime_ns}\n".encode())
        return digest.hexdigest()


class SliceWriter:
    """A folder to which each plane is written as a file, completely or not at all."""

    def __init__(self, path: Path, layout: Layout, suffix: str) -> None:
        self.layout = layout
        self.levels: tuple[WindowWriter, ...] = ()
        self._path, self._suffix, self._axes = path, suffix, Axes(layout.axes)
        sizes = self._axes.sizes(layout.shape)
        self._pages = tuple(sizes[letter] for letter in self._axes.pages)
        self._digits = max(DIGITS, len(str(int(np.prod(self._pages)) - 1)))
        self._metadata = metadata_of_slices(layout, suffix)

    def write(self, region: Region, array: Array) -> None:
        stack = self._axes.stack(array)
        for plane, path in zip(stack, self._files(region), strict=True):
            alpha = np.ascontiguousarray(plane[..., -1]) if self.layout.alpha else None
            pixels = plane[..., :-1] if self.layout.alpha else plane
            pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
            write_image(path, Image(np.ascontiguousarray(pixels), alpha, self._metadata))
        if os.name == "posix":  # the names of the files are on the disk, too
            folder = os.open(self._path, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def read(self, region: Region) -> Array:
        parts = dict(zip(self.layout.axes, region, strict=True))
        planes = [_with_alpha(_read(path))[parts["Y"], parts["X"]] for path in self._files(region)]
        stack = np.stack(planes) if planes[0].ndim == 3 else np.stack(planes)[..., np.newaxis]
        if self._axes.bands:
            stack = stack[..., parts[self._axes.bands]]
        pages = tuple(parts[letter].stop - parts[letter].start for letter in self._axes.pages)
        return np.ascontiguousarray(self._axes.unstack(stack, pages))

    def finish(self) -> None:
        pass

    def _files(self, region: Region) -> list[Path]:
        """Return the files of a window's planes, in the order of the page axes."""
        parts = dict(zip(self.layout.axes, region, strict=True))
        if not self._pages:
            return [self._path / f"{0:0{self._digits}}{self._suffix}"]
        grid = np.ix_(*(np.arange(parts[letter].start, parts[letter].stop) for letter in self._axes.pages))
        numbers = np.ravel_multi_index(grid, self._pages).ravel()
        return [self._path / f"{number:0{self._digits}}{self._suffix}" for number in numbers]


class SliceFolder(type(Path())):  # type: ignore[misc]
    """Path of a folder that slices are written to; `files` is the suffix of the files.

    Examples
    --------
    >>> SliceFolder.of(Path("planes"), ".png").files
    '.png'
    """

    files: str

    @classmethod
    def of(cls, path: Path, files: str) -> SliceFolder:
        folder = cls(path)
        folder.files = files
        return folder


def format_for(folder: SliceFolder) -> WindowFormat:
    """Return the format that writes a folder of slices."""
    kind = _format(folder.files, (folder.suffix.lower(),))
    return replace(kind, arranged=partial(arranged, file=folder / f"{0:0{DIGITS}}{folder.files}"))


def is_own(path: Path) -> bool:
    """True for a folder of slices as this module writes them; ``ImageError`` names another file in it."""
    if not path.is_dir():
        return False
    endings = "|".join(re.escape(suffix) for suffix in WRITABLE_SUFFIXES)
    for name in sorted(os.listdir(path), key=natural_key):
        if re.fullmatch(rf"\d{{{DIGITS},}}({endings})", name) is None:
            raise ImageError(
                f"{path}: holds {name}, which is no slice, so the folder is not replaced; name another folder, or "
                "remove what it holds"
            )
    return True


def arranged(layout: Layout, place: Place, source: WindowReader, file: Path | None = None) -> Layout:
    """Return a layout whose shards are planes with all bands; ``ImageError`` if a file cannot hold one."""
    if file is not None:
        axes = Axes(layout.axes)
        bands = axes.sizes(layout.shape).get(axes.bands, 1) - layout.alpha
        check_holds(file, layout.dtype, bands=bands, alpha=layout.alpha)
    plane = tuple(
        size if letter in f"YX{Axes(layout.axes).bands}" else 1
        for letter, size in zip(layout.axes, layout.shape, strict=True)
    )
    return replace(layout, chunks=plane, shards=plane, levels=())


def create(place: Place, layout: Layout, source: WindowReader, suffix: str) -> SliceWriter:
    """Make an empty folder."""
    path = local(place)
    try:
        path.mkdir()
    except OSError as error:
        raise ImageError(f"{path}: cannot be made ({error.strerror or error}); choose another place") from error
    return SliceWriter(path, layout, suffix)


def reopen(place: Place, layout: Layout, source: WindowReader, suffix: str) -> SliceWriter:
    """Return the writer of a folder that a killed run has left; what it had not finished is removed."""
    path = local(place)
    for rest in path.glob(".convforge-*.tmp"):
        rest.unlink(missing_ok=True)
    return SliceWriter(path, layout, suffix)


def lost(source: WindowReader, layout: Layout, suffix: str = "") -> tuple[str, ...]:
    words, kept = no_metadata(source, layout), kept_spacing(layout, suffix)
    if kept:
        along_z = ("spacing along Z",) if "Z" in layout.spacing_by_letter.keys() - kept else ()
        words = tuple(word for word in words if word != "spacing") + along_z
    if layout.channels:
        words += ("names of channels",)
    pages = Axes(layout.axes).pages
    return words + ((f"axes {pages}, whose planes became files",) if len(pages) > 1 else ())


class _Cache:
    """The values of a function for the last `most` arguments; each is computed once, even by several threads."""

    def __init__(self, compute: Callable[[int], Array], most: int) -> None:
        self._compute, self._most = compute, most
        self._values: OrderedDict[int, Future[Array]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, number: int) -> Array:
        with self._lock:
            known = self._values.get(number)
            future = self._values[number] = known or Future()
            self._values.move_to_end(number)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        if known is None:
            try:
                future.set_result(self._compute(number))
            except BaseException as error:
                with self._lock:
                    self._values.pop(number, None)
                future.set_exception(error)
        return future.result()


def _read(path: Path) -> Image:
    image = read_image(path)
    if image.pages:
        raise ImageError(f"{path}: holds {image.page_count} planes; each file of a folder of slices holds one")
    return image


def _kind(image: Image) -> str:
    alpha = " with alpha" if image.alpha is not None else ""
    return f"{image.width} x {image.height} pixels of {image.bands} x {image.pixels.dtype}{alpha}"


def _with_alpha(image: Image) -> Array:
    """Return the pixels (H, W) or (H, W, B); opacity is the last band."""
    if image.alpha is None:
        return image.pixels
    alpha = alpha_as(image.alpha, image.pixels.dtype)
    return np.dstack([image.pixels, alpha])


def _format(suffix: str, suffixes: tuple[str, ...]) -> WindowFormat:
    return WindowFormat(
        "folder of slices", suffixes, is_own, lambda place: SliceReader(local(place)), arranged,
        partial(create, suffix=suffix), partial(reopen, suffix=suffix), partial(lost, suffix=suffix),
    )  # fmt: skip


FORMAT = _format(".tif", ())
