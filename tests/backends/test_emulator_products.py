"""Products of matrices by a warpgroup on the emulator, boxes that are stored, and barriers of a part of a block."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.backends.emulated import ORDERS, in_every_order, needs_emulator, source

from convforge.algorithms.implicit_gemm.wgmma import wgmma_lines
from convforge.backends.emulator import EmulatorError, EmulatorRuntime
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.maps import TiledMap
from convforge.backends.runtime import LaunchInfo
from convforge.backends.structs import MapField, struct_with_maps

pytestmark = needs_emulator

# A times B of COLUMNS columns, both brought by the accelerator, as the body says.
KERNEL = """
#include "tma.cuh"
#include "wgmma.cuh"
struct Args {
    TensorMap a, b, c;
    float *out;
};
__device__ inline void write_out(float *out, const float (&sums)[SUMS]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int e = 0; e < SUMS; e++)
        out[(16 * warp + lane / 4 + 8 * (e / 2 % 2)) * cfg::BLOCK_N + e / 4 * 8 + lane % 4 * 2 + e % 2] = sums[e];
}
extern "C" __global__ void tried(const __grid_constant__ Args args) {
    TMA_SHARED(unsigned char, room);
    __shared__ unsigned long long bar;
    unsigned char *const a = room + (-shared_address(room) & 1023), *const b = a + 64 * 128;
    if (threadIdx.x == 0) {
        mbarrier_init(&bar, cfg::ARRIVALS);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_expect_tx(&bar, (64 + cfg::BLOCK_N) * 128);
        tma_load(a, args.a, 0, 0, 0, &bar);
        tma_load(b, args.b, 0, 0, 0, &bar);
    }
    float sums[SUMS];
#line 1
BODY
}
"""
WAIT = "mbarrier_wait(&bar, 0);\n"
ASK = """wgmma_fence();
for (int i = 0; i < 4; i++) wgmma(sums, k_major_matrix(a, 1024) + 2 * i, k_major_matrix(b, 1024) + 2 * i, i > 0);
wgmma_commit();
"""
DONE = "wgmma_wait<0>();\n"
WRITE = "write_out(args.out, sums);\n"
STRUCT: Any = struct_with_maps(
    "Args", [("a", MapField), ("b", MapField), ("c", MapField), ("out", ctypes.c_void_p)]
)  # fmt: skip
COLUMNS, DEEP = {"f16": 24, "bf16": 24, "tf32": 16}, {"f16": 64, "bf16": 64, "tf32": 32}


def bits(numbers: NDArray[np.float32], kind: str) -> NDArray[Any]:
    """Numbers as they lie in memory."""
    return {"f16": numbers.astype(np.float16), "bf16": (numbers.view(np.uint32) >> 16).astype(np.uint16)}.get(
        kind, numbers
    )


def product(
    folder: Path, body: str, runtime: EmulatorRuntime, kind: str = "f16", arrivals: int = 1, threads: int = 128
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Output of a kernel for a product of whole numbers, and the product."""
    path, columns, deep = folder / "tried.cu", COLUMNS[kind], DEEP[kind]
    path.write_text(KERNEL.replace("BODY", body), encoding="utf-8")
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-8, 9, (rows, deep)).astype(np.float32) for rows in (64, columns))
    there = [runtime.upload(bits(array, kind)) for array in (a, b)]
    out = runtime.upload(np.zeros((64, columns), np.float32))
    args = STRUCT()
    for name, array, element in (("a", there[0], kind), ("b", there[1], kind), ("c", out, "f32")):
        sizes, axes = (array.shape[1], array.shape[0], 1), 2 if name == "c" else 3
        strides = (array.shape[1] * array.itemsize, array.nbytes)
        seen = TiledMap(
            array.__array_interface__["data"][0], element, sizes[:axes], strides[: axes - 1], sizes[:axes],
            swizzle=0 if name == "c" else 128,
        )  # fmt: skip
        args.put_map(name, seen, runtime.tensor_map(seen))
    args.out = out.__array_interface__["data"][0]
    lines = (*constants(BLOCK_N=columns, ARRIVALS=arrivals), *wgmma_lines(columns, kind, kind))
    kernel = runtime.compile(KernelSource(str(path), "tried", lines, STRUCT, "Args"))
    runtime.launch(kernel, LaunchInfo("tried", (1,), (threads,), 64 * 128 * 2 + 1024), args)
    return out, a @ b.T


@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32"])
@pytest.mark.parametrize("order", ORDERS)
def test_a_product_of_matrices(order: tuple[str, int], kind: str, tmp_path: Path) -> None:
    out, expected = product(tmp_path, WAIT + ASK + DONE + WRITE, EmulatorRuntime(*order), kind)
    np.testing.assert_array_equal(out, expected)


def is_right(folder: Path, body: str, order: str) -> bool:
    out, expected = product(folder, body, EmulatorRuntime(order))
    return np.array_equal(out, expected)


def test_sums_that_are_read_too_early_are_not_there_yet(tmp_path: Path) -> None:
    body = WAIT + ASK + WRITE + DONE
    assert not is_right(tmp_path, body, "forward")


def test_products_that_are_asked_for_before_the_factors_have_come(tmp_path: Path) -> None:
    body = ASK + WAIT + DONE + WRITE
    assert is_right(tmp_path, body, "forward")
    assert not is_right(tmp_path, body, "backward")


def test_factors_that_are_overwritten_before_the_products_are_done(tmp_path: Path) -> None:
    body = WAIT + ASK + "__syncthreads();\nif (threadIdx.x < 8) a[threadIdx.x] = 1;\n__syncthreads();\n" + DONE + WRITE
    assert not is_right(tmp_path, body, "forward")
    assert is_right(tmp_path, body, "backward")


def test_a_group_may_be_left_under_way(tmp_path: Path) -> None:
    """The second group runs on while the first one's sums are read."""
    body = f"""{WAIT}
        float others[SUMS];
        {ASK}{ASK.replace("sums", "others")}
        wgmma_wait<1>();
        {WRITE}{DONE}
    """
    for order in ORDERS:
        out, expected = product(tmp_path, body, EmulatorRuntime(*order))
        np.testing.assert_array_equal(out, expected)


def test_a_barrier_of_several_arrivals(tmp_path: Path) -> None:
    """One announces bytes, four others only arrive; who waits sees the bytes and what they wrote."""
    body = f"""__shared__ int there[4];
        if (threadIdx.x % 32 == 1) there[threadIdx.x / 32] = 1;
        mbarrier_arrive_if(&bar, threadIdx.x % 32 == 1);
        {WAIT}
        for (int i = 0; i < 4; i++) assert(there[i] == 1);
        {ASK}{DONE}{WRITE}
    """
    for order in ORDERS:
        out, expected = product(tmp_path, body, EmulatorRuntime(*order), arrivals=5)
        np.testing.assert_array_equal(out, expected)


# Sums go to shared memory, and from there as a box.
STORE = f"""{WAIT}{ASK}{DONE}
    float *const turned = reinterpret_cast<float *>(a);
    __syncthreads();
    write_out(turned, sums);
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {{
        tma_store(args.c, turned, 0, 0);
        tma_store_commit();
    }}
"""


@pytest.mark.parametrize("order", ORDERS)
def test_boxes_are_stored(order: tuple[str, int], tmp_path: Path) -> None:
    out, expected = product(tmp_path, STORE + "if (threadIdx.x == 0) tma_store_wait();", EmulatorRuntime(*order))
    np.testing.assert_array_equal(out, expected)


def test_what_is_to_be_stored_is_read_when_its_thread_waits(tmp_path: Path) -> None:
    body = (
        STORE + "__syncthreads();\nturned[threadIdx.x] = 1;\n__syncthreads();\nif (threadIdx.x == 0) tma_store_wait();"
    )
    assert not is_right(tmp_path, body, "forward")
    assert is_right(tmp_path, body, "backward")


FAULTS = {
    "stores that nobody waits for": (STORE, "1 boxes are to be stored, and nobody waits until they are read"),
    "a store of other axes": (STORE.replace("0, 0);", "0, 0, 0, 0);"), "the map has another number of axes"),
    "nobody waits": (WAIT + ASK, "4 products are asked for, and nobody waits for them"),
    "different products": (
        WAIT + ASK.replace("k_major_matrix(a, 1024)", "k_major_matrix(a + threadIdx.x / 64 * 1024, 1024)") + DONE,
        "wgmma: the threads of a warpgroup ask for different products",
    ),
    "a part of the warpgroup": (
        f"{WAIT}if (threadIdx.x < 64) {{ {ASK}{DONE} }}", "threads wait for others that do not come: 64 of 128 threads",
    ),
    "a matrix beside shared memory": (
        WAIT + ASK.replace("k_major_matrix(b, 1024)", "k_major_matrix(b + 8192, 1024)") + DONE,
        "a matrix does not lie in shared",
    ),
    "one more arrives": (
        "mbarrier_arrive_if(&bar, threadIdx.x == 0);", "nobody has waited for the bytes that were announced before",
    ),
    "too few meet": (f"{WAIT}if (threadIdx.x < 32) named_barrier<64>(1);", "threads wait for others that do not come"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_with_products_is_an_error(name: str, tmp_path: Path) -> None:
    body, message = FAULTS[name]
    with pytest.raises(EmulatorError, match=message):
        product(tmp_path, body, EmulatorRuntime())


def test_a_block_of_broken_warpgroups_multiplies_nothing(tmp_path: Path) -> None:
    with pytest.raises(EmulatorError, match="a block of whole warpgroups, of 128 threads, multiplies matrices"):
        product(tmp_path, WAIT + ASK + DONE, EmulatorRuntime(), threads=160)


def test_parts_of_a_block_meet(tmp_path: Path) -> None:
    """Two warps write, two read; each pair passes its own barrier as often as it likes."""
    body = """
        __shared__ float room[64];
        if (threadIdx.x < 64) {
            for (int i = 0; i < 3; i++) named_barrier<64>(1);
            room[threadIdx.x] = args.x[threadIdx.x];
        }
        named_barrier<128>(2);
        if (threadIdx.x >= 64) args.out[threadIdx.x - 64] = room[127 - threadIdx.x];
    """
    x = np.arange(64, dtype=np.float32)
    for out in in_every_order(source(tmp_path, body), x, 64, threads=128):
        np.testing.assert_array_equal(out, x[::-1])
