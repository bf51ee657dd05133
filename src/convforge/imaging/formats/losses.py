"""Names of the metadata that a format cannot hold."""

from __future__ import annotations

from collections.abc import Set

from convforge.imaging.formats.exif import GEOGRAPHIC, in_words, main_of
from convforge.imaging.image import Image, Metadata


def matching_profile(metadata: Metadata, bands: int) -> bytes | None:
    """Return the ICC profile if its colour space fits: an RGB profile does not fit a gray result."""
    profile = metadata.icc_profile
    space = {1: b"GRAY", 3: b"RGB "}.get(bands)
    return profile if profile is not None and profile[16:20] == space else None


def lost(image: Image, holds: Set[str]) -> list[str]:
    """List the metadata that a format does not hold.

    `holds` names the fields of `Metadata` that the format has a place for, and "geography" for GeoTIFF tags.
    """
    metadata, bands = image.metadata, image.bands
    found = ["description"] if metadata.description and "description" not in holds else []
    found += ["resolution"] if metadata.resolution is not None and "resolution" not in holds else []
    if metadata.icc_profile is not None and "icc_profile" not in holds:
        found.append("ICC profile")
    elif metadata.icc_profile is not None and matching_profile(metadata, bands) is None:
        space = metadata.icc_profile[16:20].decode("latin-1").strip()
        found.append(f"ICC profile (of {space}, and the result has {bands} band{'' if bands == 1 else 's'})")
    if metadata.exif is not None and "exif" not in holds:
        found.append(in_words(metadata.exif))
    elif "geography" not in holds and GEOGRAPHIC & main_of(metadata.exif).keys():
        found.append("GeoTIFF's place")
    if "png" not in holds:
        texts = [body.partition(b"\0")[0] for kind, body in metadata.png if kind[1:] in (b"EXt", b"TXt")]
        chunks = [kind for kind, _ in metadata.png if kind[1:] not in (b"EXt", b"TXt")]
        found += [f"PNG's {name.decode('latin-1')}" for name in (*texts, *chunks)]
    return found
