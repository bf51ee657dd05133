"""Every peer on every case: right, or refused with a reason. What is absent refuses with the line that installs it."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import subprocess
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.cases import CASES, WORKED, worked_inputs

from convforge.algorithms import refusal
from convforge.backends.cpu import cpu_facts, cpu_runtime
from convforge.errors import UnsupportedProblem, WorkspaceTooSmall
from convforge.peers import PEERS as EVERY_PEER
from convforge.peers import PeerPlan
from convforge.problem import Problem, parse_problem
from convforge.verify import Inputs, Judge, check_nan_spread, check_plan, compare, make_inputs, truth

PEERS = [peer for peer in EVERY_PEER if peer.backend == "cpu"]
BY_NAME = {peer.name: peer for peer in PEERS}
MODULES = {"torch": "torch", "opencv": "cv2", "scipy": "scipy"}
CONVOLUTIONS = [peer for peer in PEERS if peer.operation == "conv2d"]


def need(peer: Any) -> None:
    """Skip where the peer's library is absent; in CI, where all are installed, that is an error."""
    module = MODULES[peer.name.partition("_")[0]]
    if importlib.util.find_spec(module) is None:
        if os.environ.get("CI"):
            pytest.fail(f"{module} is not installed, and CI is to test it")
        pytest.skip(f"{module} is not installed")


def asked(text: str, peer: Any) -> Any:
    """The problem as it reads when it allows the peer's arithmetic."""
    problem = parse_problem(text)
    if peer.precision == "strict" or not problem.multiplies:
        return problem
    return dataclasses.replace(problem, precision=peer.precision)


def planned(peer: Any, problem: Problem) -> PeerPlan:
    plan = peer.plan(problem, peer.configs(problem, cpu_facts())[0], cpu_runtime())
    assert isinstance(plan, PeerPlan)
    return plan


@cache
def material(text: str, weights: str = "random") -> tuple[Inputs, Any]:
    """Inputs whose filters are as `weights` says, and their truth."""
    problem = parse_problem(text)
    inputs = make_inputs(problem)
    if weights != "random":
        w = inputs.w.astype(np.float64)
        if weights == "shared":  # one filter for all
            w = np.broadcast_to(w[:1, :1], w.shape)
        elif weights == "rank one":  # each filter factors, with factors of its own
            w = w[..., :1] * w[..., :1, :]
        elif weights == "scaled":  # factors over the channels too
            one = w[:1, :1, :, :1] * w[:1, :1, :1, :]
            w = one * np.linspace(0.5, 1.5, w.shape[0] * w.shape[1]).reshape(*w.shape[:2], 1, 1)[::-1]
            w = w[:, :1] * np.linspace(0.5, 1.5, w.shape[1]).reshape(1, -1, 1, 1)
        inputs = Inputs(inputs.x, np.ascontiguousarray(w.astype(inputs.w.dtype)), inputs.operands)
    return inputs, truth(problem, inputs)


def run_both_ways(peer: Any, problem: Any, inputs: Inputs, right: Any) -> None:
    """With an output and without one, and the prepared filter must not look at the weights again."""
    plan = planned(peer, problem)
    w = None if inputs.w is None else inputs.w.copy()
    prepared = plan.prepare(w)
    if w is not None and peer.operation == "conv2d":
        w[...] = 77
    own = plan(plan.buffers(inputs.x, prepared, inputs.operands))
    out = np.full_like(own, 0x5A)
    assert plan(plan.buffers(inputs.x, prepared, inputs.operands, out)) is out
    for got in (own, out):
        verdict = compare(problem, peer.precision, got, right, inputs)
        assert verdict.ok, verdict.message


PAIRS = [(p, c.text) for p in PEERS for c in CASES if parse_problem(c.text).operation == p.operation]


@pytest.mark.peer
@pytest.mark.one_in(14)
@pytest.mark.parametrize(("peer", "text"), PAIRS, ids=[f"{p.name}-{t}" for p, t in PAIRS])
def test_case(peer: Any, text: str) -> None:
    need(peer)
    problem = asked(text, peer)
    reason = refusal(peer, problem, cpu_facts())
    if reason is not None:
        assert len(str(reason)) > 20, f"{peer.name} refuses {text} with {reason!r}"
        return
    inputs, right = material(text)
    if peer.name == "opencv_sepfilter2d":  # random filters do not factor
        inputs, right = material(text, "rank one")
        if problem.x_dtype not in ("float32", "float64"):
            return
    else:
        verdict = check_plan(planned(peer, problem), Judge(problem, inputs, right))
        assert verdict.ok, verdict.message
    run_both_ways(peer, problem, inputs, right)


@pytest.mark.peer
@pytest.mark.parametrize(
    ("name", "share"),
    [("torch_conv2d", 0.8), ("torch_conv2d_channels_last", 0.8), ("torch_conv2d_packed", 0.6), ("opencv_filter2d", 0.6),
     ("opencv_sepfilter2d", 0.6), ("scipy_ndimage", 0.7), ("scipy_oaconvolve", 0.7)],
)  # fmt: skip
def test_a_peer_accepts_its_share_of_the_cases(name: str, share: float) -> None:
    peer = BY_NAME[name]
    need(peer)
    # No peer is asked for bfloat16, 8-bit floats or a requantised result.
    problems = [
        asked(text, peer) for p, text in PAIRS if p is peer and not any(t in text for t in ("bf16", "f8", "+out"))
    ]
    accepted = [problem for problem in problems if refusal(peer, problem, cpu_facts()) is None]
    assert len(accepted) >= share * len(problems), f"{name} accepts {len(accepted)} of {len(problems)}"


PICTURES = [
    "n1c3h33w47_k1r3s3_st1_p1_f32_nchw",
    "n1c3h33w47_k1r3s3_st1_p1_f32_nhwc",
    "n2c3h33w47_k3r3s3_st1_p1_f32_nhwc",
    "n1c3h33w47_k3r3s3_st2_p1_reflect_f32_nhwc",
    "n2c3h33w47_k3r3s3_st1_p1_g3_f32_nhwc",
    "n1c3h33w47_k3r3s3_st3_p2_g3_f32_nhwc",
    "n1c6h20w21_k6r3s5_st1_p1x2_g6_circular_f32_nhwc",
    "n1c6h20w21_k6r3s5_st1_p1x2_g6_constant2.5_f32_nhwc",
    "n1c2h9w8_k2r3s3_st1_p2x0x1x3_constant2.5_f32_nhwc",
    "n1c2h9w8_k2r3s3_st1_p2x0x1x3_constant2.5_f32_nchw",
    "n1c4h20w31_k6r3s5_st2x1_p1x2_g2_f32_nchw",
    "n1c1h33w47_k1r4s2_st3_p5x4x6x1_symmetric_f32_nchw",
    "n1c2h5w4_k2r9s9_st1_p12_reflect_f32_nhwc",
    "n1c2h5w4_k2r7s7_st1_p3_circular_f32_nchw",
    "n1c3h20w21_k2r3s3_st1_p2_d2_flip_f32_nchw",
    "n1c3h9w8_k2r3s3_st2_p1_f64_nchw",
    "n1c1h40w41_k1r5s5_st1_p2_replicate_u8-f32-u8-f32_nchw",
    "n1c3h40w41_k1r5s5_st1_p2_replicate_u8-f32-u8-f32_nhwc",
    "n1c3h40w41_k3r5s5_st1_p2_g3_reflect_u8-f32-u8-f32_nhwc",
    "n1c3h40w41_k3r5s5_st2_p2_g3_circular_u8-f32-u8-f32_nhwc",
    "n1c3h40w41_k3r5s5_st2_p2_circular_u8-f32-u8-f32_nhwc",
    "n1c3h40w41_k3r3s3_st1_p1_g3_u16-f32-u16-f32_nhwc",
    "n1c3h40w41_k2r5s5_st2_p2_u8-f32-f32-f32_nchw",
    "n1c1h64w61_k1r13s13_st1_p6_reflect_f32_nchw",
    "n1c3h64w61_k3r13s13_st1_p6_g3_f32_nhwc",
    "n1c1h70w71_k1r31s31_st1_p15_u8-f32-u8-f32_nchw",
]
WEIGHTS = ["random", "shared", "rank one", "scaled"]


@pytest.mark.peer
@pytest.mark.one_in(15)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("text", PICTURES)
@pytest.mark.parametrize("peer", CONVOLUTIONS, ids=lambda p: p.name)
def test_filters_that_share_or_factor(peer: Any, text: str, weights: str) -> None:
    """Every method is right for filters whose weights decide the method."""
    need(peer)
    problem = asked(text, peer)
    inputs, right = material(text, weights)
    if refusal(peer, problem, cpu_facts()) is not None:
        return
    if peer.name == "opencv_sepfilter2d" and weights in ("random", "shared"):
        with pytest.raises(UnsupportedProblem, match="takes filters of rank 1; this one has rank"):
            planned(peer, problem).prepare(inputs.w)
        return
    run_both_ways(peer, problem, inputs, right)


def test_sepfilter2d_mixes_channels_of_a_filter_that_factors_over_them() -> None:
    peer = BY_NAME["opencv_sepfilter2d"]
    need(peer)
    text = PICTURES[0]
    prepared = planned(peer, asked(text, peer)).prepare(material(text, "scaled")[0].w)
    assert prepared.tensors["terms"].mixes.shape == (1, 3)
    assert "rank one" in str(prepared.note)


def test_channels_that_share_a_filter_take_one_filtering() -> None:
    peer = BY_NAME["opencv_filter2d"]
    need(peer)
    summed = planned(peer, asked(PICTURES[0], peer)).prepare(material(PICTURES[0], "shared")[0].w).tensors["terms"]
    assert summed.mixes.tolist() == [[0.25, 0.25, 0.25]]  # such a sum never overflows; the filter makes up for it
    assert len(summed.outputs) == len(summed.outputs[0]) == 1
    depthwise = planned(peer, asked(PICTURES[4], peer)).prepare(material(PICTURES[4], "shared")[0].w).tensors["terms"]
    assert depthwise.interleaved


@pytest.mark.peer
@pytest.mark.parametrize("worked", WORKED, ids=lambda worked: worked.text)
@pytest.mark.parametrize("peer", CONVOLUTIONS, ids=lambda p: p.name)
def test_worked_values(peer: Any, worked: Any) -> None:
    need(peer)
    problem = asked(worked.text, peer)
    if refusal(peer, problem, cpu_facts()) is not None:
        return
    inputs = worked_inputs(worked)
    plan = planned(peer, problem)
    if peer.name == "opencv_sepfilter2d":  # 1 2 3 / 4 5 6 / 7 8 9 does not factor
        with pytest.raises(UnsupportedProblem, match="this one has rank 2"):
            plan.prepare(inputs.w)
        return
    got = plan(plan.buffers(inputs.x, plan.prepare(inputs.w)))
    assert np.rint(got).astype(int).tolist() == worked.expected
    if peer.precision == "strict":
        assert got.tolist() == worked.expected


@pytest.mark.peer
@pytest.mark.parametrize("peer", [p for p in CONVOLUTIONS if p.precision == "strict"], ids=lambda p: p.name)
def test_integers_round_half_to_even_and_saturate(peer: Any) -> None:
    need(peer)
    problem = asked("n1c1h1w6_k1r1s1_u8-f32-u8-f32_nchw", peer)
    x = np.array([1, 3, 5, 200, 255, 0], np.uint8).reshape(1, 1, 1, 6)
    for factor, expected in ((0.5, [0, 2, 2, 100, 128, 0]), (2.0, [2, 6, 10, 255, 255, 0]), (-1.0, [0] * 6)):
        plan = planned(peer, problem)
        got = plan(plan.buffers(x, plan.prepare(np.full((1, 1, 1, 1), factor, np.float32))))
        assert got.dtype == np.uint8
        assert got.ravel().tolist() == expected


SPREADS = ["n2c2h24w25_k3r3s3_st1_p1_f32_nchw", "n2c4h13w12_k4r3s3_st2_p1_g2_f32_nhwc",
           "n1c2h30w31_k2r5s5_p2_reflect_f32_nchw", "n1c3h24w25_k4r3s3_p1_f32_nchw_+bias+relu",
           "n1c1h40w41_k1r13s13_p6_f32_nchw",
           "max_n2c2h9w10_r3s3_st2_p1_f32_nchw", "max_n1c2h9w10_r3s3_st2_p2_f32_nhwc", "relu100_f32"]  # fmt: skip
SPREAD_PAIRS = [(p, t) for p in PEERS for t in SPREADS if parse_problem(t).operation == p.operation]


@pytest.mark.one_in(3)
@pytest.mark.peer
@pytest.mark.parametrize("kind", ["nan", "inf"])
@pytest.mark.parametrize(("peer", "text"), SPREAD_PAIRS, ids=[f"{p.name}-{t}" for p, t in SPREAD_PAIRS])
def test_nan_and_inf_spread_as_declared(peer: Any, text: str, kind: str) -> None:
    need(peer)
    problem = asked(text, peer)
    if refusal(peer, problem, cpu_facts()) is not None or peer.name == "opencv_sepfilter2d":
        return
    verdict = check_nan_spread(planned(peer, problem), kind)
    assert verdict.ok, verdict.message


@pytest.mark.peer
@pytest.mark.parametrize("how", ["read-only", "reversed", "sliced"])
@pytest.mark.parametrize("peer", [p for p in CONVOLUTIONS if p.name != "opencv_sepfilter2d"], ids=lambda p: p.name)
def test_arrays_of_any_strides(peer: Any, how: str) -> None:
    need(peer)
    text = "n2c3h19w20_k4r3s3_p1_f32_nhwc"
    problem = asked(text, peer)
    if refusal(peer, problem, cpu_facts()) is not None:
        return
    inputs, right = material(text)
    x = inputs.x.copy()
    if how == "read-only":
        x.flags.writeable = False
    elif how == "reversed":
        x = np.ascontiguousarray(x[:, ::-1, ::-1, ::-1])[:, ::-1, ::-1, ::-1]
    else:
        wide = np.repeat(np.repeat(x, 2, axis=1), 2, axis=2)
        x = wide[:, ::2, ::2]
    plan = planned(peer, problem)
    verdict = compare(problem, peer.precision, plan(plan.buffers(x, plan.prepare(inputs.w))), right, inputs)
    assert verdict.ok, verdict.message


# What a plan gives back.


@pytest.mark.peer
def test_a_plan_without_an_output_gives_the_librarys_own_array() -> None:
    peer = BY_NAME["torch_conv2d"]
    need(peer)
    inputs, _ = material(PICTURES[0])
    plan = planned(peer, parse_problem(PICTURES[0]))
    assert plan.allocates
    prepared = plan.prepare(inputs.w)
    first, second = plan(plan.buffers(inputs.x, prepared)), plan(plan.buffers(inputs.x, prepared))
    assert not np.shares_memory(first, second)
    assert first.flags.c_contiguous
    # The result is turned or cast into the problem's own layout or type: the library allocates nothing of use.
    assert not planned(BY_NAME["torch_conv2d_channels_last"], parse_problem("n1c3h9w9_k2r3s3_f32_nchw")).allocates
    assert not planned(peer, parse_problem("n1c3h9w9_k2r3s3_u8-f32-u8-f32_nchw")).allocates
    assert not planned(BY_NAME["opencv_filter2d"], parse_problem(PICTURES[0])).allocates


@pytest.mark.peer
def test_channels_last_needs_no_workspace_where_the_picture_is_so() -> None:
    peer = BY_NAME["torch_conv2d_channels_last"]
    need(peer)
    assert planned(peer, parse_problem("n1c3h9w9_k2r3s3_f32_nhwc")).workspace_bytes == 0
    plan = planned(peer, parse_problem("n1c3h9w9_k2r3s3_f32_nchw"))
    assert plan.workspace_bytes >= 3 * 9 * 9 * 4
    inputs, _ = material("n1c3h9w9_k2r3s3_f32_nchw")
    with pytest.raises(WorkspaceTooSmall, match=r"needs .* bytes of workspace; got 8"):
        plan(plan.buffers(inputs.x, plan.prepare(inputs.w), workspace=np.empty(8, np.uint8)))


# Presence and refusals: nothing here needs a library.


@pytest.mark.parametrize("peer", PEERS, ids=lambda p: p.name)
def test_an_absent_library_is_a_refusal_with_the_line_that_installs_it(peer: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    text = {"conv2d": PICTURES[0], "max_pool2d": SPREADS[-3], "gemm": "m4n4k4_f32", "relu": "relu4_f32"}[peer.operation]
    reason = refusal(peer, asked(text, peer), cpu_facts())
    assert str(reason) in {
        "PyTorch is not installed: pip install torch",
        "OpenCV is not installed: pip install opencv-python-headless",
        "SciPy is not installed: pip install scipy",
    }


def test_ci_takes_an_absent_library_for_an_error(monkeypatch: Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="torch is not installed"):
        need(BY_NAME["torch_relu"])
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception):
        need(BY_NAME["torch_relu"])


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("torch_conv2d", "n1c3h9w9_k2r3s3_f32_nchw_+residual", "it has no epilogue +residual"),
        ("torch_conv2d", "n1c3h9w9_k2r3s3_u8-i8-i32-i32_nchw_+bias", "integer sums are taken as floats here"),
        ("torch_conv2d", "n1c3h9w9_k2r3s3_f32-f32-bf16-f32_nchw", "not asked for bfloat16"),
        ("torch_conv2d_packed", "n1c3h9w9_k2r3s3_f64_nchw", "oneDNN computes float32, not the float64"),
        ("torch_max_pool2d", "max_n1c1h4w4_r2s2_u16_nchw", "takes no NumPy array of uint16"),
        ("torch_relu", "relu9_u16", "takes no NumPy array of uint16"),
        ("opencv_filter2d", "n1c1h40w40_k1r13s13_p6_f32_nchw", "see opencv_filter2d_dft"),
        ("opencv_filter2d_dft", "n1c1h40w40_k1r3s3_p1_f32_nchw", "sums 9 taps one by one"),
        ("opencv_filter2d", "n1c1h40w40_k1r3s3_p1_f16_nchw", "OpenCV filters no float16"),
        ("opencv_filter2d", "n1c1h40w40_k1r3s3_p1_f32_nchw_+relu", "cv2.filter2D has no epilogue +relu"),
        ("opencv_filter2d", "n1c256h14w14_k256r3s3_p1_f32_nchw", "65536 calls an image"),
        ("scipy_ndimage", "n1c1h9w9_k1r3s3_u8-f32-i32-f32_nchw", "float32 sums are not saturated to int32"),
    ],
)
def test_refusals_are_sentences(name: str, text: str, reason: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    peer = BY_NAME[name]
    assert reason in str(refusal(peer, asked(text, peer), cpu_facts()))


def test_a_peer_is_never_ours_and_says_its_version() -> None:
    assert len({peer.key for peer in PEERS}) == len(PEERS)
    for peer in PEERS:
        assert not peer.ours
        assert peer.backend == "cpu"
        (library,) = peer.versions()
        module = MODULES[library]
        assert (peer.versions()[library] == "unknown") == (importlib.util.find_spec(module) is None)


def test_the_list_imports_no_library() -> None:
    code = "import sys, convforge.peers; print(sorted({'torch', 'cv2', 'scipy', 'numba'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
