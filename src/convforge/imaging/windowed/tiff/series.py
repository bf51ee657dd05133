"""The image of a TIFF: which pages are its planes, its axes, spacing, channels and reduced copies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from convforge.imaging.axes import LETTERS, may_hold_bands_as_columns
from convforge.imaging.formats import tiff_tags
from convforge.imaging.image import ImageError, Metadata
from convforge.imaging.spacing import spacing_by
from convforge.imaging.windowed.byte_ranges import LocalBytes
from convforge.imaging.windowed.contract import Url
from convforge.imaging.windowed.tiff import directories as td
from convforge.imaging.windowed.tiff import ome_xml
from convforge.imaging.windowed.tiff.directories import Chain, Tables, TiffBytes, chain_of, open_tiff

if TYPE_CHECKING:
    from tifffile import TiffFile, TiffPage

REDUCED_OR_MASK = tiff_tags.REDUCED | tiff_tags.MASK

# The most pages of a file of which tifffile is asked to find a pyramid without marks.
FEW = 4096


class Source(Protocol):
    """Positions and byte counts of the strips or tiles of pages."""

    def segments(self, page: int, first: int, count: int) -> tuple[list[int], list[int]]: ...

    def jpeg_tables(self, page: int) -> bytes | None: ...


@dataclass(frozen=True)
class Planes:
    """Files and pages of planes in the order of the page axes; a plane without a page is zeros."""

    files: Sequence[tuple[TiffBytes, Source]]
    file_of: npt.NDArray[np.int64] | None = None
    page_of: npt.NDArray[np.int64] | None = None  # None: plane n is page n

    def at(self, plane: int) -> tuple[TiffBytes, Source, int]:
        """Return the file, its tables and the page of a plane; page -1 is absent."""
        page = plane if self.page_of is None else int(self.page_of[plane])
        return *self.files[0 if self.file_of is None else int(self.file_of[plane])], page


@dataclass(frozen=True)
class Series:
    """The image of a TIFF."""

    first: TiffPage
    planes: Planes
    pages: Mapping[str, int] = field(default_factory=dict)  # sizes of the page axes by letter, the slowest first
    levels: tuple[tuple[int, int], ...] = ()  # heights and widths of the reduced copies
    spacing: Mapping[str, float] = field(default_factory=dict)  # micrometres by axis
    channels: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()  # further images of the file, in words
    unclear: bool = False  # the pages may be rows of an image with bands
    in_subifds: bool = True  # the place of the reduced copies


@dataclass(frozen=True)
class _Undivided:
    """Tables of planes that follow each other behind one directory, uncompressed."""

    tables: Tables
    plane: int  # bytes
    strip: int
    strips: int  # of a plane of samples
    samples: int  # planes of samples

    def segments(self, page: int, first: int, count: int) -> tuple[list[int], list[int]]:
        (start,), _ = self.tables.segments(0, 0, 1)
        each = self.plane // self.samples
        at, sizes = [], []
        for number in range(first, first + count):
            sample, strip = divmod(number, self.strips)
            at.append(start + page * self.plane + sample * each + strip * self.strip)
            sizes.append(min(self.strip, each - strip * self.strip))
        return at, sizes

    def jpeg_tables(self, page: int) -> bytes | None:
        return None


def series_of(tiff: TiffBytes, file: TiffFile, sort: Callable[[TiffBytes, TiffFile], Series]) -> Series:
    """Return the image of an open TIFF; ``ImageError`` if its pages are none, or are damaged.

    `sort` returns the image of a pyramid whose reduced copies have no mark.
    """
    chain = chain_of(tiff)
    full = np.flatnonzero((chain.subfiles & REDUCED_OR_MASK) == 0)
    full = full if full.size else np.arange(len(chain.offsets))
    stack = full[chain.kinds[full] == chain.kinds[full[0]]]
    if len(stack) < len(full) and not file.is_ome:
        return _pyramid_without_marks(tiff, file, chain, full, sort)
    first = file.pages[int(stack[0])].aspage()
    tables = Tables(tiff, chain.offsets[stack])
    levels, lost = _levels(tiff, chain, tables, first)
    series = Series(
        first, Planes([(tiff, tables)]), {"I": len(stack)}, levels, lost=lost, spacing=spacing_by_resolution(first),
        in_subifds=td.SUBIFDS in tables.entries(0),
    )  # fmt: skip
    if file.is_ome:
        return _ome(tiff, series, chain, tables)
    if file.is_imagej:
        return _imagej(tiff, file, series, tables, len(stack))
    return _shaped(tiff, file, series, tables, len(stack)) if file.is_shaped else series


def _pyramid_without_marks(
    tiff: TiffBytes, file: TiffFile, chain: Chain, full: npt.NDArray[np.int64],
    sort: Callable[[TiffBytes, TiffFile], Series],
) -> Series:  # fmt: skip
    """Return a pyramid whose reduced copies are plain pages; ``ImageError`` if the pages are no pyramid."""
    if len(chain.offsets) <= FEW:
        found = asked(tiff, lambda: file.series)
        if len(found) == 1 and len(found[0].levels) > 1:
            return sort(tiff, file)
    other = full[chain.kinds[full] != chain.kinds[full[0]]][0]
    sizes = [
        " x ".join(str(tiff.number(tiff.entries(int(chain.offsets[at]))[0], code, 0)) for code in (td.WIDTH, td.LENGTH))
        for at in (full[0], other)
    ]
    raise ImageError(
        f"{tiff.place}: pages of different shapes or kinds, page {full[0] + 1} has {sizes[0]} pixels and page "
        f"{other + 1} has {sizes[1]}; split the file and filter each kind by itself"
    )


def asked(tiff: TiffBytes, question: Callable[[], Any]) -> Any:
    """Return tifffile's answer; ``ImageError`` for whatever it raises."""
    try:
        return question()
    except ImageError:
        raise
    except Exception as error:
        raise tiff.damaged(f"tifffile says: {' '.join(str(error).split()) or type(error).__name__}") from error


def _levels(tiff: TiffBytes, chain: Chain, tables: Tables, first: TiffPage) -> tuple[Any, tuple[str, ...]]:
    """Return heights and widths of the reduced copies, and in words the reduced images that are none."""
    height, width = first.imagelength, first.imagewidth
    subifds = tables.entries(0).get(td.SUBIFDS)
    if subifds is not None and subifds.count > 64:
        raise tiff.damaged(f"a page has {subifds.count} SubIFDs")
    at = [] if subifds is None else tiff.values(subifds).tolist()
    reduced = np.flatnonzero((chain.subfiles & REDUCED_OR_MASK) == tiff_tags.REDUCED)
    _, ones = np.unique(chain.kinds[reduced], return_index=True)  # one page of each kind
    at += chain.offsets[reduced[np.sort(ones)]].tolist()
    found, lost = [], list[str]()
    for offset in at:
        entries, _ = tiff.entries(int(offset))
        h, w = (tiff.number(entries, code, 0) for code in (td.LENGTH, td.WIDTH))
        longer, side = max((height, h), (width, w))  # rounding matters least there
        factor = round(longer / side) if side else 0
        if factor > 1 and abs(w * factor - width) <= factor and abs(h * factor - height) <= factor:
            found.append((h, w))
        else:
            lost.append(f"a reduced image of {w} x {h} pixels")
    masks = int(np.count_nonzero(chain.subfiles & tiff_tags.MASK))
    lost += [f"{masks} mask{'' if masks == 1 else 's'}"] if masks else []
    return tuple(sorted(set(found), reverse=True)), tuple(lost)


def lettered(pages: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of page axes by letters of :data:`LETTERS`; those with other names become one axis I."""
    pages = {letter: size for letter, size in pages.items() if size > 1}
    if all(letter in LETTERS for letter in pages):
        return pages
    return {"I": math.prod(pages.values())}


def _ome(tiff: TiffBytes, series: Series, chain: Chain, tables: Tables) -> Series:
    """Return the first image of an OME-TIFF; files beside it may hold a part of its planes."""
    own = tiff.place.name.removesuffix(".incomplete")
    try:
        image = ome_xml.read_ome(series.first.description, own)
        if image.elsewhere:
            return replace(series, lost=(*series.lost, f"OME-XML in the file {image.elsewhere}"))
        counts = {"": len(tables.offsets)}
        files: list[tuple[TiffBytes, Source]] = [(tiff, Tables(tiff, chain.offsets))]
        for name in dict.fromkeys(run.file for run in image.runs if run.file):
            other, offsets = _beside(tiff, chain, name)
            files.append((other, Tables(other, offsets)))
            counts[name] = len(offsets)
        file_of, page_of, _ = image.planes(counts)
    except ImageError as error:
        if str(error).startswith(str(tiff.place)):
            raise
        raise tiff.damaged(str(error)) from error
    if (image.sizes["Y"], image.sizes["X"]) != (series.first.imagelength, series.first.imagewidth):
        raise tiff.damaged(f"OME-XML with {image.sizes['X']} x {image.sizes['Y']} pixels, unlike the pages")
    ends = np.array([len(pages.offsets) for _, pages in files if isinstance(pages, Tables)])
    own_pages = page_of[(file_of == 0) & (page_of >= 0)]
    if (page_of >= ends[file_of]).any():
        raise tiff.damaged(f"OME-XML names page {int(page_of.max())}, which it does not have")
    if (chain.kinds[own_pages] != chain.kinds[series.first.index]).any():
        raise tiff.damaged("its pages of one image are of different shapes or kinds")
    lost = (f"{image.images - 1} further images of the OME-TIFF",) if image.images > 1 else ()
    pages = {letter: size for letter, size in image.pages.items() if size > 1}
    return replace(
        series, planes=Planes(files, file_of, page_of), pages=pages, spacing={**series.spacing, **image.spacing},
        channels=tuple(image.channels) if "C" in pages and any(image.channels) else (), lost=series.lost + lost,
    )  # fmt: skip


def _beside(tiff: TiffBytes, chain: Chain, name: str) -> tuple[TiffBytes, npt.NDArray[np.int64]]:
    """Open another file of an OME-TIFF in the same folder; return the positions of its pages."""
    if isinstance(tiff.place, Url):
        raise ImageError(f"{tiff.place}: a part of the image is in the file {name}; download both first")
    path = tiff.place.with_name(name) if name == Path(name).name and name else None
    if path is None or not path.is_file():
        raise ImageError(f"{tiff.place}: a part of the image is in the file {name}, which is not beside it; get it too")
    other = open_tiff(path, LocalBytes(path))
    found = chain_of(other)
    if any(kind != chain.known[0] for kind in found.known):
        raise ImageError(f"{path}: its pages differ from those of {tiff.place}; export the image as one file")
    return other, found.offsets


def _imagej(tiff: TiffBytes, file: TiffFile, series: Series, tables: Tables, count: int) -> Series:
    """Return ImageJ's stack: hyperstacks have times, slices and channels, in one directory if they are large."""
    given = asked(tiff, lambda: file.imagej_metadata) or {}
    sizes = {letter: given.get(name, 1) for letter, name in zip("TZC", ("frames", "slices", "channels"), strict=True)}
    if not all(isinstance(size, int) and size > 0 for size in sizes.values()):
        sizes = {}
    if series.first.samplesperpixel > 1:
        sizes.pop("C", None)
    letters = str(given.get("order", "czt")).upper()[::-1]
    order = letters if sorted(letters) == sorted("CZT") else "TZC"
    sizes = {letter: sizes[letter] for letter in order if letter in sizes}
    total = given.get("images", 1)
    total = max(total if isinstance(total, int) else 1, math.prod(sizes.values()))
    if count == 1 and total > 1:
        series, count = undivided(tiff, series, tables, total), total
    pages = {letter: size for letter, size in sizes.items() if size > 1}
    unit = ome_xml.MICROMETRES.get(str(given.get("unit", "")).replace("\\u00B5", "µ"))
    spacing = dict(series.spacing)
    if unit is not None:
        across, down = tiff_tags.resolution_of(series.first)[0] or (1.0, 1.0)  # ImageJ's default
        spacing = {"X": unit / across, "Y": unit / down}
        depth = given.get("spacing")
        spacing |= {"Z": float(depth) * unit} if isinstance(depth, int | float) and depth > 0 else {}
    return replace(series, pages=pages if math.prod(pages.values()) == count else {"I": count}, spacing=spacing)


def _shaped(tiff: TiffBytes, file: TiffFile, series: Series, tables: Tables, count: int) -> Series:
    """Return tifffile's stack, whose description has a shape and perhaps axes."""
    given: Any = asked(tiff, lambda: file.shaped_metadata) or ({},)
    shape, letters = given[0].get("shape"), given[0].get("axes")
    if not isinstance(shape, Sequence) or not all(isinstance(size, int) and size > 0 for size in shape):
        return series
    total, first = math.prod(shape), series.first
    if count == 1 and given[0].get("truncated") and total > first.size and total % first.size == 0:
        series, count = undivided(tiff, series, tables, total // first.size), total // first.size
    if isinstance(letters, str) and len(letters) == len(shape) == len(set(letters)):
        pages = {letter: size for letter, size in zip(letters, shape, strict=True) if letter not in "YXS"}
        if math.prod(pages.values()) != count:
            return series
        pages, spacing, channels = lettered(pages), dict(series.spacing), given[0].get("Channel", {})
        names = channels.get("Name") if isinstance(channels, dict) else None
        depth, unit = given[0].get("spacing"), ome_xml.MICROMETRES.get(str(given[0].get("unit")))
        if isinstance(depth, int | float) and depth > 0 and unit is not None:
            spacing["Z"] = depth * unit
        return replace(
            series, pages=pages, spacing=spacing,
            channels=tuple(map(str, names)) if isinstance(names, list) and len(names) == pages.get("C") else (),
        )  # fmt: skip
    narrow = may_hold_bands_as_columns((count, first.imagelength, first.imagewidth)) and first.samplesperpixel == 1
    return replace(series, unclear=narrow)


def undivided(tiff: TiffBytes, series: Series, tables: Tables, count: int) -> Series:
    """Return a stack whose planes follow each other behind one directory."""
    first = series.first
    if int(first.compression) != 1 or first.is_tiled or not first.is_contiguous:
        raise tiff.damaged(f"its description tells of {count} planes, and it has one page")
    samples, row = first.shaped[0], first.imagewidth * first.shaped[4] * first.dtype.itemsize
    strips = -(-first.imagelength // first.rowsperstrip)
    divided = _Undivided(tables, first.nbytes, first.rowsperstrip * row, strips, samples)
    (start,), _ = tables.segments(0, 0, 1)
    if start + count * first.nbytes > tiff.ranges.size:
        raise tiff.damaged(f"its {count} planes end beyond its {tiff.ranges.size} bytes")
    return replace(series, planes=Planes([(tiff, divided)]), pages={"I": count})


def spacing_by_resolution(first: TiffPage) -> dict[str, float]:
    """Return the distances in micrometres by letter that the resolution of a page states, as `spacing_by` does."""
    return spacing_by(Metadata(*tiff_tags.resolution_of(first)))
