"""Clusters on the emulator: blocks that bring numbers to each other's shared memory, and what goes wrong with that."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.backends.emulated import ORDERS, needs_emulator

from convforge.backends.emulator import EmulatorError, EmulatorRuntime
from convforge.backends.kernel import KernelSource
from convforge.backends.maps import TiledMap
from convforge.backends.runtime import LaunchInfo
from convforge.backends.structs import MapField, struct_with_maps

pytestmark = needs_emulator

# A box is a row of 32 numbers of x.
KERNEL = """
#include "tma.cuh"
struct Args {
    TensorMap x;
    unsigned *out;
};
extern "C" __global__ void tried(const __grid_constant__ Args args) {
    TMA_SHARED(unsigned, rows);
    __shared__ unsigned long long there, read;
    const int block = cluster_rank(), number = threadIdx.x;
    unsigned *const out = args.out + 64 * blockIdx.x;
    if (number == 0) {
        mbarrier_init(&there, 1);
        mbarrier_init(&read, 2);
        mbarrier_init_fence();
    }
#line 1
BODY
}
"""
BEGIN, END = "cluster_sync();\n", "cluster_sync();\n"
EXPECT = "if (number == 0) mbarrier_expect_tx(&there, 256);\n"
# Each block of two brings one row, for both.
BRING = "if (number == 0) tma_load_multicast(3, rows + 32 * block, args.x, 0, blockIdx.x, 0, &there);\n"
WAIT = "mbarrier_wait(&there, 0);\n"
WRITE = "out[number] = rows[number];\n"
STRUCT: Any = struct_with_maps("Args", [("x", MapField), ("out", ctypes.c_void_p)])


def run(
    folder: Path, body: str, runtime: EmulatorRuntime, blocks: int = 4, cluster: tuple[int, ...] = (2,)
) -> NDArray[np.uint32]:
    """Output of blocks of 64 threads, 64 numbers each; x has a row of 32 for each block."""
    path = folder / "tried.cu"
    path.write_text(KERNEL.replace("BODY", body), encoding="utf-8")
    x = runtime.upload(np.arange(32 * blocks, dtype=np.uint32).reshape(blocks, 32))
    out = runtime.upload(np.zeros((blocks, 64), np.uint32))
    args = STRUCT()
    seen = TiledMap(x.__array_interface__["data"][0], "u32", (32, blocks, 1), (128, 128 * blocks), (32, 1, 1))
    args.put_map("x", seen, runtime.tensor_map(seen))
    args.out = out.__array_interface__["data"][0]
    kernel = runtime.compile(KernelSource(str(path), "tried", (), STRUCT, "Args"))
    runtime.launch(kernel, LaunchInfo("tried", (blocks,), (64,), 256, cluster=cluster), args)
    return np.asarray(out)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("portable", [False, True])
def test_each_of_two_blocks_brings_for_both(order: tuple[str, int], portable: bool, tmp_path: Path) -> None:
    runtime = EmulatorRuntime(*order, portable=portable)
    out = run(tmp_path, BEGIN + EXPECT + BRING + WAIT + WRITE + END, runtime, blocks=20)
    pairs = np.arange(20 * 32, dtype=np.uint32).reshape(10, 64)
    np.testing.assert_array_equal(out, np.repeat(pairs, 2, axis=0))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", [0, 1, 3, 16])
def test_blocks_have_numbers(order: tuple[str, int], size: int, tmp_path: Path) -> None:
    """A block that is launched without a cluster is one by itself."""
    cluster, size = (size,) if size else (), max(1, size)
    out = run(tmp_path, BEGIN + "out[number] = block;\n" + END, EmulatorRuntime(*order), 2 * size, cluster)
    np.testing.assert_array_equal(out[:, 0], [*range(size)] * 2)


@pytest.mark.parametrize("order", ORDERS)
def test_a_block_arrives_in_another(order: tuple[str, int], tmp_path: Path) -> None:
    """A box is overwritten only when both blocks have read it."""
    free = (
        "__syncthreads();\nmbarrier_arrive_remote_if(number % 2, &read, number < 2);\n"
        "if (number == 0) mbarrier_wait(&read, 0);\n"
    )
    again = EXPECT + BRING.replace("0, blockIdx.x", "0, blockIdx.x ^ 1") + "mbarrier_wait(&there, 1);\n"
    more = "out[number] += 1000 * rows[number];\n"
    out = run(tmp_path, BEGIN + EXPECT + BRING + WAIT + WRITE + free + again + more + END, EmulatorRuntime(*order))
    pairs = np.arange(4 * 32, dtype=np.uint32).reshape(2, 64)
    np.testing.assert_array_equal(out[::2], pairs + 1000 * np.roll(pairs, 32, axis=1))


FAULTS = {
    "nobody waits before a row is read": (BEGIN + EXPECT + BRING + WRITE + WAIT + END, None),
    "barriers that the other block has not made": (EXPECT + BRING + BEGIN + WAIT + END, "nobody called mbarrier_init"),
    "a block that has ended": (
        BEGIN + "if (block == 1) {\nmbarrier_arrive_remote_if(0, &read, number < 2);\nreturn;\n}\nif (number) return;\n"
        "mbarrier_wait(&read, 0);\nmbarrier_arrive_remote_if(1, &read, true);\n",
        "mbarrier_arrive_remote_if: the other block has ended",
    ),
    "one row that never comes": (
        BEGIN + EXPECT + "if (block == 0) {" + BRING + "}\n" + WAIT + END, "a thread waits for bytes that do not come",
    ),
    "one block that does not meet": (BEGIN + "if (block == 0) cluster_sync();\n", "for others that do not come"),
    "a block that is not there": (
        BEGIN + "mbarrier_arrive_remote_if(2, &read, number == 0);\n" + END,
        "the cluster has no such block",
    ),
    "more arrivals than the barrier was made for": (
        BEGIN + EXPECT + "cluster_sync();\nmbarrier_arrive_remote_if(block ^ 1, &there, number == 0);\n" + END,
        "more threads arrive than the barrier was made for",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("order", ORDERS)
def test_a_fault_is_noticed(order: tuple[str, int], name: str, tmp_path: Path) -> None:
    body, says = FAULTS[name]
    if says is not None:
        with pytest.raises(EmulatorError, match=says):
            run(tmp_path, body, EmulatorRuntime(*order))
        return
    pairs = np.arange(4 * 32, dtype=np.uint32).reshape(2, 64)
    assert not np.array_equal(run(tmp_path, body, EmulatorRuntime(*order)), np.repeat(pairs, 2, axis=0))


def test_what_no_launch_can_be(tmp_path: Path) -> None:
    for blocks, cluster, says in (
        (3, (2,), "whole clusters of 2"),
        (17, (17,), "has 16 blocks"),
        (2, (1, 2), "along x"),
    ):
        with pytest.raises(EmulatorError, match=says):
            run(tmp_path, BEGIN, EmulatorRuntime(), blocks, cluster)
