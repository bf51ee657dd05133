"""Filters factored by factor.cu on the emulator: held against NumPy's decomposition, of every rank, size and type."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.algorithms.ranks import fault_of_factors, filters_of_every_rank
from tests.backends.emulated import needs_emulator

import convforge
from convforge.algorithms.contract import PreparedFilter
from convforge.algorithms.separable.device import FusedConfig, Separable
from convforge.algorithms.separable.factor import DeviceFactors
from convforge.backends.emulator import EmulatorRuntime, emulator_runtime
from convforge.problem import Conv2dProblem, parse_problem
from convforge.verify import make_inputs

pytestmark = needs_emulator


def problem_of(shape: tuple[int, ...], types: str = "f32", rest: str = "") -> Conv2dProblem:
    K, C, R, S = shape
    problem = parse_problem(f"n1c{C}h{R + 5}w{S + 5}_k{K}r{R}s{S}_{types}_nchw{rest}")
    assert isinstance(problem, Conv2dProblem)
    return problem.replace(precision="separable")


def factored(w: Any, types: str = "f32", order: str = "shuffled") -> PreparedFilter:
    """Factors of filters; a single one may be given as (R, S)."""
    w = np.asarray(w).reshape((1,) * (4 - np.ndim(w)) + np.shape(w))
    problem = problem_of(w.shape, types)
    return DeviceFactors(problem, emulator_runtime(order))(w.astype(problem.w_dtype))


@pytest.mark.one_in(11)
@pytest.mark.parametrize("types", ["f32", "f64", "f16", "u8-f32-u8-f32", "u8-u8-u8-f32"])
@pytest.mark.parametrize("size", [(3, 3), (5, 7), (9, 11), (13, 6), (1, 9), (9, 1), (1, 1), (1, 63), (31, 31)], ids=str)
def test_factors_of_every_rank(size: tuple[int, int], types: str) -> None:
    problem = problem_of((8, 2, *size), types)
    w = filters_of_every_rank(problem.w_shape, problem.w_dtype, problem.acc_dtype)
    found = DeviceFactors(problem, emulator_runtime("shuffled"))(w)
    assert fault_of_factors(w, found.tensors, problem.acc_dtype) is None
    ranks, error = found.tensors["ranks"].max(), found.tensors["errors"].max()
    assert str(found.note) == f"rank {ranks}, factor error {error:.0e}"


@pytest.mark.thorough
@pytest.mark.parametrize("order", ["forward", "backward"])
@pytest.mark.parametrize("size", [(63, 63), (40, 33)], ids=str)
def test_large_filters(size: tuple[int, int], order: str) -> None:
    problem = problem_of((2, 4, *size))
    w = filters_of_every_rank(problem.w_shape, problem.w_dtype, problem.acc_dtype)
    assert fault_of_factors(w, DeviceFactors(problem, emulator_runtime(order))(w).tensors, "float32") is None


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("w", "rank"), [
    ([[1, 0, -1], [2, 0, -2], [1, 0, -1]], 1),
    (np.ones((5, 7)), 1),
    (np.outer([1, 4, 6, 4, 1], [1, 2, 1]), 1),
    ([[1, 1, 1], [1, -8, 1], [1, 1, 1]], 2),
    ([[0, 1, 0], [1, -4, 1], [0, 1, 0]], 2),
    (np.hypot(*np.mgrid[-7:8, -7:8]) <= 7, 6),
    (np.eye(4), 4),
    (np.zeros((3, 5)), 1),
    (np.outer([2, 3, -5], [6, 9, 4, 15]), 1),
    (np.outer([3, 3, 3, 4, 4], [-2, 0, 3]), 1),
])  # fmt: skip
@pytest.mark.parametrize("types", ["f32", "f64", "f16", "u8-i8-u8-f32"])
def test_whole_numbers_have_exact_factors(w: Any, rank: int, types: str) -> None:
    found = factored(w, types)
    assert str(found.note) == f"rank {rank}, factor error 0e+00"
    back = np.einsum("kcir,kcis->kcrs", found.tensors["columns"][:, :, :rank], found.tensors["rows"][:, :, :rank])
    np.testing.assert_array_equal(back[0, 0], np.asarray(w, back.dtype))


@pytest.mark.parametrize("exponent", [-1000, -600, -149, 0, 600, 1000])
def test_powers_of_two_change_rows_alone(exponent: int) -> None:
    """Squares of the elements are no float64 numbers."""
    w = filters_of_every_rank((4, 1, 5, 7), "float64", "float64")
    found, scaled = factored(w, "f64").tensors, factored(np.ldexp(w, exponent), "f64").tensors
    for name in ("ranks", "errors"):
        np.testing.assert_array_equal(scaled[name], found[name])
    for k, rank in enumerate(found["ranks"][:, 0]):
        np.testing.assert_array_equal(scaled["columns"][k, 0, :rank], found["columns"][k, 0, :rank])
        np.testing.assert_array_equal(scaled["rows"][k, 0, :rank], np.ldexp(found["rows"][k, 0, :rank], exponent))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_make_all_factors_nan(number: float) -> None:
    w = filters_of_every_rank((4, 1, 5, 7), "float32", "float32")
    w[1, 0, 4, 6] = number
    found = factored(w)
    assert found.tensors["ranks"][1, 0] == 1
    assert np.isnan(found.tensors["rows"][1, 0, 0]).all()
    assert np.isnan(found.tensors["columns"][1, 0, 0]).all()
    assert np.isfinite(found.tensors["errors"][:, 0]).tolist() == [True, False, True, True]
    assert str(found.note) == "a filter holds NaN or Inf, so its outputs are NaN"


def views(w: NDArray[Any]) -> list[NDArray[Any]]:
    """The same filters in other strides."""
    large = np.full([2 * size for size in w.shape], 7, w.dtype)
    gaps = large[::2, ::2, ::2, 1::2]
    gaps[...] = w
    return [gaps, np.asfortranarray(w), np.ascontiguousarray(w[::-1, :, :, ::-1])[::-1, :, :, ::-1]]


@pytest.mark.parametrize("rest", ["", "_flip"])
def test_weights_lie_as_they_like_and_are_flipped_on_the_way(rest: str) -> None:
    problem = problem_of((4, 2, 5, 7), "f32", rest)
    w = filters_of_every_rank(problem.w_shape, "float32", "float32")
    factors = DeviceFactors(problem, emulator_runtime())
    for view in views(w):
        seen = view[:, :, ::-1, ::-1] if rest else view
        assert fault_of_factors(seen, factors(view).tensors, "float32") is None


def test_elements_that_exceed_shared_memory_lie_in_global_memory() -> None:
    class Small(EmulatorRuntime):
        def __init__(self) -> None:
            super().__init__("shuffled")
            self.facts = dataclasses.replace(self.facts, block_shared_bytes=2048)
            self.allocated: list[int] = []

        def allocate(self, nbytes: int, stream: Any = None) -> Any:
            self.allocated.append(nbytes)
            return super().allocate(nbytes, stream)

    problem, runtime = problem_of((8, 2, 15, 17)), Small()
    w = filters_of_every_rank(problem.w_shape, "float32", "float32")
    assert fault_of_factors(w, DeviceFactors(problem, runtime)(w).tensors, "float32") is None
    assert runtime.allocated[-1] == 16 * 15 * 17 * 8  # after the arrays of the factors


class Unhurried(EmulatorRuntime):
    """An emulator that nobody waits for unasked."""

    asked = False

    def synchronize(self, stream: Any = None) -> None:
        assert self.asked, "a call waits for the device"
        super().synchronize(stream)

    def download(self, array: Any, stream: Any = None, *, room: Any = None) -> Any:
        assert self.asked, "a call fetches from the device"
        return super().download(array, stream, room=room)


def test_a_call_that_prepares_its_filter_waits_for_nothing() -> None:
    """So that it can be captured in a graph."""
    problem, runtime = problem_of((2, 3, 5, 7)), Unhurried()
    inputs = make_inputs(problem)
    plan = Separable("emulator").plan(problem, FusedConfig(4, 2, 16, 8), runtime)
    prepared, out = plan.prepare(inputs.w), np.zeros(problem.out_shape, np.float32)
    plan({"x": inputs.x, "w": prepared, **inputs.operands, "out": out})
    assert out.any()
    runtime.asked = True
    assert str(prepared.note).startswith("rank 5, factor error ")


def test_a_filter_says_what_its_weights_are() -> None:
    blur = convforge.Filter(np.ones((1, 1, 3, 3), np.float32), algorithm="separable", device="emulator")
    assert blur.note == ""
    blur(np.ones((1, 1, 4, 4), np.float32))
    assert blur.note == "rank 1, factor error 0e+00"
