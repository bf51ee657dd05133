"""The expansion of im2col on GPUs, and its product as a convolution with filters of 1x1.

The columns of the matrix are the pixels of that convolution, and the entries of a column are their channels. So its
output and its epilogue are those of the layer itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from convforge.algorithms.contract import Buffers, Launch, Preparation
from convforge.algorithms.gemm.by_convolution import MOST_K, ByConvolution, GemmSplitMma, GemmTf32Mma
from convforge.algorithms.host.chained import Chained, on_views
from convforge.algorithms.host.conv import (
    MOST_BLOCKS,
    ArrayView,
    WeightPacker,
    address,
    conv_constants,
    fill,
    with_conv,
)
from convforge.algorithms.implicit_gemm.mma import ImplicitMmaConfig, rows_pay
from convforge.algorithms.implicit_gemm.split_mma import SplitMmaConfig
from convforge.algorithms.traits import Way
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import WIDE, itemsize

THREADS = 256
ALIGNMENT = 256  # alignment of the columns in the workspace, in bytes


class Expansion:
    """Kernel that writes the matrix of one problem; `entries` is the type of the matrix's entries."""

    def __init__(self, problem: Conv2dProblem, runtime: Runtime, entries: str) -> None:
        self._problem, self._runtime = problem, runtime
        self._column = problem.c * problem.r * problem.s * itemsize(entries)
        self._read = _bytes_read(problem)
        # Neighbouring columns that a thread stores at once. Four take so many registers that too few threads run. With
        # many taps, the unrolled code of two would be large.
        self._per = 2 if problem.r * problem.s <= 64 else 1
        self._struct = with_conv(
            "Expansion", problem, columns=ctypes.c_void_p, first=ctypes.c_longlong, count=ctypes.c_int
        )
        own = constants(THREADS=THREADS, PIXELS_CONTIGUOUS=pixels_contiguous(problem), PER=self._per)
        lines = (*conv_constants(problem, entries), *own)
        source = KernelSource("algorithms/im2col/im2col.cu", "im2col", lines, self._struct, "Expansion")
        self._kernel = runtime.compile(source)
        self._info = cache(self._described)

    def nbytes(self, count: int) -> int:
        """Bytes of `count` columns, rounded up to a multiple of ALIGNMENT."""
        return -(-count * self._column // ALIGNMENT) * ALIGNMENT

    def launch(self, first: int, count: int) -> Launch:
        """Launch that writes columns [first, first + count) of the matrix to the workspace."""
        total = self._problem.n * self._problem.p * self._problem.q
        moved = self._column * count + self._read * (first + count) // total - self._read * first // total

        def arguments(buffers: Buffers) -> Any:
            args = self._struct(columns=columns_at(buffers), first=first, count=count)
            fill(args.conv, self._problem, buffers)
            return args

        return Launch(self._info(count), self._kernel, arguments, self._runtime, "expansion", moved)

    def _described(self, count: int) -> LaunchInfo:
        grid: tuple[int, ...] = (-(-count * self._problem.c // THREADS),)
        if pixels_contiguous(self._problem):
            grid = (-(-count // (THREADS * self._per)), min(self._problem.c, MOST_BLOCKS))
        return self._runtime.describe(self._kernel, LaunchInfo("im2col", grid, (THREADS,)))


def pixels_contiguous(problem: Conv2dProblem) -> bool:
    """True if neighbours in the matrix are pixels, so that rows are entries (c, r, s); else they are channels."""
    return problem.x_layout != "NHWC" or problem.c_per_group < 16  # 16 channels fill a line of memory


def columns_at(buffers: Buffers) -> int:
    return -(-address(buffers["workspace"]) // ALIGNMENT) * ALIGNMENT


def _bytes_read(problem: Conv2dProblem) -> int:
    """Bytes of x that some window reads: strides may skip pixels. Pixels that only a border reads do not count."""

    def read(size: int, outputs: int, taps: int, stride: int, dilation: int, before: int) -> int:
        at = np.add.outer(np.arange(outputs) * stride, np.arange(taps) * dilation - before).ravel()
        return len(np.unique(at[(at >= 0) & (at < size)]))

    rows = read(problem.h, problem.p, problem.r, problem.stride[0], problem.dilation[0], problem.padding[0])
    columns = read(problem.w, problem.q, problem.s, problem.stride[1], problem.dilation[1], problem.padding[2])
    return problem.n * problem.c * rows * columns * itemsize(problem.x_dtype)


# The first is as exact as sums of float32; the second rounds factors to TF32.
BY_CONVOLUTION: dict[str, type[ByConvolution[Any]]] = {product.name: product for product in (GemmSplitMma, GemmTf32Mma)}

C = TypeVar("C")


class Chunk(NamedTuple):
    """Output rows [row, row + height) of images [image, image + images); several images have all their rows."""

    image: int
    images: int
    row: int
    height: int


class ConvolvedProduct:
    """Steps and preparation of a plan that multiplies by a convolution: an expansion and a product a chunk.

    `gemm` is a key of :data:`BY_CONVOLUTION`. A chunk has at most `columns` columns, but at least one row of outputs.
    `tile` is the index of the convolution's config. Raises ValueError if there is no such config.
    """

    def __init__(self, problem: Conv2dProblem, gemm: str, columns: int, tile: int, runtime: Runtime) -> None:
        method = BY_CONVOLUTION[gemm].convolution(runtime.facts.backend)
        chunks = chunks_of(problem, columns)
        sizes = {(chunk.images, chunk.height) for chunk in chunks} or {(problem.n, problem.p)}
        images, height = widest = max(sizes)
        row = convolution_of(problem, 1, 1).replace(w=columns)  # only this number decides the order of configs
        config = chosen(method.configs(row, runtime.facts), tile, gemm)
        plans = {size: method.plan(convolution_of(problem, *size), config, runtime) for size in sizes}
        expansion = Expansion(problem, runtime, problem.acc_dtype)
        matrix = expansion.nbytes(images * height * problem.q)

        self.steps: list[Launch] = []
        for chunk in chunks:
            count = chunk.images * chunk.height * problem.q
            self.steps.append(expansion.launch((chunk.image * problem.p + chunk.row) * problem.q, count))
            arrays = partial(_arrays, problem=problem, chunk=chunk, room=matrix)
            for step in cast(Sequence[Launch], plans[chunk.images, chunk.height].steps):
                # Columns are aligned, so no plan for unaligned arrays is needed.
                self.steps.append(replace(on_views(step, arrays), role="product", otherwise=None))
        self.prepare = _filters(problem, cast(Preparation, plans[widest].preparation), runtime)
        self.workspace_bytes = ALIGNMENT - 1 + matrix + plans[widest].workspace_bytes if chunks else 0


def chosen(configs: Sequence[C], tile: int, gemm: str) -> C:
    """The config with index `tile`. Raises ValueError if there are fewer configs."""
    if not 0 <= tile < len(configs):
        raise ValueError(f"tile={tile} of im2col: {gemm} has tilings 0 to {len(configs) - 1}")
    return configs[tile]


def _filters(problem: Conv2dProblem, filters: Preparation, runtime: Runtime) -> Preparation:
    """Preparation that writes the weights in the order of a column's entries, then prepares them as 1x1 filters."""
    packer = WeightPacker(problem, runtime, "KCRS" if pixels_contiguous(problem) else "KRSC")
    size = itemsize(problem.acc_dtype)

    def view(at: int) -> ArrayView:
        return ArrayView(at, (problem.k, problem.taps, 1, 1), (problem.taps * size, size, size, size), size)

    steps = [on_views(step, lambda buffers: {**buffers, "w": buffers["entries"]}) for step in packer.steps]
    return Chained(
        runtime, steps, filters.of(view(0)), "entries", packer.pieces["w"],  # 0 is an aligned address
        lambda buffers: view(address(buffers["entries"])),
    )  # fmt: skip


def chunks_of(problem: Conv2dProblem, columns: int) -> list[Chunk]:
    """Cut the columns into chunks of about equally many images, or of output rows where an image does not fit."""
    n, p, q = problem.n, problem.p, problem.q
    if images := min(columns // (p * q), n):
        images = -(-n // -(-n // images))
        return [Chunk(at, min(images, n - at), 0, p) for at in range(0, n, images)]
    rows = max(columns // q, 1)
    return [Chunk(image, 1, row, min(rows, p - row)) for image in range(n) for row in range(0, p, rows)]


def convolution_of(problem: Conv2dProblem, images: int, height: int) -> Conv2dProblem:
    """The 1x1 convolution that computes `height` output rows of `images` images from their columns.

    Examples
    --------
    >>> from convforge.problem import parse_problem
    >>> str(convolution_of(parse_problem("n9c32h8w9_k64r3s3_p1_f32_nhwc_+relu"), 2, 8))
    'n2c288h8w9_k64r1s1_st1_p0_f32_nhwc_+relu'
    """
    entries = problem.acc_dtype
    return Conv2dProblem(
        n=images, c=problem.c * problem.r * problem.s, h=height, w=problem.q, k=problem.k, r=1, s=1,
        groups=problem.groups, x_dtype=entries, w_dtype=entries, out_dtype=problem.out_dtype, acc_dtype=entries,
        x_layout="NCHW" if pixels_contiguous(problem) else "NHWC", out_layout=problem.out_layout,
        epilogue=problem.epilogue,
    )  # fmt: skip


def why_not_convolved(problem: Conv2dProblem, gemm: str, facts: DeviceFacts) -> Reason | None:
    """The reason why this convolution cannot compute the product; None if it can."""
    if problem.acc_dtype != "float32":
        return Reason("it multiplies float32, not {dtype}", dtype=problem.acc_dtype)
    if (entries := problem.c * problem.r * problem.s) > MOST_K:
        return Reason("a column has at most {most} entries, not {count}", most=MOST_K, count=entries)
    if (outputs := problem.k * problem.p * problem.q) > WIDE:
        return Reason("an image of the result has at most {most} numbers, not {count}", most=WIDE, count=outputs)
    method = BY_CONVOLUTION[gemm].convolution(facts.backend)
    return method.refuses(convolution_of(problem, problem.n, problem.p), facts)


def ways_of_convolved(problem: Conv2dProblem, gemm: str) -> tuple[Way, ...]:
    """The ways of a call that multiplies by this convolution."""
    words = Reason("the product is a convolution of 1x1: columns of the matrix are pixels, and entries their channels")
    inner = convolution_of(problem, problem.n, problem.p)
    config = SplitMmaConfig() if gemm == GemmSplitMma.name else ImplicitMmaConfig(repacked=rows_pay(inner))
    ways = BY_CONVOLUTION[gemm].convolution().ways(inner, config)
    return Way("convolution", "default", words), *(way for way in ways if way.outcome != "arrays")


def _arrays(buffers: Buffers, problem: Conv2dProblem, chunk: Chunk, room: int) -> Buffers:
    """The arrays of a chunk's convolution; the columns take `room` bytes of the workspace."""
    at, size = columns_at(buffers), itemsize(problem.acc_dtype)
    (images, height), q, entries = (chunk.images, chunk.height), problem.q, problem.c * problem.r * problem.s
    if pixels_contiguous(problem):
        row = images * height * q * size
        x = ArrayView(at, (images, entries, height, q), (height * q * size, row, q * size, size), size)
    else:
        column = entries * size
        x = ArrayView(at, (images, height, q, entries), (height * q * column, q * column, column, size), size)
    outer = {name: _part(buffers[name], chunk, problem.out_layout) for name in ("out", "residual") if name in buffers}
    return {**buffers, **outer, "x": x, "workspace": ArrayView(at + room, (), (), 1)}


def _part(array: Any, chunk: Chunk, layout: str) -> ArrayView:
    """View of a chunk's part of an array that has the shape of the output."""
    shape, row = list(array.shape), layout.index("H")
    shape[0], shape[row] = chunk.images, chunk.height
    at = address(array) + chunk.image * array.strides[0] + chunk.row * array.strides[row]
    return ArrayView(at, tuple(shape), tuple(array.strides), array.itemsize)
