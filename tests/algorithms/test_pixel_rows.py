"""Pictures as rows of channels, and of halves, on the emulator: layouts, borders, types, groups, strides; faults."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.faults_split import PIXEL_FAULTS
from tests.algorithms.faults_wgmma import ROWS_FAULTS
from tests.algorithms.planted import Fault
from tests.algorithms.split_inputs import split_inputs
from tests.algorithms.test_planted_faults import ORDERS, copy_with
from tests.backends.emulated import needs_emulator

from convforge.algorithms.implicit_gemm.stages import PixelRows, SplitPixels, rows_problem
from convforge.algorithms.implicit_gemm.wgmma_tiles import WgmmaConfig
from convforge.backends.emulator import EmulatorError, EmulatorRuntime
from convforge.backends.kernel import KernelSource
from convforge.problem import border_indices, parse_problem
from convforge.verify import make_inputs

pytestmark = needs_emulator

TEXTS = (
    "n2c12h9w10_k8r3s3_p1_f16_nchw", "n2c70h9w11_k8r3s2_p2x1x0x3_reflect_bf16_nhwc", "n1c72h5w16_k8r3s3_p1_f32_nchw",
    "n2c24h7w9_k9r3s3_p3_circular_g3_f16_nhwc", "n1c144h4w5_k8r3s3_p1_symmetric_g2_f16_nchw",
    "n2c33h6w7_k8r3s3_p2_constant1.5_f32_nhwc", "n2c36h5w6_k8r3s3_p1_replicate_g2_f32_nchw",
    "n1c16h1w1_k8r1s1_f16_nchw", "n2c130h5w13_k8r3s3_p2_constant9.0_f16_nhwc",
)  # fmt: skip


def padded(problem: Any, x: Any, of_group: int) -> Any:
    """The picture in NHWC, with what stands outside of it, and so many channels of each group."""
    pixels = x.transpose(0, 2, 3, 1) if problem.x_layout == "NCHW" else x
    pixels = pixels.reshape(*pixels.shape[:3], problem.groups, -1)
    top, bottom, left, right = (0, 0, 0, 0) if problem.padding_mode == "zeros" else problem.padding
    down = border_indices(problem.h, top, bottom, problem.padding_mode)
    across = border_indices(problem.w, left, right, problem.padding_mode)
    there = (down >= 0)[:, None] & (across >= 0)
    expected = np.zeros((problem.n, len(down), len(across), problem.groups, of_group), x.dtype)
    own = slice(problem.c_per_group)
    expected[..., own] = pixels[:, down][:, :, across]
    expected[:, ~there] = 0
    expected[:, ~there, :, own] = problem.outside
    return expected


def what_is_wrong(text: str, runtime: Any, order: str = "C") -> str | None:
    problem: Any = parse_problem(text)
    x = np.array(make_inputs(problem).x, order=order)  # type: ignore[call-overload]
    seen = rows_problem(problem, WgmmaConfig.whole_groups(problem))
    rows = PixelRows(problem, seen, runtime)
    room = np.full(rows.nbytes // 4 + 64, np.nan, np.float32)
    buffers = {"x": x, "out": np.zeros(problem.out_shape, problem.out_dtype), "workspace": room}
    rows.launch.run({**buffers, "w": Prepared()}, None)
    made = rows.arrays(buffers)["x"]
    first = (made.address - room.__array_interface__["data"][0]) // made.itemsize
    found = np.lib.stride_tricks.as_strided(room.view(x.dtype)[first:], made.shape, made.strides)
    expected = padded(problem, x, made.shape[3] // problem.groups)
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


@pytest.mark.one_in(2)
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


# Layouts, borders, slices of channels that are not whole, several squares of pixels.
SPLIT_TEXTS = (
    "n2c72h9w10_k8r3s3_f32_nhwc", "n1c20h7w9_k8r3s3_p1x0x2x1_reflect_f32_nchw",
    "n2c33h6w7_k8r3s3_p2_constant1.5_f32_nhwc", "n1c330h5w3_k8r1s1_f32_nchw",
)  # fmt: skip
SPLIT_KINDS = (
    "normal",
    "binades",
    "seen channel",
    "late channel",
    "seen huge",
    "far pixels",
    "small pixels",
    "far filters",
    "denormals",
)


def what_is_wrong_with_halves(text: str, kind: str, runtime: Any) -> str | None:
    """By NumPy: each pixel's power of two, the halves, and whether too many of its numbers lose bits."""
    problem: Any = parse_problem(text)
    x = split_inputs(problem, kind).x
    step = SplitPixels(problem, rows_problem(problem, problem.c), runtime)
    room = np.full(step.nbytes // 4 + 64, np.nan, np.float32)
    buffers = {"x": x, "out": np.zeros(problem.out_shape, problem.out_dtype), "workspace": room}
    step.launch.run({**buffers, "w": Prepared()}, None)

    def seen(name: str, dtype: Any) -> Any:
        made = step.arrays(buffers)[name]
        first = (made.address - room.__array_interface__["data"][0]) // made.itemsize
        return np.lib.stride_tricks.as_strided(room.view(dtype)[first:], made.shape, made.strides)

    high, low = np.split(seen("pixels", np.float16), 2)
    downs, channels = seen("downs", np.float32), high.shape[3]
    slices = -(-problem.c // 64)
    pixels = padded(problem, x, 64 * slices)[:, :, :, 0].astype(np.float64)
    if not (downs[..., slices:] == 0).all():
        return "scales of no slice are not 0"
    for i in range(slices):
        v = pixels[..., 64 * i : 64 * (i + 1)]
        most = np.abs(v).max(-1, keepdims=True)
        exponent = np.frexp(np.where(most > 0, np.maximum(most, 2.0**-100), 2.0**14))[1] - 1
        scaled = v * 2.0 ** (14 - exponent)
        size = np.abs(scaled)
        small = (v != 0) & (size < 2.0**-12)
        plain = (4 * small.sum(-1) > (v != 0).sum(-1)) | (exponent[..., 0] > 100)
        of_picture = size.reshape(problem.n, -1, 64)
        for square in range(0, of_picture.shape[1], 64):
            column = of_picture[:, square : square + 64].max(1)
            lost = ((column > 0) & (column < 2.0**-12)).any(1)
            plain.reshape(problem.n, -1)[:, square : square + 64] |= lost[:, None]
        expected = np.where(plain, -1, np.where(most[..., 0] > 0, 2.0 ** (exponent[..., 0] - 21), 1))
        if not np.array_equal(downs[..., i], expected):
            return "scales are others"
        first = scaled.astype(np.float32).astype(np.float16)
        second = ((scaled - first.astype(np.float64)) * 2048).astype(np.float32).astype(np.float16)
        own = slice(64 * i, min(64 * (i + 1), channels))
        for found, halves in ((high, first), (low, second)):
            if not np.array_equal(found[..., own][~plain], halves[..., : own.stop - own.start][~plain]):
                return "halves are others"
    return None


@pytest.mark.parametrize("kind", SPLIT_KINDS)
@pytest.mark.parametrize("text", SPLIT_TEXTS)
def test_halves_and_scales_are_those_of_the_padded_picture(text: str, kind: str) -> None:
    for order in ORDERS:
        assert what_is_wrong_with_halves(text, kind, EmulatorRuntime(order=order)) is None


@pytest.mark.one_in(2)
@pytest.mark.parametrize("fault", PIXEL_FAULTS, ids=str)
def test_a_fault_planted_where_pixels_are_split_is_noticed(fault: Fault, tmp_path: Path) -> None:
    for order in ORDERS:
        runtime = Faulty(order=order).plant(fault, tmp_path)
        for text in SPLIT_TEXTS:
            for kind in SPLIT_KINDS:
                try:
                    if what_is_wrong_with_halves(text, kind, runtime) is not None:
                        return
                except EmulatorError:
                    return
    pytest.fail(f"{fault}: nobody noticed")
