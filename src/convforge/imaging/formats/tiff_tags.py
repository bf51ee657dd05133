"""Metadata of a TIFF: resolution, description, tags, and features of its storage that are not written."""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO
from xml.etree import ElementTree

from convforge.imaging.axes import Axes
from convforge.imaging.formats import exif
from convforge.imaging.image import Image, Metadata, Unit, upright_pair

if TYPE_CHECKING:
    from tifffile import TiffFile, TiffPage

BIG = 2**32 - 2**25  # bytes; 32-bit offsets of classic TIFF reach 2**32
DOCUMENT, PAGE, TIME = 269, 285, 306  # tags that may differ between pages
REDUCED, MASK = 1, 4  # bits of NewSubfileType


def is_big(image: Image) -> bool:
    """True if the file needs BigTIFF's 64-bit offsets: size estimated as the pixels' bytes and 64 KiB per page."""
    samples = image.pixels.nbytes + (0 if image.alpha is None else image.alpha.size * image.pixels.itemsize)
    return samples + 2**16 * image.page_count > BIG


def metadata_of(
    file: TiffFile,
    every: list[TiffPage],
    pages: list[TiffPage],
    series: dict[str, int],
    axes: Axes | None,
    *,
    premultiplied: bool,
) -> Metadata:
    """Return the metadata of the first of `pages`; `every` has all pages of the file, `pages` those that are read.

    `series` are the sizes of the page axes according to the file, `axes` are the axes according to the user.
    """
    first = pages[0]
    description, left = _description(file, first, len(pages), series, axes)
    of_page = metadata_of_page(file, first, premultiplied=premultiplied)
    return replace(
        of_page, description=description, left=(*left, *of_page.left, *further_pages(file, pages)),
        storage=tuple(_storage(file, every, pages)),
    )  # fmt: skip


def metadata_of_page(file: TiffFile, page: TiffPage, *, premultiplied: bool) -> Metadata:
    """Return the metadata of a page without its description."""
    profile = _tag(page, "InterColorProfile", None)
    block, lost = _tags(file, page)
    return Metadata(
        *resolution_of(page),
        icc_profile=bytes(profile) if profile is not None else None,
        premultiplied=premultiplied,
        exif=block,
        left=tuple(lost),
    )


def orientation_of(page: TiffPage) -> int:
    return int(_tag(page, "Orientation", 1))


def series_shape(file: TiffFile, every: list[TiffPage], count: int) -> dict[str, int]:
    """Return the sizes of the page axes according to the file, if its pages are in their order."""
    if not (file.is_imagej or file.is_ome or file.is_shaped):
        return {}
    try:
        first = file.series[0]
        order = [page.index for page in first.pages if page is not None]
    except Exception:  # tifffile cannot read the description; the pages are readable without it
        return {}
    sizes = dict(zip(first.axes, first.shape, strict=True))
    stacked = {letter: size for letter, size in sizes.items() if letter not in "YXS"}
    in_order = len(first.axes) == len(sizes) and math.prod(stacked.values()) == count
    return stacked if in_order and (len(every) == 1 or order == list(range(count))) else {}


def channel_names(file: TiffFile) -> tuple[str, ...]:
    """Return the names that OME-XML gives to the channels of the first image; () if one has none."""
    try:
        pixels = ElementTree.fromstring(file.ome_metadata or "").find("{*}Image/{*}Pixels")
    except ElementTree.ParseError:
        return ()
    names = [] if pixels is None else [channel.get("Name", "") for channel in pixels.findall("{*}Channel")]
    return tuple(names) if all(names) else ()


def write_options(image: Image) -> dict[str, Any]:
    """Return arguments of tifffile's writer, with `extratags` of the first page; call `point_to_tags` afterwards."""
    return page_options(image.metadata, image.bands, big=is_big(image))


def page_options(metadata: Metadata, bands: int, *, big: bool, order: str = "<") -> dict[str, Any]:
    """Return the arguments of `write_options` for a page with this number of bands, in either byte order."""
    options: dict[str, Any] = {"metadata": None, "software": False}
    if metadata.resolution is not None:
        options |= {"resolution": metadata.resolution, "resolutionunit": metadata.unit}
    profile = metadata.profile_for(bands)
    if profile is not None:
        options["iccprofile"] = profile
    options["extratags"] = [
        (code, entry.kind, entry.count, _value(code, entry, order), True)
        if isinstance(entry, exif.Entry)
        else (code - 1, exif.LONG8 if big else exif.LONG, 1, 0, True)  # see exif.point_to
        for code, entry in exif.main_of(metadata.exif).items()
    ]
    return options


def point_to_tags(file: BinaryIO, metadata: Metadata) -> None:
    """Append EXIF directories to a file that was written with `write_options`."""
    directories = {code: entry for code, entry in exif.main_of(metadata.exif).items() if isinstance(entry, dict)}
    if directories:
        exif.point_to(file, directories)


def lost(image: Image) -> list[str]:
    """List the axes that a TIFF cannot name, and the features of the source file's storage that are not written."""
    letters, sizes = image.axes
    axes = [f"axes {Axes(letters).pages}, whose {image.page_count} planes became pages"] if len(sizes) > 1 else []
    return axes + [word for word in image.metadata.storage if word != BIGTIFF or not is_big(image)]


BIGTIFF = "BigTIFF"


def _value(code: int, entry: exif.Entry, order: str) -> bytes | tuple[int, ...]:
    """Return an entry's value for tifffile: bytes; for ratios numbers, because tifffile miscounts their bytes."""
    if entry.kind not in (exif.RATIONAL, exif.SRATIONAL):
        return exif.swapped(entry.data, code, entry.kind, order)
    return struct.unpack(f"<{2 * entry.count}{'I' if entry.kind == exif.RATIONAL else 'i'}", entry.data)


def _tags(file: TiffFile, page: TiffPage) -> tuple[bytes | None, list[str]]:
    """Return the tags that are copied as a block of EXIF, and the names of the others."""
    form = exif.form_of(file.byteorder, big=file.is_bigtiff)

    def wanted(code: int) -> bool:
        return code in exif.CARRIED or code in exif.GEOGRAPHIC

    damaged: list[str] = []
    try:
        main = exif.read_directory(file.filehandle, page.offset, form, wanted)
    except exif.ExifError:  # in a directory that this one points to; tifffile has read this one
        damaged = ["damaged EXIF"]
        main = {tag.code: exif.Entry(int(tag.dtype), tag.count, b"") for tag in page.tags if not wanted(tag.code)}
    kept, left = exif.carried(main, moved=orientation_of(page) != 1)
    return exif.pack_block(kept), damaged + left


def _description(
    file: TiffFile, page: TiffPage, pages: int, series: dict[str, int], axes: Axes | None
) -> tuple[str, list[str]]:
    """Return the description without the parts that a filter makes wrong, and the names of these parts.

    OME-XML and tifffile's own note name axes and types; ImageJ's description has the displayed range.
    """
    letters = "".join(series)
    if file.is_ome:
        return "", [f"OME-XML (axes {letters}YX)" if letters else "OME-XML"]
    text = page.description
    if file.is_shaped:
        named = axes is None and (len(series) > 1 or letters not in ("", "I", "Q"))
        lost = [f"axes {letters}YX"] if named else []
        if text.startswith("shape="):  # the description by earlier versions of tifffile
            return "", lost
        if not text.startswith("{"):  # the user's own text; the note is in a later tag
            return text, lost
        try:
            note = json.loads(text)
        except ValueError:
            return "", ["damaged description"]
        rest = {name: value for name, value in note.items() if name not in ("shape", "axes", "truncated")}
        return json.dumps(rest) if rest else "", lost
    if file.is_imagej:
        count = re.search(r"^images=([0-9]{1,9})", text, re.MULTILINE)
        untrue = count is not None and int(count[1]) != (math.prod(series.values()) if series else pages)
        if untrue or (axes is not None and axes.bands):  # it counts pages that are now bands
            return "", ["ImageJ's description"]
        shorter = re.sub(r"^(min|max)=.*\n?", "", text, flags=re.MULTILINE)
        return shorter, ["range that ImageJ shows"] if shorter != text else []
    return text, []


def further_pages(file: TiffFile, pages: list[TiffPage]) -> list[str]:
    """List the tags in which later pages differ from the first."""
    if file.is_ome or file.is_shaped:
        return []
    first = {code: pages[0].tags.valueof(code) for code in (exif.DESCRIPTION, DOCUMENT, PAGE, TIME)}
    found = []
    for code, value in first.items():
        others = (page.tags.valueof(code) for page in pages[1:])
        if any(other is not None and other != value for other in others):
            found.append(f"{exif.tag_name(code)} of the pages behind the first")
    return found


def _storage(file: TiffFile, every: list[TiffPage], pages: list[TiffPage]) -> list[str]:
    """List the features of the file's storage that are not written."""
    first = pages[0]
    found = [BIGTIFF] if file.is_bigtiff else []
    found += [f"tiles of {first.tilewidth} x {first.tilelength} pixels"] if first.is_tiled else []
    kinds = [int(page.subfiletype) for page in every] if len(every) > len(pages) else []
    reduced = sum(bool(kind & REDUCED) for kind in kinds)
    reduced += sum(len(page.subifds or ()) for page in pages)
    found += [f"{reduced} reduced cop{'y' if reduced == 1 else 'ies'} (a pyramid or thumbnails)"] if reduced else []
    masks = sum(bool(kind & MASK) for kind in kinds)
    return found + ([f"{masks} mask{'' if masks == 1 else 's'}"] if masks else [])


def resolution_of(page: TiffPage) -> tuple[tuple[float, float] | None, Unit]:
    units: dict[int, Unit] = {1: "none", 2: "inch", 3: "centimeter"}
    unit = units.get(int(_tag(page, "ResolutionUnit", 2)), "none")
    ratios = [_tag(page, name, None) for name in ("XResolution", "YResolution")]
    if not all(isinstance(ratio, tuple) and len(ratio) == 2 and 0 not in ratio for ratio in ratios):
        return None, "inch"
    x, y = (float(top / bottom) for top, bottom in ratios)
    return (None, "inch") if unit == "none" and x == y == 1 else (upright_pair((x, y), orientation_of(page)), unit)


def _tag(page: TiffPage, name: str, default: Any) -> Any:
    value = page.tags.valueof(name, default=default)
    return default if value is None else value
