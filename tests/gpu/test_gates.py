"""Gates of narrow arithmetic on real tensor cores: each honest peer's RMS error over what is allowed (shown by -s)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.gpu.present import gpu, need_gpu
from tests.verify.arithmetic import BF16, FP32, nearest
from tests.verify.narrow import DATA, inputs_of

from convforge.algorithms import refusal
from convforge.peers import PEERS
from convforge.problem import parse_problem
from convforge.verify import Inputs, Judge, check_plan, truth
from convforge.verify.gate import Gate, Measured

need_gpu()

CONVOLUTIONS = (
    "n2c8h30w33_k16r3s3_p1_f32_nchw_math-tf32", "n1c64h28w28_k64r1s1_f32_nchw_math-tf32",
    "n1c256h14w14_k64r3s3_p1_f32_nchw_math-tf32", "n1c2048h7w7_k64r3s3_p1_f32_nchw_math-tf32",
)  # fmt: skip
PRODUCTS = ("m128n64k72_f32_math-tf32", "m128n64k2304_f32_math-tf32")


def show(name: str, data: str, text: str, found: Measured | None) -> None:
    assert found is not None
    print(f"\n{name:34} {data:9} {text:46} rms/allowed {found.ratio:.3g} {found.note}", end="")
    assert found.ratio <= 1, found


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("text", CONVOLUTIONS + PRODUCTS)
@pytest.mark.parametrize("name", [peer.name for peer in PEERS if peer.precision == "tf32"])
def test_tf32_of_other_libraries(name: str, text: str, data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    peer: Any = next(peer for peer in PEERS if peer.name == name)
    problem: Any = parse_problem(text)
    runtime = gpu()
    kind = "gemm" if hasattr(problem, "m") else "conv2d"
    if peer.operation != kind:
        pytest.skip(f"{name} computes {peer.operation}")
    if (reason := refusal(peer, problem, runtime.facts)) is not None:
        pytest.skip(f"{name}: {reason}")
    seen: list[Measured | None] = []

    def excess(gate: Gate, precision: str, got: Any) -> Measured | None:
        seen.append(gate.measured(precision, got))
        return seen[-1] if seen[-1] is not None and seen[-1].ratio > 1 else None

    monkeypatch.setattr(Gate, "excess", excess)
    judge = Judge(problem, inputs_of(problem, data))
    verdict = check_plan(peer.plan(problem, peer.configs(problem, runtime.facts)[0], runtime), judge)
    show(name, data, text, seen[0])
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16"])
@pytest.mark.parametrize("text", ["m128n64k72_f32", "m128n64k576_f32", "m128n64k2304_f32", "m128n64k18432_f32"])
def test_products_of_float32_numbers_by_pytorch(text: str, precision: str, data: str) -> None:
    torch: Any = pytest.importorskip("torch")
    problem: Any = parse_problem(text)
    inputs = inputs_of(problem, data)
    a, b = torch.from_numpy(inputs.x).cuda(), torch.from_numpy(inputs.w).cuda()
    if precision == "tf32":
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            out = a @ b
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before
    else:
        dtype = torch.float16 if precision == "fp16" else torch.bfloat16
        out = torch.mm(a.to(dtype), b.to(dtype), out_dtype=torch.float32)
    gate = Gate(problem, inputs, truth(problem, inputs))
    show(f"torch.mm {precision}", data, text, gate.measured(precision, out.cpu().numpy()))


@pytest.mark.parametrize("data", ["normal", "positive", "smooth"])
@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
@pytest.mark.parametrize("text", CONVOLUTIONS)
def test_convolutions_of_16_bit_arrays_by_pytorch(text: str, stored: str, data: str) -> None:
    torch: Any = pytest.importorskip("torch")
    problem: Any = parse_problem(text.partition("_math")[0])
    problem = problem.replace(x_dtype=stored, w_dtype=stored, out_dtype=stored)
    given = inputs_of(problem, data, BF16 if stored == "bfloat16" else nearest(10, -14))
    inputs = Inputs(given.x.astype(np.float32), FP32(given.w).astype(np.float32), given.operands)
    dtype = getattr(torch, stored)
    x, w = (torch.from_numpy(array).cuda().to(dtype) for array in (inputs.x, inputs.w))
    out = torch.nn.functional.conv2d(x, w, padding=problem.padding[0]).float().cpu().numpy()
    gate = Gate(problem, inputs, truth(problem, inputs))
    show(f"conv2d of {stored}", data, text, gate.measured("strict", out))
