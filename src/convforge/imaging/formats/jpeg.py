"""JPEG files by Pillow, which, unlike the codec alone, refuses truncated files."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from convforge.imaging.axes import Axes, as_named
from convforge.imaging.formats.exif import block_for, carried_of, in_words
from convforge.imaging.image import (
    Declared,
    Image,
    ImageError,
    Metadata,
    Unit,
    check_proportion,
    check_size,
    upright,
    upright_pair,
)

EXIF = b"Exif\0\0"
LARGEST_SEGMENT = 65533 - len(EXIF)

# Names of metadata segments by marker and first bytes; empty for segments that are read.
SEGMENTS = {
    ("APP0", b""): "",
    ("APP1", EXIF): "",
    ("APP1", b"http://ns.adobe.com/"): "XMP",
    ("APP2", b"ICC_PROFILE\0"): "",
    ("APP2", b"MPF\0"): "further images (MPF)",
    ("APP13", b"Photoshop"): "IPTC and Photoshop data",
    ("APP14", b"Adobe"): "",
    ("COM", b""): "",
}

# Place of unit, density along x and along y in a file that begins with a JFIF header, and the largest density.
DENSITY_AT, LARGEST_DENSITY = 13, 2**16 - 1

LARGEST_SIDE = 65500  # libjpeg's JPEG_MAX_DIMENSION

# A progressive scan takes at least one bit per block of 64 pixels: 512 pixels per byte, doubled as a margin.
PIXELS_PER_BYTE = 1024


def read(path: Path, max_pixels: int, axes: Axes | None) -> Image:
    """Read an 8-bit JPEG as gray or RGB (CMYK is converted), rotated upright."""
    from PIL import JpegImagePlugin

    data = path.read_bytes()
    # Not PIL.Image.open: its limit on pixels applies to the whole process and only warns.
    decoded = JpegImagePlugin.JpegImageFile(io.BytesIO(data))
    width, height = decoded.size
    check_size(path, height, width, max_pixels=max_pixels)
    check_proportion(path, height * width, len(data), PIXELS_PER_BYTE)
    decoded.load()
    plain = decoded if decoded.mode in ("L", "RGB") else decoded.convert("RGB")
    block, description, orientation, left = carried_of(decoded.info.get("exif", b"").removeprefix(EXIF))
    left += _left_behind(decoded)
    profile = decoded.info.get("icc_profile")
    if plain is not decoded:  # a CMYK profile does not describe the converted RGB
        left += [f"{decoded.mode} colours, which became RGB", *(["ICC profile"] if profile else [])]
    comment = decoded.info.get("comment", b"").decode("utf-8", "replace")
    metadata = Metadata(
        *_resolution(decoded.info, orientation),
        description=description or comment,
        icc_profile=profile if plain is decoded else None,
        exif=block,
        left=(*left, *(["comment"] if description and comment not in ("", description) else [])),
    )
    return as_named(axes, Image(upright(np.asarray(plain), orientation), metadata=metadata))


def header(path: Path) -> tuple[tuple[int, int], str, int]:
    """Return size, mode and orientation."""
    from PIL import JpegImagePlugin

    with path.open("rb") as file:
        found = JpegImagePlugin.JpegImageFile(file)
        return found.size, found.mode, carried_of(found.info.get("exif", b"").removeprefix(EXIF))[2]


def declared(path: Path, axes: Axes | None) -> Declared:
    """Return what the header declares."""
    (width, height), mode, _ = header(path)
    return Declared(1, height, width, 1 if mode == "L" else 3, False, np.dtype(np.uint8))


def write(file: BinaryIO, image: Image) -> None:
    """Write an 8-bit gray or RGB image at quality 95, without chroma subsampling, which would blur edges."""
    import PIL.Image

    if max(image.height, image.width) > LARGEST_SIDE:
        raise ImageError(f"JPEG ends at {LARGEST_SIDE} pixels a side; write .tif or .png")
    metadata, block = image.metadata, _block(image)
    pixels = image.pixels[..., 0] if image.pixels.shape[2:] == (1,) else image.pixels
    begin = file.tell()
    PIL.Image.fromarray(np.ascontiguousarray(pixels)).save(
        file,
        "jpeg",
        quality=95,
        subsampling=0,
        exif=b"" if block is None else EXIF + block,
        icc_profile=metadata.profile_for(image.bands),
        # by its standard EXIF text is ASCII; a comment may have any encoding
        comment=None if metadata.description.isascii() else metadata.description.encode(),
    )
    if (density := _density(metadata)) is not None:  # Pillow knows the inch only
        end = file.seek(0, io.SEEK_END)
        file.seek(begin + DENSITY_AT)
        file.write(struct.pack(">BHH", *density))
        file.seek(end)


def _density(metadata: Metadata) -> tuple[int, int, int] | None:
    """Return the unit and the whole pixels by unit of a JFIF header; None if there are none, or too many for it."""
    if metadata.resolution is None or metadata.unit == "none":
        return None
    x, y = (round(number) for number in metadata.resolution)
    fits = min(x, y) >= 1 and max(x, y) <= LARGEST_DENSITY
    return (1 if metadata.unit == "inch" else 2, x, y) if fits else None


def lost(image: Image) -> list[str]:
    """List metadata of this image that exceeds the limits of a JPEG file."""
    metadata = image.metadata
    too_long = metadata.exif is not None and _block(image) is None
    found = [f"{in_words(metadata.exif)}, longer than a JPEG holds"] if metadata.exif and too_long else []
    if metadata.resolution is not None and _density(metadata) is None:
        found.append("ratio of resolutions" if metadata.unit == "none" else "resolution, beyond what a JPEG holds")
    return found


def _block(image: Image) -> bytes | None:
    description = image.metadata.description if image.metadata.description.isascii() else ""
    block = block_for(image.metadata.exif, image.width, image.height, description)
    if block is not None and len(block) > LARGEST_SEGMENT:
        block = block_for(None, image.width, image.height, description)
    return block


def _resolution(info: dict[Any, Any], orientation: int) -> tuple[tuple[float, float] | None, Unit]:
    density = info.get("jfif_density")
    units: dict[int, Unit] = {1: "inch", 2: "centimeter"}
    unit = units.get(info.get("jfif_unit", 0), "none")
    if unit == "none" and "dpi" in info:  # JFIF has no density: Pillow has read it from EXIF
        density, unit = info["dpi"], "inch"
    if density is None or min(density) <= 0 or (unit == "none" and density[0] == density[1]):
        return None, "inch"
    x, y = (float(value) for value in density)
    return upright_pair((x, y), orientation), unit


def _left_behind(decoded: Any) -> list[str]:
    """List the segments that are not copied to a result."""
    found: dict[str, None] = {}
    for marker, body in decoded.applist:
        known = [name for (place, start), name in SEGMENTS.items() if place == marker and body.startswith(start)]
        found[known[0] if known else f"{marker} data"] = None
    return [name for name in found if name]
