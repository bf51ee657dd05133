"""Boxes of pixels brought by the tensor memory accelerator: on the emulator, by value; what is refused, in words."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.algorithms.compiling import H200
from tests.backends.emulated import needs_emulator
from tests.judged import judge_of

from convforge.algorithms.direct.box import Box, box_of
from convforge.algorithms.direct.boxes import threads_share
from convforge.algorithms.direct.device import BoxesConfig, DirectBoxes
from convforge.backends.emulator import EmulatorRuntime, emulator_runtime
from convforge.problem import Conv2dProblem, parse_problem
from convforge.tuning.heuristic import preferred
from convforge.verify import Judge, check_plan, make_inputs

METHOD = DirectBoxes("emulator")
# Of several tiles each way, so that a block takes more tiles than it has stages.
SMALL = BoxesConfig(2, 16, 2, 4, 1, 2, 1)


def problem_of(text: str) -> Conv2dProblem:
    problem = parse_problem(text)
    assert isinstance(problem, Conv2dProblem)
    return problem


def check(text: str, config: Any = None, kind: str = "normal", order: str = "shuffled") -> None:
    """Run a plan on the emulator and hold it against the truth."""
    problem, runtime = problem_of(text), emulator_runtime(order)
    config = METHOD.configs(problem, H200)[0] if config is None else config
    verdict = check_plan(METHOD.plan(problem, config, runtime), judge_of(text, kind))
    assert verdict.ok, f"{config}: {verdict.message}"


EVERY_CONFIG = [
    "n2c3h37w72_k5r3s3_st1_p1_f32_nchw",
    "n1c4h37w72_k6r3s3_st2_p1x2_d2_g2_f32_nhwc",
    "n2c3h40w48_k3r3s3_p1_reflect_g3_u8-f32-u8-f32_nhwc",
]


@pytest.mark.one_in(3)
@needs_emulator
@pytest.mark.parametrize("text", EVERY_CONFIG)
def test_every_config(text: str) -> None:
    configs = METHOD.configs(problem_of(text), H200)
    assert len(set(configs)) == len(configs) > 5
    for config in configs:
        check(text, config)


# Every stride with every kind of padding; layouts; groups; element types; epilogues; tiles of channels.
BOXES = [
    *[f"n2c3h37w72_k2r3s3_st{stride}_p1_f32_nchw" for stride in (1, 2, 3, 4)],
    *[f"n2c3h37w72_k3r3s3_st{stride}_p1_f32_nhwc" for stride in (1, 2, 3)],
    "n1c1h40w132_k1r5s5_p2_f32_nchw",
    "n1c1h40w132_k1r7s7_p3_f32_nchw",
    "n1c1h40w132_k2r15s15_p7_f32_nchw",
    "n1c2h40w72_k3r4s2_p2x1x0x3_st2x1_f32_nchw",
    "n1c2h40w72_k3r3s3_p4x2_d4x2_f32_nchw",
    "n1c2h40w72_k3r3s3_p0x0x9x5_f32_nchw",
    "n2c4h21w72_k6r3s3_p1_g2_f32_nchw_+bias+residual+relu",
    "n2c4h21w72_k12r3s3_p1_g2_f32_nchw",
    "n2c6h21w72_k6r3s3_p1_g6_f32_nchw",
    "n2c4h21w72_k6r3s3_p1_g2_f32_nhwc",
    "n2c3h21w72_k6r3s3_p1_g3_f32_nhwc",
    "n1c3h21w72_k9r3s3_p1_f32_nchw",
    "n1c3h21w72_k9r3s3_p1_f32_nhwc_+scale:channel+bias",
    "n1c8h21w40_k5r3s3_p1_f32_nchw",
    "n1c3h21w72_k3r3s3_p1_f32_nchw-krsc-nhwc",
    "n1c4h21w72_k2r3s3_p1_f32_nhwc-kcrs-nchw",
    "n1c3h21w72_k3r3s3_p1_flip_f32_nchw",
    "n1c3h21w144_k3r3s3_p1_u8-f32-u8-f32_nchw",
    "n1c3h21w144_k1r5s5_p2_u8-f32-u8-f32_nhwc",
    "n1c3h21w144_k3r3s3_p1_g3_u8-f32-u8-f32_nhwc",
    "n1c3h21w144_k3r3s3_p1_u16-f32-u16-f32_nhwc",
    "n1c3h21w144_k3r3s3_p1_f16_nchw",
    "n1c3h21w144_k3r3s3_st2_p1_f16_nhwc",
    "n1c3h21w144_k3r3s3_p1_f64_nchw",
    "n1c3h21w144_k3r3s3_p1_f64_nhwc",
    "n1c3h21w144_k3r3s3_p1_u8-i8-u8-i32_nhwc_+zero:128+scale:channel+bias+relu",
    "n1c4h21w144_k4r3s3_p2_g2_u8-i8-i32-i32_nchw_+zero:113",
    "n700c1h1w4_k1r1s1_f32_nchw",
    "n0c3h21w72_k3r3s3_p1_f32_nchw",
]


@pytest.mark.one_in(11)
@needs_emulator
@pytest.mark.parametrize("text", BOXES)
def test_values(text: str) -> None:
    check(text)


# Bytes by dot products of four: filters of one to nine rows, strides, columns apart, every sign, groups, stores.
DOTS = [
    *[
        f"n1c2h21w80_k2r{r}s{s}_p2x1_u8-i8-i32-i32_nchw"
        for r, s in ((1, 3), (2, 2), (3, 3), (4, 4), (5, 5), (6, 3), (9, 7))
    ],
    *[f"n1c3h21w80_k3r{r}s3_p2_g3_reflect_u8-i8-u8-i32_nhwc" for r in (3, 5)],
    *[f"n1c2h37w80_k3r{r}s3_st{stride}_p1_u8-i8-i32-i32_nchw" for r in (3, 5) for stride in ("2", "3x1", "1x2")],
    "n1c2h21w80_k3r3s3_p1_i8-i8-i8-i32_nchw",
    "n1c2h21w80_k3r5s3_p2_i8-u8-i32-i32_nchw",
    "n1c2h21w80_k3r3s3_p1_u8-u8-u8-i32_nchw_+bias+relu",
    "n1c4h21w80_k4r3s3_p1_constant9.0_u8-i8-u8-i32_nhwc",
    "n2c4h21w80_k6r3s3_p1_g2_u8-i8-i32-i32_nhwc",
    "n1c2h21w80_k3r3s3_p1x2_d1x2_u8-i8-i32-i32_nchw",
    "n1c2h21w80_k3r3s3_p2x1_d2x1_u8-i8-i32-i32_nchw",
    "n1c3h21w80_k3r3s3_p1_flip_u8-i8-i32-i32_nhwc",
]


@pytest.mark.one_in(7)
@needs_emulator
@pytest.mark.parametrize("text", DOTS)
def test_dot_products_of_bytes(text: str) -> None:
    check(text)
    check(text, kind="integers")


@needs_emulator
def test_a_thread_stores_no_channel_of_another_group() -> None:
    """A box for each group, and pixels stored: more outputs a thread than a group has are none of its own."""
    check("n1c2h16w16_k2r3s3_p1_g2_f32_nchw-kcrs-nhwc", BoxesConfig(2, 16, 1, 4, 2, 2, 1))


def test_packed_taps_count_as_shared_memory() -> None:
    """Those of a filter of one row take four times the room that staged ones do."""
    problem = problem_of("n1c4h1024w1024_k64r1s8_p0x4_u8-i8-i32-i32_nchw")
    (config, *_) = METHOD.configs(problem, H200)
    taps = 4 * 64 * 4 * 8
    assert config.blocks * (config.stages * box_of(problem, config).nbytes + 5 * taps) <= H200.shared_bytes


# Threads that share: pixels before their own, behind them, on both sides; a stride, where runs overlap less; dilation,
# groups, a border that is filled.
SHARED_RUNS = [
    "n2c3h21w272_k1r3s3_p1_f32_nchw",
    "n1c1h21w272_k1r3s3_p0x0_f32_nchw",
    "n1c2h21w272_k1r3s3_p1x2_f32_nchw",
    "n1c2h21w272_k1r2s2_p1x0_f32_nchw",
    "n1c2h40w272_k1r3s3_st2_p1_f32_nchw",
    "n1c1h21w272_k1r3s2_p2x1_d2_f32_nchw",
    "n1c2h21w272_k1r3s3_p1_reflect_f32_nchw",
    "n2c4h21w272_k4r3s3_p1_g4_f32_nchw",
]


@pytest.mark.one_in(9)
@needs_emulator
@pytest.mark.parametrize("text", SHARED_RUNS)
def test_threads_share_pixels_of_a_run(text: str) -> None:
    """With several rows of lanes in a warp, one, and part of one."""
    problem = problem_of(text)
    for strips, lanes in ((4, 8), (2, 16), (2, 32), (1, 64)):
        for alignment in (16, 128):
            config = BoxesConfig(strips, lanes, 2, 4 // problem.stride[1], 1, 2, 1, alignment)
            assert threads_share(problem, config, box_of(problem, config))
            check(text, config)
            check(text, config, "integers")


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("n1c1h21w272_k1r5s5_p2_f32_nchw", {}),  # four pixels from others
        ("n1c1h21w272_k2r3s3_p1_f32_nchw", {"out_k": 2}),
        ("n1c3h21w272_k1r3s3_p1_f32_nhwc", {}),
        ("n1c1h21w272_k1r3s3_p1_f16_nchw", {}),
        ("n1c1h21w272_k1r3s3_p1_f64_nchw", {}),
        ("n1c1h21w272_k1r3s3_p1_f32_nchw", {"lanes": 40}),  # a warp has a part of two rows
        ("n1c1h21w272_k1r3s3_p1_f32_nchw", {"strips": 5, "lanes": 8}),  # half a warp
        ("n1c1h21w272_k1r1s3_p0x1_f32_nchw", {"out_q": 1}),  # beyond the neighbour on one side
    ],
)
def test_where_threads_cannot_share_or_would_lose_each_loads_its_own(text: str, change: dict[str, int]) -> None:
    problem, config = problem_of(text), dataclasses.replace(BoxesConfig(4, 16, 2, 4, 1, 2, 1), **change)
    assert not threads_share(problem, config, box_of(problem, config))


BORDERS = ("constant1.5", "reflect", "symmetric", "replicate", "circular")


@pytest.mark.one_in(4)
@needs_emulator
@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("rest", ["f32_nchw", "st2_f16_nchw", "d3x2_f32_nhwc"])
def test_borders(border: str, rest: str) -> None:
    """Tiles at every edge, and inside; a picture smaller than its padding."""
    check(f"n2c2h40w136_k2r3s5_p2x3x4x1_{rest.replace('f', border + '_f', 1)}")
    check(f"n1c2h3w8_k2r3s3_p7x5x9x4_{rest.replace('f', border + '_f', 1)}")


@needs_emulator
@pytest.mark.parametrize("order", ["forward", "backward", "shuffled"])
@pytest.mark.parametrize("text", ["n2c3h21w144_k1r3s3_p1_f32_nchw", "n2c3h21w144_k1r3s3_p1_reflect_f32_nchw"])
def test_a_block_takes_many_tiles(text: str, order: str) -> None:
    for stages in (1, 2, 3):
        check(text, dataclasses.replace(SMALL, stages=stages), "integers", order)


# Arrays that the accelerator can see, and arrays that go to direct_tiled.


def views_of(x: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """The same NCHW picture in other places and strides; written by the caller."""
    n, c, h, w = x.shape
    raw = np.zeros((n, c, h + 1, w + 8), x.dtype)
    return {
        "rows with gaps": raw[:, :, :h, 4 : 4 + w],
        "no multiple of 16 bytes": raw[:, :, :h, 1 : 1 + w],
        "rows of no multiple of 16 bytes": np.zeros((n, c, h, w + 1), x.dtype)[..., :w],
        "channels innermost": np.zeros((n, h, w, c), x.dtype).transpose(0, 3, 1, 2),
        "pictures with gaps": np.zeros((n, c + 1, h, w), x.dtype)[:, :c],
        "reversed rows": np.zeros_like(x)[:, :, ::-1],
        "reversed columns": np.zeros_like(x)[..., ::-1],
    }


SEEN = ("rows with gaps",)


@needs_emulator
@pytest.mark.parametrize("name", views_of(np.zeros((2, 3, 4, 4), np.float32)))
def test_views(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of("n2c3h21w72_k3r3s3_p1_f32_nchw")
    inputs, runtime = make_inputs(problem), EmulatorRuntime("shuffled")
    launched: list[str] = []
    launch = runtime.launch

    def watched(kernel: Any, info: Any, args: Any, stream: Any = None) -> None:
        launched.append(info.kernel)
        launch(kernel, info, args, stream)

    monkeypatch.setattr(runtime, "launch", watched)
    plan = METHOD.plan(problem, METHOD.configs(problem, runtime.facts)[0], runtime)
    x = views_of(inputs.x)[name]
    x[...] = inputs.x
    for prepared in (plan.prepare(inputs.w), plan.borrow(inputs.w)):
        launched.clear()
        out = np.full((*problem.out_shape[:3], problem.q + 1), np.nan, np.float32)
        plan({"x": x, "w": prepared, "out": out[..., :-1]})
        assert launched == ["direct_boxes" if name in SEEN else "direct_tiled"]
        verdict = Judge(problem, inputs).verdict("strict", out[..., :-1])
        assert verdict.ok, verdict.message
        assert np.isnan(out[..., -1]).all()


@needs_emulator
def test_a_plan_serves_many_pictures_at_once() -> None:
    """More of them than it keeps maps for, from several threads, some through direct_tiled."""
    problem = problem_of("n1c1h8w32_k1r3s3_p1_f32_nchw")
    inputs, runtime = make_inputs(problem, "integers"), emulator_runtime()
    plan = METHOD.plan(problem, SMALL, runtime)
    prepared, judge = plan.prepare(inputs.w), Judge(problem, inputs)
    pictures = [np.zeros(inputs.x.size + 1, np.float32)[i % 2 :][: inputs.x.size] for i in range(160)]
    messages: list[str] = []

    def run(share: list[NDArray[Any]]) -> None:
        for flat in share:
            x, out = flat.reshape(inputs.x.shape), np.full(problem.out_shape, np.nan, np.float32)
            x[...] = inputs.x
            plan({"x": x, "w": prepared, "out": out})
            verdict = judge.verdict("strict", out)
            messages.extend([] if verdict.ok else [verdict.message])

    threads = [threading.Thread(target=run, args=(pictures[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not messages


# What is refused, and what is chosen.


@pytest.mark.parametrize(
    ("text", "facts", "reason"),
    [
        (
            "n1c3h64w64_k1r3s3_f32_nchw",
            {"architecture": "sm_89"},
            "H200 is sm_89; the tensor memory accelerator came with sm_90",
        ),
        ("n1c3h64w66_k1r3s3_f32_nchw", {}, "a row of pixels has 264 bytes; the tensor memory accelerator takes"),
        ("n1c3h64w68_k1r3s3_u8_nchw", {}, "a row of pixels has 68 bytes"),
        ("n1c5h64w64_k1r3s3_f32_nhwc", {}, "whole pixels of up to 4 channels in NHWC; these have 5"),
        ("n1c64h64w64_k64r3s3_f32_nchw", {}, "the filter takes 196608 bytes of shared memory"),
        ("n1c1h900w64_k1r2s1_d400_f32_nchw", {}, "units is too large: an axis has at most 256"),
        ("n1c100h64w64_k1r3s3_f32_nchw", {"block_shared_bytes": 48 << 10}, "bytes of shared memory with the filter"),
        ("n1c1h64w64_k1r3s3_p1_constant1.3_f16_nchw", {}, "1.3, is no number that float16 can hold"),
        ("n1c1h64w64_k1r3s3_p1_constant1.3_bf16_nchw", {}, "1.3, is no number that bfloat16 can hold"),
        ("n1c1h64w64_k1r3s3_p1_constant1.5_u8-f32-u8-f32_nchw", {}, "1.5, is no number that uint8 can hold"),
        ("n1c1h64w64_k1r3s3_p1_constant300.0_u8-f32-u8-f32_nchw", {}, "300.0, is no number that uint8 can hold"),
        ("n1c3h64w64_k12r3s3_g3_f64_nhwc", {}, None),
        ("n1c1h64w64_k1r3s3_p1_constant1.5_bf16_nchw", {}, None),
        ("n1c1h64w64_k1r3s3_p1_constant1.3_f32_nchw", {}, None),
    ],
)
def test_refusals_say_why(text: str, facts: dict[str, Any], reason: str | None) -> None:
    found = DirectBoxes().refuses(problem_of(text), dataclasses.replace(H200, **facts))
    if reason is None:
        assert found is None
    else:
        assert reason in str(found)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (BoxesConfig(1, 16), "a block has 32 to 1024 threads; 1 x 16 are 16"),
        (BoxesConfig(stages=0), "stages=0 must be at least 1"),
        (BoxesConfig(stages=16), "16 boxes take"),
        (BoxesConfig(alignment=48), "rows of a box begin at multiples of 16, 32, 64, 128 bytes; got 48"),
        (BoxesConfig(64, 16, 8), "units is too large: an axis has at most 256"),
        (BoxesConfig(2, 16, 8, 8, 3, 1, 1), "registers; 192 are to be had"),
        (BoxesConfig(32, 1, 1, 1), "boxes begin 4 bytes apart; that must be a multiple of 16"),
    ],
)
@needs_emulator
def test_a_config_that_cannot_be_says_why(config: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        METHOD.plan(problem_of("n1c3h64w64_k3r3s3_p1_f32_nchw"), config, emulator_runtime())


def test_groups_that_share_a_box_share_a_thread() -> None:
    with pytest.raises(ValueError, match="a thread has all 3 outputs of one; got 1"):
        METHOD.plan(problem_of("n1c3h64w64_k3r3s3_p1_g3_f32_nhwc"), BoxesConfig(), emulator_runtime())


def test_lanes_of_a_large_tile_divide_long_rows() -> None:
    """Where memory is the limit, and a row of outputs is longer than a tile of 32 lanes."""

    def default(text: str) -> BoxesConfig:
        return DirectBoxes().configs(problem_of(text), H200)[0]

    for width, lanes in ((4000, 40), (3000, 40), (4096, 64), (3840, 64), (3360, 56)):
        config = default(f"n1c1h4000w{width}_k1r5s5_p2_f32_nchw")
        assert config.lanes == lanes
        assert 200 < config.strips * config.lanes <= 256
    assert default("n1c3h4000w4000_k1r3s3_p1_replicate_f32_nchw").lanes == 40
    for other in ("r7s7_p3_f32", "r3s3_p1_st2_f32", "r3s3_p1_f16"):
        assert default(f"n1c1h4000w4000_k1{other}_nchw").lanes == 32


def test_tiles_of_several_outputs() -> None:
    """Of up to three taps half as many rows a thread; of float16 to three channels as large a tile as of float32."""

    def rows(text: str) -> int:
        return DirectBoxes().configs(problem_of(f"n1c3h4096w4096_{text}_nchw"), H200)[0].out_p

    for few in ("r1s1", "r3s1_p1x0", "r1s3_p0x1"):
        assert rows(f"k3{few}_f32") == 2
        assert rows(f"k1{few}_f32") == 4
    assert rows("k1r1s5_p0x2_f32") == rows("k2r1s5_p0x2_f32") == 4
    half = DirectBoxes().configs(problem_of("n1c3h4096w4096_k3r3s3_p1_f16_nchw"), H200)[0]
    assert (half.strips, half.lanes, half.out_p, half.out_q) == (4, 32, 2, 8)


def test_rows_of_boxes_are_lines_where_rows_of_the_picture_are() -> None:
    """Grain, in bytes: what divides the step from box to box, a row of the picture, and a line of the cache."""

    def box(text: str) -> tuple[int, Box]:
        problem = problem_of(text)
        config = DirectBoxes().configs(problem, H200)[0]
        return config.alignment, box_of(problem, config)

    for text in ("n1c3h2048w2048_k1r3s3_p1_f32_nchw", "n1c3h2048w2048_k3r3s3_st2_p1_f32_nchw",
                 "n1c3h4096w4096_k3r3s3_p1_g3_u8-f32-u8-f32_nhwc"):  # fmt: skip
        alignment, found = box(text)
        assert alignment == 128
        assert found.width * found.size % 128 == 0
        assert (found.shift + problem_of(text).padding[2] * found.chunk) * found.size % 128 == 0
    for width, alignment in ((4000, 128), (2000, 64), (2008, 32), (2004, 16)):
        assert box(f"n1c3h2000w{width}_k1r3s3_p1_f32_nchw")[0] == alignment
    assert box("n1c8h1024w1024_k1r3s3_p1_f32_nchw")[0] == 64  # such boxes are larger: here two would not fit


def test_the_tile_follows_the_picture() -> None:
    """Large tiles have little halo; small pictures have many tiles; boxes that are small share an SM."""

    def tile(text: str) -> tuple[int, int]:
        config = DirectBoxes().configs(problem_of(text), H200)[0]
        assert config.strips * config.lanes >= 64
        assert config.out_k == problem_of(text).k_per_group
        return config.strips * config.out_p, config.lanes * config.out_q

    assert tile("n1c3h2048w2048_k1r3s3_p1_f32_nchw") == (16, 256)
    assert tile("n1c3h2048w2048_k3r3s3_p1_f32_nchw") == tile("n1c3h1024w1024_k1r3s3_p1_f32_nchw") == (8, 128)
    assert tile("n1c3h512w512_k1r3s3_p1_f32_nchw") == tile("n1c3h512w512_k3r3s3_p1_f32_nchw") == (8, 128)
    assert tile("n1c3h2048w2048_k1r3s3_st2_p1_f32_nchw") == (8, 64)
    assert tile("n1c3h2048w2048_k1r3s3_st3_p1_f32_nchw") == (4, 128)  # no row is shared
    assert tile("n1c1h4000w4000_k1r3s3_p1_u8-f32-u8-f32_nchw") == (64, 128)  # bytes
    small = DirectBoxes().configs(problem_of("n1c3h64w64_k3r3s3_p1_f32_nchw"), H200)[0]
    assert (small.strips * small.out_p, small.lanes * small.out_q, small.out_k) == (4, 32, 1)
    for text in ("n1c3h4096w4096_k3r3s3_p1_g3_u8-f32-u8-f32_nhwc", "n1c1h4096w4096_k1r3s3_p1_f32_nchw"):
        config = DirectBoxes().configs(problem_of(text), H200)[0]
        assert config.blocks * config.strips * config.lanes >= 512


def test_rows_that_are_shorter_than_a_tile_leave_no_thread_idle() -> None:
    config = METHOD.configs(problem_of("n32c32h112w112_k32r3s3_p1_g32_f16_nchw"), H200)[0]
    assert (config.lanes * config.out_q, config.strips * config.out_p * 2) == (112, 112)


def test_auto_takes_it_for_pictures_of_few_channels() -> None:
    def first(text: str) -> str:
        return preferred(problem_of(text), H200)[0][0].name

    assert first("n1c3h1024w1024_k1r3s3_p1_f32_nchw") == first("n64c3h64w64_k3r3s3_p1_f32_nchw") == "direct_boxes"
    assert first("n1c3h4096w4096_k3r3s3_p1_g3_u8-f32-u8-f32_nhwc") == "direct_boxes"
    assert first("n1c3h8192w8192_k1r3s3_p1_f32_nchw") == first("n9c8h96w96_k1r3s3_p1_f32_nchw") == "direct_tiled"
    assert first("n1c3h1024w1024_k16r3s3_p1_f32_nchw") == "direct_tiled"
    assert first("n1c1h512w512_k1r7s7_p3_f32_nchw") == "direct_boxes"
    assert first("n1c1h512w512_k1r11s11_p5_f32_nchw") == "depthwise_planes"
