"""Distances of samples as image files state them: samples by the centimetre, and the description of ImageJ."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from convforge.imaging.image import Image, Metadata

CENTIMETRE = 1e4  # micrometres

IMAGEJ = "ImageJ="
"""Begin of a description by ImageJ: lines of NAME=VALUE, with distances in `unit` and resolutions by `unit`."""

# Lines of ImageJ that tell distances; yunit and zunit differ from unit.
_DISTANCES = re.compile(r"^(unit|yunit|zunit|spacing)=.*\n?", re.MULTILINE)


def resolution_for(spacing: Mapping[str, float | None], *, per: float = CENTIMETRE) -> tuple[float, float] | None:
    """Return the samples along x and y in `per` micrometres; None if a distance is not known.

    Examples
    --------
    >>> resolution_for({"Y": 0.5, "X": 0.25}), resolution_for({"Z": 2.0})
    ((40000.0, 20000.0), None)
    """
    x, y = spacing.get("X"), spacing.get("Y")
    return (per / x, per / y) if x and y else None


def spacing_by(metadata: Metadata) -> dict[str, float]:
    """Return the distances in micrometres by letter, if a resolution is by the centimetre or the metre.

    One by the inch is that of paper or of a screen, and says nothing about the sample. Formats round the resolution, so
    six digits are kept.

    Examples
    --------
    >>> spacing_by(Metadata((30769.0, 40000.0), "centimeter")), spacing_by(Metadata((300, 300), "inch"))
    ({'X': 0.325002, 'Y': 0.25}, {})
    """
    if metadata.resolution is None or metadata.unit != "centimeter":
        return {}
    x, y = (float(f"{CENTIMETRE / number:.6g}") for number in metadata.resolution)
    return {"X": x, "Y": y}


def imagej_described(text: str, spacing: Mapping[str, float | None]) -> str:
    """Return ImageJ's description with distances in micrometres; its resolution is then by the micrometre.

    Examples
    --------
    >>> imagej_described("ImageJ=1.54f\\nimages=4\\nunit=pixel\\nloop=false\\n", {"Z": 2.0, "Y": 0.5, "X": 0.5})
    'ImageJ=1.54f\\nunit=micron\\nspacing=2.0\\nimages=4\\nloop=false\\n'
    """
    first, _, rest = text.partition("\n")
    depth = spacing.get("Z")
    lines = f"unit=micron\nspacing={depth}\n" if depth else "unit=micron\n"
    return f"{first}\n{lines}{_DISTANCES.sub('', rest)}"


def spaced(image: Image, given: Mapping[str, float]) -> Image:
    """Return an image whose metadata have the distances of samples that the user names, in micrometres by letter.

    They become the resolution by the centimetre, so ImageJ's description loses its own. The distance of planes has no
    place in the metadata of an image in memory, and is named as not written.
    """
    metadata, resolution = image.metadata, resolution_for(given)
    if resolution is not None:
        text = metadata.description
        text = _DISTANCES.sub("", text) if text.startswith(IMAGEJ) else text
        metadata = replace(metadata, resolution=resolution, unit="centimeter", description=text)
    if image.pages and "Z" in given:
        metadata = replace(metadata, left=(*metadata.left, "spacing along Z"))
    return replace(image, metadata=metadata)
