"""The programs that benchmarks/large.py compares: each filters a file into another one, in a process of its own.

python benchmarks/large_programs.py NAME JOB, where JOB is a :class:`Job` as JSON. The last line of the output is JSON
with `work_s`, the seconds from the first read to the last write, without imports.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any


@dataclass(frozen=True)
class Job:
    """Arguments of a program."""

    source: Path
    target: Path
    sigma: float
    taps: int  # odd number of taps of the Gaussian on each axis
    threads: int
    device: str
    side: int = 0  # of the synthetic image, in pixels
    gpus: int = 0

    @classmethod
    def from_json(cls, text: str) -> Job:
        fields = json.loads(text)
        return cls(**fields | {name: Path(fields[name]) for name in ("source", "target")})


def tensorstore_copy(job: Job) -> float:
    """Decode and encode the image again, shard by shard: the library, threads and windows of convforge, no filter."""
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np
    import tensorstore

    context = tensorstore.Context({"data_copy_concurrency": {"limit": job.threads}})

    def place(path: Path) -> dict[str, Any]:
        return {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}

    begin = perf_counter()
    source = tensorstore.open(place(job.source), read=True, context=context).result()
    metadata = json.loads((job.source / "zarr.json").read_text())
    keep = {name: metadata[name] for name in ("shape", "data_type", "chunk_grid", "codecs")}
    target = tensorstore.open(place(job.target) | {"metadata": keep}, create=True, context=context).result()
    shard = source.chunk_layout.write_chunk.shape
    windows = [
        tuple(slice(i * side, min((i + 1) * side, size)) for i, side, size in zip(at, shard, source.shape, strict=True))
        for at in np.ndindex(*(-(-size // side) for size, side in zip(source.shape, shard, strict=True)))
    ]

    def copy(window: tuple[slice, ...]) -> None:
        target[window].write(source[window].read().result(), can_reference_source_data_indefinitely=True).result()

    with ThreadPoolExecutor(2 * job.threads) as threads:
        list(threads.map(copy, windows))
    return perf_counter() - begin


def dask_image(job: Job) -> float:
    from dask_image.ndfilters import gaussian_filter

    return _with_dask(job, lambda image: gaussian_filter(image, job.sigma, mode="reflect", truncate=_truncate(job)))


def dask_scipy(job: Job) -> float:
    from scipy.ndimage import gaussian_filter

    def blurred(image: Any) -> Any:
        return image.map_overlap(
            gaussian_filter, depth=job.taps // 2, boundary="reflect", dtype=image.dtype, sigma=job.sigma,
            truncate=_truncate(job),
        )  # fmt: skip

    return _with_dask(job, blurred)


def dask_cupy(job: Job) -> float:
    import cupy
    from cupyx.scipy.ndimage import gaussian_filter

    def on_device(block: Any) -> Any:
        return gaussian_filter(cupy.asarray(block), job.sigma, truncate=_truncate(job)).get()

    def blurred(image: Any) -> Any:
        return image.map_overlap(on_device, depth=job.taps // 2, boundary="reflect", dtype=image.dtype)

    return _with_dask(job, blurred)


def convforge_dask(job: Job) -> float:
    import convforge.dask

    kernel = f"gaussian:{job.taps}:{job.sigma:g}"
    return _with_dask(job, lambda image: convforge.dask.filter(image, kernel, border="symmetric", device=job.device))


def dask_copy(job: Job) -> float:
    """Decode and encode the image again, without a filter: the time that zarr-python and dask take of the others."""
    return _with_dask(job, lambda image: image)


def _with_dask(job: Job, filtered: Callable[[Any], Any]) -> float:
    """Read a Zarr array in blocks of a shard, filter it lazily, and store it with the grid and codecs of the source."""
    import dask
    import dask.array
    import zarr

    begin = perf_counter()
    source = zarr.open_array(job.source, mode="r")
    image = dask.array.from_array(source, chunks=source.shards)
    target = zarr.create_array(
        job.target, shape=source.shape, dtype=source.dtype, chunks=source.chunks, shards=source.shards,
        compressors=source.compressors,
    )  # fmt: skip
    with dask.config.set(scheduler="threads", num_workers=job.threads):
        dask.array.store(filtered(image), target, lock=False)
    return perf_counter() - begin


def _truncate(job: Job) -> float:
    """Return SciPy's `truncate` that gives the taps."""
    return job.taps // 2 / job.sigma


def libvips(job: Job) -> float:
    import math

    import pyvips

    begin = perf_counter()
    image = pyvips.Image.new_from_file(str(job.source), access="sequential")
    least = math.exp(-((job.taps / 2) ** 2) / (2 * job.sigma**2))  # between the last tap and the first that is left out
    blurred = image.gaussblur(job.sigma, min_ampl=least)
    if (taps := pyvips.Image.gaussmat(job.sigma, least, separable=True).width) != job.taps:
        raise SystemExit(f"libvips takes {taps} taps, not {job.taps}")
    blurred.tiffsave(
        str(job.target), tile=True, tile_width=256, tile_height=256, bigtiff=True, compression="deflate",
        predictor="horizontal",
    )  # fmt: skip
    return perf_counter() - begin


def opencv(job: Job) -> float:
    import cv2
    import tifffile

    cv2.setNumThreads(job.threads)
    begin = perf_counter()
    image = tifffile.imread(job.source, maxworkers=job.threads)
    blurred = cv2.GaussianBlur(image, (job.taps, job.taps), job.sigma, borderType=cv2.BORDER_REPLICATE)
    tifffile.imwrite(
        job.target, blurred, bigtiff=True, tile=(256, 256), photometric="rgb", compression="zlib", predictor=True,
        maxworkers=job.threads,
    )  # fmt: skip
    return perf_counter() - begin


def synthetic(job: Job) -> float:
    """Filter an image that is made while it is read, of `side` x `side` uint8 samples; nothing is written."""
    import numpy as np
    from large_synthetic import stream

    kernel: Any = f"gaussian:{job.taps}:{job.sigma:g}"
    if not job.sigma:
        kernel = np.random.default_rng(7).normal(size=(job.taps, job.taps)) / job.taps
    devices = ",".join(f"cuda:{number}" for number in range(job.gpus or 1)) if job.device == "cuda" else job.device
    return stream((job.side, job.side), "uint8", kernel, devices).seconds


PROGRAMS: dict[str, Callable[[Job], float]] = {
    program.__name__: program
    for program in (
        *(tensorstore_copy, dask_copy, dask_image, dask_scipy, dask_cupy, convforge_dask),
        *(libvips, opencv, synthetic),
    )
}

if __name__ == "__main__":
    print(json.dumps({"work_s": PROGRAMS[sys.argv[1]](Job.from_json(sys.argv[2]))}))
