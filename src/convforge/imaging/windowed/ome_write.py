"""OME-XML of a TIFF that is written: that of the source with sizes made true again, or a new one."""

from __future__ import annotations

import math
import uuid
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from convforge.imaging.image import ImageError
from convforge.imaging.windowed.contract import Layout
from convforge.imaging.windowed.ome_xml import MICROMETRES
from convforge.imaging.windowed.tiff_storage import PageForm

NAMESPACE = "http://www.openmicroscopy.org/Schemas/OME/2016-06"

TYPES = {"float32": "float", "float64": "double"}  # others have NumPy's names


def ome_of(layout: Layout, samples: int, order: str, name: str, source: str | None = None) -> bytes:
    """Return the OME-XML of a layout as UTF-8.

    Parameters
    ----------
    layout : Layout
    samples : int
        Samples of a pixel.
    order : str
        Byte order, "<" or ">".
    name : str
        Name of the file.
    source : str, optional
        OME-XML of the source; its first image is kept, with its annotations.

    Raises
    ------
    ImageError
        OME-TIFF has no such sample type or no such axis.
    """
    if layout.dtype.name not in {"uint8", "uint16", "uint32", "int8", "int16", "int32", "float32", "float64"}:
        raise ImageError(f"{name}: OME-TIFF has no samples of {layout.dtype}; name another --out-dtype or suffix")
    sizes, order_of_axes = _sizes(layout, samples, name)
    root = _new_root() if source is None else _kept_root(source, name)
    image = next(part for part in root if _local(part) == "Image")
    pixels = next(part for part in image if _local(part) == "Pixels")
    before = {letter: pixels.get(f"Size{letter}") for letter in "ZCT"}
    for part in [part for part in root if _local(part) == "Image" and part is not image]:
        root.remove(part)
    identity = f"urn:uuid:{uuid.uuid4()}"
    root.set("UUID", identity)
    pixels.attrib.update({f"Size{letter}": str(size) for letter, size in sizes.items()})
    pixels.attrib.update(DimensionOrder=order_of_axes, Type=TYPES.get(layout.dtype.name, layout.dtype.name))
    pixels.attrib.update(BigEndian="true" if order == ">" else "false")
    pixels.attrib.pop("SignificantBits", None)
    pixels.attrib.pop("Interleaved", None)
    if samples > 1:
        pixels.set("Interleaved", "true" if layout.axes[-1] != "X" else "false")
    for letter in "XYZ":
        _set_spacing(pixels, letter, layout)
    _set_channels(pixels, sizes["C"] // samples, samples, layout)
    same = before == {letter: str(sizes[letter]) for letter in "ZCT"}
    _set_planes(pixels, identity, name, math.prod(sizes[letter] for letter in "ZCT") // samples, keep=same)
    space = root.tag.rpartition("}")[0]
    for part in root.iter():  # the default namespace, as other readers expect it
        if isinstance(part.tag, str) and part.tag.rpartition("}")[0] == space:
            part.tag = _local(part)
    root.set("xmlns", space[1:] or NAMESPACE)
    return b'<?xml version="1.0" encoding="UTF-8"?>' + ElementTree.tostring(root, encoding="unicode").encode()


def _local(part: Element) -> str:
    return part.tag.rpartition("}")[2] if isinstance(part.tag, str) else ""  # comments have no name


def _named(like: Element, name: str) -> str:
    """Return a name in the namespace of another element."""
    space, bracket, _ = like.tag.rpartition("}")
    return f"{space}{bracket}{name}"


def _new_root() -> Element:
    root = Element(f"{{{NAMESPACE}}}OME")
    image = SubElement(root, f"{{{NAMESPACE}}}Image", ID="Image:0", Name="Image0")
    SubElement(image, f"{{{NAMESPACE}}}Pixels", ID="Pixels:0")
    return root


def _kept_root(source: str, name: str) -> Element:
    try:
        root = ElementTree.fromstring(source.encode())
    except ElementTree.ParseError as error:
        raise ImageError(f"{name}: the source's OME-XML is damaged ({error})") from error
    images = [part for part in root if _local(part) == "Image"]
    if not images or not any(_local(part) == "Pixels" for part in images[0]):
        raise ImageError(f"{name}: the source's OME-XML has no image")
    return root


def _sizes(layout: Layout, samples: int, name: str) -> tuple[dict[str, int], str]:
    """Return the sizes of X, Y, Z, C and T, where C counts samples too, and the order of the axes, X first."""
    form = PageForm.of(layout.axes)
    letters = form.pages
    for letter in set(letters) - set("TZC"):
        free = next((other for other in "TZ" if other not in letters), None)
        if free is None:
            raise ImageError(f"{name}: OME-TIFF has no place for axes {layout.axes}; name another suffix, such as .tif")
        letters = letters.replace(letter, free)
    sizes = dict.fromkeys("XYZCT", 1) | dict(zip(letters, form.page_sizes(layout.shape), strict=True))
    own = form.sizes(layout.shape)
    sizes |= {"X": own["X"], "Y": own["Y"], "C": sizes["C"] * samples}
    return sizes, "XY" + letters[::-1] + "".join(letter for letter in "ZCT" if letter not in letters)


def _set_spacing(pixels: Element, letter: str, layout: Layout) -> None:
    """Set a spacing in micrometres; an unchanged one keeps its unit, an unknown one of X, Y or Z is removed."""
    at = layout.axes.find(letter)
    size = layout.spacing[at] if at >= 0 and layout.spacing else None
    name, unit = f"PhysicalSize{letter}", f"PhysicalSize{letter}Unit"
    if at < 0:  # an axis of one sample, whose spacing stays
        return
    if size is None:
        if MICROMETRES.get(pixels.get(unit, "µm")) is not None:
            pixels.attrib.pop(name, None)
            pixels.attrib.pop(unit, None)
        return
    micrometres = MICROMETRES.get(pixels.get(unit, "µm"))
    before = pixels.get(name)
    if before is not None and micrometres and abs(float(before) * micrometres - size) <= 1e-9 * size:
        return
    pixels.set(name, repr(float(size)))
    pixels.set(unit, "µm")


def _set_channels(pixels: Element, count: int, samples: int, layout: Layout) -> None:
    """Keep the channels if their number is right, else make new ones with the names of the layout."""
    held = [part for part in pixels if _local(part) == "Channel"]
    if len(held) != count:
        for part in held:
            pixels.remove(part)
        held = [Element(_named(pixels, "Channel"), ID=f"Channel:0:{number}") for number in range(count)]
        for number, part in enumerate(held):
            pixels.insert(number, part)
    for number, part in enumerate(held):
        part.set("SamplesPerPixel", str(samples))
        if len(layout.channels) == count and layout.channels[number]:
            part.set("Name", layout.channels[number])


def _set_planes(pixels: Element, identity: str, name: str, count: int, *, keep: bool) -> None:
    """Name the pages of the planes: all are in this file, in order. Positions of planes stay with `keep`."""
    for part in list(pixels):
        if _local(part) in ("BinData", "TiffData", "MetadataOnly") or (_local(part) == "Plane" and not keep):
            pixels.remove(part)
    data = Element(_named(pixels, "TiffData"), IFD="0", PlaneCount=str(count))
    SubElement(data, _named(pixels, "UUID"), FileName=name).text = identity
    at = sum(_local(part) == "Channel" for part in pixels)
    pixels.insert(at, data)
