"""A kernel compiled so that a multiprocessor holds as many threads as a config asks for, and a grid of as many."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime

# Blocks that a multiprocessor of any architecture can hold; and those of data centres.
MOST_BLOCKS_HELD, BLOCKS_HELD = 16, 32

# Bytes of a block's shared memory that the driver takes; registers and threads of a multiprocessor whose facts are not
# known.
DRIVER_BYTES, REGISTERS, THREADS = 1024, 1 << 16, 2048

# Shared memory is given out in units of so many bytes.
SHARED_UNIT = 128


def compiled(runtime: Runtime, source: KernelSource, threads: int, resident: int, **numbers: int) -> Any:
    """The kernel with BLOCKS, how many blocks a multiprocessor must be able to hold: `resident` threads of them.

    That bounds the registers of a thread: with fewer registers it keeps fewer loads in flight, but more threads do the
    same. Where it leaves so few that numbers would spill to memory, fewer threads are asked for.

    Parameters
    ----------
    threads : int
        Of a block.
    resident : int
        Threads that a multiprocessor shall hold.
    **numbers
        Further compile-time constants, such as the block's shape.
    """
    whole = -(-threads // 32) * 32  # registers are given to warps
    resident = min(resident, runtime.facts.threads or resident, MOST_BLOCKS_HELD * whole)
    while True:
        blocks = max(1, resident // whole)
        prelude = constants(**numbers, BLOCKS=blocks)
        kernel = runtime.compile(replace(source, constants=(*source.constants, *prelude)))
        if blocks == 1 or not runtime.describe(kernel, LaunchInfo(source.name, (1,), (threads,))).spills:
            return kernel
        resident = min(resident * 3 // 4, (blocks - 1) * whole)


def blocks_held(facts: DeviceFacts, warps: int, shared_bytes: int, registers: int) -> int:
    """How many blocks a multiprocessor holds at once, at least one: what a model of its time goes by.

    Parameters
    ----------
    warps : int
        Of a block.
    shared_bytes : int
        That it takes.
    registers : int
        Of a thread, as far as its numbers tell; it has 32 at least.
    """
    shared = (facts.shared_bytes or facts.block_shared_bytes) // (shared_bytes + DRIVER_BYTES)
    of_registers = (facts.registers or REGISTERS) // (max(32, registers) * warps * 32)
    return max(1, min(shared, of_registers, (facts.threads or THREADS) // (32 * warps), BLOCKS_HELD))


def even_share(facts: DeviceFacts, blocks: int, shared_bytes: int) -> int:
    """Bytes of shared memory to ask for so that no multiprocessor holds more than its even share of a small grid.

    The blocks of the next launch in a stream come as soon as there is room for them, and wait (wait_for_earlier). Where
    a multiprocessor has room for more than its share, those that are done first fill up, and others stay idle while
    these work. Where a multiprocessor takes several turns it changes nothing.
    """
    share = -(-blocks // facts.cores)
    room = (facts.shared_bytes // share - DRIVER_BYTES) // SHARED_UNIT * SHARED_UNIT
    return max(shared_bytes, min(room, facts.block_shared_bytes))


def as_many_as_run(info: LaunchInfo, facts: DeviceFacts, resident: int) -> LaunchInfo:
    """A launch of a block a tile, with no more blocks than run at once: for a kernel whose blocks take tile after tile.

    Parameters
    ----------
    info : LaunchInfo
        As the runtime described it.
    resident : int
        Threads that a multiprocessor holds, for devices that do not know.
    """
    threads = -(-math.prod(info.block) // 32) * 32
    held = resident if info.occupancy is None else round(info.occupancy * facts.threads)
    return replace(info, grid=(min(info.grid[0], facts.cores * max(1, held // threads)),))
