"""JPEG through Pillow, which (unlike the raw codec) refuses a truncated file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from convforge.images.axes import Axes, as_named
from convforge.images.picture import Metadata, Picture, PictureError, Unit, check_proportion, check_size, upright

ORIENTATION = 0x0112
DESCRIPTION = 0x010E
LARGEST_SIDE = 65500  # libjpeg's JPEG_MAX_DIMENSION

# A progressive scan spends at least one bit on a block of 64 pixels: 512 pixels a byte; twice that for good measure.
PIXELS_PER_BYTE = 1024


def read(path: Path, max_pixels: int, axes: Axes | None) -> Picture:
    """Read an 8-bit JPEG upright, gray or RGB (CMYK is converted)."""
    from PIL import JpegImagePlugin

    data = path.read_bytes()
    # The class itself, not Image.open: its own limit on pixels is a process-wide setting that warns; ours comes next.
    image = JpegImagePlugin.JpegImageFile(io.BytesIO(data))
    width, height = image.size
    check_size(path, height, width, max_pixels=max_pixels)
    check_proportion(path, height * width, len(data), PIXELS_PER_BYTE)
    image.load()
    plain = image if image.mode in ("L", "RGB") else image.convert("RGB")
    tags = exif_tags(image.info.get("exif", b""))
    orientation = tags.get(ORIENTATION, 1)
    metadata = Metadata(
        *_resolution(image.info, swapped=orientation in (5, 6, 7, 8)),
        description=_description(tags, image.info),
        # a profile for CMYK says nothing about the RGB that we made of it
        icc_profile=image.info.get("icc_profile") if plain is image else None,
    )
    return as_named(axes, Picture(upright(np.asarray(plain), orientation), metadata=metadata))


def write(file: BinaryIO, picture: Picture) -> None:
    """Write an 8-bit gray or RGB picture at quality 95 without chroma subsampling: edges are what filters make."""
    from PIL import Image

    if max(picture.height, picture.width) > LARGEST_SIDE:
        raise PictureError(f"JPEG ends at {LARGEST_SIDE} pixels a side; write .tif or .png")
    metadata = picture.metadata
    options: dict[str, Any] = {}
    dpi = metadata.pixels_per("inch")
    if dpi is not None:
        options["dpi"] = (round(dpi[0]), round(dpi[1]))
    if not metadata.description.isascii():  # EXIF text is ASCII by its standard; a comment may be anything
        options["comment"] = metadata.description.encode()
    elif metadata.description:
        tags = Image.Exif()
        tags[DESCRIPTION] = metadata.description
        options["exif"] = tags
    profile = matching_profile(metadata, picture.bands)
    if profile is not None:
        options["icc_profile"] = profile
    pixels = picture.pixels[..., 0] if picture.pixels.shape[2:] == (1,) else picture.pixels
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "jpeg", quality=95, subsampling=0, **options)


def exif_tags(data: bytes) -> dict[int, Any]:
    """Return the tags of an EXIF block; none where the block is damaged, for the picture is whole without it."""
    from PIL import Image

    tags = Image.Exif()
    try:
        tags.load(data)
        return dict(tags)
    except Exception:
        return {}


def matching_profile(metadata: Metadata, bands: int) -> bytes | None:
    """Return the ICC profile when its colour space still fits: a gray result has no use for an RGB profile."""
    profile = metadata.icc_profile
    space = {1: b"GRAY", 3: b"RGB "}.get(bands)
    return profile if profile is not None and profile[16:20] == space else None


def _resolution(info: dict[Any, Any], *, swapped: bool) -> tuple[tuple[float, float] | None, Unit]:
    density = info.get("jfif_density")
    units: dict[int, Unit] = {1: "inch", 2: "centimeter"}
    unit = units.get(info.get("jfif_unit", 0), "none")
    if unit == "none" and "dpi" in info:  # no density in JFIF: Pillow took it from EXIF
        density, unit = info["dpi"], "inch"
    if density is None or min(density) <= 0 or (unit == "none" and density[0] == density[1]):
        return None, "inch"
    x, y = (float(value) for value in density)
    return ((y, x) if swapped else (x, y)), unit


def _description(tags: dict[int, Any], info: dict[Any, Any]) -> str:
    text = tags.get(DESCRIPTION) or info.get("comment") or ""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
