"""ReLU's CUDA kernel on the emulator: every type, alignment and stride, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.algorithms.compiling import H200
from tests.backends.emulated import needs_emulator

import convforge
from convforge.algorithms.elementwise import device
from convforge.algorithms.elementwise.device import Relu, ReluConfig
from convforge.backends.emulator import emulator_runtime
from convforge.problem import ElementwiseProblem, parse_problem
from convforge.problem.types import numpy_dtype
from convforge.verify import check_plan

RELU = Relu("emulator")
TYPES = ["float32", "float64", "float16", "bfloat16", "uint8", "int8", "uint16", "int16", "int32"]
RANDOM = np.random.default_rng(7)


def plan_of(size: int, dtype: str = "float32", config: ReluConfig | None = None, order: str = "forward") -> Any:
    runtime, problem = emulator_runtime(order), ElementwiseProblem(size=size, dtype=dtype)
    return RELU.plan(problem, config or RELU.configs(problem, runtime.facts)[0], runtime)


def numbers(size: int, dtype: str) -> Any:
    """Both signs, NaN, infinities and zeros."""
    if dtype not in ("float16", "float32", "float64", "bfloat16"):
        limits = np.iinfo(dtype)
        return RANDOM.integers(limits.min, limits.max, size, dtype=dtype, endpoint=True)
    x = RANDOM.normal(size=size).astype(numpy_dtype(dtype))
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, -1e-5], x.dtype)
    x[: special.size] = special[:size]
    return x


def expected(x: Any) -> Any:
    """Zero where x is negative; NaN is not."""
    with np.errstate(invalid="ignore"):  # ml_dtypes minds a NaN
        return np.where(x < 0, x.dtype.type(0), x)


@needs_emulator
@pytest.mark.parametrize("text", ["relu40007_f32", "relu9001_f16", "relu5003_f64", "relu70001_i8"])
def test_every_config_in_several_orders_of_threads(text: str) -> None:
    problem = parse_problem(text)
    configs = RELU.configs(problem, H200)
    assert len(set(configs)) == len(configs) > 1
    for i, config in enumerate(configs):
        runtime = emulator_runtime(("forward", "backward", "shuffled")[i % 3])
        verdict = check_plan(RELU.plan(problem, config, runtime))
        assert verdict.ok, verdict.message


@needs_emulator
@pytest.mark.parametrize("dtype", TYPES)
def test_bits_of_every_type(dtype: str) -> None:
    x = numbers(4001, dtype)
    out, plan = np.full_like(x, 77), plan_of(x.size, dtype)
    plan({"x": x, "out": out})
    np.testing.assert_array_equal(out.view(np.uint8), expected(x).view(np.uint8))


@needs_emulator
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "float64"])
def test_a_few_elements_at_every_alignment(dtype: str) -> None:
    for size in (1, 3, 16, 37):
        plan = plan_of(size, dtype)
        for ahead in range(0, 17, 3):
            for behind in (ahead, ahead + 1):  # the output alike against 16 bytes, and not
                x = np.zeros(size + 40, dtype)[ahead : ahead + size]
                x[...] = numbers(size, dtype)
                whole = np.full(size + 40, 55, dtype)
                plan({"x": x, "out": whole[behind : behind + size]})
                np.testing.assert_array_equal(whole[behind : behind + size], expected(x))
                assert (whole[:behind] == 55).all()
                assert (whole[behind + size :] == 55).all()


@needs_emulator
def test_strides_of_any_kind_and_in_place() -> None:
    x = numbers(999, "float32")
    plan = plan_of(x.size)
    views = [np.s_[::1], np.s_[::-1], np.s_[::3]]
    for from_view in views:
        for to_view in views:
            source, target = (np.full(x.size * 3, 5, np.float32)[view][: x.size] for view in (from_view, to_view))
            source[...] = x
            plan({"x": source, "out": target})
            np.testing.assert_array_equal(target, expected(x))
    for config in RELU.configs(ElementwiseProblem(size=x.size), H200):
        own = x.copy()
        plan_of(x.size, config=config, order="shuffled")({"x": own, "out": own})
        np.testing.assert_array_equal(own, expected(x))


@needs_emulator
def test_a_grid_smaller_than_the_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "MOST_BLOCKS", 2)
    for config in (ReluConfig(32, 1, "whole"), ReluConfig(64, 2, "resident")):
        plan = plan_of(5001, config=config)
        assert plan.launches[0].grid == (2,)
        verdict = check_plan(plan)
        assert verdict.ok, verdict.message


def test_one_config_serves_every_size() -> None:
    for size in (1000, 1 << 30):
        assert RELU.configs(ElementwiseProblem(size=size), H200)[0] == ReluConfig()


@needs_emulator
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (ReluConfig(16), "block=16: a block has 32 to 1024 threads"),
        (ReluConfig(512, 17), "vectors=17 must be 1 to 16"),
        (ReluConfig(512, 4, "half"), "grid='half' must be one of resident, whole"),
    ],
)
def test_a_config_that_cannot_be_says_why(config: ReluConfig, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        plan_of(9, config=config)


@needs_emulator
@pytest.mark.parametrize("shape", [(), (0,), (3, 4, 5), (1001,)])
def test_users_reach_it_by_naming_the_device(shape: tuple[int, ...]) -> None:
    x = RANDOM.normal(size=shape).astype(np.float32)
    result = convforge.relu(x, device="emulator")
    assert result.shape == shape
    np.testing.assert_array_equal(result, np.maximum(x, 0))
    for view in (x, x.T):
        own = view.copy()
        assert convforge.relu(own, device="emulator", out=own) is own
        np.testing.assert_array_equal(own, np.maximum(view, 0))
