"""The FFT method of GPUs on the emulator: every config, chunks, tiles that share zeros, views, refusals, sizes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.algorithms.compiling import H200
from tests.backends.emulated import needs_emulator
from tests.on_device import check_views

from convforge.algorithms import refusal
from convforge.algorithms.fft.device import Fft, FftConfig
from convforge.algorithms.fft.tiling import FAST, modelled_seconds, next_fast, sizes, tiling, whole
from convforge.backends.emulator import emulator_runtime
from convforge.errors import WorkspaceTooSmall
from convforge.problem import PADDING_MODES, Conv2dProblem, parse_problem
from convforge.tuning.heuristic import choose
from convforge.verify import Judge, check_nan_spread, check_plan, make_inputs

METHOD = Fft("emulator")
BLUR = "n1c3h2048w2048_k3r31s31_st1_p15_g3_f32_nchw"


def problem_of(text: str) -> Conv2dProblem:
    problem = parse_problem(text)
    assert isinstance(problem, Conv2dProblem)
    return problem.replace(precision="fft")


def check(problem: Conv2dProblem, config: FftConfig) -> None:
    """Hold a plan against the truth."""
    verdict = check_plan(
        METHOD.plan(problem, config, emulator_runtime("shuffled")), Judge(problem, make_inputs(problem))
    )
    assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.one_in(3)
@needs_emulator
@pytest.mark.parametrize("text", [
    "n2c3h37w53_k3r9s11_st1_p4x5_g3_f32_nchw", "n1c3h41w46_k3r7s5_st1_p3x2_g3_f32_nhwc",
    "n2c6h43w45_k4r5s9_st2x3_p2x4_g2_f16_nchw", "n1c4h40w48_k4r5s5_st1_p2_reflect_g4_u8-f32-u8-f32_nhwc",
    "n1c40h20w21_k37r5s5_p2_f32_nhwc", "n3c2h20w21_k9r5s5_p2_f64_nchw_+bias+relu",
])  # fmt: skip
def test_every_config(text: str) -> None:
    problem = problem_of(text)
    configs = METHOD.configs(problem, emulator_runtime().facts)
    assert len(set(configs)) == len(configs) > 2
    for config in configs:
        check(problem, config)


@pytest.mark.one_in(21)
@needs_emulator
@pytest.mark.parametrize("dtypes", ["f32", "f16", "u8-f32-u8-f32", "u16-f32-u16-f32", "f64"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc", "nchw-kcrs-nhwc"])
@pytest.mark.parametrize("mode", PADDING_MODES)
def test_borders_and_types(mode: str, layout: str, dtypes: str) -> None:
    token = {"constant": "_constant7.0", "zeros": ""}.get(mode, f"_{mode}")
    problem = problem_of(f"n2c3h21w40_k3r5s7_p1x3x6x2_g3{token}_{dtypes}_{layout}")
    check(problem, FftConfig(12, 20, 0))


@pytest.mark.one_in(7)
@needs_emulator
@pytest.mark.parametrize("stride", [(1, 1), (2, 1), (1, 3), (3, 2)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 3)])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_strides_dilation_and_flips(stride: tuple[int, int], dilation: tuple[int, int], layout: str) -> None:
    problem = Conv2dProblem(n=1, c=4, h=50, w=64, k=6, r=3, s=5, stride=stride, dilation=dilation, groups=2,
                            padding=(2, 1, 0, 3), padding_mode="reflect", x_layout=layout, out_layout=layout,
                            mode="convolution", precision="fft")  # fmt: skip
    check(problem, FftConfig(16, 24, 1))
    check(problem, METHOD.configs(problem, H200)[0])


@needs_emulator
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)), padding=st.tuples(*[st.integers(0, 9)] * 4),
    more=st.tuples(st.integers(0, 40), st.integers(0, 20)), n=st.integers(1, 3), chunk=st.integers(0, 1),
)  # fmt: skip
def test_any_size_of_picture_padding_and_tile(
    size: tuple[int, int], padding: tuple[int, ...], more: tuple[int, int], n: int, chunk: int
) -> None:
    """One compiled kernel serves them all; among them tiles in which what wraps round meets the other side's zeros."""
    h, w = max(size[0], 5 - padding[0] - padding[1]), max(size[1], 4 - padding[2] - padding[3])
    problem = Conv2dProblem(n=n, c=2, h=h, w=w, k=2, r=5, s=4, padding=padding, groups=2, precision="fft")
    check(problem, FftConfig(5 + more[0], 4 + 2 * more[1], chunk))


@needs_emulator
@pytest.mark.parametrize("text", ["n2c3h20w22_k3r13s13_p6_g3_f32_nchw", "n1c2h17w30_k3r9s13_p3x5x6x2_st2_f32_nhwc"])
def test_padding_on_both_sides_is_the_same_zeros(text: str) -> None:
    """A tile with room for the wider padding alone holds the whole picture; one pixel less, and it does not."""
    problem = problem_of(text)
    least = whole(problem, 0), whole(problem, 1)
    padded = problem.replace(padding_mode="constant", padding_value=1.0)
    assert all(mine < whole(padded, axis) for axis, mine in enumerate(least))
    even = least[0], least[1] + least[1] % 2
    cut = tiling(problem, *even)
    assert (cut.down, cut.across, cut.tile_p, cut.tile_q) == (1, 1, problem.p, problem.q)
    check(problem, FftConfig(*even, 0))
    assert tiling(problem, least[0] - 1, even[1]).down > 1
    check(problem, FftConfig(least[0] - 1, even[1], 0))


@needs_emulator
@pytest.mark.parametrize("kind", ["nan", "inf"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_nan_stays_in_its_picture(kind: str, layout: str) -> None:
    problem = problem_of(f"n3c3h40w61_k3r9s11_p4x5_g3_f32_{layout}")
    for config in METHOD.configs(problem, H200)[:2]:
        verdict = check_nan_spread(METHOD.plan(problem, config, emulator_runtime()), kind)
        assert verdict.ok, verdict.message


@needs_emulator
def test_nan_stays_in_the_tiles_that_read_it() -> None:
    problem = problem_of("n1c1h64w64_k1r5s5_f32_nchw")
    inputs = make_inputs(problem)
    x = inputs.x.copy()
    x[0, 0, 30, 2] = np.nan
    plan = METHOD.plan(
        problem, FftConfig(16, 16, 0), emulator_runtime()
    )  # tiles of 12 x 12 outputs, 24 to 35 the third
    out = plan({"x": x, "w": plan.prepare(inputs.w), "out": np.empty(problem.out_shape, "f4")})
    expected = np.zeros(problem.out_shape, bool)
    expected[0, 0, 24:36, 0:12] = True
    assert (np.isnan(out) == expected).all()


@needs_emulator
def test_chunks_bound_the_workspace() -> None:
    problem, runtime = problem_of("n1c3h900w900_k2r9s9_f32_nchw"), emulator_runtime()
    plans = [METHOD.plan(problem, FftConfig(64, 64, mib), runtime) for mib in (0, 1, 8)]
    room = [plan.workspace_bytes for plan in plans]
    assert room[0] < 5 * 64 * 36 * 8 + 4096 < room[1] < (1 << 20) + 4096 < room[2] < (8 << 20) + 4096
    assert [len(plan.launches) for plan in plans] == sorted((len(plan.launches) for plan in plans), reverse=True)
    inputs = make_inputs(problem)
    results = [p({"x": inputs.x, "w": p.prepare(inputs.w), "out": np.empty(problem.out_shape, "f4")}) for p in plans]
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-4)
    assert np.array_equal(results[1], results[2]), "a tile is computed alike in whichever chunk"
    with pytest.raises(WorkspaceTooSmall, match="fft needs"):
        plans[1](
            {"x": inputs.x, "w": plans[1].prepare(inputs.w), "out": results[0], "workspace": np.empty(64, np.uint8)}
        )


@needs_emulator
def test_a_tile_larger_than_a_chunk_is_cut_along_its_groups() -> None:
    problem = problem_of("n2c6h30w40_k6r9s9_p4_g6_f32_nhwc")
    whole_tiles, cut = (METHOD.plan(problem, FftConfig(40, 50, mib), emulator_runtime()) for mib in (1, 0))
    assert len(whole_tiles.launches) == 5
    assert len(cut.launches) == 2 * 6 * 5
    assert cut.workspace_bytes < 40 * 28 * 8 + 4096
    check(problem, FftConfig(40, 50, 0))


@needs_emulator
@pytest.mark.parametrize("ahead", [1, 64, 200])
def test_a_workspace_that_begins_anywhere(ahead: int) -> None:
    problem, runtime = problem_of("n1c3h30w30_k4r5s5_p2_f32_nchw"), emulator_runtime()
    inputs = make_inputs(problem)
    plan = METHOD.plan(problem, FftConfig(12, 12, 0), runtime)
    room = np.full(plan.workspace_bytes + 1024, 0x7F, np.uint8)
    first = -room.ctypes.data % 256 + ahead
    out = runtime.empty(problem.out_shape, "float32")
    plan(
        {
            "x": inputs.x,
            "w": plan.prepare(inputs.w),
            **inputs.operands,
            "out": out,
            "workspace": room[first : first + plan.workspace_bytes],
        }
    )
    assert Judge(problem, inputs).verdict("fft", out).ok
    assert (room[:first] == 0x7F).all()
    assert (room[first + plan.workspace_bytes :] == 0x7F).all()


@needs_emulator
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_views_with_gaps(layout: str) -> None:
    problem, runtime = problem_of(f"n2c3h19w32_k3r5s7_p2x3_g3_f32_{layout}_+bias"), emulator_runtime()
    check_views(METHOD.plan(problem, FftConfig(12, 20, 0), runtime), make_inputs(problem), 1)


@needs_emulator
def test_a_prepared_filter_is_of_no_picture() -> None:
    """Spectra are prepared once; weights that change later change nothing."""
    problem, runtime = problem_of("n1c2h30w30_k3r5s5_p2_f32_nchw"), emulator_runtime()
    inputs = make_inputs(problem)
    w = inputs.w.copy()
    plan = METHOD.plan(problem, FftConfig(16, 16, 0), runtime)
    prepared = plan.prepare(w)
    assert prepared.nbytes == 3 * 2 * 16 * 12 * 8, "rows of 9 complex numbers take 12"
    w[...] = 0
    out = runtime.empty(problem.out_shape, "float32")
    plan({"x": inputs.x, "w": prepared, **inputs.operands, "out": out})
    assert Judge(problem, inputs).verdict("fft", out).ok


@pytest.mark.thorough
@needs_emulator
def test_more_tiles_than_a_grid_has_along_y() -> None:
    check(problem_of("n66000c1h1w2_k1r1s1_f32_nchw"), FftConfig(2, 2, 64))


def test_refusals_say_why() -> None:
    assert "int32" in str(METHOD.refuses(problem_of("n1c3h9w9_k2r3s3_u8-i8-i32-i32_nchw"), H200))
    small = dataclasses.replace(H200, memory_bytes=1 << 28)
    assert "MiB" in str(METHOD.refuses(problem_of("n1c4096h9w9_k4096r7s7_f32_nchw"), small))
    without = dataclasses.replace(H200, no_fft="cuFFT cannot be loaded: pip install nvidia-cufft")
    assert refusal(Fft(), problem_of(BLUR), H200) is None
    assert str(refusal(Fft(), problem_of(BLUR), without)) == without.no_fft
    strict = problem_of(BLUR).replace(precision="strict")
    assert "ask for it by name" in str(refusal(Fft(), strict, H200))


@pytest.mark.parametrize("config", [FftConfig(2, 8, 1), FftConfig(8, 2, 1), FftConfig(8, 7, 1), FftConfig(8, 8, -1)])
@needs_emulator
def test_impossible_configs_are_refused(config: FftConfig) -> None:
    with pytest.raises(ValueError, match=r"must hold the filter|at least 0 MiB"):
        METHOD.plan(problem_of("n1c1h8w8_k1r3s3_f32_nchw"), config, emulator_runtime())


def test_sizes_are_fast_and_cut_with_little_waste() -> None:
    problem = problem_of(BLUR)
    found = sizes(problem)
    assert [modelled_seconds(problem, *size) for size in found] == sorted(modelled_seconds(problem, *s) for s in found)
    assert all(size in FAST for pair in found for size in pair)
    cut = tiling(problem, *found[0])
    assert cut.down * cut.size_h * cut.across * cut.size_w < 1.35 * 2048 * 2048
    assert any(h & (h - 1) == 0 and w & (w - 1) == 0 for h, w in found), "one for which cuFFT is at its best"
    assert modelled_seconds(problem, *found[0]) < 0.4e-3


def test_the_model_prefers_larger_transforms_for_larger_filters() -> None:
    def best(size: int) -> int:
        h, w = sizes(problem_of(f"n1c1h2048w2048_k1r{size}s{size}_f32_nchw"))[0]
        return h * w

    assert best(5) < best(31) < best(201)


def test_fast_sizes() -> None:
    def smooth(size: int) -> bool:
        for factor in (2, 3, 5):
            while size % factor == 0:
                size //= factor
        return size == 1

    for size in range(1, 5000, 7):
        found = next_fast(size)
        assert found >= size
        assert found % 2 == 0
        assert smooth(found)
        assert not any(smooth(between) for between in range(size + size % 2, found, 2)) or size > FAST[-1]


@needs_emulator
def test_auto_takes_it_where_the_problem_allows_its_arithmetic() -> None:
    problem = problem_of("n1c3h60w60_k3r15s15_p7_f32_nchw")
    assert choose(problem, emulator_runtime()).algorithm.name == "fft"
    assert choose(problem.replace(precision="strict"), emulator_runtime()).algorithm.name != "fft"


@needs_emulator
def test_every_step_says_what_it_does_and_moves() -> None:
    problem = problem_of("n2c3h37w53_k3r9s11_st1_p4x5_g3_f32_nchw")
    plan = METHOD.plan(problem, FftConfig(48, 60, 1), emulator_runtime())
    names: list[Any] = [step.name for step in plan.steps]  # type: ignore[union-attr]
    assert names == ["gather", "transform", "multiply", "transform back", "scatter"]
    tiles = 2 * 3 * 48 * 32 * 8
    steps: Any = plan.steps
    x_bytes = 2 * 3 * 37 * 53 * 4
    assert [s.least_bytes for s in steps] == [
        x_bytes + tiles,
        2 * tiles,
        2 * tiles + tiles // 2,
        2 * tiles,
        tiles + x_bytes,
    ]
