"""The cases and the contenders of benchmarks/large.py."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import large_images
import numpy as np
from numpy.typing import NDArray

from convforge.cli.values import parse_bytes
from convforge.imaging.kernels import named_kernel
from convforge.imaging.pipeline.large_call import filter_large

KINDS = ("zarr", "blurred", "tiff", "synthetic", "synthetic-dense")

# Of the kinds whose images are stored.
SUFFIXES = {"zarr": ".zarr", "blurred": ".zarr", "tiff": ".tif"}

# NumPy's names of our borders.
BORDERS = {"symmetric": "symmetric", "replicate": "edge"}


@dataclass(frozen=True)
class Case:
    """An image and its filter: a Gaussian, or for sigma 0 random taps, which no method factors."""

    name: str
    kind: str  # of KINDS
    nbytes: int  # of all samples
    side: int  # in pixels; of a Zarr image 0: its sides follow from the bytes
    sigma: float = 2.0
    taps: int = 17  # SciPy's window: 4 sigma on each side
    border: str = "symmetric"

    @property
    def kernel(self) -> str:
        return f"gaussian:{self.taps}:{self.sigma:g}"

    @property
    def is_stored(self) -> bool:
        """False for an image that is computed when it is read."""
        return not self.kind.startswith("synthetic")

    def path(self, folder: Path, name: str) -> Path:
        return folder / f"{name}{SUFFIXES.get(self.kind, '')}"

    def make(self, path: Path, threads: int, side: int = 0) -> None:
        """Write the image to a path, or one of `side` x `side` pixels of its kind."""
        if self.kind == "zarr":
            large_images.make_zarr(path, 2 * side * side or self.nbytes, threads)
        elif self.kind == "blurred":
            sharp = path.with_name(f"sharp-{path.name}")
            large_images.make_zarr(sharp, 2 * side * side or self.nbytes, threads)
            filter_large(sharp, path, self.kernel, border=self.border)
            shutil.rmtree(sharp)
        elif self.kind == "tiff":
            large_images.make_tiff(path, side or self.side)

    def deviation(self, source: Path, result: Path) -> float:
        """Return the largest error of a result's samples; see :func:`large_images.deviation`."""
        return large_images.deviation(source, result, self._row(), BORDERS[self.border])

    def _row(self) -> NDArray[np.float64]:
        """Return the taps along one axis; their outer product is the kernel."""
        row: NDArray[np.float64] = named_kernel(self.kernel).values.sum(axis=0)
        return row


def cases_of(only: Sequence[str], sizes: Sequence[str], tiff_side: int, synthetic_side: int) -> list[Case]:
    """Return the cases of the kinds in `only` (all if it is empty); ``ValueError`` for an unknown kind or size."""
    if unknown := [kind for kind in only if kind not in KINDS]:
        raise ValueError(f"--only {unknown[0]}: there are {', '.join(KINDS)}")
    zarr = sorted(
        (Case(f"{kind}-{size}", kind, parse_bytes(size), 0) for size in sizes for kind in ("zarr", "blurred")),
        key=lambda case: case.nbytes,
    )
    tiff = Case(f"tiff-{tiff_side}", "tiff", 3 * tiff_side**2, tiff_side, 9.0, 33, "replicate")
    synthetic = Case(f"synthetic-{synthetic_side}", "synthetic", synthetic_side**2, synthetic_side)
    side = 3 * synthetic_side  # so that the start is a small part of the time
    dense = Case(f"synthetic-dense-{side}", "synthetic-dense", side * side, side, 0.0, 63)
    return [case for case in (tiff, *zarr, synthetic, dense) if not only or case.kind in only]


class Contender(NamedTuple):
    """A program of large_programs.py; without a name it is the command `convforge filter`."""

    program: str = ""
    modules: tuple[str, ...] = ()  # that must be installed
    device: str = ""  # by default that of the run
    on_gpu: bool = False  # takes part in runs on a GPU alone
    gpus: int = 0  # takes part if there are so many GPUs
    most: float = 1.0  # largest error, in units of a sample, that counts as right
    ours: bool = False

    @property
    def missing(self) -> str | None:
        """The first module that is not installed."""
        return next((module for module in self.modules if not _is_installed(module)), None)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that holds it
        return False


# SciPy and CuPy write uint16 after each axis and cut the fraction off: an error below 2. libvips has integer taps.
CUT_OFF, NO_FILTER = 2.0, float("inf")
_DASK = ("dask.array", "zarr")
_OURS = Contender(ours=True)
_COPY = Contender("tensorstore_copy", ("tensorstore",), most=NO_FILTER)
_ON_CPU = Contender(device="cpu", on_gpu=True, ours=True)
CONTENDERS: dict[str, dict[str, Contender]] = {
    "zarr": {
        "convforge": _OURS,
        "convforge on the CPU": _ON_CPU,
        "convforge.dask": Contender("convforge_dask", _DASK, ours=True),
        "tensorstore, no filter": _COPY,
        "dask, no filter": Contender("dask_copy", _DASK, most=NO_FILTER),
        "dask-image": Contender("dask_image", ("dask_image", "zarr"), most=CUT_OFF),
        "dask + SciPy": Contender("dask_scipy", (*_DASK, "scipy"), most=CUT_OFF),
        "dask + CuPy": Contender("dask_cupy", (*_DASK, "cupy"), on_gpu=True, most=CUT_OFF),
    },
    "blurred": {"tensorstore, no filter": _COPY},
    "tiff": {
        "convforge": _OURS,
        "convforge on the CPU": _ON_CPU,
        "libvips": Contender("libvips", ("pyvips",), most=CUT_OFF),
        "OpenCV + tifffile": Contender("opencv", ("cv2", "tifffile")),
    },
    "synthetic": {
        "convforge": Contender("synthetic", ours=True),
        "convforge on 2 GPUs": Contender("synthetic", on_gpu=True, gpus=2, ours=True),
        "convforge on 4 GPUs": Contender("synthetic", on_gpu=True, gpus=4, ours=True),
        "convforge on 8 GPUs": Contender("synthetic", on_gpu=True, gpus=8, ours=True),
    },
    "synthetic-dense": {
        "convforge": Contender("synthetic", on_gpu=True, ours=True),
        "convforge on 2 GPUs": Contender("synthetic", on_gpu=True, gpus=2, ours=True),
        "convforge on 4 GPUs": Contender("synthetic", on_gpu=True, gpus=4, ours=True),
        "convforge on 8 GPUs": Contender("synthetic", on_gpu=True, gpus=8, ours=True),
    },
}
