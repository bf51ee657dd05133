"""`filter_large`: filter an image larger than memory from a file to a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Never

import numpy as np

from convforge.call.arguments import IntPair, check_word, pair, refuse_others, whole_number
from convforge.imaging.axes import Axes
from convforge.imaging.files import WRITABLE_SUFFIXES
from convforge.imaging.filtering import ELSEWHERE
from convforge.imaging.image import Array
from convforge.imaging.kernels import lengths_along, load_kernel
from convforge.imaging.pipeline.large import LargeFilter, Outcome, Watch
from convforge.imaging.pipeline.large_plan import spacing_of
from convforge.imaging.pipeline.recipe import Depth, Recipe
from convforge.imaging.selection import Selection
from convforge.imaging.weights import kernel_array
from convforge.imaging.windowed import Place, local, place_of
from convforge.imaging.windowed.slices import SliceFolder
from convforge.problem import padding_mode_of


def filter_large(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    kernel: Array | str | os.PathLike[str],
    *,
    channels: str = "each",
    border: str = "reflect",
    cval: float = 0.0,
    stride: IntPair = 1,
    out_dtype: Any = None,
    device: str | None = None,
    algorithm: str = "auto",
    axes: str | None = None,
    region: str | Sequence[slice] | None = None,
    channel: str | int | slice | None = None,
    z: str | int | slice | None = None,
    time: str | int | slice | None = None,
    gray: bool = False,
    magnitude: bool = False,
    scale: float = 1.0,
    spacing: Mapping[str, float] | None = None,
    slices: str | None = None,
    memory: int | None = None,
    workers: int | None = None,
    watch: Watch | None = None,
    **others: Never,
) -> Outcome:
    """Filter an image that may be larger than memory, from a file to a file; continue a run that ended early.

    Parameters
    ----------
    source, target : path-like or str
        Paths or URLs: Zarr arrays and OME-Zarr images (`.zarr`), TIFF files (also BigTIFF and OME-TIFF; slides such as
        `.svs` are read only), `.npy` files, or a folder of slices as source. The target is replaced when the result is
        complete. Until then a local result is written beside it, to a name that ends in `.incomplete`, with a journal
        that ends in `.journal`.
    kernel, channels, border, cval, stride, out_dtype, device, algorithm, axes
        As in :func:`convforge.filter`; without `axes`, those that the file names, or those that follow from its shape.
        The device "cuda" stands for all GPUs of the machine, "cuda:0,cuda:2" for some of them. A kernel such as
        "gaussian:2,0.5,0.5um" (sigma along Z, Y and X) needs the spacing of the samples.
    region : str or (slice, slice), optional
        Rows and columns of the source whose result is wanted, such as "0:512,:" or (slice(0, 512), slice(None)). The
        filter reads the pixels around it.
    channel : int, slice or str, optional
        Channels that are filtered: an index, which removes the axis, a slice, or the name of a channel.
    z, time : int, slice or str, optional
        Planes along the axes Z and T that are filtered.
    gray, magnitude : bool
        Turn red, green and blue into gray first; take the magnitude of the sums.
    scale : float
        Factor of the sums, before they are rounded.
    spacing : mapping, optional
        Distance of the samples in micrometres by the letter of the axis, such as {"Z": 2, "Y": 0.5, "X": 0.5}; by
        default as the file says. The result gets it, multiplied by strides.
    slices : str, optional
        Suffix such as ".tif": the target is a folder that gets a file for each plane, 0000.tif and so on.
    memory : int, optional
        Limit in bytes of all parts of the image in work; by default a quarter of the machine's memory.
    workers : int, optional
        Threads that read and write; by default the number of cores, at least 2.
    watch : callable, optional
        Called with the number of finished units, of all units, and the rate as a text.

    Returns
    -------
    Outcome
        Units done now and before, seconds, rate, and metadata of the source that the result does not keep.

    Raises
    ------
    ValueError, TypeError
        As :func:`convforge.filter`; also if a file cannot be read or written, if it has no such part, if a spacing is
        not known, if `memory` does not suffice for one unit, or if an unfinished run with other arguments has left its
        journal.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     source, target = Path(folder, "a.npy"), Path(folder, "b.npy")
    ...     np.save(source, np.full((1000, 40), 9, np.uint8))
    ...     outcome = filter_large(source, target, "box:3", memory=100_000, workers=2)
    ...     outcome.units, np.load(target).max()
    (8, np.uint8(9))
    """
    refuse_others("filter_large", others, ELSEWHERE)
    if memory is not None and whole_number(memory, "memory") < 1:
        raise ValueError(f"memory={memory} bytes must be at least 1")
    if workers is not None and whole_number(workers, "workers") < 1:
        raise ValueError(f"workers={workers} must be at least 1")
    if axes is not None:
        check_word(axes, "axes")
    check_word(channels, "channels")
    check_word(algorithm, "algorithm")
    if isinstance(scale, bool) or not isinstance(scale, int | float | np.integer | np.floating):
        raise TypeError(f"scale={scale!r} must be a number")
    if not np.isfinite(scale):
        raise ValueError(f"scale={scale} must be a finite number")
    for name, flag in (("gray", gray), ("magnitude", magnitude)):
        if not isinstance(flag, bool | np.bool_):
            raise TypeError(f"{name}={flag!r} must be True or False")
    if watch is not None and not callable(watch):
        raise TypeError(f"watch={watch!r} must be a function of (finished units, all units, text)")
    there, here = _place(source, "source"), _place(target, "target")
    letters = None if axes is None else Axes(axes.upper()).letters
    distances = None if spacing is None else _checked_spacing(spacing)
    taps, depth = _kernel_for(kernel, there, letters, distances or {})
    recipe = Recipe(
        taps=taps, depth=depth, channels=channels, border=padding_mode_of(border, "border"), cval=cval,
        stride=pair(stride, "stride"), device=device or "cpu", algorithm=algorithm,
        out_dtype=None if out_dtype is None else np.dtype(out_dtype), magnitude=bool(magnitude), scale=float(scale),
        gray=bool(gray), axes=letters, selection=Selection.of(region=region, channel=channel, z=z, time=time),
        spacing=distances,
    )  # fmt: skip
    run = LargeFilter(
        there, here if slices is None else _slice_folder(here, slices), recipe, memory=memory, workers=workers
    )
    return run() if watch is None else run(watch)


def _kernel_for(
    kernel: Any, source: Place, axes: str | None, spacing: Mapping[str, float]
) -> tuple[Array, Depth | None]:
    """Return the kernel of planes and along Z; sigma in a unit of length needs the spacing of the file."""
    known: dict[str, float | None] = {**spacing}
    if not isinstance(kernel, str):
        return kernel_array(kernel), None
    if set(lengths_along(kernel)) - known.keys():
        known = {**spacing_of(source, axes), **known}
    loaded = load_kernel(kernel, known)
    return loaded.values, None if loaded.depth is None else Depth.centred(loaded.depth.tolist())


def _checked_spacing(spacing: Any) -> dict[str, float]:
    how = 'a mapping of the letters Z, Y and X to micrometres, such as {"Y": 0.5, "X": 0.5}'
    if not isinstance(spacing, Mapping):
        raise TypeError(f"spacing={spacing!r} must be {how}")
    for letter, gap in spacing.items():
        if isinstance(gap, bool) or not isinstance(gap, int | float | np.integer | np.floating):
            raise TypeError(f"spacing[{letter!r}]={gap!r} must be a number of micrometres")
        if letter not in ("Z", "Y", "X") or not 0 < gap < np.inf:
            raise ValueError(f"spacing={dict(spacing)!r} must be {how}, each above 0")
    return {letter: float(gap) for letter, gap in spacing.items()}


def _place(value: Any, name: str) -> Place:
    if not isinstance(value, str | os.PathLike):
        hint = "; convforge.filter filters arrays" if hasattr(value, "shape") else ""
        raise TypeError(f"{name} must be a path or a URL, not {type(value).__name__}{hint}")
    return place_of(os.fspath(value))


def _slice_folder(target: Place, suffix: Any) -> SliceFolder:
    check_word(suffix, "slices")
    known = f".{suffix.lower().removeprefix('.')}"
    if known not in WRITABLE_SUFFIXES:
        raise ValueError(f"slices={suffix!r} is no suffix of images; choose one of {', '.join(WRITABLE_SUFFIXES)}")
    return SliceFolder.of(local(target), known)
