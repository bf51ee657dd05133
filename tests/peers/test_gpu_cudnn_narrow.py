"""cuDNN's graphs of int8 and 8-bit floats without a GPU: their nodes and types, their operands, their refusals."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.peers.host_cudnn import PlayedFrontend, PlayedPlan
from tests.peers.host_gpu import FACTS, HostRuntime, PackingRuntime, asked, checked, peer_of

from convforge.algorithms import refusal
from convforge.benchmark.material import Material
from convforge.benchmark.row import Row, measure_row
from convforge.benchmark.suites import Case
from convforge.peers import cudnn as cudnn_peer
from convforge.peers import cudnn_narrow
from convforge.timing.stopping import StoppingRule

INT8 = "n2c16h9w8_k8r3s3_st1_p1"
QUANTISED = f"{INT8}_i8-i8-i8-i32_nhwc_+scale:channel+bias+relu"
EPILOGUE = [("conv", "INT32"), ("mul", "FLOAT"), ("add", "FLOAT"), ("relu", "FLOAT")]
FIRST = cudnn_peer.CudnnConfig("0")


@pytest.fixture
def played(monkeypatch: Any) -> Iterator[PlayedFrontend]:
    """An installed frontend with one plan."""
    cudnn_narrow.narrow_graph.cache_clear()
    frontend = PlayedFrontend(PlayedPlan("eng0"))
    monkeypatch.setitem(sys.modules, "cudnn", frontend)
    monkeypatch.setattr(cudnn_peer, "FIRST_S", 0.0)
    monkeypatch.setattr(cudnn_peer, "FINAL_S", 0.0)
    yield frontend
    cudnn_narrow.narrow_graph.cache_clear()


def peer_for(text: str) -> Any:
    return peer_of("conv2d", "cudnn_fp8" if "_f8" in text else "cudnn_int8")


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        (QUANTISED, EPILOGUE),
        (f"{INT8}_i8-i8-i8-i32_nchw_+scale:tensor+relu", [*EPILOGUE[:2], EPILOGUE[3]]),
        (f"{INT8}_i8-i8-f16-i32_nhwc_+scale:channel+bias", EPILOGUE[:3]),
        (f"{INT8}_u8-i8-f32-i32_nhwc_+scale:tensor", EPILOGUE[:2]),
        (f"{INT8}_i8_nhwc", [("conv", "INT32"), ("identity", "INT32")]),
        (f"{INT8}_g16_i8-i8-i8-i32_nhwc_+scale:channel+bias+relu".replace("k8", "k16"), EPILOGUE),
        (f"{INT8}_f8e4m3-f8e4m3-f16-f32_nhwc", [("conv", "FLOAT"), ("identity", "FLOAT")]),
        (f"{INT8}_f8e5m2-f8e4m3-f32-f32_nhwc_+scale:tensor", [("conv", "FLOAT"), ("mul", "FLOAT")]),
        (f"{INT8}_f8e4m3-f8e4m3-f16-f32_nhwc_+scale:channel+bias+relu", [("conv", "FLOAT"), *EPILOGUE[1:]]),
    ],
)
def test_graphs_have_these_nodes_and_compute_the_problem(text: str, nodes: Any, played: PlayedFrontend) -> None:
    peer = peer_for(text)
    problem = asked(text, peer)
    assert refusal(peer, problem, FACTS) is None
    for kind in ("normal", "integers"):
        checked(peer, problem, FIRST, kind, runtime=PackingRuntime())
    (graph,) = played.graphs
    assert graph.nodes == nodes


@pytest.mark.parametrize("types", ["i8", "f8e4m3-f8e4m3-f16-f32"])
def test_without_an_engine_for_identities_the_convolution_stands_alone(types: str, played: PlayedFrontend) -> None:
    played.barred_node = "identity"
    text = f"{INT8}_{types}_nhwc"
    checked(peer_for(text), asked(text, peer_for(text)), FIRST, runtime=PackingRuntime())
    assert [name for name, _ in played.graphs[0].nodes] == ["conv"]


def test_what_cudnn_has_no_plan_for_is_refused_in_its_words(played: PlayedFrontend) -> None:
    played.barred_node = "mul"
    peer = peer_for(QUANTISED)
    found = refusal(peer, asked(QUANTISED, peer), FACTS)
    assert str(found) == "cuDNN has no plan for it: No execution plans support mul."


@pytest.mark.parametrize(
    ("name", "tail", "reason"),
    [
        ("cudnn_int8", "i16-i8-i32-i32_nhwc", "x of int8 or uint8 and w of int8 alone"),
        ("cudnn_int8", "u8_nhwc", "x of int8 or uint8 and w of int8 alone"),
        ("cudnn_int8", "f16_nhwc", "x of int8 or uint8 and w of int8 alone"),
        ("cudnn_int8", "i8-i8-bf16-i32_nhwc_+bias", "results of int8, uint8, int32, float16, float32 alone"),
        ("cudnn_int8", "i8-i8-i8-i32_nhwc_+zero:3+scale:tensor", "a scale, a bias and ReLU alone"),
        ("cudnn_int8", "i8-i8-i8-i32_nhwc_+over:9", "a scale, a bias and ReLU alone"),
        ("cudnn_int8", "i8-i8-i8-i32_nhwc_+residual", "a scale, a bias and ReLU alone"),
        ("cudnn_int8", "i8-i8-i8-i32_nhwc_+scale:tensor+sigmoid", "a scale, a bias and ReLU alone"),
        ("cudnn_int8", "reflect_i8_nhwc", "pads with zeros"),
        ("cudnn_int8", "i8_nhwc-kcrs-nchw", "asked for one layout"),
        ("cudnn_fp8", "f8e4m3-f16-f16-f32_nhwc", "x and w of 8-bit floats alone"),
        ("cudnn_fp8", "i8_nhwc", "x and w of 8-bit floats alone"),
        ("cudnn_fp8", "f8e4m3-f8e4m3-i8-f32_nhwc", "results of float8_e4m3fn, float8_e5m2, float16, bfloat16"),
        ("cudnn_fp8", "f8e4m3_nhwc_+residual", "a scale, a bias and ReLU alone"),
    ],
)
def test_refusals_are_sentences(name: str, tail: str, reason: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    peer = peer_of("conv2d", name)
    assert reason in str(peer.refuses(asked(f"{INT8}_{tail}", peer), FACTS))


def test_other_methods_still_refuse_8_bit_floats() -> None:
    for name in ("cudnn", "cudnn_int8"):
        peer = peer_of("conv2d", name)
        found = refusal(peer, asked(f"{INT8}_f8e4m3_nhwc", peer), FACTS)
        assert str(found) == "it does not take float8_e4m3fn; cast to float16, bfloat16 or float32"


def test_operands_are_cast_before_the_timing_or_in_a_call(played: PlayedFrontend) -> None:
    peer, uploads = peer_for(QUANTISED), list[Any]()

    class Counting(PackingRuntime):
        capturing = False

        def upload(self, array: Any) -> Any:
            uploads.append(array)
            return super().upload(array)

        def is_capturing(self, stream: Any = None) -> bool:
            return self.capturing

    runtime: Any = Counting()
    problem = asked(QUANTISED.replace("nhwc", "nchw"), peer)
    plan = peer.plan(problem, FIRST, runtime)
    wide = {"scale": runtime.upload(np.full(8, 0.1)), "bias": runtime.upload(np.arange(8.0))}
    x, w = (runtime.upload(np.ones(shape, np.int8)) for shape in (problem.x_shape, problem.w_shape))
    out = runtime.empty(problem.out_shape, "int8")
    single = plan.lay_operands(wide)
    assert {name: array.dtype.name for name, array in single.items()} == {"scale": "float32", "bias": "float32"}

    results = []
    for operands, copies in ((wide, 2), (single, 0)):
        uploads.clear()
        plan(plan.buffers(x, plan.prepare(w), operands, out))
        assert len(uploads) == copies
        results.append(runtime.download(out))
    assert np.array_equal(*results)
    assert results[0][0, 3, 4, 4] == round(np.float32(0.1) * 16 * 9 + 3)

    runtime.capturing = True
    plan(plan.buffers(x, plan.prepare(w), single, out))
    with pytest.raises(ValueError, match="a graph cannot copy one of float64"):
        plan(plan.buffers(x, plan.prepare(w), wide, out))


@pytest.mark.parametrize("text", [QUANTISED, f"{INT8}_f8e4m3-f8e4m3-f16-f32_nhwc"])
def test_a_row_of_the_bench_is_checked_and_timed(text: str, played: PlayedFrontend) -> None:
    peer = peer_for(text)
    plain = asked(text, peer).replace(precision="strict")
    runtime: Any = PackingRuntime()
    case = Case("layer", plain)
    row = Row(case, asked(text, peer), peer, cudnn_peer.CudnnConfig(), FACTS)
    result = measure_row(row, Material(case, runtime), StoppingRule(samples=3, patience_s=0.0, budget_s=5.0))
    assert result.status == "ok", result.reason
    assert not result.allowed, "the problem is strict"
    assert result.time is not None
    assert result.prepared_time is not None


def test_operands_for_timing_keep_results_in_range() -> None:
    problem: Any = asked(f"n1c256h14w14_k256r3s3_p1_{QUANTISED.partition('_p1_')[2]}", peer_for(QUANTISED))
    made = cudnn_narrow.operands_for_timing(problem, HostRuntime())  # type: ignore[arg-type]
    sums = 74.0**2 * np.sqrt(problem.taps)
    assert 10 < float(made["scale"].described.mean()) * sums < 64
    assert made["bias"].described.dtype == np.float32
