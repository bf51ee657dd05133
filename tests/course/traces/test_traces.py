"""The trace of a kernel, by formula, equals the accesses of the emulator, which runs one block alone."""

from __future__ import annotations

import ctypes
import dataclasses
import doctest
import math
from typing import Any

import numpy as np
import pytest
from tests.backends.emulated import needs_emulator

from convforge.algorithms import ON_DEVICE, find, make_config
from convforge.backends.emulator import EmulatorError, EmulatorRuntime, emulator_runtime
from convforge.backends.emulator.library import Error, scheduler
from convforge.course import traces
from convforge.course.traces import TracingRuntime, trace, tracing
from convforge.problem import Conv2dProblem, parse_problem
from convforge.verify import make_inputs
from convforge.verify.inputs import output_dtype

pytestmark = needs_emulator

# Ragged: no block divides the output.
LADDERS = [
    ("direct_naive", "n1c2h13w21_k2r3s3_st1_p1_f32_nchw", "block_x=8,block_y=4"),
    ("direct_naive", "n1c2h13w21_k2r3s3_st1_p1_f32_nchw", "block_x=8,block_y=4,partition=block"),
    ("direct_naive", "n1c2h13w21_k2r3s3_st1_p1_f32_nchw", "block_x=8,block_y=4,partition=row"),
    ("direct_constant", "n1c2h13w21_k2r3s3_st2_p1_f32_nhwc", "block_x=8,block_y=4"),
    ("direct_shared", "n1c2h13w21_k3r3s3_st1_p1_f32_nchw", "block_x=8,block_y=4,per_p=2"),
    ("direct_tiled", "n1c2h13w21_k2r3s3_st1_p1_f32_nchw", "block_x=8,block_y=4,out_p=2,out_q=2"),
    ("direct_boxes", "n1c1h13w36_k2r3s3_st1_p1_f32_nchw", "strips=4,lanes=8,out_p=2,out_q=2"),
    ("gemm_naive", "m21n19k10_f32", "block_x=8,block_y=4"),
    ("gemm_shared", "m21n19k10_f32", "block=8"),
    ("gemm_tile_1d", "m21n35k10_f32", "block_m=8,block_n=32,block_k=8,thread_m=4"),
    ("gemm_tile_2d", "m21n35k10_f32", "block_m=16,block_n=16,block_k=8,thread_m=2,thread_n=2"),
    ("gemm_vectorised", "m37n35k10_f32", "block_m=32,block_n=32,block_k=16,thread_m=4,thread_n=4"),
    ("gemm_warp_tiled", "m37n70k10_f32",
     "block_m=32,block_n=64,block_k=16,warp_m=16,warp_n=32,thread_m=4,thread_n=4,stages=4"),
]  # fmt: skip
OTHERS = [
    ("direct_mma", "n1c1h9w48_k1r3s3_p1_u8-i8-u8-i32_nchw", "warps=1,stages=2"),
    ("direct_small", "n1c2h13w21_k2r3s3_st1_p1_f32_nchw", "block_x=8,block_y=4"),
    ("im2col", "n1c3h6w8_k4r3s3_st1_p1_f32_nchw", ""),
    ("im2col_tf32", "n1c3h6w8_k4r3s3_st1_p1_f32_nchw_math-tf32", ""),
    ("implicit_gemm", "n1c3h6w8_k4r3s3_st1_p1_f32_nchw", ""),
    ("depthwise_channels", "n1c8h8w8_k8r3s3_st1_p1_g8_f32_nhwc", ""),
    ("depthwise_planes", "n1c4h16w16_k4r3s3_st1_p1_g4_f32_nchw", ""),
    ("depthwise_rows", "n1c8h14w14_k8r5s5_st1_p2_g8_f32_nchw", ""),
    ("depthwise_mma", "n1c4h24w32_k4r7s7_st1_p3_g4_f16_nchw", ""),
    ("depthwise_mma", "n1c4h14w16_k4r9s9_st1_p4_g4_f16_nchw", ""),
    ("depthwise_batch", "n8c4h14w14_k4r5s5_st1_p2_g4_f16_nchw", ""),
    ("depthwise_dp4a", "n1c8h8w8_k8r3s3_p1_g8_u8-i8-f32-i32_nhwc_+zero:9", ""),
    ("fft", "n1c2h40w40_k2r15s15_st1_p7_f32_nchw", ""),
    ("fft_fused", "n1c2h40w40_k2r15s15_st1_p7_g2_f32_nchw", ""),
    ("separable", "n1c1h32w32_k1r5s5_st1_p2_f32_nchw", ""),
    ("max_pool", "max_n1c1h16w16_r3s3_st2_p1_f32", ""),
    ("relu", "relu4096_f32", ""),
    ("implicit_gemm_wgmma", "n1c16h9w10_k24r3s3_p1_f16_nhwc", ""),
    (
        "implicit_gemm_mma",
        "n1c16h9w10_k24r3s3_p1_f16_nhwc",
        "block_m=32,block_n=32,block_k=32,warp_m=16,warp_n=16,stages=2",
    ),
    ("implicit_gemm_few_channels", "n1c3h19w36_k16r7s7_st2_p3_f16_nchw", ""),
    ("implicit_gemm_few_outputs", "n1c16h6w21_k3r3s3_p1_f16_nhwc", "warps=1,fragments=1,chunk=32,stages=2,rows=3"),
    ("implicit_gemm_split_few_channels", "n1c3h9w20_k16r3s3_p1_f32_nchw", ""),
    ("implicit_gemm_tf32", "n1c8h9w10_k24r3s3_p1_f32_nhwc_math-tf32", ""),
    ("implicit_gemm_split", "n1c8h9w10_k24r3s3_p1_f32_nchw", ""),
    ("implicit_gemm_int8", "n1c16h9w10_k32r3s3_p1_u8-i8-u8-i32_nhwc_+scale:channel", ""),
    ("implicit_gemm_fp8", "n1c16h9w10_k24r3s3_p1_f8e4m3-f8e4m3-f16-f32_nhwc_math-fp8", ""),
    ("implicit_gemm_fp8_fast", "n1c16h9w10_k24r3s3_p1_f8e4m3-f8e4m3-f16-f32_nhwc_math-fp8fast", ""),
    ("gemm_mma", "m37n40k24_f16", "block_m=32,block_n=32,block_k=32,warp_m=16,warp_n=16,stages=2"),
    ("gemm_mma", "m37n40k80_u8-i8", "block_m=32,block_n=32,block_k=64,warp_m=16,warp_n=16,stages=2"),
    ("gemm_wgmma", "m72n80k64_f16", ""),
    ("gemm_tf32", "m21n19k40_f32_math-tf32", ""),
    ("gemm_split", "m21n19k40_f32", ""),
    ("implicit_gemm_split_mma", "n1c8h9w10_k24r3s3_p1_f32_nchw", "block_m=32,block_n=32,warp_m=16,warp_n=16,stages=2"),
    (
        "implicit_gemm_tf32_mma",
        "n1c8h9w10_k24r3s3_p1_f32_nhwc_math-tf32",
        "block_m=32,block_n=32,block_k=16,warp_m=16,warp_n=16,stages=2",
    ),
    (
        "implicit_gemm_int8_mma",
        "n1c32h9w10_k24r3s3_p1_u8-i8-u8-i32_nhwc_+zero:128+scale:channel+bias",
        "block_m=32,block_n=32,block_k=64,warp_m=16,warp_n=32,stages=2",
    ),
    (
        "direct_dp4a",
        "n1c32h9w10_k32r3s3_p1_g8_u8-i8-u8-i32_nhwc_+zero:128+scale:channel+bias",
        "threads=32,tile_q=4,filters=4",
    ),
    (
        "implicit_gemm_dp4a",
        "n1c32h9w10_k24r3s3_p1_u8-i8-u8-i32_nhwc_+zero:128+scale:channel+bias",
        "block_m=32,block_n=128,block_k=8,warp_m=32,warp_n=32,thread_m=8,thread_n=4",
    ),
    (
        "implicit_gemm_fp8_mma",
        "n1c32h9w10_k24r3s3_p1_f8e4m3-f8e4m3-f16-f32_nhwc_math-fp8",
        "block_m=32,block_n=32,block_k=64,warp_m=16,warp_n=16,stages=2",
    ),
    ("gemm_tf32_mma", "m37n40k24_f32_math-tf32", "block_m=32,block_n=32,block_k=16,warp_m=16,warp_n=16,stages=2"),
    ("gemm_split_mma", "m21n19k40_f32", "block_m=32,block_n=32,warp_m=16,warp_n=16,stages=2"),
]


class OneBlock(EmulatorRuntime):
    """The plain emulator; of the launch with this number it runs one block alone."""

    def __init__(self, which: int, block: int) -> None:
        super().__init__()
        self.which, self.block, self.seen = which, block, 0

    def launch(self, kernel: Any, info: Any, args: ctypes.Structure, stream: Any = None) -> None:
        self.seen += 1
        if self.seen - 1 != self.which:
            super().launch(kernel, info, args, stream)
            return
        error = Error()
        scheduler().run(self._job(kernel, info, args), self.block, self.block + 1, error)
        assert not error.kind, error.text


def written_by(name: str, text: str, config: str, which: int, block: int) -> list[int]:
    """The outputs that hold no poison once one block alone has run."""
    runtime, problem = OneBlock(which, block), parse_problem(text)
    method = find(problem.operation, "emulator", name)
    plan = method.plan(problem, make_config(method, problem, runtime.facts, config), runtime)
    inputs = make_inputs(problem, "integers")
    x, w = runtime.upload(inputs.x), None if inputs.w is None else runtime.upload(inputs.w)
    out = runtime.empty(problem.out_shape, output_dtype(problem))
    plan(plan.buffers(x, plan.borrow(w), out=out))
    found: list[int] = np.flatnonzero(~np.isnan(out)).tolist()
    return found


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name, text, config", LADDERS, ids=lambda value: str(value)[:40])
def test_a_blocks_outputs_are_those_it_writes_alone(name: str, text: str, config: str) -> None:
    found = trace(parse_problem(text), name, config)
    assert found.is_right
    launch = found.writer()
    wrote = found.touched("out", launch, written=True)
    blocks = math.prod(found.launches[launch].info.grid)
    assert blocks > 1
    for block in {0, blocks // 2, blocks - 1}:
        assert sorted(wrote.of_block(block).elements) == written_by(name, text, config, launch, block)


@pytest.mark.one_in(17)
@pytest.mark.parametrize("name, text, config", [*LADDERS, *OTHERS], ids=lambda value: str(value)[:40])
def test_every_output_is_written_by_one_thread(name: str, text: str, config: str) -> None:
    found = trace(parse_problem(text), name, config)
    assert found.is_right
    assert (found.touched("out", found.writer(), written=True).counts() == 1).all()


def test_every_kernel_can_be_traced() -> None:
    assert {name for name, *_ in (*LADDERS, *OTHERS)} == {a.name for a in ON_DEVICE}


# Who computes an output, as the kernels' files say it: (block, thread) of the output at row p and column q.


def naive(p: int, q: int) -> tuple[int, int]:
    return p // 4 * 3 + q // 8, p % 4 * 8 + q % 8


def shared(p: int, q: int) -> tuple[int, int]:
    return p // 8 * 3 + q // 8, p % 8 // 2 * 8 + q % 8


def tiled(p: int, q: int) -> tuple[int, int]:
    return p // 8 * 2 + q // 16, p % 8 // 2 * 8 + q % 16 // 2


def gemm_shared(m: int, n: int) -> tuple[int, int]:
    return n // 8 * 3 + m // 8, m % 8 * 8 + n % 8


def gemm_tile_1d(m: int, n: int) -> tuple[int, int]:
    return n // 32 * 3 + m // 8, m % 8 // 4 * 32 + n % 32


def gemm_tile_2d(m: int, n: int) -> tuple[int, int]:
    return n // 16 * 2 + m // 16, m % 8 * 8 + n % 8


def gemm_vectorised(m: int, n: int) -> tuple[int, int]:
    return n // 32 * 2 + m // 32, m % 32 // 4 * 8 + n % 32 // 4


@pytest.mark.parametrize(
    "rule, name, text, config",
    [
        (naive, *LADDERS[0]),
        (naive, "direct_constant", "n1c1h13w21_k1r3s3_st1_p1_f32_nchw", "block_x=8,block_y=4"),
        (shared, *LADDERS[4]),
        (tiled, *LADDERS[5]),
        (gemm_shared, *LADDERS[8]),
        (gemm_tile_1d, *LADDERS[9]),
        (gemm_tile_2d, "gemm_tile_2d", "m24n24k8_f32", LADDERS[10][2]),
        (gemm_vectorised, *LADDERS[11]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_threads_compute_what_the_file_says(rule: Any, name: str, text: str, config: str) -> None:
    found = trace(parse_problem(text), name, config)
    wrote = found.touched("out", found.writer(), written=True)
    blocks, threads = (plane_of(wrote.last(what)) for what in ("blocks", "threads"))
    rows, columns = blocks.shape
    expected = [[rule(p, q) for q in range(columns)] for p in range(rows)]
    assert [list(zip(*pair, strict=True)) for pair in zip(blocks.tolist(), threads.tolist(), strict=True)] == expected


def plane_of(values: Any) -> Any:
    return values[0, 0] if values.ndim == 4 else values


def test_a_thread_of_direct_naive_reads_its_window() -> None:
    found = trace(parse_problem("n1c2h12w24_k1r3s3_st1_p1_f32_nchw"), "direct_naive", "block_x=8,block_y=4")
    read = found.touched("x").of_thread(4, 10).counts()  # output (5, 10)
    expected = np.zeros((1, 2, 12, 24), int)
    expected[:, :, 4:7, 9:12] = 1
    assert read.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "name, width, config", [("direct_shared", 24, "per_p=2"), ("direct_tiled", 48, "out_p=2,out_q=2")]
)
def test_what_a_block_reads_is_its_tile_and_halo(name: str, width: int, config: str) -> None:
    found = trace(parse_problem(f"n1c1h24w{width}_k1r3s3_st1_p1_f32_nchw"), name, f"block_x=8,block_y=4,{config}")
    wrote = found.touched("out", written=True).of_block(4).counts()[0, 0] > 0
    rows, columns = np.flatnonzero(wrote.any(axis=1)), np.flatnonzero(wrote.any(axis=0))
    read = found.touched("x").of_block(4).counts()[0, 0]
    inside = read[rows[0] - 1 : rows[-1] + 2, columns[0] - 1 : columns[-1] + 2]
    assert (inside > 0).all()
    assert inside.sum() == read.sum()
    if name == "direct_shared":
        assert inside.max() == 1


def test_loads_of_several_elements_are_as_many_elements() -> None:
    found = trace(parse_problem("relu4096_f32"), "relu")
    read = found.touched("x")
    assert (read.counts() == 1).all()
    assert read.accesses == 1024


def test_boxes_and_copies_that_pass_no_register_are_seen() -> None:
    boxes = trace(parse_problem("n1c1h24w48_k1r3s3_st1_p1_f32_nchw"), "direct_boxes", "strips=4,lanes=8")
    assert (boxes.touched("x").counts() >= 1).all()
    copies = trace(parse_problem("n1c4h16w16_k4r3s3_st1_p1_g4_f32_nchw"), "depthwise_planes")
    assert (copies.touched("x").counts() >= 1).all()
    for found in (boxes, copies):
        assert found.launches[-1].shared.reads > 0
        assert found.launches[-1].shared.bytes_written >= found.arrays["x"].nbytes


def test_shared_memory_is_told_from_global() -> None:
    text = "m16n16k16_f32"
    plain, staged = (trace(parse_problem(text), name).launches[-1] for name in ("gemm_naive", "gemm_shared"))
    assert plain.shared == traces.SharedUse(0, 0, 0, 0)
    assert len(plain.accesses) == 2 * 16**3 + 16**2
    assert (staged.shared.reads, staged.shared.writes) == (2 * 32 * 32 * 32, 2 * 32 * 32)  # a block of 32 x 32


def test_tracing_leaves_the_plain_emulator_alone() -> None:
    problem = parse_problem("n1c1h8w32_k1r3s3_st1_p1_f32_nchw")
    assert isinstance(problem, Conv2dProblem)
    trace(problem, "direct_shared")
    runtime = emulator_runtime()
    method = find("conv2d", "emulator", "direct_shared")
    plan = method.plan(problem, method.configs(problem, runtime.facts)[0], runtime)
    inputs = make_inputs(problem, "integers")
    out = plan(plan.buffers(inputs.x, plan.prepare(inputs.w), out=runtime.empty(problem.out_shape, np.float32)))
    again = trace(problem, "direct_shared").arrays["out"]
    assert not np.isnan(out).any()
    assert not np.isnan(again).any()


def test_what_a_method_refuses_is_not_traced() -> None:
    with pytest.raises(ValueError, match=r"depthwise_planes cannot be traced .* a filter must see one channel"):
        trace(parse_problem("n1c3h8w8_k1r3s3_f32_nchw"), "depthwise_planes")


def test_more_accesses_than_can_be_kept_are_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MOST_ACCESSES", 1000)
    with pytest.raises(ValueError, match="of which 1000 can be kept; trace a smaller problem"):
        trace(parse_problem("m16n16k16_f32"), "gemm_naive")


def test_the_example_in_the_docstring_is_true() -> None:
    assert doctest.testmod(tracing) == doctest.TestResults(failed=0, attempted=4)


def test_a_launch_knows_what_it_was() -> None:
    found = trace(parse_problem("n1c3h6w8_k4r3s3_st1_p1_f32_nchw"), "im2col")
    assert [launch.info.kernel for launch in found.launches][1:] == ["im2col", "gemm_warp_tiled"]
    assert found.writer() == 2
    assert dataclasses.asdict(found.launches[1].info)["block"] == (256,)
    assert found.touched("workspace", 1, written=True).accesses > 0


def test_clusters_are_refused_in_words() -> None:
    method: Any = find("gemm", "emulator", "gemm_wgmma")
    problem, runtime = parse_problem("m136n128k64_f16"), TracingRuntime()
    config = next(config for config in method.configs(problem, runtime.facts) if config.paired)
    inputs: Any = make_inputs(problem)
    plan = method.plan(problem, config, runtime)
    with pytest.raises(EmulatorError, match=r"clusters of \(2,\) blocks are not traced"):
        plan(plan.buffers(inputs.x, plan.prepare(inputs.w), {}, runtime.empty(problem.out_shape, problem.dtype)))
