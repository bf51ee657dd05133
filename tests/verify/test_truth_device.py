"""The truth of a device, on the emulator: bit for bit that of the loops; who computes which; it compiles everywhere."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from tests.algorithms import nvrtc12
from tests.algorithms.compiled_problems import CARDS, H200, OLD, needs
from tests.backends.emulated import ORDERS, needs_emulator
from tests.strategies import DTYPES, conv2d_problems
from tests.verify.truths import TEXTS, expect_the_loops_truth

from convforge.backends.cpu import cpu_runtime
from convforge.backends.cuda.compiler import compile_kernel
from convforge.problem import parse_problem
from convforge.verify import Inputs, Judge, make_inputs, truth_device, truth_on_device


@pytest.fixture
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truth_device, "DEVICE_FLOPS", 0)


def emulator(*order: Any) -> Any:
    from convforge.backends.emulator import emulator_runtime

    return emulator_runtime(*order)


@pytest.mark.one_in(3)
@needs_emulator
@pytest.mark.usefixtures("small_ones_too")
@pytest.mark.parametrize("text", TEXTS)
def test_the_sums_are_those_of_the_loops(text: str) -> None:
    problem = parse_problem(text)
    expect_the_loops_truth(problem, make_inputs(problem), emulator())


@needs_emulator
@settings(max_examples=60, deadline=None)
@given(problem=conv2d_problems(largest=9, dtypes=[types for types in DTYPES if types[3] != "float64"]))
def test_the_sums_of_any_problem(problem: Any) -> None:
    assume(problem.flops)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truth_device, "DEVICE_FLOPS", 0)
        expect_the_loops_truth(problem, make_inputs(problem), emulator())


@needs_emulator
@pytest.mark.usefixtures("small_ones_too")
@pytest.mark.parametrize("text", ["n2c3h13w14_k4r3s3_p1_f32_nchw", "m65n50k33_f32"])
def test_a_grid_of_few_blocks_goes_on_in_steps(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truth_device, "MOST_BLOCKS", 2)
    problem = parse_problem(text)
    for order in ORDERS:
        expect_the_loops_truth(problem, make_inputs(problem), emulator(*order))


@needs_emulator
@pytest.mark.usefixtures("small_ones_too")
@pytest.mark.parametrize("text", ["n1c3h13w14_k4r3s3_p1_f32_nhwc", "m20n21k22_ta_f32"])
def test_arrays_with_gaps_and_numbers_that_are_none(text: str) -> None:
    problem = parse_problem(text)
    made = make_inputs(problem)
    wide = np.full((*made.x.shape[:-1], 2 * made.x.shape[-1]), np.nan, np.float32)
    wide[..., ::2] = made.x
    wide[(0,) * wide.ndim] = np.inf
    wide[(-1,) * (wide.ndim - 1) + (-2,)] = np.nan
    expect_the_loops_truth(problem, Inputs(wide[..., ::2], made.w, {}), emulator())


@needs_emulator
def test_the_sums_are_not_those_of_fused_arithmetic() -> None:
    """(1 + u)(1 - u) is 1 when rounded by itself; less 1 that is 0, where an FMA would leave -u^2."""
    u = 2.0**-30
    assert (1 + u) * (1 - u) == 1.0
    x, w = (np.array(pair).reshape(1, 1, 1, 2) for pair in ([-1.0, 1 + u], [1.0, 1 - u]))
    sums, beside = truth_device.conv2d_sums(parse_problem("n1c1h1w2_k1r1s2_f32_nchw"), x, w, emulator())
    assert (sums.item(), beside.item()) == (0.0, 2.0)


def test_who_computes_which_truth() -> None:
    """Large problems whose sums are not float64, where there is a GPU with the memory."""

    class On:
        def __init__(self, **facts: Any) -> None:
            self.facts = dataclasses.replace(H200, **facts)

    def asked(text: str, **facts: Any) -> bool:
        return truth_on_device(parse_problem(text), On(**facts))  # type: ignore[arg-type]

    assert asked("m4096n4096k4096_f32")
    assert asked("n1c3h8192w8192_k3r3s3_p1_f32_nchw")
    assert not asked("m64n64k64_f32")
    assert not asked("m4096n4096k4096_f64")
    assert not asked("n1c3h1024w1024_k3r3s3_p1_f64_nchw")
    assert not asked("max_n32c64h112w112_r3s3_st2_p1_f32_nchw")
    assert not asked("m4096n4096k4096_f32", memory_bytes=1 << 29)
    assert asked("m4096n4096k4096_f32", memory_bytes=1 << 30)
    large = parse_problem("m4096n4096k4096_f32")
    assert not truth_on_device(large, cpu_runtime())
    assert not truth_on_device(large, None)


@needs_emulator
def test_a_judge_asks_the_device_it_is_given() -> None:
    problem = parse_problem("m180n170k190_f32")
    assert problem.flops > truth_device.DEVICE_FLOPS
    inputs = make_inputs(problem)
    on_device, on_host = Judge(problem, inputs, runtime=emulator()), Judge(problem, inputs)
    np.testing.assert_array_equal(on_device.truth.value, on_host.truth.value)
    assert on_device.verdict("strict", on_host.truth.value.astype(np.float32)).ok


# `make test` looks at the one that results are measured on, and at the oldest, which another NVRTC compiles for.
@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(name, marks=needs(name) + [pytest.mark.thorough] * (name not in ("sm_61", "sm_90")))
        for name in CARDS
    ],
)
def test_it_compiles_for_every_gpu(architecture: str) -> None:
    compiler = nvrtc12.compile_kernel if architecture in OLD else compile_kernel
    for kernel in truth_device.kernels():
        about = compiler(kernel, architecture)
        assert about.registers > 0
        assert about.spill_bytes == about.stack_bytes == 0
