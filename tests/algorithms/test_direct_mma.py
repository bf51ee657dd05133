"""Filters of bytes as products of matrices: on the emulator, by value; what is refused, in words."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.algorithms.compiling import H200
from tests.backends.emulated import needs_emulator
from tests.judged import judge_of

from convforge.algorithms.direct.device import DirectMma, MmaConfig
from convforge.algorithms.direct.mma import default_config
from convforge.backends.emulator import EmulatorRuntime, emulator_runtime
from convforge.problem import Conv2dProblem, parse_problem
from convforge.tuning.heuristic import preferred
from convforge.verify import Judge, check_plan, make_inputs

METHOD = DirectMma("emulator")
# Of few warps, rings that go round, and blocks that end in the middle of a strip.
SMALL = MmaConfig(3, 1, 2, 3, 2)


def problem_of(text: str) -> Conv2dProblem:
    problem = parse_problem(text)
    assert isinstance(problem, Conv2dProblem)
    return problem


def check(text: str, config: MmaConfig = SMALL, kind: str = "integers", order: str = "shuffled") -> None:
    """Run a plan on the emulator and hold it against the truth."""
    plan = METHOD.plan(problem_of(text), config, emulator_runtime(order))
    verdict = check_plan(plan, judge_of(text, kind))
    assert verdict.ok, f"{config}: {verdict.message}"


# Filters of every size of window, one step and two; channels that divide 16 bytes, and those that divide 12; groups;
# signs; types of outputs; epilogues; a flip.
VALUES = [
    *[f"n1c1h21w80_k1r{r}s{s}_p{r // 2}x{s // 2}_u8-i8-i32-i32_nchw"
      for r, s in ((1, 1), (2, 3), (3, 3), (5, 5), (7, 7), (15, 15), (3, 17), (2, 31))],
    *[f"n2c{c}h13w48_k{c}r3s3_p1_g{c}_u8-i8-u8-i32_nhwc" for c in (1, 2, 3, 4, 6, 8, 12, 16)],
    "n1c3h21w80_k3r7s7_p3_g3_u8-i8-i32-i32_nhwc",
    "n1c4h21w80_k4r5s5_p2_g4_u8-i8-u8-i32_nhwc",
    "n2c3h13w400_k3r3s3_p1_g3_u8-i8-u8-i32_nhwc",
    "n1c3h13w80_k3r3s3_p1_u8-i8-i32-i32_nhwc",
    "n1c4h13w80_k4r3s2_p1x0_g2_u8-i8-i32-i32_nhwc",
    "n3c2h13w272_k2r5s3_p2x1_g2_u8-i8-u8-i32_nchw",
    "n1c1h13w80_k1r3s3_p1_i8-i8-i8-i32_nchw",
    "n1c1h13w80_k1r3s3_p1_i8-u8-i32-i32_nchw",
    "n1c1h13w80_k1r3s3_p1_u8-u8-u8-i32_nchw",
    "n1c3h13w80_k3r3s3_p1_g3_u8-i8-f32-i32_nhwc_+scale:channel+bias+gelu",
    "n1c3h13w80_k3r3s3_p1_g3_u8-i8-u8-i32_nhwc_+scale:channel+bias+residual+relu",
    "n1c3h13w80_k3r3s3_p1_flip_g3_u8-i8-u8-i32_nhwc",
    "n1c3h13w80_k3r3s3_g3_u8-i8-u8-i32_nhwc",
    "n1c2h13w80_k2r4s4_p3x0x9x5_g2_u8-i8-i32-i32_nchw",
    "n0c3h13w80_k3r3s3_p1_g3_u8-i8-u8-i32_nhwc",
]  # fmt: skip


@pytest.mark.one_in(7)
@needs_emulator
@pytest.mark.parametrize("text", VALUES)
def test_values(text: str) -> None:
    check(text)


@pytest.mark.one_in(2)
@needs_emulator
@pytest.mark.parametrize("border", ["constant9.0", "reflect", "symmetric", "replicate", "circular"])
def test_borders(border: str) -> None:
    """Rows across the edge and inside; pads larger than the picture, and than a warp's span."""
    check(f"n2c3h21w80_k3r5s4_p2x3x4x1_{border}_g3_u8-i8-u8-i32_nhwc")
    check(f"n1c1h3w16_k1r3s3_p7x5x9x4_{border}_u8-i8-i32-i32_nchw")
    check(f"n1c1h5w32_k1r3s3_p1x300_{border}_u8-i8-i32-i32_nchw")


@pytest.mark.thorough
@needs_emulator
@pytest.mark.parametrize(
    "text", ["n2c3h37w144_k3r3s3_p1_reflect_g3_u8-i8-u8-i32_nhwc", "n2c2h37w80_k2r5s5_p2_g2_u8-i8-u8-i32_nchw"]
)
def test_every_config(text: str) -> None:
    configs = METHOD.configs(problem_of(text), H200)
    assert len(set(configs)) == len(configs) >= 5
    for config in (*configs, MmaConfig(1, 3, 1, 2, 1), MmaConfig(2, 1, 5, 2, 1, 3)):
        check(text, config)


@needs_emulator
@pytest.mark.parametrize("order", ["forward", "backward"])
def test_warps_in_any_order(order: str) -> None:
    check("n2c3h21w144_k3r3s3_p1_replicate_g3_u8-i8-u8-i32_nhwc", order=order)


class Counting(EmulatorRuntime):
    """An emulator that writes down which kernels were launched."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[str] = []

    def launch(self, kernel: Any, info: Any, args: Any, stream: Any = None) -> None:
        self.launched.append(info.kernel)
        super().launch(kernel, info, args, stream)


@needs_emulator
@pytest.mark.parametrize("ahead, expected", [(0, "direct_mma"), (16, "direct_mma"), (5, "direct_tiled")])
def test_pictures_that_do_not_begin_at_16_bytes_go_to_direct_tiled(ahead: int, expected: str) -> None:
    text = "n1c1h13w80_k1r3s3_p1_u8-i8-u8-i32_nchw"
    problem, runtime, inputs = problem_of(text), Counting(), make_inputs(problem_of(text), "integers")
    plan = METHOD.plan(problem, SMALL, runtime)
    around = np.zeros(13 * 128 + 64, np.uint8)
    first = -around.__array_interface__["data"][0] % 16 + ahead
    x = around[first : first + 13 * 128].reshape(1, 1, 13, 128)[..., :80]
    x[:] = inputs.x
    out = np.empty(problem.out_shape, np.uint8)
    runtime.launched.clear()
    plan({"x": x, "w": plan.prepare(inputs.w), "out": out})
    verdict = Judge(problem, inputs).verdict("strict", out)
    assert verdict.ok, verdict.message
    assert runtime.launched[-1] == expected


@pytest.mark.parametrize(
    "text, says",
    [
        ("n1c1h13w80_k1r3s3_p1_u8-f32-u8-f32_nchw", "products are of bytes"),
        ("n1c1h13w80_k1r3s3_p1_st2_u8-i8-u8-i32_nchw", "windows must be dense"),
        ("n1c1h13w80_k1r3s3_p1_d2_u8-i8-u8-i32_nchw", "windows must be dense"),
        ("n1c1h13w80_k1r3s3_p1_u8-i8-u8-i32_nchw_+zero:3", "the zero point 3"),
        ("n1c1h13w80_k2r3s3_p1_u8-i8-u8-i32_nchw", "K=2 must equal C=1"),
        ("n1c2h13w80_k2r3s3_p1_u8-i8-u8-i32_nchw", "every filter must see one channel alone"),
        ("n1c2h13w80_k2r3s3_p1_g2_u8-i8-u8-i32_nchw-kcrs-nhwc", "outputs must lie as pixels do"),
        ("n1c1h13w80_k1r3s3_p1_u8-i8-f64-i32_nchw", "four of float64 take more"),
        ("n1c5h13w80_k5r3s3_p1_g5_u8-i8-u8-i32_nhwc", "C=5 channels side by side"),
        ("n1c1h13w90_k1r3s3_p1_u8-i8-u8-i32_nchw", "a row of pixels has 90 bytes"),
        ("n1c1h64w80_k1r31s31_p15_u8-i8-u8-i32_nchw", "sums and taps take"),
    ],
)
def test_what_it_does_not_take(text: str, says: str) -> None:
    assert says in str(METHOD.refuses(problem_of(text), H200))


def test_an_architecture_without_such_products() -> None:
    turing = dataclasses.replace(H200, architecture="sm_75", name="T4")
    assert "T4 is sm_75" in str(METHOD.refuses(problem_of(VALUES[2]), turing))


@needs_emulator
@pytest.mark.parametrize(
    "config, says",
    [
        (MmaConfig(warps=0), "must be at least 1"),
        (MmaConfig(stages=1), "must be at least 2"),
        (MmaConfig(warps=33), "at most 32 warps"),
        (MmaConfig(sets=9), "registers"),
        (MmaConfig(warps=32, stages=20), "bytes of shared memory"),
    ],
)
def test_a_config_that_cannot_be(config: MmaConfig, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        METHOD.plan(problem_of(VALUES[2]), config, emulator_runtime())


def test_strips_fill_the_device_once() -> None:
    """A picture is cut into as many strips as there are blocks at once; a small one into strips of a few rows."""
    from convforge.algorithms.direct.mma import _rows, _spans

    def strips(text: str, **fields: int) -> tuple[int, int]:
        problem, config = problem_of(text), MmaConfig(**fields)
        rows = _rows(problem, config, 132 * config.blocks)
        return rows, _spans(problem, config) * -(-problem.p // rows)

    rows, units = strips("n1c3h4096w4096_k3r5s5_p2_g3_u8-i8-u8-i32_nhwc")
    assert units <= 132 * 4 * 4 < units * 1.05, "one wave, hardly a warp idle"
    assert strips("n1c3h4096w4096_k3r5s5_p2_g3_u8-i8-u8-i32_nhwc", waves=2)[0] == pytest.approx(rows / 2, abs=1)
    assert strips("n1c1h64w64_k1r5s5_p2_u8-i8-u8-i32_nchw")[0] == 16, "four rows for each that is read again"


def test_the_default_is_of_two_sets_where_memory_wants_wide_spans() -> None:
    """Two sets of windows where sums and taps leave room for warps, and rows are wide enough for two spans."""

    def sets_and_gang(text: str) -> tuple[int, int]:
        config = default_config(problem_of(text), H200)
        return config.sets, config.stage_rows

    assert sets_and_gang("n1c3h4096w4096_k3r5s5_p2_g3_u8-i8-u8-i32_nhwc") == (2, 2)
    assert sets_and_gang("n1c3h4096w4096_k3r3s3_p1_g3_u8-i8-u8-i32_nhwc") == (2, 1), "few rows: one at a time"
    assert sets_and_gang("n1c1h4000w4000_k1r5s5_p2_u8-i8-u8-i32_nchw") == (1, 2), "a set is wide enough"
    assert sets_and_gang("n1c1h4000w4000_k1r7s7_p3_u8-i8-u8-i32_nchw") == (1, 2)
    assert sets_and_gang("n1c3h48w48_k3r3s3_p1_g3_u8-i8-u8-i32_nhwc") == (1, 2), "no room for two"


def test_large_pictures_of_bytes_go_to_it_by_rule() -> None:
    def first(text: str) -> str:
        return preferred(problem_of(text), H200)[0][0].name

    assert first("n1c3h4096w4096_k3r5s5_p2_g3_u8-i8-u8-i32_nhwc") == "direct_mma"
    assert first("n1c1h4000w4000_k1r3s3_p1_u8-i8-u8-i32_nchw") == "direct_mma"
    assert first("n1c3h512w512_k3r5s5_p2_g3_u8-i8-u8-i32_nhwc") == "direct_boxes", "not measured"
    assert first("n1c3h4096w4096_k3r5s5_p2_g3_u8-f32-u8-f32_nhwc") == "direct_boxes", "a filter of floats"
