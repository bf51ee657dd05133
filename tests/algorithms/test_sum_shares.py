"""Sums of shares added up on the emulator: every layout, type and epilogue; faults."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.algorithms.faults_wgmma import SHARES_FAULTS
from tests.algorithms.planted import Fault
from tests.algorithms.test_planted_faults import ORDERS, copy_with
from tests.backends.emulated import needs_emulator

from convforge.algorithms.implicit_gemm.stages import SumShares, problem_of_shares
from convforge.backends.emulator import EmulatorError, EmulatorRuntime
from convforge.backends.kernel import KernelSource
from convforge.problem import parse_problem
from convforge.verify import make_inputs

pytestmark = needs_emulator

TEXTS = (
    "n2c8h5w7_k12r1s1_f16_nhwc", "n2c8h5w7_k9r1s1_bf16_nchw_+bias+relu", "n3c8h4w5_k16r1s1_f32_nchw",
    "n2c8h6w5_k20r1s1_f32_nhwc_+scale:channel+bias+residual", "n2c8h5w6_k8r1s1_f16-f16-f32-f32_nhwc-kcrs-nchw",
)  # fmt: skip
# Bytes of the workspace before the sums.
BEHIND = 300


def what_is_wrong(text: str, runtime: Any, count: int = 3) -> str | None:
    problem: Any = parse_problem(text)
    shares = SumShares(problem, count, BEHIND, runtime)
    room = np.full((BEHIND + shares.nbytes) // 4 + 64, np.nan, np.float32)
    operands = make_inputs(problem).operands
    out = np.zeros(problem.out_shape, problem.out_dtype)
    buffers = {"x": np.zeros(problem.x_shape, problem.x_dtype), "out": out, "workspace": room, **operands}
    there = shares.array(buffers)
    first = (there.address - room.__array_interface__["data"][0]) // 4
    sums = np.random.default_rng(0).standard_normal((count, *there.shape)).astype(np.float32)
    sums[0, ..., ::2] += 3e3  # the order of the sums shows
    room[first : first + sums.size] = sums.reshape(-1)
    shares.launch.run({**buffers, "w": SimpleNamespace(tensors={})}, None)
    total = sums[0]
    for share in sums[1:]:
        total = total + share
    if "scale" in operands:
        total = total * operands["scale"]
    if "bias" in operands:
        total = total + operands["bias"]
    if "residual" in operands:
        total = total + operands["residual"]
    total = np.maximum(total, 0) if "relu" in text else total
    expected = total if problem.out_layout == "NHWC" else total.transpose(0, 3, 1, 2)
    return None if np.array_equal(out, expected.astype(problem.out_dtype)) else "sums are others"


@pytest.mark.parametrize("text", TEXTS)
def test_sums_go_through_the_epilogue_in_order(text: str) -> None:
    for order in ORDERS:
        for count in (2, 7):
            assert what_is_wrong(text, EmulatorRuntime(order=order), count) is None


def test_the_sums_of_a_share_are_floats_before_the_epilogue() -> None:
    problem: Any = parse_problem(TEXTS[1])
    sums = problem_of_shares(problem)
    assert (sums.out_dtype, sums.out_layout, sums.epilogue.is_identity) == ("float32", "NHWC", True)
    assert (sums.x_layout, sums.x_dtype, sums.outputs) == (problem.x_layout, problem.x_dtype, problem.outputs)


class Faulty(EmulatorRuntime):
    """An emulator whose kernels have a fault planted in them."""

    def plant(self, fault: Fault, folder: Path) -> Faulty:
        self._fault, self._folder = fault, folder
        return self

    def compile(self, kernel: KernelSource) -> Any:
        copy = copy_with(self._fault, kernel.file, self._folder)
        assert copy != kernel.file
        return super().compile(dataclasses.replace(kernel, path=str(copy)))


@pytest.mark.parametrize("fault", SHARES_FAULTS, ids=str)
def test_a_planted_fault_is_noticed(fault: Fault, tmp_path: Path) -> None:
    for order in ORDERS:
        runtime = Faulty(order=order).plant(fault, tmp_path)
        for text in TEXTS:
            try:
                if what_is_wrong(text, runtime) is not None:
                    return
            except EmulatorError:
                return
    pytest.fail(f"{fault}: nobody noticed")
