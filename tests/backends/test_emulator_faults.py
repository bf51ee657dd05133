"""Kernels that are wrong, and launches that no GPU would make: each is an error that says who did what."""

from __future__ import annotations

import ctypes
import dataclasses
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.backends.emulated import ORDERS, Args, needs_emulator, run, source

from convforge.backends.emulator import EmulatorError, EmulatorRuntime
from convforge.backends.kernel import KernelSource
from convforge.backends.maps import TiledMap
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


# Boxes: 4 x 2 x 1 floats of the 64 x 64 in X, which is 64 wide.

BAR = "__shared__ unsigned long long bar;\nif (threadIdx.x == 0) { mbarrier_init(&bar); mbarrier_init_fence(); }\n"
HEAD = f"TMA_SHARED(float, box);\n{BAR}__syncthreads();\n"
ASK = "if (threadIdx.x == 0) { mbarrier_expect_tx(&bar, 32); tma_load(box, args.map, -4, 3, 0, &bar); }\n"
BOX_FAULTS = {
    "waits for what nobody asked for": (
        f"{HEAD}mbarrier_wait(&bar, 0);",
        "a thread waits for bytes that do not come: 64 of 64 threads wait at mbarrier_wait",
    ),
    "fewer bytes than announced": (
        f"{HEAD}{ASK.replace('32', '64')}mbarrier_wait(&bar, 0);", "a thread waits for bytes that do not come",
    ),
    "more bytes than announced": (f"{HEAD}{ASK.replace('32', '16')}", "more bytes are asked for than were announced"),
    "announced twice": (
        f"{HEAD}{ASK}if (threadIdx.x == 0) mbarrier_expect_tx(&bar, 32);",
        "nobody has waited for the bytes that were announced",
    ),
    "nobody waits": (f"{HEAD}{ASK}", "32 bytes are announced and 32 asked for, and nobody waits for them"),
    "no barrier": (
        "TMA_SHARED(float, box);\n__shared__ unsigned long long bar;\nmbarrier_expect_tx(&bar, 32);",
        "mbarrier_expect_tx: nobody called mbarrier_init for this barrier, tried.cu:3",
    ),
    "target not aligned": (f"{HEAD}{ASK.replace('box,', 'box + 4,')}", "must begin at a multiple of 128 bytes"),
    "target outside": (f"{HEAD}{ASK.replace('box,', 'box + 32,')}", "the box does not lie in shared memory"),
    "x not aligned": (f"{HEAD}{ASK.replace('-4', '-3')}", "tma_load: x must be a multiple of 16 bytes, tried.cu:"),
    "barrier in global memory": (
        "mbarrier_init(reinterpret_cast<unsigned long long *>(args.out));", "a barrier is 8 bytes of shared memory",
    ),
}  # fmt: skip


def run_boxes(folder: Path, body: str, runtime: EmulatorRuntime) -> NDArray[np.float32]:
    """A kernel over a map of X, with 128 bytes of dynamic shared memory, and 64 floats of output."""
    head = '#include "tma.cuh"\n#include "types.cuh"\nstruct Args { TensorMap map; float *out; };\n'
    text = f'{head}extern "C" __global__ void tried(const __grid_constant__ Args args) {{\n#line 1\n{body}\n}}\n'
    path = folder / "tried.cu"
    path.write_text(text)
    kernel = runtime.compile(KernelSource(str(path), "tried", (), BoxArgs, "Args"))
    out, args = np.zeros(64, np.float32), BoxArgs()
    seen = runtime.tensor_map(TiledMap(X.ctypes.data, "u32", (64, 64, 1), (256, 16384), (4, 2, 1)))
    ctypes.memmove(ctypes.addressof(args), seen, len(seen))
    args.out = out.ctypes.data
    runtime.launch(kernel, LaunchInfo("tried", (1,), (64,), 128), args)
    return out


class BoxArgs(ctypes.Structure):
    _fields_ = (("map", ctypes.c_ubyte * 128), ("out", ctypes.c_void_p), ("_padding", ctypes.c_ubyte * 56))


@pytest.mark.parametrize("name", BOX_FAULTS)
def test_a_fault_with_boxes_is_an_error(name: str, tmp_path: Path) -> None:
    body, message = BOX_FAULTS[name]
    with pytest.raises(EmulatorError, match=message):
        run_boxes(tmp_path, body, EmulatorRuntime())


@pytest.mark.parametrize("order", ORDERS)
def test_a_box_lands_when_somebody_waits_for_it(order: tuple[str, int], tmp_path: Path) -> None:
    """Zeros where the array is not; before that poison. Who waits before anybody asks lets the others run."""
    body = f"""{HEAD}
        if (threadIdx.x == 63) {{ mbarrier_expect_tx(&bar, 32); tma_load(box, args.map, -4, 63, 0, &bar); }}
        mbarrier_wait(&bar, 0);
        __syncthreads();
        if (threadIdx.x < 8) args.out[threadIdx.x] = box[threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0) {{ mbarrier_expect_tx(&bar, 32); tma_load(box, args.map, 4, 63, 0, &bar); }}
        mbarrier_wait(&bar, 1);
        __syncthreads();
        if (threadIdx.x < 8) args.out[8 + threadIdx.x] = box[threadIdx.x];
        if (threadIdx.x < 8) args.out[16 + threadIdx.x] = box[8 + threadIdx.x];
    """
    out = run_boxes(tmp_path, body, EmulatorRuntime(*order))
    assert out[:8].tolist() == [0] * 8
    assert out[8:16].tolist() == [4036, 4037, 4038, 4039, 0, 0, 0, 0]
    assert np.isnan(out[16:24]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"address": 8}, "the address 0x8 is no multiple of 16"),
        ({"strides": (248, 16384)}, "a stride of 248 bytes along axis 1"),
        ({"strides": (256, -16384)}, "a stride of -16384 bytes along axis 2"),
        ({"box": (3, 2, 1)}, "a row of a box is a multiple of 16 bytes; got 12"),
        ({"box": (260, 2, 1)}, "a box has 1 to 256 elements along axis 0; got 260"),
        ({"sizes": (64, 0, 1)}, "1 to 2.32 - 1 elements along axis 1; got 0"),
        ({"element": "u24"}, "element='u24' is unknown; choose one of u8, "),
        ({"swizzle": 48}, "swizzle=48 must be one of 0, 32, 64, 128"),
        ({"box": (16, 2, 1), "swizzle": 32}, "a row of a box has at most the 32 bytes of its swizzle; got 64"),
        ({"steps": (1, 9, 1)}, "steps are one number from 1 to 8 for each axis"),
    ],
)
def test_maps_that_no_gpu_takes(change: dict[str, Any], message: str) -> None:
    seen = TiledMap(1024, "u32", (64, 64, 1), (256, 16384), (4, 2, 1))
    assert seen.refusal() is None
    with pytest.raises(EmulatorError, match=message):
        EmulatorRuntime().tensor_map(dataclasses.replace(seen, **change))


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
    body = f"if (threadIdx.x < {waiting}) pdl_wait();\nargs.out[threadIdx.x] = 1;"
    runtime, out = EmulatorRuntime(), np.zeros(64, np.float32)
    kernel, args = runtime.compile(source(tmp_path, body)), Args(0, out.ctypes.data, 0)
    runtime.launch(kernel, LaunchInfo("tried", (1,), (64,)), args)  # not early: nothing to wait for
    missing = f"launched early, but {64 - waiting} threads never call pdl_wait"
    with nullcontext() if waiting == 64 else pytest.raises(EmulatorError, match=missing):
        runtime.launch(kernel, LaunchInfo("tried", (1,), (64,), pdl=True), args)


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
