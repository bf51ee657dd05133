"""Kernels that are wrong, and launches that no GPU would make: each is an error that says who did what."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from tests.backends.emulated import ORDERS, Args, needs_emulator, run, source

from convforge.backends.emulator import EmulatorError, EmulatorRuntime
from convforge.backends.runtime import LaunchInfo

pytestmark = needs_emulator

X = np.arange(4096, dtype=np.float32)

FAULTS = {
    "threads that returned": (
        "if (threadIdx.x < 32) return;\n__syncthreads();", 1, (32, 0, 0),
        r"divergent barrier: 32 of 64 threads wait at __syncthreads, tried.cu:2, .*; 32 have returned",
    ),
    "another barrier": (
        "if (threadIdx.x < 16)\n __syncthreads();\nelse\n __syncthreads();", 1, (0, 0, 0),
        "divergent barrier: 16 of 64 .* tried.cu:2.*48 of 64 .* tried.cu:4",
    ),
    "barrier against warp": (
        "if (threadIdx.x < 8) __syncthreads();\n__shfl_sync(0xffffffff, 1, 2);", 1, (0, 0, 0),
        "divergent barrier: 8 of 64 threads wait at __syncthreads.*24 of 64 threads wait at __shfl_sync",
    ),
    "warp operations that differ": (
        "if (threadIdx.x % 2) __syncwarp(); else __ballot_sync(0xffffffff, 1);", 1, (0, 0, 0),
        "a warp waits for lanes that do not come: .*__ballot_sync.*__syncwarp",
    ),
    "mask without the lane": (
        "if (threadIdx.x == 5) __shfl_sync(1, 1, 0);", 1, (5, 0, 0), "mask 0x00000001, which does not name it",
    ),
    "index of a shared array": (
        "__shared__ float tile[8][8];\ntile[threadIdx.x % 8][threadIdx.x / 8 + args.n] = 1;", 1, (56, 0, 0),
        r"index 8 is outside of 'float \[8\]', tried.cu:2",
    ),
    "index of a local array": (
        "int taps[3] = {};\nargs.out[0] = taps[threadIdx.x - args.n];", 1, (0, 0, 0),
        r"index \d+ is outside of 'int \[3\]'",
    ),
    "pointer into a shared array": (
        "__shared__ float tile[64];\nfloat *end = tile + args.n;\nend[threadIdx.x] = 1;", 1, (63, 0, 0),
        "'float' is used outside of the array that the pointer points into, tried.cu:3",
    ),
    "write beyond dynamic shared memory": (
        "DYNAMIC_SHARED(float, tile);\ntile[threadIdx.x + args.n] = 1;", 1, (63, 0, 0),
        "dynamic shared memory has 256 bytes; byte 256 of it is touched",
    ),
    "read beyond dynamic shared memory": (
        "DYNAMIC_SHARED(float, tile);\nargs.out[0] = tile[threadIdx.x + args.n];", 50, (14, 0, 0),
        "dynamic shared memory has 256 bytes; byte 256 of it is touched",
    ),
    "far before dynamic shared memory": (
        "DYNAMIC_SHARED(float, tile);\nargs.out[0] = tile[-args.n];", 100000, (0, 0, 0), "byte -400000 of it",
    ),
    "write before dynamic shared memory": (
        "DYNAMIC_SHARED(float, tile);\ntile[-args.n] = 1;", 1, None, "byte -4 of it was written",
    ),
    "no memory": (
        "args.out[0] = args.x[static_cast<long long>(args.n) << 40];", 1, (0, 0, 0), "address 0x[0-9a-f]+ is touched",
    ),
    "null": ("args.out[0] = *reinterpret_cast<float *>(args.n * 0ll);", 1, (0, 0, 0), "address 0x0 is touched"),
    "poison as an address": (
        "__shared__ char *at[1];\nargs.out[0] = *at[args.n - 1];", 1, (0, 0, 0), "is touched",
    ),
    "misaligned": (
        "args.out[0] = reinterpret_cast<const float4 *>(args.x + args.n)->x;", 1, (0, 0, 0),
        r"is not a multiple of 16, as that of '(const )?struct float4' must be",
    ),
    "division by zero": ("args.out[0] = 7 / (args.n - 1);", 1, (0, 0, 0), "an integer is divided by zero"),
    "too much local memory": (
        "volatile float big[32768];\nfor (int i = 0; i < 32768; i++) big[i] = i;", 1, (0, 0, 0),
        "local memory of more than 65536 bytes",
    ),
    "assert": ("assert(threadIdx.x != 40);", 1, (40, 0, 0), r"assert\(threadIdx.x != 40\), tried.cu:1"),
    "trap": ("if (threadIdx.x == 3) __trap();", 1, (3, 0, 0), "__trap, tried.cu:1"),
    "copy to global memory": ("copy_async16(args.out, args.x);", 1, (0, 0, 0), "its target is not in shared memory"),
    "misaligned copy": (
        "DYNAMIC_SHARED(float, tile);\ncopy_async16(tile + args.n, args.x);", 1, (0, 0, 0),
        "copy_async of 16 bytes: its addresses must be multiples of its size, tried.cu:2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_an_error_with_block_and_thread(name: str, portable: bool, tmp_path: Path) -> None:
    body, n, thread, message = FAULTS[name]
    runtime = EmulatorRuntime(portable=portable)
    with pytest.raises(EmulatorError) as caught:
        run(source(tmp_path, body), X, np.zeros(64, np.float32), blocks=3, n=n, dynamic=256, runtime=runtime)
    error = caught.value
    assert re.search(message, error.what), error.what
    assert (error.kernel, error.block, error.thread) == ("tried", (0, 0, 0), thread)
    assert str(error).startswith("tried, block (0, 0, 0)")


@pytest.mark.parametrize("order", ORDERS)
def test_a_divergent_barrier_is_an_error_in_every_order(order: tuple[str, int], tmp_path: Path) -> None:
    kernel = source(tmp_path, "if (threadIdx.x != 33) __syncthreads();")
    with pytest.raises(EmulatorError, match=r"divergent barrier: 63 of 64 threads wait .*; 1 have returned"):
        run(kernel, X, np.zeros(64, np.float32), runtime=EmulatorRuntime(*order))


def test_the_emulator_works_on_after_a_fault(tmp_path: Path) -> None:
    """Also when several threads of the CPU fail at once."""
    body = """
        __syncthreads();
        if (blockIdx.x % 2 == args.n) __trap();
        __syncthreads();
        args.out[blockIdx.x * 64 + threadIdx.x] = args.x[threadIdx.x];
    """
    kernel, out = source(tmp_path, body), np.zeros(64 * 500, np.float32)
    for _ in range(3):
        with pytest.raises(EmulatorError, match="__trap"):
            run(kernel, X, out, blocks=500, n=1)
    run(kernel, X, out, blocks=500, n=2)
    np.testing.assert_array_equal(out.reshape(500, 64), np.broadcast_to(X[:64], (500, 64)))


@pytest.mark.parametrize(
    ("grid", "block", "dynamic", "message"),
    [
        ((1,), (1025,), 0, "block .1025, 1, 1.: x must be 1 to 1024"),
        ((1,), (32, 33), 0, "1056 threads, of which a block has at most 1024"),
        ((1,), (1, 1, 65), 0, "z must be 1 to 64"),
        ((1,), (0,), 0, "x must be 1 to 1024"),
        ((1, 65536), (32,), 0, "grid .1, 65536, 1.: y must be 0 to 65535"),
        ((1, 1, 65536), (32,), 0, "z must be 0 to 65535"),
        ((2**31,), (32,), 0, "x must be 0 to 2147483647"),
        ((1,), (32,), 232449, "0 bytes of static and 232449 of dynamic shared memory; a block has at most 232448"),
    ],
)
def test_launches_that_no_gpu_would_make(
    tmp_path: Path, grid: tuple[int, ...], block: tuple[int, ...], dynamic: int, message: str
) -> None:
    runtime = EmulatorRuntime()
    kernel = runtime.compile(source(tmp_path, "args.out[0] = 1;"))
    with pytest.raises(EmulatorError, match=message):
        runtime.launch(kernel, LaunchInfo("tried", grid, block, dynamic), Args())


@pytest.mark.parametrize("waiting", [0, 32, 64])
def test_threads_of_an_early_launch_wait_for_earlier_ones(waiting: int, tmp_path: Path) -> None:
    body = f"if (threadIdx.x < {waiting}) wait_for_earlier();\nargs.out[threadIdx.x] = 1;"
    runtime, out = EmulatorRuntime(), np.zeros(64, np.float32)
    kernel, args = runtime.compile(source(tmp_path, body)), Args(0, out.ctypes.data, 0)
    runtime.launch(kernel, LaunchInfo("tried", (1,), (64,)), args)  # not early: nothing to wait for
    missing = f"launched early, but {64 - waiting} threads never call wait_for_earlier"
    with nullcontext() if waiting == 64 else pytest.raises(EmulatorError, match=missing):
        runtime.launch(kernel, LaunchInfo("tried", (1,), (64,), early=True), args)


def test_the_largest_launches(tmp_path: Path) -> None:
    body = """
        DYNAMIC_SHARED(char, all);
        all[232447 - threadIdx.x] = 1;
        __syncthreads();
        args.out[threadIdx.x] = all[232447];
    """
    out = run(source(tmp_path, body), X, np.zeros(1024, np.float32), 1024, dynamic=232448)
    assert (out == 1).all()
    runtime = EmulatorRuntime()
    kernel = runtime.compile(source(tmp_path, "args.out[0] = 1;"))
    runtime.launch(kernel, LaunchInfo("tried", (0, 3), (32,)), Args())  # no blocks: nothing is touched


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ValueError, match="order='sideways' must be one of forward, backward, shuffled"):
        EmulatorRuntime("sideways")
