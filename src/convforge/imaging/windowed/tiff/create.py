"""An empty TIFF with all its pages and tags, made by tifffile, and its writer."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from convforge.imaging.formats import exif, tiff_tags
from convforge.imaging.formats.tiff import ASSOCIATED
from convforge.imaging.image import ImageError, Metadata
from convforge.imaging.spacing import imagej_described, resolution_for
from convforge.imaging.windowed.byte_ranges import LocalBytes
from convforge.imaging.windowed.contract import Layout, Place, Url, WindowReader
from convforge.imaging.windowed.tiff import ome_write
from convforge.imaging.windowed.tiff.directories import SUBIFDS, Tables, chain_of, open_tiff
from convforge.imaging.windowed.tiff.ome_xml import read_ome
from convforge.imaging.windowed.tiff.reader import TiffReader, open_tifffile
from convforge.imaging.windowed.tiff.segments import Segments, grid_of
from convforge.imaging.windowed.tiff.series import asked
from convforge.imaging.windowed.tiff.storage import NONE, PageForm, Storage, storage_of
from convforge.imaging.windowed.tiff.writer import Appended, TiffLevel, TiffWriter, level_layout

if TYPE_CHECKING:
    from tifffile import TiffPage

SOFTWARE = 305

INCOMPLETE = ".incomplete"  # ends the name of a result that is being written


def create(place: Place, layout: Layout, source: WindowReader) -> TiffWriter:
    """Make a file whose pages are empty, with the storage and the tags of a source that is a TIFF.

    The file takes little space until it is written; ``ImageError`` if an uncompressed one will not fit on the disk.
    """
    path = _local(place)
    name = path.name.removesuffix(INCOMPLETE)
    storage = storage_of(layout, source, name)
    if storage.compression == NONE and layout.nbytes > (free := shutil.disk_usage(path.parent).free):
        raise ImageError(f"{path}: needs {layout.nbytes} bytes and the disk has {free} free; choose another place")
    try:
        with path.open("w+b") as file:
            _write_pages(file, layout, source, storage, name)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ImageError(f"{path}: cannot be written ({error.strerror or error}); choose another place") from error
    return reopen(place, layout, source)


def reopen(place: Place, layout: Layout, source: WindowReader) -> TiffWriter:
    """Return the writer of a file that `create` made; ``ImageError`` if the file is of another result."""
    path = _local(place)
    storage = storage_of(layout, source, path.name.removesuffix(INCOMPLETE))
    file = LocalBytes(path, write=True)
    tiff = open_tiff(path, file)
    chain, opened = chain_of(tiff), open_tifffile(tiff)
    appended = Appended(file, tiff)
    count = math.prod(PageForm.of(layout.axes).page_sizes(layout.shape))
    shapes, found = (layout.shape, *layout.levels), list[TiffLevel]()
    subifds = SUBIFDS in tiff.entries(tiff.first)[0]
    other = ImageError(f"{path}: is of another result; remove it to begin anew")
    if len(chain.offsets) != count * (1 if subifds else len(shapes)):
        raise other
    for number, shape in enumerate(shapes):
        below = subifds and number > 0
        offsets = chain.offsets if subifds else chain.offsets[number * count : (number + 1) * count]
        first = opened.pages[0].pages[number - 1] if below else opened.pages[0 if subifds else number * count]
        one = layout if number == 0 else level_layout(layout, shape)
        if not _is_of(first.aspage(), one, storage):
            raise other
        tables = Tables(tiff, offsets, number - 1 if below else None)
        found.append(TiffLevel(appended, one, storage, tables, Segments(first.aspage(), jfif=storage.is_jfif)))
    return TiffWriter(found[0], found[1:])


def _local(place: Place) -> Path:
    if isinstance(place, Url):
        raise ImageError(
            f"{place}: a TIFF is written on a local disk only, because its parts change; copy it afterwards"
        )
    return place


def _is_of(page: TiffPage, layout: Layout, storage: Storage) -> bool:
    """True if a page has the size and the storage of a layout."""
    sizes, grid = PageForm.of(layout.axes).sizes(layout.shape), grid_of(page)
    rows = storage.tile[0] if storage.tile else min(storage.rows, sizes["Y"])
    return (
        (grid.height, grid.width, grid.planes * grid.samples) == (sizes["Y"], sizes["X"], storage.samples)
        and (np.dtype(page.dtype), int(page.compression)) == (storage.dtype, storage.compression)
        and (grid.rows, grid.tiled) == (rows, storage.tile is not None)
    )


def _write_pages(file: Any, layout: Layout, source: WindowReader, storage: Storage, name: str) -> None:
    from tifffile import TiffWriter as Structure

    known = source if isinstance(source, TiffReader) else None
    metadata = metadata_of(layout, source, name)
    bands = storage.samples - layout.alpha
    options = tiff_tags.page_options(metadata, bands, big=storage.big, order=storage.order)
    described = description_of(layout, source, storage, name)
    # OME-TIFF knows no copies but those of SubIFDs.
    in_subifds = known is None or known.series.in_subifds or not known.series.levels or is_ome(source, name)
    levels = layout.levels
    with Structure(file, bigtiff=storage.big, byteorder=storage.order, ome=False) as writer:
        base = options | {"subifds": len(levels) if levels and in_subifds else None}
        _write_level(writer, layout.axes, layout.shape, storage, base | {"description": described or None})
        plain = {key: value for key, value in options.items() if key not in ("iccprofile", "extratags")}
        for shape in levels:
            x = layout.axes.index("X")
            one = dict(plain)
            if "resolution" in one:
                ratios = (shape[x] / layout.shape[x], shape[x - 1] / layout.shape[x - 1])
                one["resolution"] = tuple(value * ratio for value, ratio in zip(one["resolution"], ratios, strict=True))
            if described == _note(layout):  # tifffile reads the note of no page unless each copy has one
                one["description"] = _note(level_layout(layout, shape))
            _write_level(writer, layout.axes, shape, storage, one | {"subfiletype": tiff_tags.REDUCED})
    tiff_tags.point_to_tags(file, metadata)


def _write_level(writer: Any, letters: str, shape: tuple[int, ...], storage: Storage, options: dict[str, Any]) -> None:
    """Write the directories of all pages of one size, with tables of zeros."""
    form = PageForm.of(letters)
    sizes = form.sizes(shape)
    pages = math.prod(form.page_sizes(shape))
    page: tuple[int, ...] = (sizes["Y"], sizes["X"])
    if storage.samples > 1:
        page = (storage.samples, *page) if storage.planar else (*page, storage.samples)
    own = storage.options()
    # tifffile stores an uncompressed page of one strip or tile in a place of its own, and needs no data for it.
    placed = storage.compression == NONE and (storage.tile is None or storage.tile == (sizes["Y"], sizes["X"]))
    writer.write(
        None if placed else itertools.repeat(b""), shape=(pages, *page) if pages > 1 else page, **own, **options
    )


def metadata_of(layout: Layout, source: WindowReader, name: str = "") -> Metadata:
    """Return the metadata of the first page of a result: the source's, with the resolution of the result.

    The resolution is by the centimetre if the user has named the spacing, or if the source tells it in another way. In
    ImageJ's TIFF it is by the unit of the description.
    """
    if not isinstance(source, TiffReader):
        return Metadata() if (found := _resolution(layout)) is None else Metadata(found, "centimeter")
    x = layout.axes.index("X")
    again = set(layout.respaced)
    premultiplied = ASSOCIATED in source.first.extrasamples
    if source.file.is_ndpi:  # whose tags have positions of a form of their own
        metadata = Metadata(*tiff_tags.resolution_of(source.first), left=("the scanner's tags",))
    else:
        metadata = tiff_tags.metadata_of_page(source.file, source.first, premultiplied=premultiplied)
    grid, steps = source.segments.grid, dict(zip(layout.axes, layout.steps, strict=False))
    step_y, step_x = steps.get("Y", 1), steps.get("X", 1)
    if (grid.height, grid.width) != layout.shape[x - 1 : x + 1]:
        kept, lost = exif.without_pixels(exif.main_of(metadata.exif))
        metadata = replace(metadata, exif=exif.pack_block(kept), left=(*metadata.left, *lost))
    if source.is_slide and metadata.exif is not None:  # the scanner's name would mark the result as a slide of its own
        kept = {code: entry for code, entry in exif.main_of(metadata.exif).items() if code != SOFTWARE}
        metadata = replace(metadata, exif=exif.pack_block(kept))
    stays_imagej = not is_ome(source, name) and source.file.is_imagej and _kept_description(source, _pages(layout))[1]
    if again and stays_imagej:
        found = resolution_for(layout.spacing_by_letter, per=1.0)
        return replace(metadata, resolution=found, unit="none" if found else "inch")
    given = metadata.pixels_per("inch") is not None and not source.is_sorted_by_tifffile  # a slide's inch is no size
    unknown = not given and not stays_imagej
    if (unknown or again & {"Y", "X"}) and (found := _resolution(layout)) is not None:
        return replace(metadata, resolution=found, unit="centimeter")
    if metadata.resolution is None:
        return metadata
    across, down = metadata.resolution
    return replace(metadata, resolution=(across / step_x, down / step_y))


def _resolution(layout: Layout) -> tuple[float, float] | None:
    """Return samples per centimetre along x and y, or None if the spacing is unknown."""
    return resolution_for(layout.spacing_by_letter)


def is_ome(source: WindowReader, name: str) -> bool:
    """True if a result is an OME-TIFF: by its name, or because the source is one."""
    return bool(re.search(r"\.ome\.[^.]+$", name.lower())) or (
        isinstance(source, TiffReader) and bool(source.file.is_ome)
    )


def description_of(layout: Layout, source: WindowReader, storage: Storage, name: str) -> bytes:
    """Return the description of a result: OME-XML, ImageJ's or the source's own, or tifffile's note of the axes."""
    known = source if isinstance(source, TiffReader) else None
    if is_ome(source, name):
        text = known.first.description if known is not None and known.file.is_ome else None
        return ome_write.ome_of(layout, storage.samples, storage.order, name, text)
    pages = _pages(layout)
    text, kept = "", False
    if known is not None and not known.is_slide:
        text, kept = _kept_description(known, pages)
        if kept and layout.respaced:
            text = imagej_described(text, layout.spacing_by_letter)
    if kept or not pages or set(pages) <= {"I"}:
        return text.encode()
    return _note(layout)


def _note(layout: Layout) -> bytes:
    """Return tifffile's description of an array: shape, axes, distance of planes, channels."""
    note: dict[str, Any] = {"shape": layout.shape, "axes": layout.axes}
    depth = layout.spacing_by_letter.get("Z")
    note |= {"spacing": depth, "unit": "um"} if depth else {}
    note |= {"Channel": {"Name": layout.channels}} if layout.channels else {}
    return json.dumps(note).encode()


def _pages(layout: Layout) -> dict[str, int]:
    """Return the sizes of the page axes by letter."""
    form = PageForm.of(layout.axes)
    return {letter: size for letter, size in form.sizes(layout.shape).items() if letter in form.pages}


def _kept_description(known: TiffReader, pages: dict[str, int]) -> tuple[str, bool]:
    """Return a TIFF's description, and True if it names the axes of its pages, which are those of the result."""
    text, series = str(known.first.description), known.series
    if known.file.is_shaped:
        return "" if text.startswith(("{", "shape=")) else text, False
    if known.file.is_imagej:
        same = dict(series.pages) == pages  # it counts pages by axis
        return (re.sub(r"^(min|max)=.*\n?", "", text, flags=re.MULTILINE), True) if same else ("", False)
    return text, False


def lost(source: WindowReader, layout: Layout) -> tuple[str, ...]:
    """Return what of a source a result of this layout does not keep."""
    found: tuple[str, ...] = ("attributes",) if source.attributes else ()
    found += ("reduced copies (the pyramid)",) if source.layout.levels and not layout.levels else ()
    if not isinstance(source, TiffReader):
        return found
    found += source.series.lost + metadata_of(layout, source).left
    if source.is_slide:
        return (*found, "the scanner's description")
    if source.file.is_imagej and re.search(r"^(min|max)=", source.first.description, re.MULTILINE):
        found += ("range that ImageJ shows",)
    if source.plane_count > 1 and len(source.file.pages) > 1:
        pages = asked(source.tiff, lambda: [source.file.pages[page].aspage() for page in (0, 1)])
        found += tuple(tiff_tags.further_pages(source.file, pages))
    changed = source.file.is_imagej and dict(source.series.pages) != _pages(layout)
    return found + (("ImageJ's description",) if changed else ())


def beside(source: WindowReader, layout: Layout) -> tuple[str, ...]:
    """Return what a TIFF holds beside its image: further images, tags, a profile, parts of its description.

    The tag Software, which every library writes, is not named.
    """
    if not isinstance(source, TiffReader):
        return ()
    metadata = metadata_of(layout, source)
    tags = exif.pack_block({code: tag for code, tag in exif.main_of(metadata.exif).items() if code != SOFTWARE})
    found = source.series.lost + metadata.left
    structured = source.is_slide or source.file.is_ome or source.file.is_imagej or source.file.is_shaped
    found += ("description",) if source.first.description and not structured else ()
    if source.file.is_ome and (others := read_ome(source.first.description, source.path.name).others):
        found += (f"OME-XML's {', '.join(others)}",)
    found += ("ICC profile",) if metadata.icc_profile is not None else ()
    found += () if tags is None else (exif.in_words(tags),)
    return found + (("the scanner's description",) if source.is_slide else ())


def notes(source: WindowReader, layout: Layout) -> tuple[str, ...]:
    """Return what a user should know before a result of this layout is written."""
    from tifffile import COMPRESSION

    from convforge.imaging.windowed.tiff.storage import DEFLATE, JPEG, JPEG_QUALITY, WRITTEN_AS

    storage = storage_of(layout, source)
    if storage.compression == JPEG:
        return (
            f"The result is compressed by JPEG at quality {JPEG_QUALITY}, as the source is by JPEG: this loses detail.",
        )
    if not isinstance(source, TiffReader) or layout.chunks is None:
        return ()
    before = source.segments.compression
    if before == NONE or storage.compression == WRITTEN_AS.get(before, before) or storage.compression != DEFLATE:
        return ()
    name = COMPRESSION(before).name
    return (f"The source's compression, {name}, cannot hold the result: Deflate is used, without loss.",)
