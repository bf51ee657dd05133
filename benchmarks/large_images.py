"""The images of benchmarks/large.py, and the check of what a contender made of one.

The Zarr image is a smooth field plus noise, as of a camera with 13 bits: uint16 samples that are multiples of 8. It
packs about 2:1, and so does its blur, so that writing the result takes as long as writing the image again. The TIFF
image is smooth colour plus noise; it packs about 2:1 too, its blur far better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Reader = Callable[[tuple[slice, ...]], Array]

# Grid of the Zarr image, and tiles of the TIFF image, in pixels.
CHUNK, SHARD, TILE = 256, 2048, 256

# Smooth part: periods in pixels and amplitudes; noise: standard deviations; the step of the uint16 samples.
PERIOD, AMPLITUDE, NOISE, STEP = 12000.0, 3000.0, 60.0, 8
COLOUR_PERIOD, COLOUR_AMPLITUDE, COLOUR_NOISE = 3000.0, 90.0, 2.0

# Numbers of noise that are made once and used from different offsets; no compressor of ours looks so far back.
POOL = 1 << 24

# Windows that the check compares: their number and side.
WINDOWS, SIDE = 8, 256


def square(nbytes: int) -> tuple[int, int]:
    """Return rows and columns of a uint16 image of about so many bytes, in whole shards if it has several.

    Examples
    --------
    >>> square(2_000_000_000), square(1_000_000)
    ((32768, 30720), (708, 707))
    """
    samples = nbytes / 2
    if samples < SHARD * SHARD:
        rows = math.ceil(math.sqrt(samples))
        return rows, math.ceil(samples / rows)
    shards = samples / SHARD**2
    rows = round(math.sqrt(shards))
    return rows * SHARD, max(round(shards / rows), 1) * SHARD


def _noise(deviation: float) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal(POOL, dtype=np.float32) * np.float32(deviation)


def _smooth(y: slice, x: slice, period: float, phase: float = 0.0) -> NDArray[np.float32]:
    """Return a wave from -1 to 1 over the rows and columns of a window."""
    rows, columns = (2 * np.pi * np.arange(part.start, part.stop) / period + phase for part in (y, x))
    return np.outer(np.cos(rows), np.sin(columns)).astype(np.float32)


def _at(pool: Array, offset: int, shape: tuple[int, ...]) -> Array:
    """Return noise of a shape from an offset of the pool; it is repeated if the pool is too small."""
    length = math.prod(shape)
    if length > POOL:
        return np.resize(pool, shape)
    begin = offset % (POOL - length + 1)
    return pool[begin : begin + length].reshape(shape)


def make_zarr(path: Path, nbytes: int, threads: int) -> None:
    """Write the uint16 image as Zarr version 3 in shards, with zstd at level 1, by several threads."""
    import tensorstore

    height, width = square(nbytes)
    chunk, shard = ([min(side, full) for full in (height, width)] for side in (CHUNK, SHARD))
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd", "configuration": {"level": 1}}]
    inner = {"chunk_shape": chunk, "codecs": codecs, "index_codecs": [codecs[0], {"name": "crc32c"}]}
    shard = [-(-side // piece) * piece for side, piece in zip(shard, chunk, strict=True)]
    store = tensorstore.open(
        {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": f"{path}/"},
            "metadata": {
                "shape": [height, width],
                "data_type": "uint16",
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shard}},
                "codecs": [{"name": "sharding_indexed", "configuration": inner}],
            },
            "context": {"data_copy_concurrency": {"limit": threads}, "file_io_sync": False},
        },
        create=True,
    ).result()
    pool = _noise(NOISE)

    def write(at: tuple[int, int]) -> None:
        y, x = (slice(i, min(i + side, full)) for i, side, full in zip(at, shard, (height, width), strict=True))
        image = np.float32(20000) + np.float32(AMPLITUDE) * _smooth(y, x, PERIOD)
        image += _at(pool, 7919 * (at[0] * width + at[1]), image.shape)
        image /= STEP
        store[y, x].write(np.rint(image).astype(np.uint16) * np.uint16(STEP)).result()

    with ThreadPoolExecutor(threads) as pool_of_threads:
        list(
            pool_of_threads.map(write, [(i, j) for i in range(0, height, shard[0]) for j in range(0, width, shard[1])])
        )


def make_tiff(path: Path, side: int) -> None:
    """Write the RGB image as BigTIFF in tiles, with Deflate and a predictor."""
    import tifffile

    pool = _noise(COLOUR_NOISE)

    def tiles() -> Iterator[Array]:
        for top in range(0, side, TILE):
            for left in range(0, side, TILE):
                y, x = slice(top, top + TILE), slice(left, left + TILE)
                waves = [_smooth(y, x, COLOUR_PERIOD, phase) for phase in (0.0, 1.0, 2.0)]
                tile = 128 + np.float32(COLOUR_AMPLITUDE) * np.stack(waves, axis=-1)
                tile += _at(pool, 7919 * (top * side + left), tile.shape)
                yield np.clip(np.rint(tile), 0, 255).astype(np.uint8)

    tifffile.imwrite(
        path, tiles(), shape=(side, side, 3), dtype=np.uint8, bigtiff=True, tile=(TILE, TILE), photometric="rgb",
        compression="zlib", predictor=True,
    )  # fmt: skip


def opened(path: Path) -> tuple[tuple[int, ...], np.dtype[Any], Reader]:
    """Return shape, sample type and reader of windows of a Zarr or TIFF image."""
    if path.suffix == ".zarr":
        import tensorstore

        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
        store = tensorstore.open(spec, read=True).result()
        return tuple(store.shape), np.dtype(store.dtype.numpy_dtype), lambda window: store[window].read().result()
    import tifffile

    image = tifffile.imread(path)
    return image.shape, image.dtype, lambda window: image[window]


def deviation(source: Path, result: Path, taps: Array, border: str) -> float:
    """Return the largest difference of a result from the float64 blur of its source, in units of a sample.

    Compared are windows at two corners and at random places. `border` is NumPy's name of the mode. ``ValueError`` if
    shape or sample type of the result differ from those of the source.
    """
    shape, dtype, read = opened(source)
    shape_made, dtype_made, read_made = opened(result)
    if (shape_made, dtype_made) != (shape, dtype):
        raise ValueError(f"its result is {shape_made} of {dtype_made}, not {shape} of {dtype}")
    random, sides = np.random.default_rng(1), [min(SIDE, size) for size in shape[:2]]
    last = [size - side for size, side in zip(shape, sides, strict=False)]
    corners = [[0, 0], last, *([int(random.integers(0, end + 1)) for end in last] for _ in range(WINDOWS - 2))]
    worst = 0.0
    for corner in corners:
        window = tuple(slice(i, i + side) for i, side in zip(corner, sides, strict=True))
        truth = _blurred(read, shape, window, taps, border)
        worst = max(worst, float(np.abs(read_made(window).astype(np.float64) - truth).max()))
    return worst


def _blurred(read: Reader, shape: tuple[int, ...], window: tuple[slice, ...], taps: Array, border: str) -> Array:
    """Return a window of the blur in float64."""
    halo, inside, outside = len(taps) // 2, [], []
    for part, size in zip(window, shape, strict=False):
        inside.append(slice(max(part.start - halo, 0), min(part.stop + halo, size)))
        outside.append((inside[-1].start - part.start + halo, part.stop + halo - inside[-1].stop))
    pixels = read(tuple(inside)).astype(np.float64)
    pixels = np.pad(pixels, [*outside, *[(0, 0)] * (pixels.ndim - 2)], border)  # type: ignore[call-overload]
    for axis in (0, 1):
        pixels = np.lib.stride_tricks.sliding_window_view(pixels, len(taps), axis=axis) @ taps
    return np.asarray(pixels)
