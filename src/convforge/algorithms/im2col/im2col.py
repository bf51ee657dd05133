"""Host side of im2col: chunks that fit a workspace, and a matrix product as a child plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms.contract import Algorithm, Buffers, Call, Child, Chunks, Config, Plan, PreparedFilter
from convforge.algorithms.gemm import GemmBlas, GemmBlocked, GemmLoops
from convforge.algorithms.gemm.gemm import operand_b
from convforge.algorithms.host.epilogue import epilogue_arguments, values_dtype
from convforge.algorithms.host.geometry import Strip, geometry, strip, tap_offsets
from convforge.algorithms.host.views import logical, view
from convforge.algorithms.host.weights import correlation_filter, float_sums
from convforge.algorithms.host.widened import takes_bfloat16
from convforge.algorithms.host.workspace import carve, nbytes
from convforge.algorithms.traits import GENERAL, Mark, MethodCost, Preference, Rank
from convforge.backends.cpu.runtime import block_of_items
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem, GemmProblem, partition

_GEMMS: dict[str, Algorithm[GemmProblem, Any]] = {g.name: g for g in (GemmBlas(), GemmBlocked(), GemmLoops())}


@dataclass(frozen=True, slots=True)
class Im2colConfig(Config):
    """Size of a chunk, and matrix product, of :class:`Im2col`."""

    images: int = 1  # images expanded at once
    tile_p: int = 1  # output rows expanded at once
    gemm: str = "gemm_blas"  # name of the matrix product


@dataclass(frozen=True, slots=True)
class _Product:
    """The matrix product of a chunk, and the strip that contains its columns."""

    plan: Plan
    tile: Strip
    offsets: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Images [n0, n1) and output rows [p0, p1)."""

    n0: int
    n1: int
    p0: int
    p1: int


@takes_bfloat16
class Im2col(Algorithm[Conv2dProblem, Im2colConfig]):
    """out (K x PQ) = w (K x CRS) x columns (CRS x PQ), where each column is the window of one output in x.

    Source: Chellapilla, Puri and Simard, High Performance Convolutional Neural Networks for Document Processing, 2006.
    The expansion is done a chunk at a time, so the workspace is small and the chunk stays in the cache.
    """

    name = "im2col"
    summary = "expanded in chunks, then a matrix product"
    operation = "conv2d"
    since = "gemm_blas"
    cost = MethodCost(0.50, 0.2, 1, 6)
    look = Mark("amber", "diamond")
    preference = Preference(Rank.GENERAL_MATRIX, GENERAL)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[Im2colConfig]:
        """Configs by size of a chunk. The default: at most eight times L2, and at least one chunk per core."""
        row = problem.c * problem.r * problem.s * problem.q * float_sums(problem).itemsize
        found: list[Im2colConfig] = []
        for chunk in (8 * facts.l2_bytes, 2 * facts.l2_bytes, facts.l2_bytes // 2, 1):
            images = max(1, min(-(-problem.n // facts.cores), chunk // (row * problem.p)))
            pieces = -(-facts.cores // max(1, -(-problem.n // images)))  # parts of an image, to keep all cores busy
            tile_p = max(1, min(-(-problem.p // pieces), chunk // row))
            config = Im2colConfig(images, tile_p)
            if config not in found:
                found.append(config)
        first = found[0]
        return found + [Im2colConfig(first.images, first.tile_p, name) for name in _GEMMS if name != "gemm_blas"]

    def plan(self, problem: Conv2dProblem, config: Im2colConfig, runtime: Runtime) -> Plan:
        if config.gemm not in _GEMMS:
            raise ValueError(f"gemm={config.gemm!r} of im2col is unknown; choose one of {', '.join(_GEMMS)}")
        dtype = float_sums(problem)
        straight = problem.epilogue.is_identity and problem.out_dtype == dtype.name and problem.out_layout == "NCHW"
        buffers = _buffers(problem, config.images, config.tile_p, dtype)
        groups: list[tuple[Call | Child, ...]] = []
        rows = [(p0, p1) for p0, p1, _, _ in partition.boxes(problem, config.tile_p, max(problem.q, 1))]
        products = {height: self._product(problem, config, runtime, height) for height in {p1 - p0 for p0, p1 in rows}}
        for n0 in range(0, problem.n, config.images):
            for p0, p1 in rows:
                chunk = _Chunk(n0, min(n0 + config.images, problem.n), p0, p1)
                groups.append(self._chunk_steps(problem, runtime, chunk, products[p1 - p0], straight))
        slots = max(1, min(runtime.facts.cores, len(groups)))
        chunks = Chunks(tuple(groups), slots, nbytes(buffers), runtime)

        def prepare(w: Any, stream: Any = None) -> PreparedFilter:
            packed = correlation_filter(problem, w, dtype.name).reshape(
                problem.groups, problem.k_per_group, problem.taps
            )
            return PreparedFilter({"w": packed}, packed.nbytes)

        return Plan(
            self, problem, config, runtime, steps=[chunks], prepare=prepare, workspace_bytes=slots * nbytes(buffers)
        )

    def _chunk_steps(
        self,
        problem: Conv2dProblem,
        runtime: Runtime,
        chunk: _Chunk,
        product: _Product,
        straight: bool,
    ) -> tuple[Call | Child, ...]:
        """Steps that expand, multiply and store one chunk. If `straight`, the product itself writes the output."""
        from convforge.algorithms.im2col import cpu

        images, height = chunk.n1 - chunk.n0, chunk.p1 - chunk.p0
        cells = height * problem.q
        g, tile, offsets = geometry(problem), product.tile, product.offsets
        parts = _buffers(problem, images, height, float_sums(problem))
        where = (chunk.n0, chunk.p0, chunk.p1)

        def products(buffers: Buffers) -> NDArray[Any]:
            """Array that the matrix products write, of shape (images, K, cells)."""
            if straight and (place := _place(buffers["out"], chunk)) is not None:
                return place
            return carve(buffers["workspace"], parts)[1]

        def expand(buffers: Buffers, stream: Any) -> None:
            columns = carve(buffers["workspace"], parts)[0]
            args = (view(buffers["x"], problem.x_layout), columns, g, tile, offsets, *where)
            runtime.launch(cpu.expand, expand_info, args, stream)

        def multiply(buffers: Buffers) -> Iterator[Buffers]:
            columns, target, w = carve(buffers["workspace"], parts)[0], products(buffers), buffers["w"].tensors["w"]
            for n in range(images):
                for group in range(problem.groups):
                    b = columns[n, group * problem.taps : (group + 1) * problem.taps]
                    c = target[n, group * problem.k_per_group : (group + 1) * problem.k_per_group]
                    yield {"a": w[group], "b": operand_b(b), "c": c}

        def store(buffers: Buffers, stream: Any) -> None:
            target = products(buffers)
            if not np.may_share_memory(target, buffers["out"]):
                args = (
                    target,
                    view(buffers["out"], problem.out_layout),
                    g,
                    epilogue_arguments(problem, buffers),
                    values,
                    *where,
                )
                runtime.launch(cpu.store, store_info, args, stream)

        def launch(kernel: str, items: int, moved: int, run: Callable[[Buffers, Any], None]) -> Call:
            # Moving an element costs about as much as 8 vectorised operations.
            block = block_of_items(items, items * moved * 8, runtime.facts)
            info = LaunchInfo(kernel, (items,), (block,))
            return Call(info, run)

        values = np.empty(0, values_dtype(problem))
        expansion = launch("im2col_expand", images * problem.c, problem.r * problem.s * cells, expand)
        ending = launch("im2col_store", images * problem.k, cells, store)
        expand_info, store_info = expansion.info, ending.info
        return expansion, Child(product.plan, multiply), ending

    @staticmethod
    def _product(problem: Conv2dProblem, config: Im2colConfig, runtime: Runtime, height: int) -> _Product:
        """Product for all chunks of `height` output rows; shared, because there may be thousands of chunks."""
        gemm = GemmProblem(m=problem.k_per_group, n=height * problem.q, k=problem.taps, dtype=float_sums(problem).name)
        child, tile = _GEMMS[config.gemm], strip(problem, height, 1)
        plan = child.plan(gemm, child.configs(gemm, runtime.facts)[0], runtime)
        return _Product(plan, tile, tap_offsets(problem, tile))


def _buffers(
    problem: Conv2dProblem, images: int, height: int, dtype: np.dtype[np.generic]
) -> list[tuple[tuple[int, ...], np.dtype[np.generic]]]:
    """Shapes of the expanded matrices and of their products."""
    cells = height * problem.q
    columns = (images, problem.c * problem.r * problem.s, cells)
    return [(columns, dtype), ((images, problem.k, cells), dtype)]


def _place(out: NDArray[Any], chunk: _Chunk) -> NDArray[Any] | None:
    """A view of the chunk's part of an NCHW output as (images, K, cells); None where rows are not contiguous."""
    part = logical(out, "NCHW")[chunk.n0 : chunk.n1, :, chunk.p0 : chunk.p1]
    n, k, p, q = part.shape
    item = out.itemsize
    if part.strides[3] != item or part.strides[2] != q * item or part.strides[1] < p * q * item:
        return None
    return part.reshape(n, k, p * q)
