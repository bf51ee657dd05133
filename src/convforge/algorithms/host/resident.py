"""Occupancy: kernels compiled for a number of threads per SM, persistent grids, occupancy caps."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime

MOST_BLOCKS_HELD, BLOCKS_HELD = 16, 32  # most blocks on an SM of any GPU; of a data centre GPU
# Bytes of shared memory that the driver takes from each block; registers and threads of an SM, if not reported.
DRIVER_BYTES, REGISTERS, THREADS = 1024, 1 << 16, 2048
# Limit for a persistent grid: tiles of the busiest SM, divided by those of a grid with one block per tile.
UNEVEN = 1.05
SHARED_UNIT = 128  # bytes: shared memory is allocated in multiples of it


def compiled(runtime: Runtime, source: KernelSource, threads: int, resident: int, **numbers: int) -> Any:
    """Compile a kernel with `numbers` and BLOCKS: the blocks of `threads` that make `resident` threads per SM.

    BLOCKS limits the registers of a thread. With fewer registers a thread keeps fewer loads in flight, but more
    threads run at once. If registers would spill to memory, BLOCKS is reduced.
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
    """Estimate the blocks (1 or more) that run on an SM at once, by warps, shared memory and registers a thread."""
    shared = (facts.shared_bytes or facts.block_shared_bytes) // (shared_bytes + DRIVER_BYTES)
    of_registers = (facts.registers or REGISTERS) // (max(32, registers) * warps * 32)
    return max(1, min(shared, of_registers, (facts.threads or THREADS) // (32 * warps), BLOCKS_HELD))


def with_occupancy_cap(runtime: Runtime, kernel: Any, info: LaunchInfo) -> LaunchInfo:
    """Give a launch an occupancy cap: so much shared memory that no SM runs more than its share of blocks.

    With PDL, the blocks of the next launch start as soon as an SM has room, and wait (pdl_wait). Without a cap, the SMs
    that finish first would start as many as fit, and the last SMs none. The cap uses no more shared memory than needed,
    because the rest is L1. A grid with more blocks than run at once is not changed.
    """
    info, facts = runtime.describe(kernel, info), runtime.facts
    if info.occupancy is None or not info.pdl:
        return info
    held = round(info.occupancy * facts.threads) // _in_warps(math.prod(info.block))
    share = -(-math.prod(info.grid) // facts.cores)
    if not 0 < share < held:  # an empty launch has no blocks
        return info
    whole = (facts.shared_bytes // (share + 1) // SHARED_UNIT + 1) * SHARED_UNIT  # static, dynamic and the driver's
    room = whole - DRIVER_BYTES - info.static_bytes
    return runtime.describe(kernel, replace(info, scratch_bytes=room))


def persistent(tiles: int, facts: DeviceFacts, of_cluster: int = 1) -> tuple[int, ...]:
    """Persistent grid of one block per SM, with no more blocks than tiles.

    A cluster of `of_cluster` blocks computes `of_cluster` tiles together; `tiles` is a multiple of it.

    Examples
    --------
    >>> from convforge.backends.facts import DeviceFacts
    >>> facts = DeviceFacts("cuda", "H200", 132, 0, 0, 0, 0, 16, "sm_90")
    >>> persistent(1000, facts), persistent(50, facts), persistent(1000, facts, of_cluster=8)
    ((132,), (50,), (128,))
    """
    return (min(tiles, max(1, facts.cores // of_cluster) * of_cluster),)


def as_many_as_run(info: LaunchInfo, facts: DeviceFacts, resident: int) -> LaunchInfo:
    """Make a launch with one block per tile persistent: as many blocks as run at once.

    `resident` is the number of threads that run on an SM, for devices that do not report occupancy.
    """
    held = resident if info.occupancy is None else round(info.occupancy * facts.threads)
    return replace(info, grid=(min(info.grid[0], facts.cores * max(1, held // _in_warps(math.prod(info.block)))),))


def is_shared_well(tiles: int, blocks: int, facts: DeviceFacts) -> bool:
    """True if a persistent grid of `blocks` keeps all SMs about as busy as a grid of one block per tile.

    Some blocks compute one tile more than the others. These blocks may all run on the same few SMs.

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
