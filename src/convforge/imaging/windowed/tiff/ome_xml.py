"""OME-XML of a TIFF: sizes, axes, spacing, channels, and the planes that its pages hold."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from convforge.imaging.image import ImageError

# Micrometres in a unit of length; other units, such as "pixel", tell no length.
MICROMETRES = {
    "pm": 1e-6, "Å": 1e-4, "nm": 1e-3, "µm": 1.0, "μm": 1.0, "um": 1.0, "micron": 1.0, "microns": 1.0, "mm": 1e3,
    "cm": 1e4, "dm": 1e5, "m": 1e6, "in": 25400.0, "inch": 25400.0, "ft": 304800.0, "pt": 25400 / 72,
}  # fmt: skip

# Attributes of a plane that tell its place alone.
PLACES = {"TheZ", "TheC", "TheT"}

# The most planes of an image; more are a sign of damage.
MOST_PLANES = 2**24


@dataclass(frozen=True, slots=True)
class PlaneRun:
    """Pages that hold adjacent planes: the place of the first by Z, C and T, its page, their number and the file."""

    first: dict[str, int]
    page: int
    count: int | None  # None: all pages of the file
    file: str  # "" is the file itself


@dataclass(slots=True)
class OmeImage:
    """The first image of an OME-XML."""

    order: str = "XYZCT"
    sizes: dict[str, int] = field(default_factory=dict)
    spacing: dict[str, float] = field(default_factory=dict)  # micrometres by axis
    channels: list[str] = field(default_factory=list)
    samples: int = 1  # samples of a channel, as in RGB
    runs: list[PlaneRun] = field(default_factory=list)
    images: int = 0
    elsewhere: str = ""  # the file that has the metadata of this one
    others: list[str] = field(default_factory=list)  # names of elements beside those that are read here

    @property
    def pages(self) -> dict[str, int]:
        """Sizes of the axes of pages, the slowest first; that of channels counts pages, not samples."""
        sizes = self.sizes | {"C": max(self.sizes.get("C", 1) // self.samples, 1)}
        return {letter: sizes.get(letter, 1) for letter in reversed(self.order[2:])}

    def planes(self, pages: dict[str, int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[str]]:
        """Return the file and the page of each plane, and the names of the files; page -1 is absent.

        `pages` has the number of pages of each file that runs without a count name, by the file's name.
        """
        sizes = self.pages
        total = int(np.prod(list(sizes.values()), dtype=object))
        if not 0 < total <= MOST_PLANES:
            raise ImageError(f"OME-XML with {total} planes")
        names = list(dict.fromkeys(["", *(run.file for run in self.runs)]))
        files, found = np.zeros(total, np.int64), np.full(total, -1, np.int64)
        for run in self.runs or [PlaneRun({}, 0, None, "")]:
            start, step = 0, 1
            for letter in self.order[2:]:
                start += run.first.get(letter, 0) * step
                step *= sizes[letter]
            count = pages.get(run.file, 0) - run.page if run.count is None else run.count
            count = max(min(count, total - start), 0)
            if start < 0 or run.page < 0:
                raise ImageError("OME-XML with a negative plane or page")
            files[start : start + count] = names.index(run.file)
            found[start : start + count] = np.arange(run.page, run.page + count)
        return files, found, names


def read_ome(text: str, name: str) -> OmeImage:
    """Read the first image of an OME-XML; `name` is that of the file. ``ImageError`` if it is damaged."""
    image, own = OmeImage(), ""
    run: dict[str, str] = {}
    file, depth, top = "", 0, ""
    try:
        for event, element in ElementTree.iterparse(io.BytesIO(text.encode()), ("start", "end")):
            tag, given = element.tag.rpartition("}")[2], element.attrib
            depth += 1 if event == "start" else -1
            if event == "start":
                top = tag if depth == 2 else top
                beside = top == "Image" and depth == 3 and tag != "Pixels"
                tells = tag == "Plane" and not given.keys() <= PLACES  # a time, an exposure, a position
                if ((depth == 2 and tag != "Image") or beside or tells) and tag not in image.others:
                    image.others.append(tag)
                if tag == "OME":
                    own = given.get("UUID", "")
                elif tag == "BinaryOnly":
                    image.elsewhere = given.get("MetadataFile", "another file")
                elif tag == "Image":
                    image.images += 1
                elif image.images == 1 and tag == "Pixels":
                    _read_pixels(image, given)
                elif image.images == 1 and tag == "Channel":
                    image.samples = max(int(given.get("SamplesPerPixel", 1)), 1)
                    image.channels.append(given.get("Name", ""))
                elif tag == "TiffData":
                    run, file = dict(given), ""
                continue
            if image.images == 1 and tag == "UUID":
                other = given.get("FileName", "")
                file = "" if other == name or (own and (element.text or "").strip() == own) else other
            elif image.images == 1 and tag == "TiffData":
                first = {letter: int(run.get(f"First{letter}", 0)) for letter in "ZCT"}
                count = int(run["PlaneCount"]) if "PlaneCount" in run else 1 if "IFD" in run else None
                image.runs.append(PlaneRun(first, int(run.get("IFD", 0)), count, file))
            if tag in ("TiffData", "Plane", "UUID"):
                element.clear()
    except (ElementTree.ParseError, ValueError, KeyError) as error:
        raise ImageError(f"damaged OME-XML ({error})") from error
    if not image.sizes and not image.elsewhere:
        raise ImageError("OME-XML without an image")
    return image


def _read_pixels(image: OmeImage, given: Any) -> None:
    image.order = given.get("DimensionOrder", "XYZCT")
    if sorted(image.order) != sorted("XYZCT") or image.order[:2] != "XY":
        raise ImageError(f"OME-XML with the dimension order {image.order!r}")
    image.sizes = {letter: int(given.get(f"Size{letter}", 1)) for letter in "XYZCT"}
    for letter in "XYZ":
        unit = MICROMETRES.get(given.get(f"PhysicalSize{letter}Unit", "µm"))
        size = given.get(f"PhysicalSize{letter}")
        if size is not None and unit is not None and float(size) > 0:
            image.spacing[letter] = float(size) * unit
