"""The truth of a device, on the emulator and on GPUs: the sums of the loops, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.cases import CASES

from convforge.problem import Problem, parse_problem
from convforge.verify import Inputs, truth, truth_on_device


def _can(problem: Problem) -> bool:
    return problem.multiplies and problem.acc_dtype != "float64"


# Every case whose sums are not float64; pixels that float32 does not hold; matrices that no tile divides.
TEXTS = (
    *(case.text for case in CASES if _can(parse_problem(case.text))),
    "n1c2h8w9_k4r3s3_p1_i32-i32-f32-f32_nhwc",
    *("m33n29k17_f32", "m33n29k17_ta_f32", "m16n47k64_tb_f32", "m1n50k100_ta_tb_f32", "m70n1k3_f32"),
)


def expect_the_loops_truth(problem: Problem, inputs: Inputs, runtime: Any) -> None:
    """Value and magnitude are those of the host, and the device was asked."""
    assert truth_on_device(problem, runtime)
    asked: list[str] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return getattr(runtime, name)

    found, right = truth(problem, inputs, Watched()), truth(problem, inputs)
    assert "launch" in asked
    np.testing.assert_array_equal(found.value, right.value, strict=True)
    np.testing.assert_array_equal(found.magnitude, right.magnitude, strict=True)
