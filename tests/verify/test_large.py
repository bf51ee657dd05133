"""Comparison of large results: the compiled pass agrees with NumPy; bits; inputs made in pieces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convforge.backends.cpu import cpu_runtime
from convforge.benchmark.material import Material, gaussian_weights
from convforge.benchmark.suites import load
from convforge.problem import parse_problem
from convforge.verify import Judge, make_inputs, verdict, warm_up
from convforge.verify import inputs as inputs_of
from convforge.verify.bounds import error_bound, rounded
from convforge.verify.host_memory import HostMemory, holds, same
from convforge.verify.inputs import output_dtype
from convforge.verify.scans import BLOCK
from convforge.verify.truth import launch

# More than one block of outputs, and no whole number of them; every kind of type; bounds of zero, of every class of
# arithmetic that has terms of its own, and of products.
PROBLEMS = {
    "n1c2h150w160_k3r3s3_p1_f32_nchw": ("strict", "winograd", "fft", "separable", "tf32"),
    "n2c3h100w101_k2r3s3_p1_f32_nhwc_+scale:channel+bias+silu": ("strict", "winograd"),
    "n1c1h130w140_k2r3s3_p1_f64_nchw": ("strict",),
    "n1c2h150w160_k3r3s3_p1_f16_nchw": ("strict",),
    "n1c3h150w160_k2r3s3_p1_bf16_nhwc": ("strict",),
    "n1c3h120w160_k3r3s3_p1_u16-i8-u16-i32_nchw": ("strict",),
    "n1c3h150w160_k3r3s3_p1_u8_nhwc": ("strict",),
    "n1c3h120w160_k3r3s3_p1_i8-i8-i8-i32_nchw_+scale:tensor": ("strict",),
    "n1c3h120w160_k3r3s3_p1_u8-i8-i32-i32_nhwc_+zero:7": ("strict",),
    "m150n170k60_f32": ("strict", "tf32"),
    "m150n170k60_f64": ("strict",),
    "max_n1c3h150w160_r3s3_f32_nchw": ("strict",),
}
ROWS = [(text, precision) for text, classes in PROBLEMS.items() for precision in classes]


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "LARGE", 1)


@pytest.mark.one_in(5)
@pytest.mark.usefixtures("scanned")
@pytest.mark.parametrize("kind", ["normal", "integers"])
@pytest.mark.parametrize(("text", "precision"), ROWS)
def test_both_comparisons_say_the_same(text: str, precision: str, kind: str) -> None:
    problem = parse_problem(text)
    judge, dtype = Judge(problem, make_inputs(problem, kind)), output_dtype(problem)
    right = judge.truth
    assert right.value.size > BLOCK
    assert right.value.size % BLOCK
    bound = error_bound(problem, precision, right, judge.inputs)
    low, high = (rounded(limit, dtype).astype(dtype) for limit in (right.value - bound, right.value + bound))
    for got in (low, high, rounded(right.value, dtype).astype(dtype)):
        figures, full = judge._scanned(precision, got), judge._in_full(precision, got)
        assert figures == pytest.approx((full.rms, full.max_error, full.bound_ratio), rel=1e-5)
    for place in (0, BLOCK, got.size - 1):  # one output that is too low, too high or none
        index = np.unravel_index(place, got.shape)
        for value in beyond(low[index], high[index]):
            wrong = got.copy()
            wrong[index] = value
            assert judge._scanned(precision, wrong) is None
            assert not judge.near_enough(precision, wrong).all()


def beyond(low: Any, high: Any) -> list[Any]:
    """The numbers next to two limits, outside of them."""
    if low.dtype.kind in "iu":
        limits = np.iinfo(low.dtype)
        return [int(low) - 1] * bool(low > limits.min) + [int(high) + 1] * bool(high < limits.max)
    return [np.nextafter(low, low.dtype.type(-np.inf)), np.nextafter(high, high.dtype.type(np.inf)), np.nan]


@pytest.mark.usefixtures("scanned")
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_what_is_or_may_become_infinite_is_judged_in_full(value: float) -> None:
    problem = parse_problem("n1c1h150w160_k1r3s3_p1_f32_nchw")
    inputs = make_inputs(problem)
    inputs.x[0, 0, 140, 150] = value
    judge = Judge(problem, inputs)
    with np.errstate(over="ignore"):
        right = judge.truth.value.astype(np.float32)
    assert judge._scanned("strict", right) is None
    assert judge.verdict("strict", right).ok
    right[0, 0, 3, 4] = np.nan
    assert not judge.verdict("strict", right).ok


@pytest.mark.usefixtures("scanned")
def test_a_verdict_by_the_compiled_pass() -> None:
    problem = parse_problem("n2c3h90w91_k2r3s3_p1_f32_nchw")
    judge = Judge(problem, make_inputs(problem))
    right = judge.truth.value.astype(np.float32)
    found = judge.verdict("strict", right)
    assert found.ok
    assert 0 < found.rms < 1e-7
    assert 0 < found.bound_ratio < 0.5
    wrong = judge.verdict("strict", 1.001 * right)
    assert not wrong.ok
    assert wrong.fault == "scaled by a constant: 1.001"


@given(st.integers(0, 1000), st.data())
def test_same_sees_every_bit(size: int, data: Any) -> None:
    a = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    b = a.copy()
    assert same(a, b)
    assert size == 0 or not same(a, b[:-1])
    if size:
        b[data.draw(st.integers(0, size - 1))] ^= np.uint8(1 << data.draw(st.integers(0, 7)))
        assert not same(a, b)


def test_same_takes_gaps_types_and_nothing() -> None:
    a = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert same(a[:, ::2], a[:, ::2].copy())
    assert not same(a, a.astype(np.float64))
    assert not same(a, a.reshape(6, 4))
    assert not same(np.float32([0.0]), np.float32([-0.0]))
    assert same(None, None)
    assert not same(a, None)


@given(st.integers(1, 1000), st.sampled_from([0xFF, 0x5A]), st.data())
def test_a_mask_of_what_holds_a_poison_sees_every_byte(size: int, byte: int, data: Any) -> None:
    a = np.full((size, 2), byte | byte << 8, np.uint16)
    assert holds(a[:, 0], byte).all()
    place = data.draw(st.integers(0, size - 1))
    a[place, 0] ^= np.uint16(1 << data.draw(st.integers(0, 15)))
    assert np.flatnonzero(~holds(a[:, 0], byte)).tolist() == [place]


def test_inputs_that_are_made_in_pieces_are_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = parse_problem("n1c3h30w40_k2r3s3_p1_f16_nchw_+bias")
    whole = make_inputs(problem, seed=5)
    monkeypatch.setattr(inputs_of, "CHUNK", 7)
    pieces = make_inputs(problem, seed=5)
    for made in (whole, pieces):
        rng = np.random.default_rng(5)
        assert made.w is not None
        assert same(made.x, rng.standard_normal(problem.x_shape).astype(np.float16))
        assert same(made.w, rng.standard_normal(problem.w_shape).astype(np.float16))
        assert same(made.operands["bias"], rng.standard_normal(2).astype(np.float32))


def test_channels_that_share_a_filter_share_another_in_other_inputs() -> None:
    problem = parse_problem("n1c3h9w8_k3r3s3_p1_g3_f32_nhwc")
    inputs = make_inputs(problem)
    assert inputs.w is not None
    apart = Judge(problem, inputs).other_inputs.w
    assert apart is not None
    assert not (apart == apart[:1]).all()
    inputs.w[...] = inputs.w[:1].copy()
    shared = Judge(problem, inputs).other_inputs.w
    assert shared is not None
    assert (shared == shared[:1]).all()
    assert np.array_equal(shared[0], apart[0])
    assert not (shared == inputs.w).any()


def test_weights_that_were_chosen_for_their_rank_get_others_of_that_rank() -> None:
    problem = parse_problem("n1c2h9w9_k2r5s7_p2x3_g2_f32_nchw")
    w = gaussian_weights(problem).astype(np.float32)
    inputs = replace(make_inputs(problem), w=w, own_weights=True)
    others = Judge(problem, inputs).other_inputs.w
    assert others is not None
    assert [int(np.linalg.matrix_rank(one)) for one in others[:, 0]] == [1, 1]
    assert (others != w).all()


def test_the_bench_s_thorough_check_takes_filters_that_factor() -> None:
    """A method that refuses filters of a higher rank in its preparation is given none."""
    (case,) = (case for case in load(["filters"])[1] if case.name == "blur_512_5x5")
    problem = parse_problem("n1c3h24w24_k3r5s5_st1_p2_g3_f32_nchw")
    material = Material(replace(case, problem=problem), cpu_runtime())
    assert isinstance(material.judges[0].other_inputs.w, np.ndarray)
    for w in (material.judges[0].inputs.w, material.judges[0].other_inputs.w):
        assert {int(np.linalg.matrix_rank(one, rtol=1e-5)) for one in w[:, 0]} == {1}


def test_other_inputs_are_made_once_for_all_plans() -> None:
    problem = parse_problem("n1c3h30w40_k2r3s3_p1_f32_nchw")
    judge = Judge(problem, make_inputs(problem, seed=8))
    assert judge.other_inputs is judge.other.inputs
    assert (judge.other_inputs.kind, judge.other_inputs.seed) == ("normal", 9)
    assert not same(judge.inputs.x, judge.other_inputs.x)


def test_warming_up_compiles_what_large_results_need(monkeypatch: pytest.MonkeyPatch) -> None:
    from convforge.verify import scans

    problem = parse_problem("n1c3h120w160_k3r3s3_p1_u8-i8-i32-i32_nhwc")
    calls: list[Any] = []
    monkeypatch.setattr(verdict, "launch", lambda kernel, *rest: calls.append(kernel) or launch(kernel, *rest))
    warm_up(problem)
    assert calls == []  # too small to need them
    monkeypatch.setattr(verdict, "LARGE", 1)
    warm_up(problem)
    assert calls == [scans.compare]
    before = len(scans.compare.signatures)  # type: ignore[attr-defined]
    judge = Judge(problem, make_inputs(problem))
    assert judge.verdict("strict", judge.truth.value.astype(np.int32)).ok
    assert len(scans.compare.signatures) == before  # type: ignore[attr-defined]


def test_host_memory_is_used_again_and_holds_what_was_brought_last() -> None:
    from tests.peers.host_gpu import HostRuntime

    memory, runtime = HostMemory(), HostRuntime()
    first = memory.bring(runtime, runtime.upload(np.arange(6.0).reshape(2, 3)), "a")
    assert first.tolist() == [[0, 1, 2], [3, 4, 5]]
    second = memory.bring(runtime, runtime.upload(np.arange(6, dtype=np.int32)), "a")
    assert second.tolist() == [0, 1, 2, 3, 4, 5]
    assert np.shares_memory(first, second)
    other = memory.copy(np.arange(8)[::2], "b")
    assert other.tolist() == [0, 2, 4, 6]
    assert not np.shares_memory(second, other)
    assert memory.piece("a", 49).size == 49  # larger than what was kept
    on_host = np.arange(3)
    assert memory.bring(cpu_runtime(), on_host, "a") is on_host
