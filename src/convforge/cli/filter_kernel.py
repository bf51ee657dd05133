"""The kernel of `convforge filter`: sigma in a unit of length needs the spacing of the image; Z needs a volume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from convforge.cli.filter_places import is_folder_of_images, is_stack, with_slices
from convforge.cli.filter_report import opened
from convforge.cli.filter_streams import INPUT, STREAM
from convforge.imaging.kernels import Kernel, KernelError, lengths_along, load_kernel
from convforge.imaging.spacing import spacing_by

if TYPE_CHECKING:
    from convforge.imaging.windowed import Place


def kernel_for(
    text: str, sources: Sequence[str], target: str, *, spacing: Mapping[str, float] | None, axes: str | None,
    max_pixels: int, suffix: str | None,
) -> Kernel:  # fmt: skip
    """Return the kernel of a text for the images that are filtered; `suffix` is that of --format.

    A spacing that the user gives goes before that of the file. Of several images, each with its own spacing, only the
    user's is taken. ``ValueError`` if a spacing is needed and not known, and for a kernel along Z where images are
    filtered one by one in memory.
    """
    needed = lengths_along(text)
    if not needed:
        kernel = load_kernel(text)
        if kernel.depth is not None:
            _check_volume(kernel.name, sources, target, suffix)
        return kernel
    if volume := "Z" in needed:
        _check_volume(text, sources, target, suffix)
    known: dict[str, float | None] = {**(spacing or {})}
    where = ""
    if not known.keys() >= set(needed):
        place = _only_image(sources, target, text, volume=volume)
        known = {**_spacing_in(place, axes, max_pixels), **known}
        where = f"{place}: "
    try:
        kernel = load_kernel(text, known)
    except KernelError as error:
        raise KernelError(f"{where}{error}") from error
    gaps = " x ".join(f"{known[letter]:.4g}" for letter in needed)
    return replace(kernel, name=f"{kernel.name} (spacing {gaps} um along {' x '.join(needed)})")


def _check_volume(kernel: str, sources: Sequence[str], target: str, suffix: str | None) -> None:
    """Raise ``ValueError`` for a kernel along Z where images are filtered one by one in memory."""
    from convforge.imaging.windowed import Url, format_of, place_of
    from convforge.imaging.windowed.slices import SliceFolder

    why = f"the kernel {kernel} reaches along Z"
    for source in sources:
        place = place_of(source)
        if STREAM in (source, target):
            raise ValueError(f"{STREAM} is one image in memory, and {why}; name files")
        here = with_slices(place, place_of(target), suffix, volume=True)
        if is_folder_of_images(place) and not (isinstance(here, SliceFolder) or is_stack(place, here)):
            raise ValueError(
                f"{source}: its images are filtered one by one, and {why}; to read the folder as a stack, name an "
                "array as OUT, such as out.zarr, or add --format tif"
            )
        if format_of(place) is None and (isinstance(place, Url) or place.exists()):
            raise ValueError(
                f"{source}: is no volume, and {why}; name a Zarr array, a TIFF, a .npy or a folder of slices, or give "
                "sigma along Y and X only"
            )


def _only_image(sources: Sequence[str], target: str, text: str, *, volume: bool) -> Place:
    """Return the one image whose spacing is read; ``ValueError`` for several images and for standard input.

    A folder that is filtered as a `volume` is one image.
    """
    from convforge.imaging.windowed import place_of

    source, place = sources[0], place_of(sources[0])
    if len(sources) > 1 or (is_folder_of_images(place) and not volume and not is_stack(place, place_of(target))):
        raise ValueError(
            f"kernel {text!r}: each of several images may have another spacing; give one for all (--spacing), or "
            "sigma in px"
        )
    if source == STREAM:
        raise ValueError(f"kernel {text!r}: the spacing of {INPUT} is not read; give it (--spacing), or sigma in px")
    return place


def _spacing_in(place: Place, axes: str | None, max_pixels: int) -> dict[str, float | None]:
    """Return the distance of an image's samples in micrometres by the letter of the axis, as far as it is known."""
    from convforge.imaging.files import ImageError, read_image
    from convforge.imaging.pipeline.large_plan import spacing_of
    from convforge.imaging.windowed import Url, format_of

    with opened():
        if format_of(place) is not None or isinstance(place, Url):
            try:
                return spacing_of(place, axes)
            except ImageError:
                if not (isinstance(place, Path) and place.suffix.lower() in (".tif", ".tiff")):
                    raise  # else it may be a TIFF that is read in memory only, such as one with a palette
        metadata = read_image(Path(str(place)), max_pixels=max_pixels, axes=axes).metadata
    return {**spacing_by(metadata)}
