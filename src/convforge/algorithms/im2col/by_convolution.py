"""The expansion of im2col on GPUs, and its product as a convolution with filters of 1x1.

Columns of the matrix are pixels, and the entries of a column are their channels. So the convolution has the output and
the epilogue of the layer itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from convforge.algorithms.contract import Buffers, Launch, Preparation
from convforge.algorithms.gemm.by_convolution import MOST_K, ByConvolution, Chained, GemmSplitMma, GemmTf32Mma, on_views
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
ALIGNMENT = 256  # of the columns in the workspace, in bytes


class Expansion:
    """The expansion's kernel for one problem; `entries` is the type of the matrix's entries."""

    def __init__(self, problem: Conv2dProblem, runtime: Runtime, entries: str) -> None:
        self._problem, self._runtime = problem, runtime
        self._column = problem.c * problem.r * problem.s * itemsize(entries)
        self._read = _bytes_read(problem)
        # Neighbouring columns of a thread, stored at once: four need so many registers that too few threads run. With
        # more taps the unrolled code of two would be large.
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
        """Bytes of so many columns, in multiples of ALIGNMENT."""
        return -(-count * self._column // ALIGNMENT) * ALIGNMENT

    def launch(self, first: int, count: int) -> Launch:
        """The launch that writes columns [first, first + count) of all to the workspace."""
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
    """Tell if neighbours in the matrix are pixels, so that rows are entries (c, r, s); else they are channels."""
    return problem.x_layout != "NHWC" or problem.c_per_group < 16  # with more, they fill a line of memory


def columns_at(buffers: Buffers) -> int:
    return -(-address(buffers["workspace"]) // ALIGNMENT) * ALIGNMENT


def _bytes_read(problem: Conv2dProblem) -> int:
    """Bytes of x under some window: strides may skip rows and columns. Pixels that only a border reads do not count."""

    def read(size: int, outputs: int, taps: int, stride: int, dilation: int, before: int) -> int:
        at = np.add.outer(np.arange(outputs) * stride, np.arange(taps) * dilation - before).ravel()
        return len(np.unique(at[(at >= 0) & (at < size)]))

    rows = read(problem.h, problem.p, problem.r, problem.stride[0], problem.dilation[0], problem.padding[0])
    columns = read(problem.w, problem.q, problem.s, problem.stride[1], problem.dilation[1], problem.padding[2])
    return problem.n * problem.c * rows * columns * itemsize(problem.x_dtype)


# As exact as sums of float32, and of numbers rounded to TF32.
BY_CONVOLUTION: dict[str, type[ByConvolution[Any]]] = {product.name: product for product in (GemmSplitMma, GemmTf32Mma)}

C = TypeVar("C")


class Chunk(NamedTuple):
    """Output rows [row, row + height) of images [image, image + images); several images have all their rows."""

    image: int
    images: int
    row: int
    height: int


class ConvolvedProduct:
    """Steps and preparation of a plan whose product is a convolution: an expansion for each chunk, then its product.

    `gemm` is a key of :data:`BY_CONVOLUTION`. A chunk has at most `columns`, but at least a row of outputs. `tile` is
    the index of the convolution's config; ValueError if it has fewer.
    """

    def __init__(self, problem: Conv2dProblem, gemm: str, columns: int, tile: int, runtime: Runtime) -> None:
        method = BY_CONVOLUTION[gemm].convolution(runtime.facts.backend)
        chunks = chunks_of(problem, columns)
        sizes = {(chunk.images, chunk.height) for chunk in chunks} or {(problem.n, problem.p)}
        images, height = widest = max(sizes)
        row = convolution_of(problem, 1, 1).replace(w=columns)  # the number of columns alone orders the configs
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
                # Columns are aligned, so no other plan is needed.
                self.steps.append(replace(on_views(step, arrays), role="product", otherwise=None))
        self.prepare = _filters(problem, cast(Preparation, plans[widest].preparation), runtime)
        self.workspace_bytes = ALIGNMENT - 1 + matrix + plans[widest].workspace_bytes if chunks else 0


def chosen(configs: Sequence[C], tile: int, gemm: str) -> C:
    """The config with this index; ValueError if there are fewer."""
    if not 0 <= tile < len(configs):
        raise ValueError(f"tile={tile} of im2col: {gemm} has tilings 0 to {len(configs) - 1}")
    return configs[tile]


def _filters(problem: Conv2dProblem, filters: Preparation, runtime: Runtime) -> Preparation:
    """The weights in the order of a column's entries, then prepared as filters of 1x1."""
    packer = WeightPacker(problem, runtime, "KCRS" if pixels_contiguous(problem) else "KRSC")
    size = itemsize(problem.acc_dtype)

    def view(at: int) -> ArrayView:
        return ArrayView(at, (problem.k, problem.taps, 1, 1), (problem.taps * size, size, size, size), size)

    steps = [on_views(step, lambda buffers: {**buffers, "w": buffers["entries"]}) for step in packer.steps]
    return Chained(
        runtime, steps, filters.of(view(0)), "entries", packer.pieces["w"],  # as of aligned memory
        lambda buffers: view(address(buffers["entries"])),
    )  # fmt: skip


def chunks_of(problem: Conv2dProblem, columns: int) -> list[Chunk]:
    """Cut the columns into chunks of about as many images each, or of rows where an image does not fit."""
    n, p, q = problem.n, problem.p, problem.q
    if images := min(columns // (p * q), n):
        images = -(-n // -(-n // images))
        return [Chunk(at, min(images, n - at), 0, p) for at in range(0, n, images)]
    rows = max(columns // q, 1)
    return [Chunk(image, 1, row, min(rows, p - row)) for image in range(n) for row in range(0, p, rows)]


def convolution_of(problem: Conv2dProblem, images: int, height: int) -> Conv2dProblem:
    """The convolution of so many images and output rows.

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
    """The reason why the product cannot be this convolution; None if it can."""
    if problem.acc_dtype != "float32":
        return Reason("it multiplies float32, not {dtype}", dtype=problem.acc_dtype)
    if (entries := problem.c * problem.r * problem.s) > MOST_K:
        return Reason("a column has at most {most} entries, not {count}", most=MOST_K, count=entries)
    if (outputs := problem.k * problem.p * problem.q) > WIDE:
        return Reason("an image of the result has at most {most} numbers, not {count}", most=WIDE, count=outputs)
    method = BY_CONVOLUTION[gemm].convolution(facts.backend)
    return method.refuses(convolution_of(problem, problem.n, problem.p), facts)


def ways_of_convolved(problem: Conv2dProblem, gemm: str) -> tuple[Way, ...]:
    """The ways of a call with this convolution as its product."""
    words = Reason("the product is a convolution of 1x1: columns of the matrix are pixels, and entries their channels")
    inner = convolution_of(problem, problem.n, problem.p)
    config = SplitMmaConfig() if gemm == GemmSplitMma.name else ImplicitMmaConfig(repacked=rows_pay(inner))
    ways = BY_CONVOLUTION[gemm].convolution().ways(inner, config)
    return Way("convolution", "default", words), *(way for way in ways if way.outcome != "arrays")


def _arrays(buffers: Buffers, problem: Conv2dProblem, chunk: Chunk, room: int) -> Buffers:
    """The arrays of a chunk's convolution; the columns have `room` bytes of the workspace."""
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
    """A chunk's part of an array like the output."""
    shape, row = list(array.shape), layout.index("H")
    shape[0], shape[row] = chunk.images, chunk.height
    at = address(array) + chunk.image * array.strides[0] + chunk.row * array.strides[row]
    return ArrayView(at, tuple(shape), tuple(array.strides), array.itemsize)
