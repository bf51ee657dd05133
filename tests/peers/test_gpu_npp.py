"""NPP's peer without a GPU: what it refuses, and that its calls add up where NumPy computes them."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
from tests.backends.emulated import needs_emulator
from tests.cases import CASES
from tests.peers.host_gpu import FACTS, STREAM, Npp, PackingRuntime, checked, open_library, peer_of

from convforge.algorithms import refusal
from convforge.errors import UnsupportedProblem
from convforge.peers import npp
from convforge.problem import parse_problem
from convforge.verify import Judge, check_plan, make_inputs

PEER = peer_of("conv2d", "npp_filter")
CONVOLUTIONS = [case.text for case in CASES if parse_problem(case.text).operation == "conv2d"]


@pytest.fixture
def played(monkeypatch: Any) -> Npp:
    """NPP by NumPy."""
    library = Npp()
    open_library(monkeypatch, "nppif", library)
    monkeypatch.setattr(npp, "stream_context", lambda runtime, stream: npp.Context(runtime.stream_handle(stream)))
    return library


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n1c1h9w9_k1r3s3_f32_nchw_+relu", "has no epilogue +relu"),
        ("n1c1h9w9_k1r3s3_f64_nchw", "is called for float32, float16, uint8, uint16, int16; x is float64"),
        ("n1c1h9w9_k1r3s3_u8_nchw", "gives the type that it takes; x is uint8, the output int32"),
        ("n1c1h9w9_k1r3s3_u8-f32-u8-f32_nchw", "cuts the fractions of uint8 sums off"),
        ("n1c1h9w9_k1r3s3_f32-f32-f32-f64_nchw", "sums float pixels in float32"),
        ("n1c3h9w9_k1r3s3_f32_nchw", "filters channels by themselves"),
        ("n1c3h9w9_k3r3s3_st2_g3_f32_nchw", "neither strides nor dilation"),
        ("n1c3h9w9_k3r3s3_d2_g3_f32_nchw", "neither strides nor dilation"),
        ("n1c3h9w9_k3r3s3_g3_f32_nhwc-kcrs-nchw", "NPP takes one layout"),
        ("n1c2h9w9_k2r3s3_g2_f32_nhwc", "these have 2 to 2"),
        ("n1c3h9w9_k6r3s3_g3_f32_nhwc", "these have 3 to 6"),
        ("n0c3h9w9_k3r3s3_g3_f32_nhwc", "0 calls are not in 1 to 4096"),
        ("n1c1h9w9_k1r3s3_p1_f32_nchw", "has the border 'replicate' alone; the problem's is 'zeros'"),
        ("n1c1h9w9_k1r3s3_p1_reflect_f32_nchw", "has the border 'replicate' alone; the problem's is 'reflect'"),
        ("n1c1h9w9_k1r3s3_p2_replicate_f32_nchw", "the output reaches beyond the image"),
        ("n1c1h9w9_k1r3s3_p3x0x0x0_replicate_f32_nchw", "the output reaches beyond the image"),
    ],
)
def test_refusals_are_sentences(text: str, reason: str, played: Npp) -> None:
    assert reason in str(PEER.refuses(parse_problem(text), FACTS))


def test_an_older_npp_without_a_function_says_so(played: Npp) -> None:
    del played.nppiFilterBorder32f_16f_C3R_Ctx
    problem = parse_problem("n1c3h9w9_k3r3s3_g3_f16_nhwc")
    assert "has no nppiFilterBorder32f_16f_C3R_Ctx any more" in str(PEER.refuses(problem, FACTS))
    assert PEER.refuses(parse_problem("n1c1h9w9_k1r3s3_f16_nhwc"), FACTS) is None


PLANES = [f"n2c3h9w11_k{k}r{r}s{s}_p{pads}_g3_replicate{flip}_{types}_nchw"
          for r, s, pads in ((3, 3, "1"), (4, 5, "2x1x0x3"), (1, 2, "0x0x1x0"), (2, 6, "0"))
          for k, flip, types in ((3, "", "f32"), (6, "_flip", "f32"), (3, "", "u8-i8-u8-i32"),
                                 (3, "_flip", "i16-i8-i16-i32"), (3, "", "u16-i8-u16-i32"),
                                 (3, "", "f16-f32-f16-f32"))]  # fmt: skip


@pytest.mark.one_in(3)
@needs_emulator
@pytest.mark.parametrize("text", [*CONVOLUTIONS, *PLANES, "n3c1h7w8_k1r3s5_p1x1x2x2_replicate_f32_nhwc"])
def test_cases_by_a_played_npp(text: str, played: Npp) -> None:
    problem: Any = parse_problem(text)
    reason = refusal(PEER, problem, FACTS)
    if reason is not None:
        assert text not in PLANES, reason
        assert len(str(reason)) > 20
        return
    if problem.x_layout == "NHWC" and problem.c > 1:  # the case's channels have filters of their own
        return
    checked(PEER, problem, runtime=PackingRuntime())
    assert set(played.called) == {npp.function_name(problem)}


@needs_emulator
@pytest.mark.parametrize(("types", "function"), [
    ("f32", "nppiFilterBorder_32f_C{}R_Ctx"), ("f16", "nppiFilterBorder32f_16f_C{}R_Ctx"),
    ("u8-i8-u8-i32", "nppiFilterBorder_8u_C{}R_Ctx"), ("u16-i8-u16-i32", "nppiFilterBorder_16u_C{}R_Ctx"),
])  # fmt: skip
@pytest.mark.parametrize("c", [3, 4])
@pytest.mark.parametrize(("r", "s", "pads"), [(3, 3, "1"), (5, 4, "2x1x1x2"), (3, 3, "0")])
def test_interleaved_pixels_share_a_filter(
    types: str, function: str, c: int, r: int, s: int, pads: str, played: Npp
) -> None:
    text = f"n2c{c}h9w8_k{c}r{r}s{s}_p{pads}_g{c}_replicate_{types}_nhwc"
    problem: Any = parse_problem(text)
    assert PEER.refuses(problem, FACTS) is None
    runtime: Any = PackingRuntime()
    plan = PEER.plan(problem, PEER.configs(problem, FACTS)[0], runtime)
    inputs = make_inputs(problem, "integers")
    own = runtime.upload(inputs.w)
    with pytest.raises(UnsupportedProblem, match="one filter for all channels of a pixel"):
        plan.prepare(own)
    inputs.w[...] = inputs.w[:1]
    prepared = plan.prepare(runtime.upload(inputs.w))
    assert str(prepared.note) == "one filter for all channels"
    out = plan(
        plan.buffers(
            runtime.upload(inputs.x), prepared, inputs.operands, runtime.empty(problem.out_shape, problem.out_dtype)
        )
    )
    verdict = Judge(problem, inputs).verdict("strict", runtime.download(out))
    assert verdict.ok, verdict.message
    assert played.called == [function.format(c)] * 2, "a call a picture"
    verdict = check_plan(plan, Judge(problem, inputs))
    assert verdict.ok, verdict.message


@needs_emulator
def test_while_a_stream_is_captured_filters_are_not_looked_at(played: Npp, monkeypatch: Any) -> None:
    problem: Any = parse_problem("n1c3h9w8_k3r3s3_p1_g3_replicate_f32_nhwc")
    runtime: Any = PackingRuntime()
    plan = PEER.plan(problem, PEER.configs(problem, FACTS)[0], runtime)
    w = runtime.upload(make_inputs(problem).w)
    asked = []
    monkeypatch.setattr(PackingRuntime, "is_capturing", lambda self, stream: asked.append(stream) or True)
    monkeypatch.setattr(runtime, "synchronize", lambda stream: pytest.fail("a captured stream cannot be waited for"))
    assert plan.borrow(w, STREAM).nbytes == 4 * 27
    assert asked == [STREAM]


@needs_emulator
def test_a_status_is_an_error_that_names_the_function(monkeypatch: Any, played: Npp) -> None:
    open_library(monkeypatch, "nppif", Npp(status=-6))
    with pytest.raises(RuntimeError, match="nppiFilterBorder_32f_C1R_Ctx gives status -6"):
        checked(PEER, parse_problem("n1c1h9w8_k1r3s3_f32_nchw"), runtime=PackingRuntime())


def test_the_stream_context_is_as_npps_header_has_it() -> None:
    assert ctypes.sizeof(npp.Context) == 48
    at = {name: getattr(npp.Context, name).offset for name, _ in npp.Context._fields_}
    assert (at["nSharedMemPerBlock"], at["nStreamFlags"], at["nReserved0"]) == (24, 40, 44)


def test_npp_says_its_version(monkeypatch: Any) -> None:
    version = (ctypes.c_int * 3)(13, 2, 7)
    open_library(monkeypatch, "nppc", SimpleNamespace(nppGetLibVersion=lambda: ctypes.pointer(version)))
    assert PEER.versions() == {"npp": "13.2.7"}
