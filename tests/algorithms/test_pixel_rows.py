"""Pictures as rows of channels on the emulator: every layout, border and type, groups, strides; faults."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.faults_wgmma import ROWS_FAULTS
from tests.algorithms.planted import Fault
from tests.algorithms.test_planted_faults import ORDERS, copy_with
from tests.backends.emulated import needs_emulator

from convforge.algorithms.implicit_gemm.pixel_rows import PixelRows
from convforge.algorithms.implicit_gemm.wgmma_tiles import rows_problem, whole_groups
from convforge.backends.emulator import EmulatorError, EmulatorRuntime
from convforge.backends.kernel import KernelSource
from convforge.check import make_inputs
from convforge.problem import border_indices, parse_problem

pytestmark = needs_emulator

TEXTS = (
    "n2c12h9w10_k8r3s3_p1_f16_nchw", "n2c70h9w11_k8r3s2_p2x1x0x3_reflect_bf16_nhwc", "n1c72h5w16_k8r3s3_p1_f32_nchw",
    "n2c24h7w9_k9r3s3_p3_circular_g3_f16_nhwc", "n1c144h4w5_k8r3s3_p1_symmetric_g2_f16_nchw",
    "n2c33h6w7_k8r3s3_p2_constant1.5_f32_nhwc", "n2c36h5w6_k8r3s3_p1_replicate_g2_f32_nchw",
    "n1c16h1w1_k8r1s1_f16_nchw", "n2c130h5w13_k8r3s3_p2_constant9.0_f16_nhwc",
)  # fmt: skip


def what_is_wrong(text: str, runtime: Any, order: str = "C") -> str | None:
    problem: Any = parse_problem(text)
    x = np.array(make_inputs(problem).x, order=order)  # type: ignore[call-overload]
    seen = rows_problem(problem, whole_groups(problem))
    rows = PixelRows(problem, seen, runtime)
    room = np.full(rows.nbytes // 4 + 64, np.nan, np.float32)
    buffers = {"x": x, "out": np.zeros(problem.out_shape, problem.out_dtype), "workspace": room}
    rows.launch.run({**buffers, "w": Prepared()}, None)
    made = rows.array(buffers)
    first = (made.address - room.__array_interface__["data"][0]) // made.itemsize
    found = np.lib.stride_tricks.as_strided(room.view(x.dtype)[first:], made.shape, made.strides)
    pixels = x.transpose(0, 2, 3, 1) if problem.x_layout == "NCHW" else x
    pixels = pixels.reshape(*pixels.shape[:3], problem.groups, -1)
    expected = np.zeros((*made.shape[:3], problem.groups, made.shape[3] // problem.groups), x.dtype)
    zeros = problem.padding_mode == "zeros"
    top, bottom, left, right = (0, 0, 0, 0) if zeros else problem.padding
    down = border_indices(problem.h, top, bottom, problem.padding_mode)
    across = border_indices(problem.w, left, right, problem.padding_mode)
    there = (down >= 0)[:, None] & (across >= 0)
    own = slice(problem.c_per_group)
    expected[..., own] = pixels[:, down][:, :, across]
    expected[:, ~there] = 0
    expected[:, ~there, :, own] = problem.outside
    if np.array_equal(found, expected.reshape(made.shape)):
        return None
    return "rows are others"


class Prepared:
    tensors: dict[str, Any] = {}  # noqa: RUF012


class Faulty(EmulatorRuntime):
    """An emulator whose kernels have a fault planted in them."""

    def plant(self, fault: Fault, folder: Path) -> Faulty:
        self._fault, self._folder = fault, folder
        return self

    def compile(self, kernel: KernelSource) -> Any:
        copy = copy_with(self._fault, kernel.file, self._folder)
        return super().compile(dataclasses.replace(kernel, path=str(copy)))


@pytest.mark.parametrize("text", TEXTS)
def test_rows_hold_the_padded_picture(text: str) -> None:
    for order in ORDERS:
        for memory in "CF":
            assert what_is_wrong(text, EmulatorRuntime(order=order), memory) is None


@pytest.mark.parametrize("fault", ROWS_FAULTS, ids=str)
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
