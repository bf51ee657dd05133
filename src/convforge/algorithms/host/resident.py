"""Threads that an SM holds: kernels compiled for them, persistent grids, occupancy caps."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime

MOST_BLOCKS_HELD, BLOCKS_HELD = 16, 32  # blocks of an SM of any architecture; of one in data centres
# Bytes of a block's shared memory that the driver takes; registers and threads of an SM whose facts are not known.
DRIVER_BYTES, REGISTERS, THREADS = 1024, 1 << 16, 2048
# Most tiles of the busiest SM with a persistent grid, relative to those with a block a tile.
UNEVEN = 1.05
SHARED_UNIT = 128  # bytes in which shared memory is allocated


def compiled(runtime: Runtime, source: KernelSource, threads: int, resident: int, **numbers: int) -> Any:
    """The kernel with `numbers` and BLOCKS, as many blocks of `threads` as make `resident` threads an SM.

    BLOCKS bounds the registers of a thread: with fewer it keeps fewer loads in flight, but more threads do so.
    Where registers would spill to memory, fewer threads are resident.
    """
    whole = _in_warps(threads)
    resident = min(resident, runtime.facts.threads or resident, MOST_BLOCKS_HELD * whole)
    while True:
        blocks = max(1, resident // whole)
        prelude = constants(**numbers, BLOCKS=blocks)
        kernel = runtime.compile(replace(source, constants=(*source.constants, *prelude)))
        if blocks == 1 or not runtime.describe(kernel, LaunchInfo(source.name, (1,), (threads,))).spills:
            return kernel
        resident = min(resident * 3 // 4, (blocks - 1) * whole)


def blocks_held(facts: DeviceFacts, warps: int, shared_bytes: int, registers: int) -> int:
    """Estimate the blocks that run on an SM at once, at least one, by warps, shared memory, and registers a thread."""
    shared = (facts.shared_bytes or facts.block_shared_bytes) // (shared_bytes + DRIVER_BYTES)
    of_registers = (facts.registers or REGISTERS) // (max(32, registers) * warps * 32)
    return max(1, min(shared, of_registers, (facts.threads or THREADS) // (32 * warps), BLOCKS_HELD))


def with_occupancy_cap(runtime: Runtime, kernel: Any, info: LaunchInfo) -> LaunchInfo:
    """A launch with an occupancy cap: enough shared memory that no SM runs more than its share of blocks.

    With PDL, the blocks of the next launch start as soon as there is room, and wait (pdl_wait): SMs that finish first
    would start as many as fit, and the last SMs none. The cap uses no more shared memory than needed, because the rest
    is L1. A grid with more blocks than run at once is not changed.
    """
    info, facts = runtime.describe(kernel, info), runtime.facts
    if info.occupancy is None or not info.early:
        return info
    held = round(info.occupancy * facts.threads) // _in_warps(math.prod(info.block))
    share = -(-math.prod(info.grid) // facts.cores)
    if not 0 < share < held:  # an empty launch has no blocks
        return info
    whole = (facts.shared_bytes // (share + 1) // SHARED_UNIT + 1) * SHARED_UNIT  # static, dynamic and the driver's
    room = whole - DRIVER_BYTES - info.static_bytes
    return runtime.describe(kernel, replace(info, scratch_bytes=room))


def persistent(tiles: int, facts: DeviceFacts, of_cluster: int = 1) -> tuple[int, ...]:
    """The persistent grid of one block an SM, with no more blocks than tiles.

    A cluster of `of_cluster` blocks computes as many tiles together, and `tiles` is a multiple of it.

    Examples
    --------
    >>> from convforge.backends.facts import DeviceFacts
    >>> facts = DeviceFacts("cuda", "H200", 132, 0, 0, 0, 0, 16, "sm_90")
    >>> persistent(1000, facts), persistent(50, facts), persistent(1000, facts, of_cluster=8)
    ((132,), (50,), (128,))
    """
    return (min(tiles, max(1, facts.cores // of_cluster) * of_cluster),)


def as_many_as_run(info: LaunchInfo, facts: DeviceFacts, resident: int) -> LaunchInfo:
    """The persistent grid of as many blocks as run at once, from a launch of a block a tile.

    `resident` are the threads of an SM for devices that do not report occupancy.
    """
    held = resident if info.occupancy is None else round(info.occupancy * facts.threads)
    return replace(info, grid=(min(info.grid[0], facts.cores * max(1, held // _in_warps(math.prod(info.block)))),))


def is_shared_well(tiles: int, blocks: int, facts: DeviceFacts) -> bool:
    """Tell if a persistent grid of `blocks` keeps all SMs about as busy as a grid of a block a tile.

    Some of its blocks compute one tile more than the others, and these may all be on the same few SMs.

    Examples
    --------
    >>> from convforge.backends.facts import DeviceFacts
    >>> facts = DeviceFacts("cuda", "H200", 132, 0, 0, 0, 0, 16, "sm_90")
    >>> is_shared_well(392, 264, facts), is_shared_well(784, 264, facts), is_shared_well(243, 132, facts)
    (False, True, True)
    """
    busiest = -(-blocks // facts.cores) * -(-tiles // max(1, blocks))
    return busiest <= UNEVEN * -(-tiles // facts.cores)


def _in_warps(threads: int) -> int:
    return -(-threads // 32) * 32
