"""Metadata of OME-Zarr images, versions 0.1 to 0.5, read and checked.

Sources: the specifications at https://ngff.openmicroscopy.org. Up to version 0.4 the metadata are attributes of a Zarr
group of version 2; version 0.5 puts them under `ome` in a group of version 3. Versions 0.1 and 0.2 have five axes,
tczyx; version 0.3 names them; version 0.4 adds their types, units and transformations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from convforge.imaging.image import ImageError
from convforge.imaging.windowed.contract import Place
from convforge.imaging.windowed.zarr.metadata import letters_of_names

MOST_LEVELS = 64
MEMBERS = ("multiscales", "omero", "image-label", "labels", "plate", "well", "bioformats2raw.layout", "ome")
"""Attributes that OME-Zarr defines."""

MICROMETRES = {
    "angstrom": 1e-4, "picometer": 1e-6, "nanometer": 1e-3, "nm": 1e-3, "micrometer": 1.0, "micron": 1.0, "um": 1.0,
    "µm": 1.0, "millimeter": 1e3, "mm": 1e3, "centimeter": 1e4, "cm": 1e4, "decimeter": 1e5, "inch": 25_400.0,
    "foot": 304_800.0, "yard": 914_400.0, "meter": 1e6, "m": 1e6, "kilometer": 1e9,
}  # fmt: skip
"""Length of the units of space axes."""


@dataclass(frozen=True)
class Level:
    """The array of one resolution: its path in the group, and its transformation, in the units of the axes."""

    path: str
    scale: tuple[float, ...] | None
    translation: tuple[float, ...] | None


@dataclass(frozen=True)
class OmeImage:
    """The metadata of one image: its levels, largest first, and its axes as the file gives them."""

    version: str
    nested: bool  # the metadata are under `ome`
    multiscale: Mapping[str, Any]
    omero: Mapping[str, Any] | None
    axes: tuple[Mapping[str, Any], ...]  # each with a name; () if neither the file nor its version gives them
    levels: tuple[Level, ...]
    whole: Level  # transformation of all levels, after their own

    @property
    def letters(self) -> str:
        return letters_of_names([axis["name"] for axis in self.axes])

    @property
    def channels(self) -> tuple[str, ...]:
        """The labels of the channels; () if not all are given."""
        found = self.omero.get("channels") if self.omero else None
        labels = [entry.get("label") if isinstance(entry, dict) else None for entry in _sequence(found)]
        return tuple(map(str, labels)) if all(isinstance(label, str) for label in labels) else ()

    @property
    def spacing(self) -> tuple[float | None, ...]:
        """Distance of the samples of level 0 along each axis in micrometres, None where unknown; () for none."""
        scale = self.levels[0].scale
        if scale is None or not self.axes:
            return ()
        whole = self.whole.scale or (1.0,) * len(scale)
        units = [MICROMETRES.get(str(axis.get("unit"))) if axis.get("type") == "space" else None for axis in self.axes]
        spacing = tuple(
            unit and side * more * unit if side * more > 0 else None
            for side, more, unit in zip(scale, whole, units, strict=True)
        )
        return spacing if any(spacing) else ()


def section(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a group's attributes that OME-Zarr defines: since version 0.5, those under `ome`."""
    found = attributes.get("ome")
    return found if isinstance(found, dict) else attributes


def image_of(path: Place, attributes: Mapping[str, Any]) -> OmeImage | None:
    """Return the image that a group's attributes describe; None if they describe none or several.

    Raises
    ------
    ImageError
        The metadata are damaged, or of an unknown version.
    """
    found = section(attributes)
    if "multiscales" not in found:
        return None
    try:
        multiscales = found["multiscales"]
        if not isinstance(multiscales, list) or not all(isinstance(entry, dict) for entry in multiscales):
            raise ImageError("multiscales is no list of objects")
        if len(multiscales) != 1:
            return None
        return _image(found, multiscales[0], nested=found is not attributes)
    except ImageError as error:
        raise ImageError(f"{path}: the OME-Zarr metadata are damaged: {error}; get it again from its source") from error


def _image(found: Mapping[str, Any], multiscale: Mapping[str, Any], *, nested: bool) -> OmeImage:
    axes = _axes(multiscale.get("axes"))
    implied = "0.4" if axes and "type" in axes[0] else "0.3" if axes else "0.1"
    version = found.get("version", "0.5") if nested else multiscale.get("version", implied)
    if not isinstance(version, str) or not re.fullmatch(r"0\.[1-5](\.\d+)?", version):
        raise ImageError(f"version is {str(version)[:80]!r}, and those known are 0.1 to 0.5")
    if not axes and version.startswith(("0.1", "0.2")):
        axes = tuple({"name": name} for name in "tczyx")
    levels = multiscale.get("datasets")
    if not isinstance(levels, list) or not 1 <= len(levels) <= MOST_LEVELS:
        raise ImageError(f"datasets is no list of 1 to {MOST_LEVELS} objects")
    read = tuple(_level(entry, len(axes)) for entry in levels)
    paths = [level.path.split("/") for level in read]
    for at, path in enumerate(paths):
        if any(path == other[: len(path)] for other in paths[:at] + paths[at + 1 :]):
            raise ImageError(f"the dataset {read[at].path!r} occurs twice, or holds another")
    omero = found.get("omero")
    whole = _transformed("", multiscale.get("coordinateTransformations"), len(axes))
    return OmeImage(version, nested, multiscale, omero if isinstance(omero, dict) else None, axes, read, whole)


def _axes(found: Any) -> tuple[dict[str, Any], ...]:
    if found is None:
        return ()
    axes = [{"name": axis} if isinstance(axis, str) else axis for axis in _sequence(found)]
    names = [axis.get("name") if isinstance(axis, dict) else None for axis in axes]
    if not axes or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ImageError("axes is no list of different names")
    return tuple(axes)


def _level(found: Any, axes: int) -> Level:
    path = found.get("path") if isinstance(found, dict) else None
    if not isinstance(path, str) or not is_inside(path):
        raise ImageError(f"the path of a dataset is {str(path)[:80]!r}, and must be a relative path inside the group")
    return _transformed(path, found.get("coordinateTransformations"), axes)


def is_inside(path: str) -> bool:
    """True for a relative path that stays in its folder and names no file of Zarr's metadata."""
    parts = path.split("/")
    return (
        all(part and not part.startswith(".") and part != "zarr.json" for part in parts)
        and path.isprintable()
        and not any(character in path for character in "\\:?#")
    )


def _transformed(path: str, found: Any, axes: int) -> Level:
    """Return a level with the scale and the translation of its list of transformations."""
    if found is None:
        return Level(path, None, None)
    known: dict[str, tuple[float, ...]] = {}
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise ImageError("coordinateTransformations is no list of objects")
    for entry in found:
        kind = entry.get("type")
        if kind == "identity":
            continue
        if kind not in ("scale", "translation") or kind in known:
            raise ImageError(f"the transformation {str(kind)[:80]!r} is unknown or occurs twice")
        values = _sequence(entry.get(kind))
        if len(values) != axes or not all(_is_number(value) for value in values):
            raise ImageError(f"{kind} is no list of {axes} numbers")
        known[kind] = tuple(map(float, values))
    return Level(path, known.get("scale"), known.get("translation"))


def _sequence(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e100  # False for NaN


def instead(path: Place, attributes: Mapping[str, Any]) -> str | None:
    """Return the path to name instead of a group of several images; None for a group that OME-Zarr does not define."""
    found = section(attributes)

    def first(owner: Any, key: str) -> str | None:
        entries = _sequence(owner.get(key)) if isinstance(owner, dict) else []
        entry = entries[0] if entries else None
        name = entry.get("path") if isinstance(entry, dict) else entry
        return name if isinstance(name, str) and is_inside(name) else None

    if "plate" in found:
        well = first(found["plate"], "wells")
        return f"{path}/{well}/0" if well else f"{path}/A/1/0"
    if "well" in found:
        return f"{path}/{first(found['well'], 'images') or 0}"
    if "bioformats2raw.layout" in found:
        return f"{path}/0"
    if multiscales := _sequence(found.get("multiscales")):
        return f"{path}/{first(multiscales[0], 'datasets') or 0}"
    if "labels" in found:
        name = first(found, "labels")
        return f"{path}/{name}" if name else None
    return None
