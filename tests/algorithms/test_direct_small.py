"""direct_small: what it is for, what it refuses and why. The cases, faults and types come from the lists."""

from __future__ import annotations

import pytest
from tests.algorithms.compiled_problems import H200

from convforge.algorithms.direct.device import DirectSmall
from convforge.backends.emulator import emulator_runtime
from convforge.problem import Conv2dProblem, parse_problem
from convforge.tuning.heuristic import preferred

METHOD = DirectSmall("emulator")


def problem_of(text: str) -> Conv2dProblem:
    problem = parse_problem(text)
    assert isinstance(problem, Conv2dProblem)
    return problem


@pytest.mark.parametrize(
    "text, says",
    [
        ("n1c9h32w32_k1r3s3_p1_f32_nchw", "81 registers; 80 are to be had"),
        ("n1c5h32w32_k1r3s3_p1_f64_nchw", "90 registers"),
        ("n1c3h32w32_k128r3s3_p1_f32_nchw", "the filter takes 18432 bytes"),
        ("n70000c1h32w32_k1r3s3_p1_f32_nchw", "70000 blocks along y and z is too large"),
    ],
)
def test_what_it_does_not_take(text: str, says: str) -> None:
    assert says in str(METHOD.refuses(problem_of(text), H200))


@pytest.mark.parametrize("config", ["block_x=16,block_y=1", "block_x=64,block_y=32", "out_k=0"])
def test_a_config_that_cannot_be(config: str) -> None:
    from convforge.algorithms import make_config

    problem, runtime = problem_of("n1c3h32w32_k3r3s3_p1_f32_nchw"), emulator_runtime()
    with pytest.raises(ValueError, match=r"32 to 1024 threads|at least 1"):
        METHOD.plan(problem, make_config(METHOD, problem, runtime.facts, config), runtime)


@pytest.mark.parametrize(
    "text, block",
    [
        ("n1c3h32w32_k3r3s3_p1_f32_nchw", (32, 4)),
        ("n99c3h32w32_k3r3s3_p1_f32_nchw", (32, 8)),  # many, and rows are short
        ("n1c3h256w256_k3r3s3_p1_f32_nchw", (64, 8)),  # one for each SM
        ("n1c3h512w512_k3r3s3_p1_f32_nchw", (32, 4)),  # more, and an SM holds one of the largest
        ("n1c3h512w512_k1r3s3_p1_f32_nchw", (64, 8)),  # it holds two
        ("n1c3h512w512_k4r3s3_p1_f32_nchw", (32, 4)),  # there are no registers for large ones
    ],
)
def test_blocks_are_large_where_there_would_be_many_and_registers_allow(text: str, block: tuple[int, int]) -> None:
    default = METHOD.configs(problem_of(text), H200)[0]
    assert (default.block_x, default.block_y) == block


def test_auto_takes_it_while_all_outputs_are_at_work_at_once() -> None:
    def first(text: str) -> str:
        return preferred(problem_of(text), H200)[0][0].name

    assert first("n1c3h32w32_k3r3s3_p1_f32_nchw") == first("n1c3h256w256_k1r3s3_p1_f32_nchw") == "direct_small"
    assert first("n1c3h512w512_k3r3s3_st2_p1_f32_nchw") == "direct_small"
    assert first("n1c3h512w512_k3r3s3_p1_f32_nchw") == first("n2c3h256w256_k1r3s3_p1_f32_nchw") == "direct_boxes"
    assert first("n1c3h256w256_k8r3s3_p1_f32_nchw") != "direct_small"
    assert first("n1c3h4096w4096_k1r3s3_st3_p1_f32_nchw") == "direct_small", "windows share no pixel"
    assert first("n1c3h4096w4096_k1r1s1_f32_nchw") == "direct_boxes", "neither do these, but vectors of pixels are read"
