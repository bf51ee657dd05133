"""Host side of the FFT method: a cost model for sizes, overlap-save tiles, SciPy's transforms.

Overlap-save: the circular correlation of a tile with the filter, at the size of the FFT, is correct wherever the
filter does not wrap around. So tiles overlap by the filter's extent minus one, and only correct outputs are kept.
(A. V. Oppenheim and R. W. Schafer, *Discrete-Time Signal Processing*, section 8.7.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.contract import Algorithm, Buffers, Call, Config, Plan, PreparedFilter, Step
from convforge.algorithms.fft.tiling import TRANSFORM, chunked_work, integer_refusal
from convforge.algorithms.host.epilogue import epilogue_arguments, values_dtype
from convforge.algorithms.host.geometry import geometry
from convforge.algorithms.host.outside import outside_steps
from convforge.algorithms.host.views import view
from convforge.algorithms.host.weights import correlation_filter
from convforge.algorithms.host.widened import takes_bfloat16
from convforge.algorithms.host.workspace import Part, carve, nbytes
from convforge.algorithms.traits import Mark, MethodCost
from convforge.backends.cpu.runtime import block_of_items
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem, partition
from convforge.problem.types import itemsize

# Bytes of the tiles of a chunk, their spectra and SciPy's temporary arrays, at most, unless one tile needs more.
CHUNK_BYTES = 32 << 20

# Bytes of the filters' spectra, which a plan keeps, at most: with more, the method refuses the problem.
SPECTRA_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class FftConfig(Config):
    """Size of the transforms, and tiles per chunk."""

    size_h: int  # rows of the FFT: those of a tile with its halo
    size_w: int  # columns of the FFT
    tiles: int  # tiles that are transformed together


@takes_bfloat16
class Fft(Algorithm[Conv2dProblem, FftConfig]):
    """Products of spectra, tile by tile. The cost hardly grows with the filter's size.

    With a stride, every output of stride 1 is computed, and only the strided ones are kept. A dilated filter is
    transformed with its zeros. Sums are float32 or float64, spectra complex64 or complex128. SciPy allocates the
    results of its transforms: these are not part of the workspace, but count as scratch bytes of their launch.
    """

    name = "fft"
    summary = "products in the frequency domain, overlap-save tiles, SciPy's FFT"
    operation = "conv2d"
    since = "direct_rows"
    precision = "fft"
    nan_spread = "image"  # its tile, which may be the whole image
    cost = MethodCost(0.10, 0.4, 1, 2)
    look = Mark("green", "triangle-right")
    preference = TRANSFORM
    work_for = chunked_work

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if (reason := integer_refusal(problem)) is not None:
            return reason
        least = min(_spectra_bytes(problem, *size) for size in _wanted_sizes(problem))
        if least > SPECTRA_BYTES:
            return Reason(
                "the spectra of its {filters} filters would take {size} MiB",
                filters=problem.k * problem.c_per_group,
                size=least >> 20,
            )
        return None

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[FftConfig]:
        """Return the cheapest sizes by :func:`modelled_flops`, the best first."""
        sizes = _sizes(problem)
        fitting = [size for size in sizes if _spectra_bytes(problem, *size) <= SPECTRA_BYTES] or sizes[:1]
        best = sorted(fitting, key=lambda size: modelled_flops(problem, *size))[:4]
        return [FftConfig(*size, _tiles_of_chunk(problem, *size)) for size in best]

    def plan(self, problem: Conv2dProblem, config: FftConfig, runtime: Runtime) -> Plan:
        from convforge.algorithms.fft import cpu

        if config.size_h < problem.extent_h or config.size_w < problem.extent_w or config.tiles < 1:
            raise ValueError(
                f"{config}: the FFT must hold the filter's {problem.extent_h} x {problem.extent_w} pixels, and a chunk "
                "at least one tile"
            )
        boxes = _boxes(problem, config)
        chunk = max(1, min(config.tiles, len(boxes)))
        parts = _parts(problem, config, chunk)
        kernels = tuple(runtime.compile(kernel) for kernel in (cpu.gather, cpu.multiply, cpu.store))
        steps: list[Step] = []
        for first in range(0, len(boxes), chunk):
            steps += _steps(problem, config, parts, boxes[first : first + chunk], kernels, cpu.BLOCK, runtime)
        steps += outside_steps(problem, runtime)

        def prepare(w: Any, stream: Any = None) -> PreparedFilter:
            spectra = _filter_spectra(problem, config, w, runtime.facts.cores)
            return PreparedFilter({"w": spectra}, spectra.nbytes)

        return Plan(self, problem, config, runtime, steps=steps, prepare=prepare, workspace_bytes=nbytes(parts))

    def versions(self) -> dict[str, str]:
        """Version of SciPy, which computes the transforms."""
        import scipy

        return {"scipy": scipy.__version__}


def _steps(problem: Conv2dProblem, config: FftConfig, parts: list[Part], boxes: NDArray[np.int64],
           kernels: tuple[Any, ...], frequencies: int, runtime: Runtime) -> list[Call]:  # fmt: skip
    """Make the two steps of a chunk of tiles: (1) gather; (2) transform, multiply, transform back, store."""
    g, values, cores = geometry(problem), np.empty(0, values_dtype(problem)), runtime.facts.cores
    tiles, size = len(boxes), (config.size_h, config.size_w)
    real, spectrum = _bytes_of_tile(problem, *size)
    pixels, bins = size[0] * size[1], size[0] * (size[1] // 2 + 1)

    def info(name: str, items: int, flops: int, scratch: int = 0) -> LaunchInfo:
        return LaunchInfo(name, (items,), (block_of_items(items, flops, runtime.facts),), scratch_bytes=scratch)

    k, blocks = problem.k, -(-bins // frequencies)
    gather = info("fft_gather", tiles * problem.c, tiles * problem.c * pixels)
    multiply = info("fft_multiply", k * blocks, 8 * tiles * k * problem.c_per_group * bins)
    store = info("fft_store", tiles * k, tiles * k * pixels)
    scratch = tiles * (problem.c * spectrum + k * (spectrum + real))  # bytes that SciPy allocates
    whole = LaunchInfo("rfft2, fft_multiply, irfft2, fft_store", (tiles,), (tiles,), scratch_bytes=scratch)

    def run_gather(buffers: Buffers, stream: Any) -> None:
        buffer = carve(buffers.get("workspace"), parts)[0][:tiles]
        runtime.launch(kernels[0], gather, (view(buffers["x"], problem.x_layout), buffer, boxes, g), stream)

    def run_products(buffers: Buffers, stream: Any) -> None:
        from scipy import fft

        buffer, products = (part[:tiles] for part in carve(buffers.get("workspace"), parts))
        spectra = fft.rfft2(buffer, workers=cores).reshape(tiles, problem.c, bins)
        args = (spectra, buffers["w"].tensors["w"], products.reshape(tiles, k, bins), problem.k_per_group)
        runtime.launch(kernels[1], multiply, args, stream)
        del spectra
        sums = fft.irfft2(products, s=size, workers=cores, overwrite_x=True)
        out, end = view(buffers["out"], problem.out_layout), epilogue_arguments(problem, buffers)
        runtime.launch(kernels[2], store, (sums, boxes, out, g, end, values), stream)

    return [Call(gather, run_gather), Call(whole, run_products)]


def modelled_flops(problem: Conv2dProblem, size_h: int, size_w: int) -> float:
    """Estimate the operations of a call with this transform size: 2.5 n log2(n) for a real FFT of n pixels.

    Examples
    --------
    >>> problem = Conv2dProblem(n=1, c=1, h=512, w=512, k=1, r=31, s=31)
    >>> modelled_flops(problem, 32, 32) > modelled_flops(problem, 128, 128)
    True
    """
    pixels = size_h * size_w
    tile_p, tile_q = _tile(problem, size_h, size_w)
    tiles = problem.n * -(-problem.p // tile_p) * -(-problem.q // tile_q)
    transform = 2.5 * pixels * math.log2(max(pixels, 2))
    product = 4.0 * pixels * problem.k * problem.c_per_group
    # A call transforms the weights unless they are prepared. The last term of a tile is the cost of copying pixels.
    move = 8.0 * pixels * (problem.c + problem.k)
    filters = problem.k * problem.c_per_group * transform
    return tiles * ((problem.c + problem.k) * transform + product + move) + filters


def _sizes(problem: Conv2dProblem) -> list[tuple[int, int]]:
    """Return sizes to compare: each wanted size, rounded up to one that the FFT is fast for."""
    from scipy.fft import next_fast_len

    return sorted({(int(next_fast_len(h, real=True)), int(next_fast_len(w, real=True)))
                   for h, w in _wanted_sizes(problem)})  # fmt: skip


def _wanted_sizes(problem: Conv2dProblem) -> set[tuple[int, int]]:
    """Multiples of the filter's extent, up to the size of the whole image if that is small."""

    def axis(extent: int, stride: int, outputs: int, factor: float) -> int:
        whole = (outputs - 1) * stride + extent
        return math.ceil(min(max(extent * factor, extent + 3), whole))

    whole = [math.inf] if problem.p * problem.q <= 1 << 20 else []
    return {
        (
            axis(problem.extent_h, problem.stride[0], problem.p, factor),
            axis(problem.extent_w, problem.stride[1], problem.q, factor),
        )
        for factor in (1.5, 2, 3, 4, 6, 8, 12, 16, 32, 64, *whole)
    }


def _tile(problem: Conv2dProblem, size_h: int, size_w: int) -> tuple[int, int]:
    """Outputs of a tile along each axis: those with their window inside the transform."""
    return (size_h - problem.extent_h) // problem.stride[0] + 1, (size_w - problem.extent_w) // problem.stride[1] + 1


def _boxes(problem: Conv2dProblem, config: FftConfig) -> NDArray[np.int64]:
    tiles = list(partition.boxes(problem, *_tile(problem, config.size_h, config.size_w)))
    return np.array([(n, *tile) for n in range(problem.n) for tile in tiles], np.int64).reshape(-1, 5)


def _parts(problem: Conv2dProblem, config: FftConfig, tiles: int) -> list[Part]:
    """Workspace of a chunk: the gathered tiles, and the products of their spectra."""
    h, w, acc = config.size_h, config.size_w, np.dtype(problem.acc_dtype)
    return [((tiles, problem.c, h, w), acc), ((tiles, problem.k, h, w // 2 + 1), np.result_type(acc, np.complex64))]


def _bytes_of_tile(problem: Conv2dProblem, size_h: int, size_w: int) -> tuple[int, int]:
    """Bytes of one channel of a tile, and of the spectrum of one channel."""
    element = itemsize(problem.acc_dtype)
    return size_h * size_w * element, size_h * (size_w // 2 + 1) * 2 * element


def _spectra_bytes(problem: Conv2dProblem, size_h: int, size_w: int) -> int:
    return problem.k * problem.c_per_group * _bytes_of_tile(problem, size_h, size_w)[1]


def _tiles_of_chunk(problem: Conv2dProblem, size_h: int, size_w: int) -> int:
    real, spectrum = _bytes_of_tile(problem, size_h, size_w)
    each = problem.c * (real + spectrum) + problem.k * (2 * spectrum + real)
    tile_p, tile_q = _tile(problem, size_h, size_w)
    tiles = problem.n * -(-problem.p // tile_p) * -(-problem.q // tile_q)
    return max(1, min(CHUNK_BYTES // each, tiles))


def _filter_spectra(problem: Conv2dProblem, config: FftConfig, w: Any, cores: int) -> NDArray[np.generic]:
    """Return conj(FFT) of each filter with its dilation's zeros, (K, C / groups, F); conj makes it a correlation."""
    from scipy import fft

    taps = correlation_filter(problem, w)
    if problem.dilation != (1, 1):
        spread = np.zeros((*taps.shape[:2], problem.extent_h, problem.extent_w), taps.dtype)
        spread[:, :, :: problem.dilation[0], :: problem.dilation[1]] = taps
        taps = spread
    spectra: NDArray[Any] = fft.rfft2(
        np.asarray(taps, problem.acc_dtype), s=(config.size_h, config.size_w), workers=cores
    )
    np.conjugate(spectra, out=spectra)
    return spectra.reshape(problem.k, problem.c_per_group, -1)
