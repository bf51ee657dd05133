"""The images of a folder, the places of their results, and the shares of the stages of a run over them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from convforge.imaging.files import WRITABLE_SUFFIXES
from convforge.imaging.formats.tiff import READ_ONLY
from convforge.imaging.windowed import Place, tiff, zarr

# The stages of an image in order, each with the threads that run it: file threads or lanes of the device.
FILES, LANES = "files", "lanes"
STAGES = {
    "decode": FILES,
    "plan": LANES,
    "first call": LANES,
    "upload": LANES,
    "filter": LANES,
    "download": LANES,
    "encode": FILES,
}


# Stages of an image in units, by the steps of the clock.
UNIT_STAGES = {"read": "decode", "gray": "decode", "widen": "decode", "convert": "encode", "write": "encode"}

# Suffixes of images that are read, and written under the same name; SLIDES are read only.
SUFFIXES = (*WRITABLE_SUFFIXES, *(suffix for suffix in tiff.FORMAT.suffixes if suffix not in WRITABLE_SUFFIXES))
SLIDES = READ_ONLY


class Job(NamedTuple):
    """Place of an image to read, and path of the result to write."""

    source: Place
    target: Path


class Listing(NamedTuple):
    """The images of a folder in order of their names, and errors of unreadable folders.

    `left_alone` are the numbers of other files and Zarr arrays by their suffix, in small letters, or "hidden" or "no
    ending"; `slides` is that of the slides among them, which only another format can hold. `subfolders` is the number
    of sub-folders that hold images and are not looked into.
    """

    jobs: tuple[Job, ...]
    left_alone: Mapping[str, int]
    slides: int = 0
    subfolders: int = 0
    unreadable: tuple[OSError, ...] = ()


class Written(NamedTuple):
    """Record of a finished image: bytes of pixels and files in and out, the method, and the lost metadata.

    `units` is the number of units in which it was filtered, 0 for an image in memory; `notes` are texts for the user.
    """

    pixels_in: int
    pixels_out: int
    file_in: int
    file_out: int
    method: str
    lost: tuple[str, ...] = ()
    units: int = 0
    notes: tuple[str, ...] = ()


def list_folder(folder: Path, out: Path, *, recursive: bool = False, suffix: str | None = None) -> Listing:
    """List the images of a folder, each with its target: the same path under `out`, with `suffix` if given.

    An image is a file with one of `SUFFIXES`, or of `SLIDES` if `suffix` is given. Hidden files and folders are
    ignored, links to folders are not followed, and `out` is skipped if it is inside `folder`. ``ValueError`` if `out`
    is `folder` or a file, if two images have the same target, or if a target is another image that has yet to be read.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out}: is a file, and {folder} is a folder; name a folder for the results")
    if os.path.realpath(out) == os.path.realpath(folder):
        raise ValueError(f"{out}: is the folder of the images, which would be overwritten; name another")
    jobs, left_alone, slides, unreadable = list[Job](), Counter[str](), 0, list[OSError]()
    known = SUFFIXES if suffix is None else SUFFIXES + SLIDES
    for path in _files(folder, out, recursive, unreadable):
        kind = path.suffix.lower()
        if path.name.startswith(".") or kind not in known:
            left_alone["hidden" if path.name.startswith(".") else kind or "no ending"] += 1
            slides += kind in SLIDES and not path.name.startswith(".")
            continue
        target = out / path.relative_to(folder)
        jobs.append(Job(path, target if suffix is None else target.with_suffix(suffix)))
    _check_apart(jobs)
    subfolders = 0 if recursive else sum(_holds_images(place, out, known) for place in _subfolders(folder, out))
    return Listing(tuple(jobs), left_alone, slides, subfolders, tuple(unreadable))


def _subfolders(folder: Path, out: Path) -> list[Path]:
    """Return the sub-folders that `--recursive` would look into; none if the folder cannot be read."""
    skipped = os.path.realpath(out)
    try:
        with os.scandir(folder) as entries:
            found = [Path(each.path) for each in entries if each.is_dir(follow_symlinks=False)]
    except OSError:  # reported where its files are listed
        return []
    return [
        place
        for place in found
        if not place.name.startswith(".") and not zarr.is_zarr(place) and os.path.realpath(place) != skipped
    ]


def _holds_images(folder: Path, out: Path, known: Sequence[str]) -> bool:
    """True if there is an image in a folder, at any depth; the search ends at the first."""
    return any(
        path.suffix.lower() in known and not path.name.startswith(".")
        for path in _files(folder, out, recursive=True, unreadable=[])
    )


def _files(folder: Path, out: Path, recursive: bool, unreadable: list[OSError]) -> Iterator[Path]:
    """Yield the files of a folder and, if `recursive`, of its sub-folders, in order of their names.

    A Zarr array is yielded as one path: its files are no images.
    """
    skipped = os.path.realpath(out)
    for place, folders, files in os.walk(folder, onerror=unreadable.append):
        seen = sorted(name for name in folders if not name.startswith(".")) if recursive else []
        arrays = {name for name in seen if zarr.is_zarr(Path(place, name))}
        folders[:] = [
            name for name in seen if name not in arrays and os.path.realpath(os.path.join(place, name)) != skipped
        ]
        for name in sorted([*files, *arrays]):
            yield Path(place, name)


def _check_apart(jobs: Sequence[Job]) -> None:
    """Raise ``ValueError`` if a job would write a file that another job writes or reads."""

    def same(path: Path) -> str:
        """Return a text that is equal for all paths of a file, with links resolved."""
        return os.path.normcase(os.path.realpath(path))

    sources = {same(job.source): job for job in jobs if isinstance(job.source, Path)}
    targets: dict[str, Job] = {}
    for job in jobs:
        key = same(job.target)
        if key in targets:
            raise ValueError(
                f"{targets[key].source} and {job.source} would both become {job.target}; rename one of them, or keep "
                "their formats"
            )
        if key in sources:
            raise ValueError(
                f"{job.source} would overwrite {sources[key].source}, which is to be filtered too; name another folder "
                "for the results"
            )
        targets[key] = job


class Share(NamedTuple):
    """Busy seconds of a stage, summed over its threads, and their fraction of the total time of these threads."""

    stage: str
    seconds: float
    threads: int
    of_time: float


def shares_of(busy: dict[str, float], seconds: float, threads: dict[str, int]) -> list[Share]:
    """Return the share of each stage that took any time, in the order of the stages."""
    found = [(stage, busy.get(stage, 0.0), threads[whose]) for stage, whose in STAGES.items()]
    return [Share(stage, spent, count, spent / count / seconds) for stage, spent, count in found if spent]


def limit_of(shares: Sequence[Share]) -> str:
    """Return a text that names the busiest threads and their longest stage."""
    together = {FILES: 0.0, LANES: 0.0}
    for share in shares:
        together[STAGES[share.stage]] += share.of_time
    whose = max(together, key=together.__getitem__)
    most = max((share for share in shares if STAGES[share.stage] == whose), key=lambda share: share.seconds)
    kind = f"{'thread' if whose == FILES else 'lane'}{'' if most.threads == 1 else 's'}"
    at = "for reading and writing" if whose == FILES else "of the device"
    what = " (kernels compiled or read from the cache)" if most.stage == "first call" else ""
    busy = f"busy {together[whose]:.0%} of the time"
    return f"{most.stage}{what}: the longest work of {most.threads} {kind} {at}, {busy}"
