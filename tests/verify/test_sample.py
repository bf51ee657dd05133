"""A few outputs held against the truth: what is right passes, and faults at borders and seams are found and placed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.cases import CASES
from tests.peers.host_gpu import HostRuntime

from convforge.backends.cpu import cpu_runtime
from convforge.problem import GemmProblem, parse_problem
from convforge.tuning import choose
from convforge.verify import Sample, make_inputs, truth
from convforge.verify import sample as room
from convforge.verify.bounds import rounded
from convforge.verify.inputs import DIFFERENT, output_dtype

RUNTIME = cpu_runtime()
SOME = [case.text for case in CASES if "bf16" not in case.text][::7]


def right(problem: Any, inputs: Any) -> Any:
    dtype = output_dtype(problem)
    return rounded(truth(problem, inputs).value, dtype).astype(dtype)


@pytest.mark.parametrize("text", SOME)
def test_the_truth_itself_is_right(text: str) -> None:
    problem = parse_problem(text)
    inputs = make_inputs(problem)
    assert Sample(problem, inputs).fault("strict", right(problem, inputs), RUNTIME) is None


@pytest.mark.parametrize(
    "text",
    ["n2c4h40w21_k6r3s3_p1_f32_nchw", "n2c4h40w21_k6r3s3_p1_f32_nhwc_+bias+relu",
     "n1c4h40w40_k4r3s3_p1_f32_nchw_math-winograd", "n1c2h40w40_k2r9s9_p4_f32_nhwc_math-fft", "m40n20k30_f32",
     "max_n1c4h20w20_r3s3_f32_nchw", "relu300_f32"],
)  # fmt: skip
def test_what_a_method_computes_is_right_and_a_stale_output_is_not(text: str) -> None:
    problem: Any = parse_problem(text)
    inputs = make_inputs(problem, "repeated")
    plan = choose(problem, RUNTIME).plan
    out = np.empty_like(right(problem, inputs))
    plan(plan.buffers(inputs.x, plan.prepare(inputs.w), inputs.operands, out))
    sample = Sample(problem, inputs)
    assert sample.fault(plan.algorithm.precision, out, RUNTIME) is None
    out.fill(np.nan)
    assert "sampled outputs are wrong" in str(sample.fault(plan.algorithm.precision, out, RUNTIME))


NCHW, NHWC = "n2c3h64w33_k4r3s3_p1_f32_nchw", "n2c3h64w33_k4r3s3_p1_f32_nhwc"


@pytest.mark.parametrize("whole_bytes", [room.WHOLE_BYTES, 0], ids=["whole", "row by row"])
@pytest.mark.parametrize("text", [NCHW, NHWC])
@pytest.mark.parametrize(
    ("n", "k", "p", "q"),
    [(0, 0, 0, 5), (1, 3, 63, 5), (0, 1, 15, 32), (0, 2, 16, 16), (0, 0, 31, 0), (0, 3, 32, 32), (1, 1, 62, 8)],
)
def test_one_wrong_output_at_a_border_or_a_seam_is_found(
    monkeypatch: pytest.MonkeyPatch, text: str, whole_bytes: int, n: int, k: int, p: int, q: int
) -> None:
    monkeypatch.setattr(room, "WHOLE_BYTES", whole_bytes)
    problem = parse_problem(text)
    inputs = make_inputs(problem)
    out = right(problem, inputs)
    sample = Sample(problem, inputs)
    assert sample.fault("strict", out, RUNTIME) is None
    out[(n, k, p, q) if text == NCHW else (n, p, q, k)] += 0.01
    said = sample.fault("strict", out, RUNTIME)
    assert said is not None
    assert said.startswith(f"row {p} of image {n}, channel {k}, column {q}: expected")
    assert "; 1 of " in said


@pytest.mark.parametrize("whole_bytes", [room.WHOLE_BYTES, 0], ids=["whole", "row by row"])
@pytest.mark.parametrize("text", [NCHW, NHWC, "m40n20k30_f32", "max_n1c4h20w20_r3s3_f32_nchw"])
def test_outputs_in_a_gpus_memory_are_brought_to_the_host(
    monkeypatch: pytest.MonkeyPatch, text: str, whole_bytes: int
) -> None:
    monkeypatch.setattr(room, "WHOLE_BYTES", whole_bytes)
    problem, runtime = parse_problem(text), HostRuntime()
    inputs = make_inputs(problem)
    sample, out = Sample(problem, inputs), right(problem, inputs)
    assert sample.fault("strict", runtime.upload(out), runtime) is None  # type: ignore[arg-type]
    assert sample.fault("strict", runtime.upload(-out), runtime) is not None  # type: ignore[arg-type]


def test_rows_are_few_for_large_problems_and_never_none() -> None:
    assert room.sampled((32, 56), 10**13).tolist() == [0, 32 * 56 - 1]
    assert len(room.sampled((1, 8192), 10**9)) <= room.MOST_ROWS
    assert {8191, 4095, 4096} <= set(room.sampled((1, 8192), 10**9).tolist())
    assert room.sampled((1, 1), 10).tolist() == [0]
    assert room.sampled((0, 5), 10).tolist() == []


def test_repeated_inputs_differ_from_row_to_row_and_cost_few_numbers() -> None:
    problem = GemmProblem(m=600, n=16, k=256)
    x = make_inputs(problem, "repeated").x.reshape(-1)
    assert x.size > DIFFERENT
    np.testing.assert_array_equal(x[DIFFERENT:], x[: x.size - DIFFERENT])
    assert len(np.unique(x[:DIFFERENT])) > 0.99 * DIFFERENT
    assert not any(np.array_equal(x[:256], x[256 * i : 256 * (i + 1)]) for i in range(1, 600))
    small = parse_problem("n1c2h4w5_k3r3s3_p1_f32_nchw")
    np.testing.assert_array_equal(make_inputs(small, "repeated").x, make_inputs(small).x)
