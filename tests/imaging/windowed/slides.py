"""Small files with the marks by which tifffile knows the formats of slide scanners and microscopes."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from tests.imaging.windowed.windows import PLAIN

TILES: dict[str, Any] = {**PLAIN, "tile": (16, 16), "photometric": "rgb"}
BY_CENTIMETRE: dict[str, Any] = {"resolution": (40000, 40000), "resolutionunit": "CENTIMETER"}  # 0.25 micrometres


def halves(array: Any, count: int = 3) -> list[Any]:
    """An image and its reduced copies; the filter makes them again, so that any pixels do."""
    return [np.ascontiguousarray(array[:: 2**level, :: 2**level]) for level in range(count)]


def scn(path: Path, areas: list[Any], macro: Any, *, channels: int = 0, without: int = -1) -> Path:
    """Leica SCN: a macro image and areas with their pyramids; with `channels`, each has a page of its own.

    `without` is the number of a page that the description does not name.
    """
    pages: list[Any] = halves(macro, 1)
    images = [_scn_image("macro", [(0, 0, 0)])]
    for number, area in enumerate(areas):
        places = []
        for level, copy in enumerate(halves(area)):
            for channel in range(channels or 1):
                if len(pages) != without:
                    places.append((level, channel, len(pages)))
                pages.append(np.ascontiguousarray(copy[..., channel]) if channels else copy)
        images.append(_scn_image(f"area {number}", places))
    xml = f'<scn xmlns="http://www.leica-microsystems.com/scn/2010/10/01"><collection>{"".join(images)}</collection></scn>'
    with tifffile.TiffWriter(path, bigtiff=True) as writer:
        for number, page in enumerate(pages):
            kind = TILES | ({} if page.ndim == 3 else {"photometric": "minisblack"})
            description = xml if not number else None
            writer.write(page, **kind, **BY_CENTIMETRE, description=description, subfiletype=0)
    return path


def _scn_image(name: str, places: list[tuple[int, int, int]]) -> str:
    dimensions = "".join(f'<dimension r="{r}" c="{c}" ifd="{ifd}"/>' for r, c, ifd in places)
    return f'<image name="{name}"><pixels>{dimensions}</pixels></image>'


def bif(path: Path, array: Any, label: Any, *, overlap: int | None = 0) -> Path:
    """Ventana BIF: the label, and levels whose tiles overlap; None: the XMP does not tell."""
    joints = "" if overlap is None else f'<TileJointInfo FlagJoined="1" OverlapX="{overlap}" OverlapY="0"/>'
    xmp = f"<EncodeInfo><SlideStitchInfo><ImageInfo>{joints}</ImageInfo></SlideStitchInfo></EncodeInfo>".encode()
    scan = b'<iScan Magnification="40" ScanRes="0.25"/>'
    with tifffile.TiffWriter(path, bigtiff=True) as writer:
        writer.write(label, photometric="rgb", metadata=None, description="Label Image", software="ScanOutputManager 1",
                     extratags=[(700, 1, len(scan), scan, True)])  # fmt: skip
        for level, copy in enumerate(halves(array)):
            extra = [(700, 1, len(xmp), xmp, True)] if not level else []
            writer.write(copy, **TILES, description=f"level={level} mag={40 / 2**level} quality=90", extratags=extra)
    return path


def qptiff(path: Path, array: Any, thumbnail: Any, names: list[str]) -> Path:
    """PerkinElmer QPTIFF: channels (Y, X, C) in pages, a thumbnail, the reduced copies, and the label."""
    with tifffile.TiffWriter(path, bigtiff=True) as writer:
        options = {**TILES, "photometric": "minisblack", **BY_CENTIMETRE, "software": "PerkinElmer-QPI"}
        for level, copy in enumerate(halves(array)):
            for channel, name in enumerate(names):
                xml = (
                    '<?xml version="1.0" encoding="utf-16"?>\n<PerkinElmer-QPI-ImageDescription><ImageType>Full'
                    f"Resolution</ImageType><Name>{name}</Name></PerkinElmer-QPI-ImageDescription>"
                )
                page = np.ascontiguousarray(copy[..., channel])
                writer.write(page, **options, description=xml, subfiletype=int(level > 0))
            if not level:
                writer.write(thumbnail, photometric="rgb", metadata=None, software="PerkinElmer-QPI", subfiletype=1)
        writer.write(thumbnail[:9], photometric="rgb", metadata=None, software="PerkinElmer-QPI", subfiletype=1)
    return path


def lsm(path: Path, volume: Any, *, spacing: tuple[float, float, float] = (2e-6, 0.5e-6, 0.5e-6)) -> Path:
    """Zeiss LSM: a volume (Z, C, Y, X), a page for each Z with planes of channels, and a thumbnail beside each."""
    planes, channels, height, width = volume.shape
    info = np.zeros(1, np.dtype(tifffile.TIFF.CZ_LSMINFO))
    info["MagicNumber"], info["StructureSize"], info["ScanType"] = 67127628, info.itemsize, 0
    for name, size in zip(("X", "Y", "Z", "Channels", "Time"), (width, height, planes, channels, 1), strict=True):
        info[f"Dimension{name}"] = size
    for name, size in zip("ZYX", spacing, strict=True):
        info[f"VoxelSize{name}"] = size
    planar = {"planarconfig": "separate"} if channels > 1 else {}
    with tifffile.TiffWriter(path, byteorder="<") as writer:
        for number, plane in enumerate(volume):
            extra = [(34412, 1, info.nbytes, info.tobytes(), True)] if not number else []
            stored = plane if channels > 1 else plane[0]
            writer.write(stored, photometric="minisblack", metadata=None, **planar, extratags=extra)
            writer.write(np.zeros((3, 4, 4), np.uint8), photometric="rgb", planarconfig="separate", metadata=None,
                         subfiletype=1)  # fmt: skip
    if channels == 2:
        _place_bits(path)
    return path


def _place_bits(path: Path) -> None:
    """Put the two values of BitsPerSample, which would fit into the entry, elsewhere in the file, as Zeiss does."""
    data = bytearray(path.read_bytes())
    (at,) = struct.unpack_from("<I", data, 4)
    while at:
        (count,) = struct.unpack_from("<H", data, at)
        for entry in range(at + 2, at + 2 + 12 * count, 12):
            if struct.unpack_from("<HHI", data, entry) == (258, 3, 2):
                values = data[entry + 8 : entry + 12]
                struct.pack_into("<I", data, entry + 8, len(data))
                data += values
        (at,) = struct.unpack_from("<I", data, at + 2 + 12 * count)
    path.write_bytes(data)


def stk(path: Path, volume: Any) -> Path:
    """MetaMorph STK: planes (Z, Y, X) behind one directory; 0.3 x 0.2 micrometres a pixel, 1.5 from plane to plane."""
    count = len(volume)
    uic2 = np.tile(np.array([3, 2, 2460000, 0, 2460000, 0], np.uint32), count)
    marks = [(33628, 4, 6, (4, 0, 5, 0, 6, 0), True), (33629, 5, 3 * count, tuple(uic2.tolist()), True)]
    tifffile.imwrite(path, volume[0], photometric="minisblack", metadata=None, extratags=marks, byteorder="<")
    data = bytearray(path.read_bytes())
    (at,) = struct.unpack_from("<I", data, 4)
    for entry in range(at + 2, at + 2 + 12 * struct.unpack_from("<H", data, at)[0], 12):
        code, _, _, where = struct.unpack_from("<HHII", data, entry)
        if code == 33628:  # pairs of a number and a position: X and Y in micrometres, and the unit
            struct.pack_into("<I", data, entry + 4, 3)
            for number, place in ((1, 0), (3, 8), (5, 16)):
                struct.pack_into("<I", data, where + 4 * number, len(data) + volume.nbytes + place)
        if code == 33629:  # its six numbers of a plane count as one
            struct.pack_into("<I", data, entry + 4, count)
        if code == 273:
            struct.pack_into("<I", data, entry + 8, len(data))
    path.write_bytes(bytes(data) + volume.tobytes() + struct.pack("<5I3s", 2, 10, 3, 10, 3, b"um\0"))
    return path


def svs(path: Path, array: Any, *, macro: Any = None, thumbnail: Any = None, **options: Any) -> Path:
    """Aperio SVS: the scan, a thumbnail in strips, the reduced copies, a label, a macro image."""
    thumbnail = array[::8, ::8] if thumbnail is None else thumbnail
    with tifffile.TiffWriter(path, bigtiff=True) as writer:
        first, *others = halves(array)
        kind = TILES | options
        writer.write(first, **kind, description="Aperio Image Library v12\r\n|AppMag = 20|MPP = 0.4990")
        writer.write(np.ascontiguousarray(thumbnail), photometric="rgb", metadata=None, description="Aperio Image")
        for copy in others:
            writer.write(copy, **kind, description="Aperio Image Library v12\r\n|AppMag = 20")
        for kind_of_page, words in ((1, "Aperio\r\nlabel 20x30"), (9, "Aperio\r\nmacro 40x60")):
            writer.write(np.full((20, 30, 3) if macro is None else macro.shape, 7, np.uint8), photometric="rgb",
                         metadata=None, description=words, subfiletype=kind_of_page)  # fmt: skip
    return path


def philips(path: Path, array: Any, label: Any) -> Path:
    """Philips TIFF: levels in tiles, the size of the pixels of each in XML, a macro image and a label."""
    spacing = "".join(
        '<DataObject ObjectType="PixelDataRepresentation"><Attribute Name="DICOM_PIXEL_SPACING">'
        f'"{0.00025 * 2**level}" "{0.00025 * 2**level}"</Attribute></DataObject>'
        for level in range(3)
    )
    xml = f'<?xml version="1.0"?><DataObject ObjectType="DPUfsImport"><Attribute>{spacing}</Attribute></DataObject>'
    with tifffile.TiffWriter(path, bigtiff=True) as writer:
        for level, copy in enumerate(halves(array)):
            words = xml if not level else f"level={level}"
            writer.write(copy, **TILES | {"software": "Philips DP v1.0"}, description=words, subfiletype=int(level > 0))
        for words in ("Macro", "Label"):
            writer.write(label, photometric="rgb", metadata=None, description=words, subfiletype=1)
    return path


def ndpi(path: Path, array: Any, *, beyond: int = 0) -> Path:
    """Hamamatsu NDPI: a strip of JPEG with restart markers, and positions of 64 bits; `beyond`: the place of the strip.

    Every entry has 32 more bits of its value behind the directory, so that pixels may lie beyond 4 GiB.
    """
    import imagecodecs

    height, width = array.shape[:2]
    jpeg = bytes(imagecodecs.jpeg8_encode(array, level=95, subsampling="444"))
    at = beyond or 4096
    make = b"Hamamatsu\0"
    entries = [
        (254, 4, 1, 0), (256, 4, 1, width), (257, 4, 1, height), (258, 3, 3, 512), (259, 3, 1, 7), (262, 3, 1, 6),
        (271, 2, len(make), 520), (273, 4, 1, at), (277, 3, 1, 3), (278, 4, 1, height), (279, 4, 1, len(jpeg)),
        (282, 5, 1, 536), (283, 5, 1, 536), (284, 3, 1, 1), (296, 3, 1, 3), (65420, 4, 1, 1), (65421, 11, 1, 0),
    ]  # fmt: skip
    head = b"II*\0" + struct.pack("<Q", 16)
    table = b"".join(
        struct.pack("<HHII", code, kind, count, value & 0xFFFFFFFF) for code, kind, count, value in entries
    )
    highs = b"".join(struct.pack("<I", value >> 32) for *_, value in entries)
    data = head.ljust(16, b"\0") + struct.pack("<H", len(entries)) + table + struct.pack("<Q", 0) + highs
    data = data.ljust(512, b"\0") + struct.pack("<3H", 8, 8, 8).ljust(8, b"\0") + make.ljust(16, b"\0")
    data += struct.pack("<2I", 40000, 1)
    with path.open("wb") as file:
        file.write(data)
        file.seek(at)
        file.write(jpeg)
    return path
