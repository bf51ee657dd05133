"""Places that `convforge filter` reads and writes: images, folders of images, folders of slices, and URLs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from convforge.imaging.windowed import Place


def is_folder_of_images(place: Place) -> TypeGuard[Path]:
    """True for a local folder that is no Zarr array or group and has not the name of one."""
    from convforge.imaging.windowed import format_of, zarr

    return isinstance(place, Path) and place.is_dir() and format_of(place) is not zarr.FORMAT


def is_stack(source: Place, target: Place) -> bool:
    """True if a folder of images is read as one stack of slices: if OUT names one array or file that holds a stack.

    Otherwise its images are filtered one by one to a folder.
    """
    from convforge.imaging.windowed import format_of

    return is_folder_of_images(source) and not is_folder_of_images(target) and format_of(target) is not None


def only_in_units(place: Place, *, read: bool) -> bool:
    """True for what is not read or written in memory: Zarr, folders of slices, and endings such as .btf or .svs."""
    from convforge.imaging.files import WRITABLE_SUFFIXES
    from convforge.imaging.windowed import format_of, slices, zarr

    if isinstance(place, slices.SliceFolder):
        return True
    kind, suffix = format_of(place), place.suffix.lower()
    if kind is None or kind is zarr.FORMAT:
        return kind is not None
    known = kind.suffixes + (kind.reads if read else ())
    return (read and kind is slices.FORMAT) or (suffix in known and suffix not in WRITABLE_SUFFIXES)


def names_an_image(place: Place) -> bool:
    """True if a name has the ending of an image or an array, also of one that is read only."""
    from convforge.imaging.files import WRITABLE_SUFFIXES
    from convforge.imaging.windowed import FORMATS

    known = {*WRITABLE_SUFFIXES, *(suffix for kind in FORMATS for suffix in kind.suffixes + kind.reads)}
    return place.suffix.lower() in known


def with_slices(source: Place, target: Place, suffix: str | None, *, volume: bool = False) -> Place:
    """Return the target as a folder of slices, if --format names the format of its files and it is no image.

    A folder of images as source stays one whose images are filtered one by one, unless it is filtered as a `volume`,
    by a kernel that reaches along Z.
    """
    from convforge.imaging.windowed import Url
    from convforge.imaging.windowed.slices import SliceFolder

    if suffix is None or (is_folder_of_images(source) and not volume) or isinstance(target, Url):
        return target
    if is_folder_of_images(target) or not (target.exists() or names_an_image(target)):
        return SliceFolder.of(target, suffix)
    return target


def check_format(target: Place) -> None:
    """Raise ``ValueError`` if neither the ending of OUT nor --format says what an image in units becomes."""
    from convforge.imaging.windowed import format_of

    if not names_an_image(target) and (is_folder_of_images(target) or format_of(target) is None):
        raise ValueError(
            f"{target}: no ending to tell the format; write .tif, .zarr or another array, or add --format tif for a "
            "folder with a file for each plane"
        )
