"""The image of a file whose pages tifffile sorts into images: slides of scanners, and two formats of microscopes."""

from __future__ import annotations

import html
import logging
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from convforge.imaging.image import ImageError
from convforge.imaging.windowed.tiff.directories import HeldTables, Tables, TiffBytes
from convforge.imaging.windowed.tiff.series import Planes, Series, asked, lettered, spacing_by_resolution, undivided
from convforge.imaging.windowed.tiff.tag_sizes import check_tags

if TYPE_CHECKING:
    from tifffile import TiffFile, TiffPage

# Formats of slide scanners and of microscopes, by tifffile's names.
SLIDES = ("svs", "ndpi", "scn", "bif", "qpi", "philips", "avs")
KINDS = (*SLIDES, "lsm", "stk")

XMP = 700
NUMBER = rb"[\"']([0-9.]{1,12})[\"']"


def is_sorted_by_tifffile(file: TiffFile) -> bool:
    """True for a file of these kinds; one with OME-XML that kept a scanner's mark is an OME-TIFF."""
    return not file.is_ome and any(getattr(file, f"is_{kind}") for kind in KINDS)


def sorted_by_tifffile(tiff: TiffBytes, file: TiffFile) -> Series:
    """Return the largest image of a slide; the others, such as labels, are named as lost."""
    check_tags(tiff, every=True)
    if file.is_bif:
        _check_overlap(tiff, file)
    with _without_warning("not stitched"):
        every = asked(tiff, lambda: list(file.series))
    if not every:
        raise tiff.damaged("it has no image")
    main = max(every, key=lambda series: series.size)
    first = asked(tiff, lambda: main.keyframe)
    held = [page for page in main.pages if page is not None]
    if any(page is None for page in main.pages) or not held:
        raise ImageError(f"{tiff.place}: pages are missing; export the image as OME-TIFF first")
    sizes = dict(zip(main.axes, main.shape, strict=True))
    pages = {letter: size for letter, size in sizes.items() if letter not in "YXS"}
    if first.shaped[0] > 1 and pages.get("C") == first.shaped[0]:
        del pages["C"]  # LSM: the channels are planes of samples of a page
    count = math.prod(pages.values())
    spacing = _spacing_of(file, first)
    lost = tuple(f"the image {_named(series)}" for series in every if series is not main)
    if file.is_stk and len(held) == 1 and count > 1:
        tables = Tables(tiff, np.array([tiff.first]))
        series = undivided(tiff, Series(first, Planes([(tiff, tables)]), spacing=spacing, lost=lost), tables, count)
        return Series(first, series.planes, lettered(pages), spacing=spacing, lost=lost)
    if count != len(held):
        raise ImageError(f"{tiff.place}: axes {main.axes} in {len(held)} pages; export the image as OME-TIFF first")
    levels = tuple(dict(zip(level.axes, level.shape, strict=True)) for level in main.levels[1:])
    pages = lettered(pages)
    return Series(
        first, Planes([(tiff, asked(tiff, lambda: HeldTables(held)))]), pages,
        tuple((level["Y"], level["X"]) for level in levels), spacing,
        _names_of_channels(held) if file.is_qpi and "C" in pages else (), lost=lost,
        in_subifds=any(level.keyframe.is_subifd for level in main.levels[1:]),
    )  # fmt: skip


@contextmanager
def _without_warning(words: str) -> Iterator[None]:
    """Leave out a warning of tifffile that is no news to the user."""
    logger = logging.getLogger("tifffile")

    def others(record: logging.LogRecord) -> bool:
        return words not in record.getMessage()

    logger.addFilter(others)
    try:
        yield
    finally:
        logger.removeFilter(others)


def _named(series: Any) -> str:
    height, width = series.keyframe.shape[:2]
    return f"{series.name or 'without a name'} of {width} x {height} pixels"


def _xmp(page: Any) -> bytes:
    """Return the XMP of a page, or nothing."""
    found = page.tags.valueof(XMP) if hasattr(page, "tags") else None
    return found if isinstance(found, bytes) else b""


def _check_overlap(tiff: TiffBytes, file: TiffFile) -> None:
    """Raise ``ImageError`` for a Ventana slide whose tiles overlap: side by side they show a strip of tissue twice."""
    texts = asked(tiff, lambda: [_xmp(page.aspage()) for page in file.pages])
    overlaps = [abs(int(size)) for text in texts for size in re.findall(rb"Overlap[XY]=[\"'](-?\d{1,9})[\"']", text)]
    if overlaps and not any(overlaps):
        return
    fault = f"overlap by up to {max(overlaps)} pixels" if overlaps else "may overlap, and its XMP does not tell"
    raise ImageError(
        f"{tiff.place}: tiles of this Ventana slide {fault}; stitch it first, for example with libvips and OpenSlide: "
        "vips tiffsave SLIDE.bif SLIDE.tif --tile --pyramid --bigtiff"
    )


def _spacing_of(file: TiffFile, first: TiffPage) -> dict[str, float]:
    """Return the spacing in micrometres that the scanner or the microscope wrote, else that by the resolution."""
    found: dict[str, float] = {}
    if file.is_lsm:
        given = file.lsm_metadata or {}
        found = {letter: _number(given.get(f"VoxelSize{letter}")) * 1e6 for letter in "ZYX"}
    elif file.is_stk:
        found = _spacing_of_stk(file.stk_metadata or {})
    else:
        text = first.description.encode(errors="replace")
        if file.is_svs:
            sizes = re.search(rb"\bMPP *= *([0-9.]{1,12})", text)
        elif file.is_bif:
            scans = (re.search(rb"ScanRes=" + NUMBER, _xmp(page.aspage())) for page in file.pages)
            sizes = next((scan for scan in scans if scan), None)
        else:
            sizes = None
        if sizes:
            found = {"Y": _number(sizes[1]), "X": _number(sizes[1])}
        elif file.is_philips and (pair := re.search(_PHILIPS, text)):  # millimetres from row to row, column to column
            found = {"Y": _number(pair[1]) * 1e3, "X": _number(pair[2]) * 1e3}
    found = {letter: size for letter, size in found.items() if 0 < size < 1e9}
    return found if {"Y", "X"} <= found.keys() else spacing_by_resolution(first)


_PHILIPS = (
    rb"DICOM_PIXEL_SPACING[\"'][^>]*>\s*(?:\"|&quot;)([0-9.eE-]{1,20})(?:\"|&quot;)\s*(?:\"|&quot;)([0-9.eE-]{1,20})"
)


def _spacing_of_stk(given: Mapping[str, Any]) -> dict[str, float]:
    """Return the calibration of MetaMorph if it is in micrometres, and the distance of the planes."""
    if str(given.get("CalibrationUnits", "")).strip().lower() not in ("um", "µm", "micron", "microns"):
        return {}
    found = {letter: _number(given.get(f"{letter}Calibration")) for letter in "YX"}
    steps = np.unique(given.get("ZDistance", ()))
    return found | ({"Z": float(steps[0])} if len(steps) == 1 else {})


def _number(value: Any) -> float:
    """Return a number, or 0 for what is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


def _names_of_channels(pages: list[Any]) -> tuple[str, ...]:
    """Return the names in the descriptions of a QPTIFF's pages, if each has one of its own."""
    found = [re.search(r"<Name>([^<]{1,200})</Name>", page.aspage().description) for page in pages]
    names = tuple(html.unescape(name[1]).strip() for name in found if name)
    return names if len(set(names)) == len(pages) else ()
