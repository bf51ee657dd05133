"""Random problems by the methods on Hopper's tensor cores, in configs drawn from all that a search would try."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.gpu.hopper import hopper, method_of, needs_hopper
from tests.judged import allowed
from tests.strategies import conv2d_problems

from convforge.algorithms import refusal
from convforge.problem import GemmProblem
from convforge.verify import Judge, check_plan, make_inputs

pytestmark = needs_hopper

CONVOLUTIONS = [method_of("conv2d", f"implicit_gemm_{name}") for name in ("wgmma", "tf32", "split")]
PRODUCTS = [method_of("gemm", f"gemm_{name}") for name in ("wgmma", "tf32", "split")]
# float32 twice, as two methods take it.
DTYPES = [
    ("float16", "float16", "float16", "float32"), ("bfloat16", "bfloat16", "float32", "float32"),
    ("float32", "float32", "float32", "float32"), ("float32", "float32", "float32", "float32"),
]  # fmt: skip
# Around a product's 16, a row's 32 and 64, and a tile's 64 and 128.
COUNTS = st.sampled_from([1, 7, 8, 12, 16, 31, 32, 33, 40, 64, 65, 72, 100, 130])
SETTINGS: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
few_and_many = pytest.mark.parametrize("count", [8, pytest.param(60, marks=pytest.mark.thorough)])


def check_one(methods: list[Any], problem: Any, data: Any) -> None:
    """Each method that takes a problem is right in a config that is drawn; a problem that none takes does not count."""
    tried = 0
    judge = Judge(problem, make_inputs(problem, data.draw(st.sampled_from(["normal", "integers"]))))
    for method in methods:
        wanted = allowed(problem, method)
        if refusal(method, wanted, hopper().facts) is not None:
            continue
        config = data.draw(st.sampled_from(list(method.configs(wanted, hopper().facts))))
        verdict = check_plan(method.plan(wanted, config, hopper()), judge)
        assert verdict.ok, f"{config}: {verdict.message}"
        tried += 1
    assume(tried)


@pytest.mark.thorough
@few_and_many
def test_random_convolutions(count: int) -> None:
    @settings(max_examples=count, **SETTINGS)
    @given(conv2d_problems(largest=20, dtypes=DTYPES, channels=COUNTS), st.data())
    def check(problem: Any, data: Any) -> None:
        check_one(CONVOLUTIONS, problem, data)

    check()


@pytest.mark.thorough
@few_and_many
def test_random_products(count: int) -> None:
    sizes = st.sampled_from([1, 8, 31, 64, 72, 130, 136, 200, 257, 264])
    kinds = st.sampled_from(["float32", "float16", "bfloat16"])
    products = st.builds(
        GemmProblem, m=sizes, n=sizes, k=sizes, dtype=kinds, transpose_a=st.booleans(), transpose_b=st.booleans()
    )

    @settings(max_examples=count, **SETTINGS)
    @given(products, st.data())
    def check(problem: Any, data: Any) -> None:
        check_one(PRODUCTS, problem, data)

    check()
