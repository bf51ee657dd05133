"""The checker, checked: plans that cheat must be caught, and the fault named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from convforge.algorithms.contract import Algorithm, Buffers, Call, Config, Plan, PreparedFilter
from convforge.backends.cpu import cpu_runtime
from convforge.backends.runtime import LaunchInfo
from convforge.problem import Conv2dProblem, parse_problem
from convforge.verify import Inputs, Judge, Verdict, check_nan_spread, check_plan, make_inputs, truth
from convforge.verify.bounds import rounded

Compute = Callable[[Conv2dProblem, Buffers, np.ndarray], None]

PLAIN = "n2c4h10w13_k6r3s3_st1_p1_f32_nchw"


def result(problem: Conv2dProblem, buffers: Buffers, w: Any, x: Any = None) -> Any:
    """The right result, rounded to the output's type."""
    seen = Inputs(buffers["x"] if x is None else x, w, buffers)
    return rounded(truth(problem, seen).value, np.dtype(problem.out_dtype)).astype(problem.out_dtype)


class Scripted(Algorithm[Conv2dProblem, Config]):
    """A method that does what it is told."""

    name = "scripted"
    summary = "what a test tells it to do"
    operation = "conv2d"

    def __init__(self, compute: Compute, workspace_bytes: int = 0, **declared: Any) -> None:
        self.compute, self.workspace_bytes = compute, workspace_bytes
        for name, value in declared.items():
            setattr(self, name, value)

    def refuses(self, problem, facts):
        return None

    def configs(self, problem, facts):
        return [Config()]

    def plan(self, problem, config, runtime):
        def run(buffers: Buffers, stream: Any) -> None:
            self.compute(problem, buffers, buffers["w"].tensors["w"])

        return Plan(self, problem, config, runtime, steps=[Call(LaunchInfo("scripted", (1,), (1,)), run)],
                    prepare=lambda w, stream: PreparedFilter({"w": w.copy()}, w.nbytes),
                    workspace_bytes=self.workspace_bytes)  # fmt: skip


def verdict_on(compute: Compute, text: str = PLAIN, kind: str = "normal", **declared: Any) -> Verdict:
    problem = parse_problem(text)
    plan = Scripted(compute, **declared).plan(problem, Config(), cpu_runtime())
    return check_plan(plan, Judge(problem, make_inputs(problem, kind)))


def honest(problem, buffers, w):
    buffers["out"][...] = result(problem, buffers, w)


@pytest.mark.parametrize("text", [PLAIN, "n1c3h9w8_k4r3s5_st2x1_p1x2x0x3_u8-i8-u8-i32_nhwc_+scale:channel+bias+relu",
                                  "n1c3h9w8_k4r3s5_p1_f16_nchw_+bias+residual+gelu", "n1c2h8w8_k2r3s3_p1_f64_nchw",
                                  "n0c2h8w8_k2r3s3_p1_f32_nchw"])  # fmt: skip
def test_an_honest_plan_passes(text):
    verdict = verdict_on(honest, text)
    assert verdict.ok, verdict.message
    assert verdict.fault is None
    assert verdict.message == ""


def writes_nothing(problem, buffers, w):
    pass


def misses_one_output(problem, buffers, w):
    before = buffers["out"][1, 2, 3, 4].copy()
    honest(problem, buffers, w)
    buffers["out"][1, 2, 3, 4] = before


def leaves_the_border(problem, buffers, w):
    buffers["out"][..., 1:-1, 1:-1] = result(problem, buffers, w)[..., 1:-1, 1:-1]


def zeroes_the_border(problem, buffers, w):
    buffers["out"][...] = 0
    leaves_the_border(problem, buffers, w)


def is_off_by_a_thousandth(problem, buffers, w):
    buffers["out"][...] = result(problem, buffers, w) * np.float32(1.001)


def tf32(array):
    bits = array.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def uses_tf32_in_secret(problem, buffers, w):
    buffers["out"][...] = result(problem, buffers, tf32(w), tf32(buffers["x"]))


def swaps_h_and_w_of_the_filter(problem, buffers, w):
    buffers["out"][...] = result(problem, buffers, w.transpose(0, 1, 3, 2).copy())


def swaps_h_and_w_of_the_output(problem, buffers, w):
    right = result(problem, buffers, w)
    buffers["out"][...] = right.transpose(0, 1, 3, 2).reshape(right.shape)


def swaps_h_and_w_of_the_picture(problem, buffers, w):
    buffers["out"][...] = result(problem, buffers, w, buffers["x"].transpose(0, 1, 3, 2).reshape(buffers["x"].shape))


def ignores_a_channel(problem, buffers, w):
    silent = w.copy()
    silent[:, 2] = 0
    buffers["out"][...] = result(problem, buffers, silent)


def uses_one_filter_for_all(problem, buffers, w):
    buffers["out"][...] = result(problem, buffers, np.broadcast_to(w[1:2], w.shape).copy())


def flips_the_filter(problem, buffers, w):
    buffers["out"][...] = result(problem, buffers, w[:, :, ::-1, ::-1].copy())


def writes_outside(problem, buffers, w):
    honest(problem, buffers, w)
    np.lib.stride_tricks.as_strided(buffers["out"][-1, -1, -1, -1:], (2,), buffers["out"].strides[-1:])[1] = 3


def writes_before(problem, buffers, w):
    honest(problem, buffers, w)
    address = buffers["out"].__array_interface__["data"][0]
    np.ctypeslib.as_array((np.ctypeslib.ctypes.c_float * 1).from_address(address - 40))[0] = 1.0


def modifies_its_input(problem, buffers, w):
    honest(problem, buffers, w)
    buffers["x"][0, 0, 0, 0] += 1


def reads_the_second_picture_never(problem, buffers, w):
    buffers["out"][...] = result(problem, buffers, w, np.broadcast_to(buffers["x"][:1], buffers["x"].shape).copy())


CHEATS = [
    (writes_nothing, "output not written"),
    (misses_one_output, "output not written"),
    (leaves_the_border, "border skipped: output not written there"),
    (zeroes_the_border, "border skipped"),
    (is_off_by_a_thousandth, "scaled by a constant: 1.001"),
    (uses_tf32_in_secret, "TF32-like rounding of the factors"),
    (swaps_h_and_w_of_the_filter, "swapped H and W of the filter"),
    (swaps_h_and_w_of_the_output, "swapped H and W of the output"),
    (swaps_h_and_w_of_the_picture, "swapped H and W of the image"),
    (ignores_a_channel, "ignored channel 2"),
    (uses_one_filter_for_all, "one filter for all outputs: that of channel 1"),
    (flips_the_filter, "flipped filter"),
    (writes_outside, "writes outside its output"),
    (writes_before, "writes outside its output"),
    (modifies_its_input, "input modified"),
    (reads_the_second_picture_never, "one image for the whole batch"),
]


@pytest.mark.parametrize(("compute", "fault"), CHEATS, ids=[c[0].__name__ for c in CHEATS])
def test_a_cheat_is_caught_and_named(compute, fault):
    verdict = verdict_on(compute)
    assert not verdict.ok
    assert verdict.fault == fault
    assert "reproduce: make_inputs(parse_problem(" in verdict.message
    assert PLAIN in verdict.message


def test_the_last_result_returned_is_caught():
    kept: list[np.ndarray] = []

    def returns_the_last_result(problem, buffers, w):
        if not kept:
            kept.append(result(problem, buffers, w))
        buffers["out"][...] = kept[0]

    assert verdict_on(returns_the_last_result).fault == "stale result"


def test_weights_that_are_kept_by_place_are_caught():
    kept: dict[tuple[int, ...], np.ndarray] = {}

    def keeps_the_weights(problem, buffers, w):
        buffers["out"][...] = result(problem, buffers, kept.setdefault(w.shape, w.copy()))

    verdict = verdict_on(keeps_the_weights)
    assert not verdict.ok
    assert "seed=1" in verdict.message


def test_an_output_that_must_be_contiguous_is_caught():
    def ignores_strides(problem, buffers, w):
        right = result(problem, buffers, w)
        np.lib.stride_tricks.as_strided(buffers["out"], right.shape, right.strides)[...] = right

    verdict = verdict_on(ignores_strides)
    assert not verdict.ok


def test_a_workspace_overrun_is_caught():
    def overruns(problem, buffers, w):
        honest(problem, buffers, w)
        beyond = np.lib.stride_tricks.as_strided(buffers.get("workspace")[-1:], (2,), (1,))
        beyond[1] = 7

    assert verdict_on(overruns, workspace_bytes=100).fault == "writes outside its workspace"


GEOMETRY = [
    ("n1c2h12w15_k3r3s3_st2_p1_f32_nchw", {"stride": (1, 1)}, "stride ignored"),
    ("n1c2h14w14_k3r3s3_st2x3_p1_f32_nchw", {"stride": (3, 2)}, "swapped H and W of the stride"),
    ("n1c2h12w15_k3r3s3_st1_p2_d2_f32_nchw", {"dilation": (1, 1)}, "dilation ignored"),
    ("n1c2h12w15_k3r3s3_st1_p1_reflect_f32_nchw", {"padding_mode": "zeros"}, "border taken as zeros"),
    ("n1c2h12w15_k3r3s3_st1_p2_f32_nchw", {"padding_mode": "replicate"}, "border taken as replicate"),
    ("n1c2h12w15_k3r4s3_st1_p1x2x1x1_f32_nchw", {"padding": (2, 1, 1, 1)}, "swapped sides of the padding"),
]


@pytest.mark.parametrize(("text", "fields", "fault"), GEOMETRY, ids=[g[2] for g in GEOMETRY])
def test_wrong_geometry_is_named(text, fields, fault):
    def computes_another_problem(problem, buffers, w):
        other = result(problem.replace(**fields), buffers, w)
        buffers["out"][...] = 0
        p, q = min(problem.p, other.shape[2]), min(problem.q, other.shape[3])
        buffers["out"][:, :, :p, :q] = other[:, :, :p, :q]

    assert verdict_on(computes_another_problem, text).fault == fault


EPILOGUES = [
    ("+bias", {"bias": False}, "missing bias"),
    ("+bias+relu", {"activation": "identity"}, "missing activation"),
    ("+scale:channel+bias", {"scale": "none"}, "missing scale"),
    ("+over:9+bias", {"divisor": 1}, "not divided"),
    ("+residual+tanh", {"residual": False}, "missing residual"),
    ("+residual:0.37+tanh", {"residual_scale": 1.0}, "scale of the residual ignored"),
    ("+bias+tanh+out:0.37:0", {"out_scale": 1.0}, "scale of the output ignored"),
]


@pytest.mark.parametrize(("epilogue", "fields", "fault"), EPILOGUES, ids=[e[2] for e in EPILOGUES])
def test_a_missing_part_of_the_epilogue_is_named(epilogue, fields, fault):
    def forgets(problem, buffers, w):
        buffers["out"][...] = result(
            problem.replace(epilogue=dataclasses.replace(problem.epilogue, **fields)), buffers, w
        )

    assert verdict_on(forgets, f"n1c2h8w9_k3r3s3_p1_f32_nchw_{epilogue}").fault == fault


@pytest.mark.parametrize("kind", ["normal", "integers", "impulse"])
def test_one_wrong_tap_in_one_channel_is_caught_whatever_the_inputs(kind):
    def drops_a_tap(problem, buffers, w):
        wrong = w.copy()
        wrong[3, 1, 2, 0] = 0
        buffers["out"][...] = result(problem, buffers, wrong)

    verdict = verdict_on(drops_a_tap, "n2c2h10w13_k6r3s3_p1_f32_nchw", kind)
    assert not verdict.ok


def test_quantised_layers_that_truncate_instead_of_rounding_are_caught():
    def truncates(problem, buffers, w):
        value = truth(problem, Inputs(buffers["x"], w, buffers)).value
        buffers["out"][...] = np.clip(np.trunc(value), 0, 255)

    text = "n1c3h9w8_k4r3s3_p1_u8-i8-u8-i32_nchw_+scale:tensor"
    assert not verdict_on(truncates, text, "integers").ok
    assert not verdict_on(truncates, text, "normal").ok


def test_ties_rounded_up_are_caught_where_sums_are_exact():
    def rounds_ties_up(problem, buffers, w):
        value = truth(problem, Inputs(buffers["x"], w, buffers)).value
        buffers["out"][...] = np.clip(np.floor(value + 0.5), -128, 127)

    problem = parse_problem("n1c1h9w9_k1r1s1_i8-i8-i8-i32_nchw_+scale:tensor")
    inputs = make_inputs(problem, "integers")
    halves = dataclasses.replace(inputs, w=np.ones_like(inputs.w), operands={"scale": np.float32(0.5)})
    plan = Scripted(rounds_ties_up).plan(problem, Config(), cpu_runtime())
    assert not check_plan(plan, Judge(problem, halves)).ok
    assert check_plan(Scripted(honest).plan(problem, Config(), cpu_runtime()), Judge(problem, halves)).ok


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_nan_spread(kind):
    problem = parse_problem("n2c2h40w41_k3r3s3_p1_f32_nchw")

    def spread_over(reach: int) -> Compute:
        def spreads(problem, buffers, w):
            honest(problem, buffers, w)
            buffers["out"][0, :, 20 - reach : 21 + reach, 20 - reach : 21 + reach] = np.nan

        return spreads

    def swallows(problem, buffers, w):
        buffers["out"][...] = result(problem, buffers, w, np.nan_to_num(buffers["x"], nan=0, posinf=0))

    def spreads_to_the_next_picture(problem, buffers, w):
        honest(problem, buffers, w)
        buffers["out"][:] = np.nan

    def verdict(compute, spread):
        declared = {"nan_spread": spread, "precision": "strict" if spread == "exact" else "winograd"}
        return check_nan_spread(Scripted(compute, **declared).plan(problem, Config(), cpu_runtime()), kind)

    assert verdict(honest, "exact").ok
    assert verdict(spread_over(4), "exact").fault == f"{kind} spreads beyond 'exact'"
    assert verdict(spread_over(4), "tile").ok
    assert verdict(spread_over(19), "tile").fault == f"{kind} spreads beyond 'tile'"
    assert verdict(spread_over(19), "image").ok
    assert verdict(spreads_to_the_next_picture, "image").fault == f"{kind} spreads beyond 'image'"
    for spread in ("exact", "tile", "image"):
        assert verdict(swallows, spread).fault == f"{kind} does not arrive"
