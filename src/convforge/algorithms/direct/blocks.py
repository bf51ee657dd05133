"""Host code that the steps of the direct ladder share: grids, block rules, tile sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from convforge.algorithms.host.conv import MOST_BLOCKS
from convforge.algorithms.traits import Work
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem


class Block(NamedTuple):
    """Threads of a block along q and along p."""

    x: int
    y: int


def block_refusal(block_x: int, block_y: int) -> Reason | None:
    threads = block_x * block_y
    if min(block_x, block_y) >= 1 and 32 <= threads <= 1024:
        return None
    return Reason(
        "a block has 32 to 1024 threads; {across} x {down} are {threads}", across=block_x, down=block_y, threads=threads
    )


def grid(problem: Conv2dProblem, tile_p: int, tile_q: int, tile_k: int = 1) -> tuple[int, int, int]:
    """Grid for tiles of `tile_k` x `tile_p` x `tile_q` outputs of a group; kernels loop if y or z is clipped."""
    planes = problem.n * problem.groups * -(-problem.k_per_group // tile_k)
    rows, columns = -(-problem.p // max(tile_p, 1)), -(-problem.q // max(tile_q, 1))
    return columns, min(rows, MOST_BLOCKS), min(planes, MOST_BLOCKS)


def compiled_for(runtime: Runtime, source: KernelSource, threads: int, blocks: int) -> tuple[Any, int]:
    """Compile a kernel for as many blocks per SM as do not spill, at most `blocks`; return it and the number."""
    while True:
        kernel = runtime.compile(replace(source, constants=(*source.constants, *constants(BLOCKS=blocks))))
        if blocks == 1 or not runtime.describe(kernel, LaunchInfo(source.name, (1,), (threads,))).spills:
            return kernel, blocks
        blocks -= 1


def columns_read(problem: Conv2dProblem, out_q: int) -> int:
    """Number of distinct pixels in a row that `out_q` neighbouring outputs need."""
    stride, dilation = problem.stride[1], problem.dilation[1]
    return len({q * stride + s * dilation for q in range(out_q) for s in range(problem.s)})


def even_share(total: int, most: int) -> int:
    """Size of the largest part if `total` is cut as evenly as possible into parts of at most `most`.

    Examples
    --------
    >>> even_share(5, 4), even_share(64, 8), even_share(3, 8)
    (3, 8, 3)
    """
    parts = -(-total // max(most, 1))
    return -(-total // parts)


def plane_work(method: Any, problem: Conv2dProblem) -> Work:
    """`work_for` of methods with blocks that compute outputs of one plane.

    In NHWC, the pixels of planes are interleaved, so a block also loads those of up to seven other planes.
    """
    work = box_work(problem)
    if problem.groups == problem.c > 1 and problem.x_layout == "NHWC":
        return Work(work.flops, work.moved * min(problem.c, 8))
    return work


def box_work(problem: Conv2dProblem) -> Work:
    """Work of a method that loads the pixels of all channels in one TMA tile.

    With one-channel filters, a block computes 16 x 128 outputs of a plane, so small planes leave threads idle.
    """
    if problem.groups != problem.c or problem.c == 1:
        return Work(problem.flops, problem.least_bytes)
    idle = -(-problem.p // 16) * 16 * -(-problem.q // 128) * 128 / max(problem.p * problem.q, 1)
    return Work(problem.flops * idle, problem.least_bytes)
