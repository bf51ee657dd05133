"""What the steps of the direct ladder share on the host: grids, and rules for blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from convforge.algorithms.include.conv import MOST_BLOCKS
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem


def block_refusal(block_x: int, block_y: int) -> str | None:
    """Why a block of this shape is none; None if it is one."""
    threads = block_x * block_y
    if min(block_x, block_y) >= 1 and 32 <= threads <= 1024:
        return None
    return f"a block has 32 to 1024 threads; {block_x} x {block_y} are {threads}"


class Block(Protocol):
    """The fields of a config that say how a block is made."""

    @property
    def block_x(self) -> int:
        """Threads along q."""
        ...

    @property
    def block_y(self) -> int:
        """Threads along p."""
        ...

    @property
    def resident(self) -> int:
        """Threads that a multiprocessor shall hold."""
        ...


def compiled(runtime: Runtime, source: KernelSource, block: Block) -> Any:
    """The kernel with BLOCK_X, BLOCK_Y and BLOCKS, how many blocks a multiprocessor must be able to hold.

    That bounds the registers of a thread: with fewer registers it keeps fewer loads in flight, but more threads do the
    same. Where the block's ``resident`` threads leave so few that numbers would spill to memory, fewer threads are
    asked for.
    """
    threads = block.block_x * block.block_y
    resident = min(block.resident, runtime.facts.threads or block.resident)
    while True:
        blocks = max(1, resident // threads)
        prelude = constants(BLOCK_X=block.block_x, BLOCK_Y=block.block_y, BLOCKS=blocks)
        kernel = runtime.compile(replace(source, constants=(*source.constants, *prelude)))
        if blocks == 1 or not runtime.describe(kernel, LaunchInfo(source.name, (1,), (threads,))).spills:
            return kernel
        resident = resident * 3 // 4


def grid(problem: Conv2dProblem, tile_p: int, tile_q: int, planes: int) -> tuple[int, int, int]:
    """Blocks for tiles of `tile_p` x `tile_q` outputs on each plane; kernels go on where y and z are cut short."""
    rows, columns = -(-problem.p // max(tile_p, 1)), -(-problem.q // max(tile_q, 1))
    return columns, min(rows, MOST_BLOCKS), min(planes, MOST_BLOCKS)


def even_share(total: int, most: int) -> int:
    """The size of parts, none larger than `most`, that cut `total` most evenly.

    Examples
    --------
    >>> even_share(5, 4), even_share(64, 8), even_share(3, 8)
    (3, 8, 3)
    """
    parts = -(-total // max(most, 1))
    return -(-total // parts)
