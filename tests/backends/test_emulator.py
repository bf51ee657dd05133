"""The emulator runs correctly: the project's kernels, barriers, warps, copies, atomics, constants, conversions."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.backends.emulated import ORDERS, Args, in_every_order, needs_emulator, run, source

from convforge.algorithms.direct.naive import PARTITIONS, DirectNaive, NaiveConfig
from convforge.backends.emulator import EmulatorRuntime, emulator_runtime
from convforge.backends.emulator.compiler import knows_poison
from convforge.backends.runtime import LaunchInfo
from convforge.problem import parse_problem
from convforge.verify import Judge, make_inputs
from convforge.verify.plans import check_plan

pytestmark = needs_emulator

X = np.arange(1, 4097, dtype=np.float32)


@pytest.mark.parametrize(
    "text",
    [
        "n1c3h17w31_k5r3s3_st1_p1_f32_nchw",
        "n2c3h9w10_k4r3s3_p1_st2_f32_nhwc_+bias+residual+relu",
        "n1c2h9w10_k3r3s5_p1x1x2x2_reflect_f32_nchw",
        "n1c4h9w10_k6r3s3_p1_g2_f64_nchw",
        "n1c2h9w10_k2r3s3_p1_u8-i8-u8-i32_nchw",
    ],
)
def test_direct_naive(text: str) -> None:
    problem = parse_problem(text)
    plan = DirectNaive("emulator").plan(problem, NaiveConfig(), emulator_runtime())
    for kind in ("normal", "integers"):
        verdict = check_plan(plan, Judge(problem, make_inputs(problem, kind)))
        assert verdict.ok, verdict.message


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("order", ORDERS)
def test_direct_naive_in_every_order(order: tuple[str, int], partition: str) -> None:
    problem = parse_problem("n1c2h9w10_k3r3s3_p1_f32_nchw")
    plan = DirectNaive("emulator").plan(problem, NaiveConfig(8, 8, partition), emulator_runtime(*order))
    verdict = check_plan(plan)
    assert verdict.ok, verdict.message


REDUCTION = """
    __shared__ float sums[256];
    sums[threadIdx.x] = args.x[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) args.out[blockIdx.x] = sums[0];
"""


@pytest.mark.parametrize("portable", [False, True])
def test_a_reduction_in_shared_memory(tmp_path: Path, portable: bool) -> None:
    """By both ways to switch stacks, over enough blocks that several threads of the CPU take part."""
    kernel = source(tmp_path, REDUCTION)
    x = np.resize(X, 256 * 100)
    for order in ORDERS:
        got = run(kernel, x, np.zeros(100, np.float32), 256, 100, runtime=EmulatorRuntime(*order, portable=portable))
        np.testing.assert_array_equal(got, x.reshape(100, 256).sum(1))


def test_launches_from_many_threads(tmp_path: Path) -> None:
    kernel, x = source(tmp_path, REDUCTION), np.resize(X, 256 * 40)

    def launch(turn: int) -> bool:
        got = run(kernel, x + turn, np.zeros(40, np.float32), 256, 40)
        return np.array_equal(got, (x + turn).reshape(40, 256).sum(1))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(launch, range(24)))


def test_a_forgotten_barrier_shows_in_some_order(tmp_path: Path) -> None:
    body = """
        __shared__ float tile[64];
        tile[threadIdx.x] = args.x[threadIdx.x];
        {barrier}
        args.out[threadIdx.x] = tile[(threadIdx.x + 1) % 64] + tile[(threadIdx.x + 63) % 64];
    """
    right = in_every_order(source(tmp_path, body.format(barrier="__syncthreads();")), X, 64)
    assert all(np.array_equal(got, np.roll(X[:64], 1) + np.roll(X[:64], -1)) for got in right)
    wrong = in_every_order(source(tmp_path, body.format(barrier="")), X, 64)
    assert any(not np.array_equal(got, right[0]) for got in wrong)


def test_a_forgotten_second_barrier_shows_in_some_order(tmp_path: Path) -> None:
    """Of a loop: the next tile is written while others still read the last one."""
    body = """
        __shared__ float tile[64];
        float sum = 0;
        for (int i = 0; i < 3; i++) {{
            tile[threadIdx.x] = args.x[64 * i + threadIdx.x];
            __syncthreads();
            sum += tile[63 - threadIdx.x];
            {barrier}
        }}
        args.out[threadIdx.x] = sum;
    """
    expected = X[:192].reshape(3, 64).sum(0)[::-1]
    right = in_every_order(source(tmp_path, body.format(barrier="__syncthreads();")), X, 64)
    assert all(np.array_equal(got, expected) for got in right)
    wrong = in_every_order(source(tmp_path, body.format(barrier="")), X, 64)
    assert any(not np.array_equal(got, expected) for got in wrong)


def test_barriers_that_count(tmp_path: Path) -> None:
    body = """
        const int i = threadIdx.x;
        args.out[i] = __syncthreads_count(i < 10) + 100 * __syncthreads_or(i == 7) + 1000 * __syncthreads_and(i < 70)
                      + 10000 * __syncthreads_or(i == 70) + 100000 * __syncthreads_and(i < 69);
    """
    for got in in_every_order(source(tmp_path, body), X, 70, threads=70):
        np.testing.assert_array_equal(got, np.full(70, 1110, np.float32))


def test_shuffles_and_votes(tmp_path: Path) -> None:
    body = """
        const unsigned all = 0xffffffff, i = threadIdx.x;
        const float x = args.x[i];
        float *out = args.out + i;
        out[0] = __shfl_sync(all, x, 5);
        out[64] = __shfl_up_sync(all, x, 3);
        out[128] = __shfl_down_sync(all, x, 3, 16);
        out[192] = __shfl_xor_sync(all, x, 9);
        out[256] = static_cast<float>(__shfl_sync(all, static_cast<double>(x), i + 1, 8));
        out[320] = __popc(__ballot_sync(all, i % 3 == 0));
        out[384] = 2 * __any_sync(all, i == 40) + __all_sync(all, i < 40);
        float sum = x;
        for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(all, sum, step);
        out[448] = __shfl_sync(all, sum, 0);
    """
    lane, warp = np.arange(64) % 32, np.arange(64) // 32 * 32
    x = X[:64]
    expected = [
        x[warp + 5],
        x[warp + np.where(lane < 3, lane, lane - 3)],
        x[warp + np.where(lane % 16 + 3 > 15, lane, lane + 3)],
        x[warp + (lane ^ 9)],
        x[warp + lane // 8 * 8 + (lane + 1) % 8],
        np.where(warp == 0, 11, 11),
        np.where(warp == 0, 1, 2),
        x.reshape(2, 32).sum(1).repeat(32),
    ]
    for got in in_every_order(source(tmp_path, body), X, 512):
        np.testing.assert_array_equal(got.reshape(8, 64), np.array(expected))


def test_a_part_of_a_warp(tmp_path: Path) -> None:
    """Lanes outside of the mask go their own way; those that returned, or were never there, are not waited for."""
    body = """
        if (threadIdx.x % 4 == 3) return;
        if (threadIdx.x % 4 == 0) args.out[threadIdx.x] = __shfl_xor_sync(0x11111111, args.x[threadIdx.x], 4);
        else args.out[threadIdx.x] = __popc(__ballot_sync(0x66666666, 1));
        __syncwarp();
    """
    expected = np.zeros(36, np.float32)
    expected[0:32:4] = X[np.arange(0, 32, 4) ^ 4]
    expected[1:32:4] = expected[2:32:4] = 16
    expected[33:35] = 2
    expected[32] = np.nan  # its source is not there: poison
    for got in in_every_order(source(tmp_path, body), X, 36, threads=36):
        np.testing.assert_array_equal(got, expected)


COPIES = """
    DYNAMIC_SHARED(float, tile);
    const int i = 4 * threadIdx.x;
    copy_async16(tile + i, args.x + i);
    copy_async_commit();
    copy_async16(tile + 256 + i, args.x + 256 + i, threadIdx.x < 60);
    copy_async_commit();
    {wait}
    __syncthreads();
    args.out[threadIdx.x] = tile[255 - threadIdx.x] {second};
"""


def test_copies_land_at_the_wait(tmp_path: Path) -> None:
    def outputs(wait: str, second: str = "") -> list[np.ndarray]:
        return in_every_order(source(tmp_path, COPIES.format(wait=wait, second=second)), X, 64, dynamic=2048)

    first = X[255:191:-1]
    assert all(np.array_equal(got, first) for got in outputs("copy_async_wait<1>();"))
    both = outputs("copy_async_wait();", "+ tile[511 - threadIdx.x]")
    assert all(np.array_equal(got, first + np.where(np.arange(64) < 16, 0, X[511:447:-1])) for got in both)
    assert all(np.isnan(got).all() for got in outputs(""))
    assert all(np.isnan(got).all() for got in outputs("copy_async_wait<2>();"))
    too_early = outputs("copy_async_wait<1>();", "+ tile[511 - threadIdx.x]")
    assert all(np.isnan(got).all() for got in too_early)


def test_shared_memory_is_poisoned_before_every_block(tmp_path: Path) -> None:
    body = """
        DYNAMIC_SHARED(float, dynamic);
        __shared__ float fixed[64];
        args.out[blockIdx.x * 64 + threadIdx.x] = dynamic[threadIdx.x] + fixed[threadIdx.x];
        dynamic[threadIdx.x] = fixed[threadIdx.x] = 1;
    """
    for got in in_every_order(source(tmp_path, body), X, 640, blocks=10, dynamic=256):
        assert np.isnan(got).all()


def test_variables_are_poisoned(tmp_path: Path) -> None:
    if not knows_poison():
        pytest.skip("this g++ cannot poison variables; g++ 12 can")
    body = """
        float sum, squares[4];
        for (int i = 0; i < 4; i++) sum += args.x[i], squares[i] += args.x[i] * args.x[i];
        args.out[threadIdx.x] = threadIdx.x % 2 ? sum : squares[threadIdx.x % 4];
    """
    for got in in_every_order(source(tmp_path, body), X, 64):
        assert (got < -1e38).all()


def test_atomics_across_blocks(tmp_path: Path) -> None:
    body = """
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        atomicAdd(args.out, 1);
        atomicMax(args.out + 1, i);
        atomicMin(args.out + 2, -i);
        atomicAdd(reinterpret_cast<float *>(args.out + 3), 0.5f);
        int old = args.out[4], seen;
        do {
            seen = old;
            old = atomicCAS(args.out + 4, seen, seen + 2);
        } while (old != seen);
        atomicAdd(reinterpret_cast<double *>(args.out + 6), 0.25);
        atomicAdd(reinterpret_cast<unsigned *>(args.out + 5), 3u);
    """
    out = run(source(tmp_path, body, out="int"), X, np.zeros(8, np.int32), 128, 200)
    assert out[:3].tolist() == [25600, 25599, -25599]
    assert out[3:4].view(np.float32)[0] == 12800
    assert out[4:6].tolist() == [51200, 76800]
    assert out[6:].view(np.float64)[0] == 6400


def test_constants_are_filled_by_name(tmp_path: Path) -> None:
    before = "__constant__ float environ[64]; __constant__ int bias;"  # environ: libc has one too
    kernel = source(tmp_path, "args.out[threadIdx.x] = environ[threadIdx.x] + bias;", before=before)
    runtime = EmulatorRuntime()
    compiled = runtime.compile(kernel)
    address, nbytes = compiled.symbol("environ")
    assert nbytes == 256
    runtime.copy(address, X.ctypes.data, nbytes)
    address, nbytes = compiled.symbol("bias")
    assert nbytes == 4
    ctypes.c_int.from_address(address).value = 5
    np.testing.assert_array_equal(run(kernel, X, np.zeros(64, np.float32)), X[:64] + 5)
    with pytest.raises(ValueError, match="no __constant__ array 'absent'"):
        compiled.symbol("absent")


def test_every_half_widens(tmp_path: Path) -> None:
    kernel = source(tmp_path, "const int i = blockIdx.x * 256 + threadIdx.x; args.out[i] = widen(args.x[i]);", "half_t")
    bits = np.arange(65536, dtype=np.uint16)
    got = run(kernel, bits, np.zeros(65536, np.float32), 256, 256)
    np.testing.assert_array_equal(got, bits.view(np.float16).astype(np.float32))
    assert np.array_equal(np.signbit(got), np.signbit(bits.view(np.float16)))


def _awkward_floats() -> np.ndarray:
    """Every half, the middle of every two neighbours, what lies beside those, and random bits."""
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = np.sort(halves[np.isfinite(halves)])
    middles = (finite[1:] + finite[:-1]) / 2
    ends = np.array([65519.996, 65520, -65520, 65536, 1e30, 1e-45, -1e-45, 2**-25, np.inf, -np.inf, np.nan], np.float32)
    beside = [np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, np.float32(-np.inf))]
    random = np.random.default_rng(0).integers(0, 2**32, 1 << 16, dtype=np.uint32).view(np.float32)
    values = np.concatenate([halves, middles, *beside, ends, random])
    return np.resize(values, -(-values.size // 256) * 256)


def test_floats_narrow_to_half_as_numpy_does(tmp_path: Path) -> None:
    body = "const int i = blockIdx.x * 256 + threadIdx.x; args.out[i] = narrow_half(args.x[i]);"
    values = _awkward_floats()
    got = run(source(tmp_path, body, out="half_t"), values, np.zeros(values.size, np.float16), 256, values.size // 256)
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), ~number)
    np.testing.assert_array_equal(got.view(np.uint16)[number], expected.view(np.uint16)[number])


def test_bfloat16_is_the_upper_half_ties_to_even(tmp_path: Path) -> None:
    body = """
        const int i = blockIdx.x * 256 + threadIdx.x;
        const bfloat16_t narrow = narrow_bfloat16(args.x[i]);
        args.out[i] = narrow;
        if (widen(narrow) != widen(narrow) && args.x[i] == args.x[i]) args.out[i].bits = 0x1234;
    """
    bits = np.arange(65536, dtype=np.uint32) << 16
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    values = (bits[:, None] | low).ravel().view(np.float32)
    kernel = source(tmp_path, body, out="bfloat16_t")
    got = run(kernel, values, np.zeros(values.size, np.uint16), 256, values.size // 256).reshape(-1, 6)
    upper = np.arange(65536, dtype=np.uint32)
    nan = np.isnan(values.reshape(-1, 6))
    up = np.stack([upper, upper, upper, upper + (upper & 1), upper + 1, upper + 1], axis=1)
    np.testing.assert_array_equal(got[~nan], (up & 0xFFFF)[~nan].astype(np.uint16))
    assert np.isnan((got.astype(np.uint32) << 16).view(np.float32)[nan]).all()


def _beside_ties(narrow: np.ndarray) -> np.ndarray:
    """The middle of every two neighbours of a 16-bit type, in float64, and what lies beside it, beyond float32 too."""
    middles = (narrow[1:] + narrow[:-1]) / 2
    beside = [np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf), middles * (1 + 2.0**-26)]
    values = np.concatenate([narrow, middles, *beside, [1e300, -1e300, 3.5e38, 1e-320, np.inf, -np.inf, np.nan]])
    return np.resize(values, -(-values.size // 256) * 256)


def test_doubles_are_stored_as_half_rounded_once(tmp_path: Path) -> None:
    body = "const int i = blockIdx.x * 256 + threadIdx.x; args.out[i] = stored<half_t>::of(args.x[i]);"
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float64)
    values = _beside_ties(np.sort(halves[np.isfinite(halves)]))
    kernel = source(tmp_path, body, x="double", out="half_t")
    got = run(kernel, values, np.zeros(values.size, np.float16), 256, values.size // 256)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, values.astype(np.float16))


@pytest.mark.parametrize("kind", ["double", "int"])
def test_wide_numbers_are_stored_as_bfloat16_rounded_once(tmp_path: Path, kind: str) -> None:
    body = "const int i = blockIdx.x * 256 + threadIdx.x; args.out[i] = stored<bfloat16_t>::of(args.x[i]);"
    exact = (np.arange(0x7F80, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)
    exact = np.concatenate([-exact[:0:-1], exact])
    if kind == "int":
        exact = exact[(abs(exact) <= 2**31) & (exact % 1 == 0)]
        middles = ((exact[1:] + exact[:-1]) / 2).astype(np.int64)
        values = np.concatenate([middles - 1, middles, middles + 1]).clip(-(2**31), 2**31 - 1)
        values = np.resize(values, -(-values.size // 256) * 256).astype(np.int32)
    else:
        values = _beside_ties(exact)
    kernel = source(tmp_path, body, x=kind, out="bfloat16_t")
    bits = run(kernel, values, np.zeros(values.size, np.uint16), 256, values.size // 256)
    got = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    wide = values.astype(np.float64)
    number = abs(wide) < 2.0**127
    at = np.searchsorted(exact, wide[number])
    low, high = exact[np.maximum(at - 1, 0)], exact[np.minimum(at, exact.size - 1)]
    below, above = wide[number] - low, high - wide[number]
    assert (abs(got[number] - wide[number]) == np.minimum(below, above)).all(), "the nearest"
    tie = (below == above) & (low != high)
    assert tie.any()
    assert (bits[number][tie] & 1 == 0).all(), "ties to even"
    np.testing.assert_array_equal(got[abs(wide) > 3.4e38], wide[abs(wide) > 3.4e38] * np.inf)


def test_arithmetic(tmp_path: Path) -> None:
    """Arithmetic in which CUDA differs from C."""
    body = """
        float *out = args.out;
        const float nan = __int_as_float(0x7fffffff);
        *out++ = min(-1, 1u) == 1u;
        *out++ = max(nan, 2.0f);
        *out++ = __float2int_rn(2.5f);
        *out++ = __float2int_rz(-2.7f);
        *out++ = __float2int_rn(1e20f) == 2147483647;
        *out++ = __clz(1) + __ffs(8) + __popc(255);
        *out++ = __dp4a(0x01ff0203, 0x01010101, 10);
        *out++ = __byte_perm(0x33221100, 0x77665544, 0x7610) == 0x77661100;
        *out++ = rint(1.5f) + rint(2.5f) + abs(-3) + abs(-0.5f);
        *out++ = exp(0.0f) + tanh(0.0f) + erfc(0.0f) + rsqrtf(4.0f);
        *out++ = __ldg(args.x + 2) + make_float4(1, 2, 3, 4).w;
        *out++ = __umulhi(1u << 31, 6u);
    """
    got = run(source(tmp_path, body), X, np.zeros(12, np.float32), 1)
    assert got.tolist() == [1, 2, 2, -2, 1, 43, 15, 1, 7.5, 2.5, 7, 3]


def test_indices_of_a_launch_in_three_dimensions(tmp_path: Path) -> None:
    body = """
        const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
        const unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
        atomicAdd(args.out + i, 1.0f + i);
    """
    for order in ORDERS:
        runtime, out = EmulatorRuntime(*order), np.zeros(24 * 30, np.float32)
        info = LaunchInfo("tried", (2, 3, 4), (5, 3, 2))
        runtime.launch(runtime.compile(source(tmp_path, body)), info, Args(0, out.ctypes.data, 0))
        np.testing.assert_array_equal(out, np.arange(1, out.size + 1))


def test_memory_is_aligned_and_poisoned() -> None:
    runtime = EmulatorRuntime()
    memory = runtime.allocate(1000)
    assert memory.nbytes == 1000
    assert memory.ctypes.data % 64 == 0
    assert (memory == 0xFF).all()
    assert np.isnan(runtime.empty((3, 4), np.float32)).all()


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32"])
def test_floats_are_stored_as_the_nearest_whole_number_ties_to_even_within_the_types_limits(
    dtype: str, tmp_path: Path
) -> None:
    info = np.iinfo(dtype)
    whole = np.arange(max(info.min, -70000), min(info.max, 70000) + 1, 1 if info.bits < 32 else 7)
    ties = (whole + 0.5).astype(np.float32)
    near = [np.nextafter(ties, np.float32(side)) for side in (-np.inf, np.inf)]
    far = [*(info.min + np.array([-1e9, -1, -0.51, -0.5, 0])), *(info.max + np.array([0, 0.49, 0.5, 1, 1e9])), np.nan,
           np.inf, -np.inf, -0.0, 1e-45]  # fmt: skip
    values = np.concatenate([whole.astype(np.float32), ties, *near, np.array(far, np.float32)])
    c_type = {"uint8": "unsigned char", "int8": "signed char", "uint16": "unsigned short", "int16": "short"}.get(
        dtype, "int"
    )
    kernel = source(
        tmp_path,
        f"for (int i = threadIdx.x; i < args.n; i += blockDim.x) args.out[i] = stored<{c_type}>::of(args.x[i]);",
        out=c_type,
    )
    got = run(kernel, values, np.zeros(values.size, dtype), n=values.size)
    with np.errstate(invalid="ignore"):
        expected = np.clip(np.rint(np.nan_to_num(values.astype(np.float64), nan=0)), info.min, info.max).astype(dtype)
    np.testing.assert_array_equal(got, expected)
