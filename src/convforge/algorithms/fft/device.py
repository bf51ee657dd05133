"""The FFT method on GPUs: chunks of overlap-save tiles pass through three kernels and two library transforms."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from convforge.algorithms.contract import Buffers, Call, Config, Launch, Plan, PreparedFilter
from convforge.algorithms.direct.blocks import even_share
from convforge.algorithms.fft.tiling import TRANSFORM, Tiling, chunked_work, integer_refusal, sizes, tiling
from convforge.algorithms.host.conv import address, conv_constants, fill, with_conv
from convforge.algorithms.host.element_types import ElementTypes
from convforge.algorithms.host.on_device import DeviceConvolution
from convforge.algorithms.host.outside import outside_steps
from convforge.algorithms.traits import Mark, MethodCost
from convforge.backends.facts import DeviceFacts
from convforge.backends.fft import RealFft, Transform
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize

# Threads of a block of each kernel, and the box of numbers that a block of gather.cu or scatter.cu copies.
THREADS = {"fft_gather": 256, "fft_filter": 256, "fft_multiply": 128, "fft_scatter": 256}
BOX_COLUMNS, BOX_LINES = 32, 32

# The filters' spectra may take the device memory divided by this.
SPECTRA_SHARE = 8

# Alignment of the workspace's buffers, in bytes.
ALIGNMENT = 256

# L2 size of a device that does not report it, in bytes.
L2_BYTES = 32 << 20

# Transform sizes that are worth trying, at most.
MOST_SIZES = 6


@dataclass(frozen=True, slots=True)
class FftConfig(Config):
    """Transform size and chunk size of the FFT method on GPUs."""

    size_h: int  # rows of a transform: those of a tile with its halo
    size_w: int  # columns of a transform; even
    # MiB of the tiles, spectra and products of a chunk, at most, so that it stays in L2; 0: one tile of one group.
    chunk_mib: int = field(metadata={"least": 0})


class Fft(DeviceConvolution[FftConfig]):
    """Products of spectra, tile by tile: gather, transform, multiply, transform back, scatter.

    With a stride, every output of stride 1 is computed, and only the strided ones are kept. A dilated filter is
    transformed with its zeros. Transforms are in place; products are too if every filter has one channel.
    """

    name = "fft"
    summary = "products in the frequency domain, overlap-save tiles in chunks that stay in L2, a library's FFT"
    since = "depthwise_planes"
    precision = "fft"
    nan_spread = "image"  # its tile, which may be the whole image
    cost = MethodCost(0.30, 0.7, 4096, 5)
    look = Mark("green", "triangle-right")
    preference = TRANSFORM
    work_for = chunked_work

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if (reason := integer_refusal(problem)) is not None:
            return reason
        least = min(_spectra_bytes(problem, tiling(problem, *size)) for size in sizes(problem))
        if least > facts.memory_bytes // SPECTRA_SHARE:
            return Reason(
                "the spectra of its {filters} filters would take {size} MiB",
                filters=problem.k * problem.c_per_group,
                size=least >> 20,
            )
        return Reason.quoted(facts.no_fft) if facts.no_fft else None

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[FftConfig]:
        """Sizes with chunks of half the L2 cache first; then the best size with other chunks."""
        room = facts.memory_bytes // SPECTRA_SHARE
        fitting = [size for size in sizes(problem) if _spectra_bytes(problem, tiling(problem, *size)) <= room]
        half = max(1, (facts.l2_bytes or L2_BYTES) // 2 >> 20)
        cut = tiling(problem, *fitting[0])
        whole = problem.n * cut.down * cut.across * problem.groups * _group_bytes(problem, cut)
        found = [FftConfig(*size, half) for size in fitting[:MOST_SIZES]]
        chunks = (half // 2, 2 * half, min(room, whole) + (1 << 20) - 1 >> 20, 0)
        return list(dict.fromkeys(found + [FftConfig(*fitting[0], mib) for mib in chunks]))

    def plan(self, problem: Conv2dProblem, config: FftConfig, runtime: Runtime) -> Plan:
        if config.chunk_mib < 0:
            raise ValueError(f"{config}: a chunk has at least 0 MiB")
        cut = tiling(problem, config.size_h, config.size_w)
        steps = _Steps(problem, cut, runtime)
        launches = [step for chunk in _chunks(problem, cut, config.chunk_mib << 20) for step in steps.of(chunk)]
        launches += outside_steps(problem, runtime)
        return Plan(self, problem, config, runtime, steps=launches, prepare=_Spectra(problem, cut, runtime),
                    workspace_bytes=steps.workspace_bytes)  # fmt: skip

    def versions(self) -> dict[str, str]:
        if self.backend == "cuda":
            from convforge.backends.cuda.fft import cufft_version

            return {"cufft": cufft_version()}
        import scipy

        return {"scipy": scipy.__version__}


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk: `count` tiles of the batch from tile `first` on, with `groups` of their groups from `group` on."""

    first: int
    count: int
    group: int
    groups: int


def _chunks(problem: Conv2dProblem, cut: Tiling, nbytes: int) -> Iterator[_Chunk]:
    """Cut the batch into equal chunks of tiles; if a tile has more than `nbytes` bytes, cut its groups too."""
    total = problem.n * cut.down * cut.across
    if total > 2**31 - 1:
        raise ValueError(f"{total} tiles are more than the kernels can count; take a larger size of transform")
    each = _group_bytes(problem, cut)
    groups = even_share(problem.groups, nbytes // each)
    count = even_share(max(total, 1), nbytes // (each * groups)) if groups == problem.groups else 1
    for first in range(0, total, count):
        for group in range(0, problem.groups, groups):
            yield _Chunk(first, min(count, total - first), group, min(groups, problem.groups - group))


def _in_place(problem: Conv2dProblem) -> bool:
    """True if products can overwrite the spectra."""
    return problem.c_per_group == problem.k_per_group == 1


def _group_bytes(problem: Conv2dProblem, cut: Tiling) -> int:
    """Bytes of the spectra and products of one group of a tile."""
    channels = problem.c_per_group + (0 if _in_place(problem) else problem.k_per_group)
    return channels * cut.points * 2 * itemsize(problem.acc_dtype)


def _spectra_bytes(problem: Conv2dProblem, cut: Tiling) -> int:
    return problem.k * problem.c_per_group * cut.points * 2 * itemsize(problem.acc_dtype)


def _interleaved(channels: int, layout: str) -> int:
    """Channels of a block of gather.cu or scatter.cu: in NHWC up to 32 of a pixel (a memory line)."""
    return min(channels, 32) if layout == "NHWC" else 1


class _Tiles(ctypes.Structure):
    """The ctypes mirror of struct Tiles in fft.cuh."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("first", "channel", "channels", "size_h", "pitch", "tile_p", "tile_q")),
        ("across", ctypes.c_int), ("down", ctypes.c_int),
    )  # fmt: skip


class _Multiply(ctypes.Structure):
    """The ctypes mirror of struct Multiply in multiply.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("spectra", "filters", "products")),
        *((name, ctypes.c_int) for name in ("frequencies", "count", "groups")),
    )


class _Steps:
    """Make the steps of chunks; these share one workspace for spectra, products and the transforms' own needs."""

    def __init__(self, problem: Conv2dProblem, cut: Tiling, runtime: Runtime) -> None:
        self._problem, self._cut, self._runtime = problem, cut, runtime
        self._gather_struct = with_conv("Gather", problem, tiles=_Tiles, span_h=ctypes.c_int, span_w=ctypes.c_int)
        self._scatter_struct = with_conv("Scatter", problem, tiles=_Tiles)
        self._interleaved_x = _interleaved(problem.c, problem.x_layout)
        self._interleaved_out = _interleaved(problem.k, problem.out_layout)
        self._tile_k = min(4, problem.k_per_group)
        self._tile_t = 4 if self._tile_k > 1 else 8
        prelude = conv_constants(problem)
        own = constants(C_GROUP=problem.c_per_group, K_GROUP=problem.k_per_group, TILE_K=self._tile_k,
                        TILE_T=self._tile_t)  # fmt: skip
        types = ElementTypes(acc=problem.acc_dtype).prelude()

        def compiled(name: str, constants_of: tuple[str, ...], struct: Any) -> Any:
            path, title = f"algorithms/fft/{name}.cu", name.capitalize()
            return runtime.compile(KernelSource(path, f"fft_{name}", constants_of, struct, title))

        of_x, of_out = constants(INTERLEAVED=self._interleaved_x), constants(INTERLEAVED=self._interleaved_out)
        self._kernels = {
            "fft_gather": compiled("gather", (*prelude, *of_x), self._gather_struct),
            "fft_multiply": compiled("multiply", (*types, *own), _Multiply),
            "fft_scatter": compiled("scatter", (*prelude, *of_out), self._scatter_struct),
        }
        self._transforms: dict[tuple[int, bool], Transform] = {}
        self._spectra_bytes = self._products_bytes = self._work_bytes = 0

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the workspace that all chunks so far share."""
        used = self._spectra_bytes + self._products_bytes + self._work_bytes
        return used + ALIGNMENT - 1 if used else 0

    def of(self, chunk: _Chunk) -> list[Launch | Call]:
        """Make the five steps of a chunk."""
        problem, cut, size = self._problem, self._cut, itemsize(self._problem.acc_dtype)
        planes_x, planes_out = (
            chunk.count * chunk.groups * each for each in (problem.c_per_group, problem.k_per_group)
        )
        plane, share = cut.points * 2 * size, chunk.count * chunk.groups / max(1, self._total)
        self._spectra_bytes = max(self._spectra_bytes, _aligned(planes_x * plane))
        if not _in_place(problem):
            self._products_bytes = max(self._products_bytes, _aligned(planes_out * plane))
        there, back = self._transform(planes_x, inverse=False), self._transform(planes_out, inverse=True)
        x_bytes = round(share * problem.n * problem.c * problem.h * problem.w * itemsize(problem.x_dtype))
        out_bytes = round(share * problem.n * problem.k * problem.p * problem.q * itemsize(problem.out_dtype))
        gather, multiply, scatter = self._infos(chunk)

        def fill_gather(buffers: Buffers) -> Any:
            args = self._gather_struct(tiles=self._tiles(buffers, chunk, products=False))
            args.span_h, args.span_w = cut.span_h, cut.span_w
            fill(args.conv, problem, buffers)
            return args

        def fill_multiply(buffers: Buffers) -> Any:
            filters = buffers["w"].tensors["spectra"]
            first = chunk.group * problem.k_per_group * problem.c_per_group * plane
            return _Multiply(
                self._at(buffers, False), address(filters) + first, self._at(buffers, True),
                cut.points, chunk.count, chunk.groups,
            )  # fmt: skip

        def fill_scatter(buffers: Buffers) -> Any:
            args = self._scatter_struct(tiles=self._tiles(buffers, chunk, products=True))
            fill(args.conv, problem, buffers)
            return args

        def run(transform: Transform, planes: int, products: bool) -> Any:
            return lambda buffers, stream: transform(*self._pieces(buffers, products, planes * plane), stream)

        filter_bytes = chunk.groups * problem.k_per_group * problem.c_per_group * plane
        return [
            self._launch(gather, fill_gather, "gather", x_bytes + planes_x * plane),
            Call(_library(there, planes_x), run(there, planes_x, False), "transform", 2 * planes_x * plane),
            self._launch(multiply, fill_multiply, "multiply", (planes_x + planes_out) * plane + filter_bytes),
            Call(_library(back, planes_out), run(back, planes_out, True), "transform back", 2 * planes_out * plane),
            self._launch(scatter, fill_scatter, "scatter", planes_out * plane + out_bytes),
        ]

    @property
    def _total(self) -> int:
        return self._problem.n * self._cut.down * self._cut.across * self._problem.groups

    def _transform(self, planes: int, *, inverse: bool) -> Transform:
        key = (planes, inverse)
        if key not in self._transforms:
            self._transforms[key] = made = _made(self._problem, self._cut, planes, inverse, self._runtime)
            self._work_bytes = max(self._work_bytes, made.workspace_bytes)
        return self._transforms[key]

    def _infos(self, chunk: _Chunk) -> Iterator[LaunchInfo]:
        problem, cut = self._problem, self._cut
        over_k = chunk.groups * -(-problem.k_per_group // self._tile_k)
        blocks = {
            "fft_gather": chunk.count * _boxes(chunk.groups * problem.c_per_group, self._interleaved_x, cut.size_h,
                                               2 * cut.pitch),
            "fft_multiply": _parts(cut.points, "fft_multiply") * over_k * -(-chunk.count // self._tile_t),
            "fft_scatter": chunk.count * _boxes(chunk.groups * problem.k_per_group, self._interleaved_out, cut.tile_p,
                                                cut.tile_q),
        }  # fmt: skip
        for name, count in blocks.items():
            yield self._runtime.describe(self._kernels[name], LaunchInfo(name, (count,), (THREADS[name],)))

    def _launch(self, info: LaunchInfo, arguments: Callable[[Buffers], Any], role: str, least_bytes: int) -> Launch:
        return Launch(info, self._kernels[info.kernel], arguments, self._runtime, role, least_bytes)

    def _tiles(self, buffers: Buffers, chunk: _Chunk, products: bool) -> _Tiles:
        cut, each = self._cut, self._problem.k_per_group if products else self._problem.c_per_group
        return _Tiles(
            self._at(buffers, products), chunk.first, chunk.group * each, chunk.groups * each,
            cut.size_h, 2 * cut.pitch, cut.tile_p, cut.tile_q, cut.across, cut.down,
        )  # fmt: skip

    def _begin(self, buffers: Buffers, products: bool) -> int:
        """Offset in the workspace of the spectra, or of the products, in bytes."""
        lead = -address(buffers["workspace"]) % ALIGNMENT
        return lead + (self._spectra_bytes if products and self._products_bytes else 0)

    def _at(self, buffers: Buffers, products: bool) -> int:
        return address(buffers["workspace"]) + self._begin(buffers, products)

    def _pieces(self, buffers: Buffers, products: bool, nbytes: int) -> tuple[Any, Any]:
        """Slices of the workspace: the batch to transform, and the transform's own workspace."""
        first = self._begin(buffers, products)
        work = self._begin(buffers, False) + self._spectra_bytes + self._products_bytes
        return buffers["workspace"][first : first + nbytes], buffers["workspace"][work : work + self._work_bytes]


class _Spectra:
    """Prepare filters: copy each to a zero-padded tile of its own, and transform it."""

    def __init__(self, problem: Conv2dProblem, cut: Tiling, runtime: Runtime) -> None:
        self._problem, self._cut, self._runtime = problem, cut, runtime
        fields = [
            ("w", ctypes.c_void_p), ("tiles", ctypes.c_void_p), ("strides", ctypes.c_longlong * 4),
            ("scale", ctypes.c_double if problem.acc_dtype == "float64" else ctypes.c_float),
            *((name, ctypes.c_int) for name in ("size_h", "pitch", "flip")),
        ]  # fmt: skip
        self._struct: Any = type("Filter", (ctypes.Structure,), {"_fields_": fields})
        types = ElementTypes(w=problem.w_dtype, acc=problem.acc_dtype).prelude()
        own = constants(C_GROUP=problem.c_per_group, R=problem.r, S=problem.s, DILATION_H=problem.dilation[0],
                        DILATION_W=problem.dilation[1])  # fmt: skip
        source = KernelSource("algorithms/fft/filter.cu", "fft_filter", (*types, *own), self._struct, "Filter")
        self._kernel = runtime.compile(source)
        self._planes = problem.k * problem.c_per_group
        blocks = self._planes * _parts(2 * cut.points, "fft_filter")
        info = LaunchInfo("fft_filter", (blocks,), (THREADS["fft_filter"],))
        self._info = runtime.describe(self._kernel, info)
        self._transform = _made(problem, cut, self._planes, False, runtime)

    def __call__(self, w: Any, stream: Any = None) -> PreparedFilter:
        """Return the spectra of these weights, (K, C / groups, size_h, pitch), divided by the points of a transform."""
        problem, cut, runtime = self._problem, self._cut, self._runtime
        spectra = runtime.empty((problem.k, problem.c_per_group, cut.size_h, 2 * cut.pitch), problem.acc_dtype, stream)
        strides = (ctypes.c_longlong * 4)(*(step // w.itemsize for step in w.strides))
        args = self._struct(address(w), address(spectra), strides, 1 / (cut.size_h * cut.size_w), cut.size_h,
                            2 * cut.pitch, int(problem.mode == "convolution"))  # fmt: skip
        runtime.launch(self._kernel, self._info, args, stream)
        room = runtime.allocate(self._transform.workspace_bytes, stream)
        self._transform(spectra, room, stream)
        return PreparedFilter({"spectra": spectra}, int(spectra.nbytes))


def _made(problem: Conv2dProblem, cut: Tiling, planes: int, inverse: bool, runtime: Runtime) -> Transform:
    return runtime.fft(RealFft(cut.size_h, cut.size_w, cut.pitch, planes, problem.acc_dtype, inverse))


def _library(transform: Transform, planes: int) -> LaunchInfo:
    """Launch info of a library step, which chooses its own grid."""
    return LaunchInfo(transform.kernel, (planes,), (1,))


def _boxes(channels: int, interleaved: int, rows: int, columns: int) -> int:
    """Number of boxes of a tile; see gather.cu."""
    lines = max(1, BOX_LINES // interleaved)
    return -(-channels // interleaved) * -(-rows // lines) * -(-columns // BOX_COLUMNS)


def _parts(numbers: int, kernel: str) -> int:
    return -(-numbers // THREADS[kernel])


def _aligned(nbytes: int) -> int:
    return math.ceil(nbytes / ALIGNMENT) * ALIGNMENT
