"""Products of matrices by a warp on the emulator, and loads of their factors: operations of all lanes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.backends.emulated import ORDERS, needs_emulator, run, source

from convforge.backends.emulator import EmulatorError, EmulatorRuntime
from convforge.problem.types import numpy_dtype

pytestmark = needs_emulator

# x: of each lane the four words of the first factor, then the two of the second. Each lane adds to 16 x 8 sums.
PRODUCT = """
const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
unsigned a[4], b[2];
for (int i = 0; i < 4; i++) a[i] = args.x[6 * lane + i];
for (int i = 0; i < 2; i++) b[i] = args.x[6 * lane + 4 + i];
{sum} sums[4] = {{1, 1, 1, 1}};
{call};
for (int i = 0; i < 4; i++) args.out[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sums[i];
"""
LANES = np.arange(32)
BYTES: dict[str, Any] = {"signed char": np.int8, "unsigned char": np.uint8}


def fragments(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.uint32]:
    """The words of every lane, as PTX lays out a product of 16 rows by 8 columns."""
    group, t = LANES // 4, LANES % 4
    words = np.ascontiguousarray(first).view(np.uint32)  # (16, 8)
    columns = np.ascontiguousarray(second.T).view(np.uint32)  # (8, 8)
    a = [words[group + 8 * (i % 2), t + 4 * (i // 2)] for i in range(4)]
    b = [columns[group, t + 4 * i] for i in range(2)]
    return np.stack([*a, *b], axis=1)


def numbers_of(bits: NDArray[Any], kind: str) -> NDArray[Any]:
    """Numbers that the bits of a type represent."""
    if kind == "half_t":
        return bits.view(np.float16).astype(np.float64)
    if kind == "bfloat16_t":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if kind == "float":  # TF32: its last 13 bits are not seen
        return (bits & ~np.uint32(0x1FFF)).view(np.float32).astype(np.float64)
    return bits.astype(np.int64)


def some_bits(kind: str, shape: tuple[int, int], seed: int) -> NDArray[Any]:
    """Numbers of a type: all bytes, or floats with small ones and subnormal ones among them."""
    random = np.random.default_rng(seed)
    if kind in BYTES:
        return random.integers(0, 256, shape, np.uint8).view(BYTES[kind])
    values = (random.standard_normal(shape) * 2.0 ** random.integers(-20, 2, shape)).astype(np.float32)
    if kind == "half_t":
        return np.asarray(values.astype(np.float16).view(np.uint16))
    bits = values.view(np.uint32)
    return np.asarray(bits if kind == "float" else (bits >> 16).astype(np.uint16))


@pytest.mark.parametrize(
    ("call", "kinds"),
    [
        *((f"mma_halves<{kind}>(sums, a, b)", (kind, kind)) for kind in ("half_t", "bfloat16_t")),
        ('emulator::here()->services->multiply_fragments({"tf32", "tried.cu", 8}, "tf32", sums, a, b)', ("float",) * 2),
        *((f"mma_bytes<{a}, {b}>(sums, a, b, sums)", (a, b)) for a in BYTES for b in BYTES),
    ],
)  # fmt: skip
def test_a_product_of_a_warp(call: str, kinds: tuple[str, str], tmp_path: Path) -> None:
    whole = kinds[0] in BYTES
    sums: Any = np.int32 if whole else np.float32
    deep = 32 if whole else 8 if kinds[0] == "float" else 16
    first, second = some_bits(kinds[0], (16, deep), 0), some_bits(kinds[1], (deep, 8), 1)
    name = "int" if whole else "float"
    kernel = source(tmp_path, PRODUCT.format(sum=name, call=call), "unsigned", name, '#include "mma.cuh"')
    exact = 1 + numbers_of(first, kinds[0]) @ numbers_of(second, kinds[1])
    bound = np.abs(numbers_of(first, kinds[0])) @ np.abs(numbers_of(second, kinds[1])) + 1
    for order in ORDERS:
        out = run(kernel, fragments(first, second), np.zeros(128, sums), 32, runtime=EmulatorRuntime(*order))
        error = np.abs(out.reshape(16, 8) - exact)
        assert (error <= (0 if whole else 20 * 2.0**-24 * bound)).all()


@pytest.mark.parametrize(
    "kinds", [("e4m3_t", "e4m3_t"), ("e4m3_t", "e5m2_t"), ("e5m2_t", "e4m3_t"), ("e5m2_t", "e5m2_t")]
)
def test_a_product_of_8_bit_floats(kinds: tuple[str, str], tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    types = [numpy_dtype({"e4m3_t": "float8_e4m3fn", "e5m2_t": "float8_e5m2"}[kind]) for kind in kinds]
    shapes = ((16, 32), (32, 8))
    factors = [random.standard_normal(shape).astype(dtype) for shape, dtype in zip(shapes, types, strict=True)]
    first, second = (factor.astype(np.float64) for factor in factors)
    call = f"mma_fp8<{kinds[0]}, {kinds[1]}>(sums, a, b)"
    kernel = source(tmp_path, PRODUCT.format(sum="float", call=call), "unsigned", "float", '#include "mma.cuh"')
    words = fragments(*(factor.view(np.uint8) for factor in factors))
    out = run(kernel, words, np.zeros(128, np.float32), 32).reshape(16, 8)
    # Each of 32 products and the sum are cut off at 13 bits after the first of the largest; then so is the sum.
    largest = np.maximum(1, np.abs(first[:, :, None] * second).max(axis=1))
    error = np.abs(out - (1 + first @ second))
    assert (error <= 33 * 2.0**-13 * largest + 2.0**-13 * np.abs(out)).all()
    assert error.max() > 0


def test_infinities_and_nans_spread_as_products_do(tmp_path: Path) -> None:
    first, second = np.ones((16, 16), np.float16), np.ones((16, 8), np.float16)
    first[3, 5], first[4, 15], second[7, 2] = np.inf, np.nan, 0
    first[5, 7] = -np.inf
    body = PRODUCT.format(sum="float", call="mma_halves<half_t>(sums, a, b)")
    kernel = source(tmp_path, body, "unsigned", "float", '#include "mma.cuh"')
    words = fragments(first.view(np.uint16), second.view(np.uint16))
    with np.errstate(invalid="ignore"):
        exact = 1 + first.astype(np.float32) @ second.astype(np.float32)
    assert np.isnan(exact).any()
    np.testing.assert_array_equal(run(kernel, words, np.zeros(128, np.float32), 32).reshape(16, 8), exact)


LOAD = """
alignas(16) __shared__ unsigned short tile[33][8];
for (int i = 0; i < 8; i++) tile[threadIdx.x][i] = 8 * threadIdx.x + i;
__syncthreads();
unsigned words[4];
{when}emulator::here()->services->load_fragments({{"ldmatrix", "tried.cu", 6}}, words, {row}, {turned});
for (int j = 0; j < 4; j++) {{
    args.out[8 * threadIdx.x + 2 * j] = words[j] & 0xffff;
    args.out[8 * threadIdx.x + 2 * j + 1] = words[j] >> 16;
}}
"""


@pytest.mark.parametrize("turned", [False, True])
def test_matrices_are_loaded_by_a_warp(turned: bool, tmp_path: Path) -> None:
    kernel = source(tmp_path, LOAD.format(when="", row="tile[threadIdx.x]", turned=str(turned).lower()))
    matrices = np.arange(256).reshape(4, 8, 8)
    lines = matrices.transpose(0, 2, 1) if turned else matrices
    wanted = [[lines[j, lane // 4, 2 * (lane % 4) + e] for j in range(4) for e in range(2)] for lane in LANES]
    for order in ORDERS:
        out = run(kernel, np.zeros(1, np.float32), np.zeros(256, np.float32), 32, runtime=EmulatorRuntime(*order))
        np.testing.assert_array_equal(out.reshape(32, 8), wanted)


@pytest.mark.parametrize(
    ("when", "row", "threads", "fault"),
    [
        ("", "args.out + 4 * threadIdx.x", 32, "ldmatrix: a row does not lie in shared memory, tried.cu:6"),
        ("", "&tile[threadIdx.x][1]", 32, "addresses of rows must be multiples of 16"),
        ("if (threadIdx.x != 5) ", "tile[threadIdx.x]", 32, "a warp waits for lanes that do not come: 31 of 32"),
        ("if (threadIdx.x == 5) return; ", "tile[threadIdx.x]", 32, "a warp waits for lanes that do not come"),
        ("", "tile[threadIdx.x]", 16, "a warp waits for lanes that do not come: 16 of 16 threads"),
    ],
)
def test_a_warp_that_cannot_load_is_an_error(when: str, row: str, threads: int, fault: str, tmp_path: Path) -> None:
    kernel = source(tmp_path, LOAD.format(when=when, row=row, turned="false"))
    x, out = np.zeros(1, np.float32), np.zeros(256, np.float32)
    for order in ORDERS:
        runtime = EmulatorRuntime(*order)
        with pytest.raises(EmulatorError, match=fault):
            run(kernel, x, out, threads, runtime=runtime)
