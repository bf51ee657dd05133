"""What several formats have no place for, in words."""

from __future__ import annotations

from convforge.imaging.formats.exif import GEOGRAPHIC, read_block
from convforge.imaging.image import Image, Metadata


def matching_profile(metadata: Metadata, bands: int) -> bytes | None:
    """Return the ICC profile when its colour space still fits: a gray result has no use for an RGB profile."""
    profile = metadata.icc_profile
    space = {1: b"GRAY", 3: b"RGB "}.get(bands)
    return profile if profile is not None and profile[16:20] == space else None


def lost_colours(image: Image) -> list[str]:
    """The colour profile in words, where it does not fit the bands any more."""
    profile, bands = image.metadata.icc_profile, image.bands
    if profile is None or matching_profile(image.metadata, bands) is not None:
        return []
    space = profile[16:20].decode("latin-1").strip()
    return [f"ICC profile (of {space}, and the result has {bands} band{'' if bands == 1 else 's'})"]


def lost_places(metadata: Metadata) -> list[str]:
    """GeoTIFF's tags in words, for which only a TIFF has a place."""
    main = {} if metadata.exif is None else read_block(metadata.exif)[0]
    return ["GeoTIFF's place"] if GEOGRAPHIC & main.keys() else []


def lost_chunks(metadata: Metadata) -> list[str]:
    """What only a PNG has a place for, in words."""
    texts = [body.partition(b"\0")[0].decode("latin-1") for kind, body in metadata.png if kind[1:] in (b"EXt", b"TXt")]
    chunks = [kind.decode("latin-1") for kind, _ in metadata.png if kind[1:] not in (b"EXt", b"TXt")]
    return [f"PNG's {name}" for name in (*texts, *chunks)]
