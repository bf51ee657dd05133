"""Filters with a tap's channels side by side: packed on the emulator, or taken where they lie; faults."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.faults_wgmma import PACKING_FAULTS
from tests.algorithms.planted import Fault
from tests.algorithms.test_planted_faults import ORDERS, copy_with
from tests.backends.emulated import needs_emulator

from convforge.algorithms.implicit_gemm.wgmma import FilterRows
from convforge.backends.emulator import EmulatorError, EmulatorRuntime
from convforge.backends.kernel import KernelSource
from convforge.backends.runtime import upload_weights
from convforge.problem import parse_problem
from convforge.problem.conv2d import FILTER_LAYOUTS
from convforge.verify import make_inputs

pytestmark = needs_emulator

# More channels than a block's; more taps than a run's; channels of a group that are no whole vectors; turned.
TEXTS = (
    "n1c300h9w9_k3r3s3_f16_nhwc", "n1c8h9w9_k5r7s6_f16_nhwc", "n1c9h50w50_k2r49s49_f16_nhwc",
    "n1c21h9w9_k4r3s2_bf16_nhwc",
    "n1c24h9w9_k4r3s3_g2_f16_nhwc", "n1c12h9w9_k5r1s1_f32_nhwc_math-tf32", "n1c24h9w9_k5r3s3_flip_f16_nhwc",
)  # fmt: skip


def what_is_wrong(text: str, runtime: Any, layout: str) -> str | None:
    problem: Any = parse_problem(text)
    w = make_inputs(problem).w
    made = np.asarray(FilterRows(problem, runtime)(upload_weights(runtime, w, layout)).tensors["w"])
    expected = w[:, :, ::-1, ::-1] if problem.mode == "convolution" else w
    if not np.array_equal(made[:, : w.shape[1]].view(np.uint16), np.ascontiguousarray(expected).view(np.uint16)):
        return "weights are others"
    if made[:, w.shape[1] :].any():
        return "no zeros behind the channels"
    steps = made.strides
    return None if steps[1] == made.itemsize and not any(step % 16 for step in (steps[0], *steps[2:])) else "strides"


@pytest.mark.parametrize("text", TEXTS)
def test_channels_lie_side_by_side(text: str) -> None:
    for layout in FILTER_LAYOUTS:
        for order in ORDERS:
            assert what_is_wrong(text, EmulatorRuntime(order=order), layout) is None


@pytest.mark.parametrize(
    ("text", "layout", "taken"),
    [
        ("n1c64h9w9_k8r3s3_f16_nhwc", "KRSC", True),
        ("n1c64h9w9_k8r3s3_f16_nhwc", "KCRS", False),
        ("n1c64h9w9_k8r1s1_f16_nchw", "KCRS", True),
        ("n1c64h9w9_k8r1s1_flip_f16_nchw", "KCRS", True),
        ("n1c64h9w9_k8r3s3_flip_f16_nhwc", "KRSC", False),
        ("n1c60h9w9_k8r3s3_bf16_nhwc", "KRSC", False),
        ("n1c64h9w9_k8r3s3_g4_bf16_nhwc", "KRSC", True),
        ("n1c64h9w9_k1r5s1_bf16_nhwc", "KRSC", True),
        ("n1c12h9w9_k8r3s3_f32_nhwc_math-tf32", "KRSC", True),
    ],
)
def test_weights_are_taken_where_they_lie(text: str, layout: str, taken: bool) -> None:
    problem: Any = parse_problem(text)
    runtime = EmulatorRuntime()
    rows, w = FilterRows(problem, runtime), upload_weights(runtime, make_inputs(problem).w, layout)
    assert (rows.borrow(w).nbytes == 0) == taken
    assert rows(w).nbytes > 0


def test_weights_of_odd_addresses_are_packed() -> None:
    problem: Any = parse_problem("n1c64h9w9_k8r1s1_f16_nhwc")
    room = np.zeros(8 * 64 + 16, np.float16)
    first = -(room.__array_interface__["data"][0] // 2) % 8
    rows = FilterRows(problem, EmulatorRuntime())
    for begin, taken in ((first, True), (first + 1, False)):
        w = room[begin : begin + 512].reshape(problem.w_shape)
        assert (rows.borrow(w).nbytes == 0) == taken


class Faulty(EmulatorRuntime):
    """An emulator whose kernels have a fault planted in them, and whose new arrays hold what no weight is."""

    def plant(self, fault: Fault, folder: Path) -> Faulty:
        self._fault, self._folder = fault, folder
        return self

    def compile(self, kernel: KernelSource) -> Any:
        copy = copy_with(self._fault, kernel.file, self._folder)
        assert copy != kernel.file
        return super().compile(dataclasses.replace(kernel, path=str(copy)))

    def empty(self, shape: Any, dtype: Any, stream: Any = None) -> Any:
        array = super().empty(shape, dtype, stream)
        self.fill(array, 0x55)
        return array


@pytest.mark.parametrize("fault", PACKING_FAULTS, ids=str)
def test_a_planted_fault_is_noticed(fault: Fault, tmp_path: Path) -> None:
    for order in ORDERS:
        runtime = Faulty(order=order).plant(fault, tmp_path)
        for text in TEXTS:
            try:
                if any(what_is_wrong(text, runtime, layout) is not None for layout in FILTER_LAYOUTS):
                    return
            except EmulatorError:
                return
    pytest.fail(f"{fault}: nobody noticed")
