"""cuDNN's named algorithms without a GPU: every argument of every descriptor, and every status."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.cases import CASES
from tests.peers import host_gpu
from tests.peers.host_gpu import FACTS, TEXTS, HostRuntime, asked, checked, open_library, peer_of

from convforge.algorithms import refusal
from convforge.backends.cuda.arrays import DeviceArray
from convforge.errors import UnsupportedProblem
from convforge.peers import PEERS, cudnn_filter, cudnn_legacy, cudnn_library
from convforge.problem import parse_problem
from convforge.verify import check_nan_spread

CONVOLUTIONS = [case.text for case in CASES if parse_problem(case.text).operation == "conv2d"]


def test_a_cudnn_without_the_old_interface_says_so(monkeypatch: Any) -> None:
    library = host_gpu.Cudnn()
    del library.cudnnConvolutionForward
    open_library(monkeypatch, "cudnn", library)
    peer = peer_of("conv2d", "cudnn_legacy")
    assert str(refusal(peer, parse_problem(TEXTS["conv2d"]), FACTS)) == (
        "the cuDNN that is installed has no cudnnConvolutionForward any more: install an older one to measure it"
    )


@pytest.fixture
def played_cudnn(monkeypatch: Any) -> Iterator[Any]:
    """A function that installs a cuDNN."""

    class Packer:  # what channels_near.cu does
        def __init__(self, problem: Any, runtime: Any) -> None:
            assert problem.mode == "cross-correlation"
            self.runtime = runtime

        def __call__(self, w: DeviceArray, stream: Any = None) -> Any:
            packed = self.runtime.upload(w.described.transpose(0, 2, 3, 1))
            return SimpleNamespace(tensors={"w": packed})

    def forget() -> None:
        cudnn_library.library.cache_clear()
        cudnn_library.legacy_convolution.cache_clear()

    def install(**more: Any) -> host_gpu.Cudnn:
        forget()
        library = host_gpu.Cudnn(**more)
        open_library(monkeypatch, "cudnn", library)
        return library

    monkeypatch.setattr(cudnn_filter, "ChannelsNear", Packer)
    yield install
    forget()


LEGACY = [peer for peer in PEERS if peer.name.startswith("cudnn_legacy")]


def test_every_algorithm_of_the_header_has_one_class_of_arithmetic() -> None:
    # cudnnConvolutionFwdAlgo_t, in its order.
    names = ["IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "DIRECT", "FFT", "FFT_TILING", "WINOGRAD",
             "WINOGRAD_NONFUSED"]  # fmt: skip
    assert {name: number for number, name in enumerate(names)} == cudnn_library.ALGORITHMS
    by_precision = {peer.precision: peer.algorithms for peer in LEGACY}
    assert set(by_precision) == {"strict", "tf32", "winograd", "fft"}
    plain = [name for precision in ("strict", "winograd", "fft") for name in by_precision[precision]]
    assert sorted(plain) == sorted(names)
    assert by_precision["tf32"] == by_precision["strict"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("text", CONVOLUTIONS)
@pytest.mark.parametrize("peer", LEGACY, ids=lambda p: p.name)
def test_convolutions_by_a_played_cudnn(peer: Any, text: str, played_cudnn: Any) -> None:
    library = played_cudnn()
    problem = asked(text, peer)
    reason = refusal(peer, problem, FACTS)
    if reason is not None:
        assert len(str(reason)) > 20
        return
    configs = peer.configs(problem, FACTS)
    assert [config.algorithm for config in configs] == ["best", *peer.algorithms]
    for config in configs[1:]:
        del library.called[:]
        checked(peer, problem, config)
        assert set(library.called) == {cudnn_library.ALGORITHMS[config.algorithm]}


def test_the_math_type_is_that_of_the_class(played_cudnn: Any) -> None:
    for name, dtype, math in (("cudnn_legacy", "f32", 3), ("cudnn_legacy_tf32", "f32", 0), ("cudnn_legacy", "f16", 1)):
        library = played_cudnn()
        peer = peer_of("conv2d", name)
        checked(peer, asked(f"n1c2h9w8_k2r3s3_p1_{dtype}_nchw", peer))
        (descriptor,) = (about for about in library.about.values() if len(about) == 10)
        assert descriptor[-1] == math


def test_what_cudnn_refuses_is_refused_with_its_status(played_cudnn: Any) -> None:
    played_cudnn(refused={2: b"CUDNN_STATUS_NOT_SUPPORTED", 3: b"CUDNN_STATUS_NOT_SUPPORTED"})
    peer, problem = peer_of("conv2d", "cudnn_legacy"), parse_problem(TEXTS["conv2d"])
    names = [config.algorithm for config in peer.configs(problem, FACTS)]
    assert names == ["best", "IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM"]
    checked(peer, problem)
    with pytest.raises(UnsupportedProblem, match="WorkspaceSize says CUDNN_STATUS_NOT_SUPPORTED"):
        checked(peer, problem, cudnn_legacy.LegacyConfig("DIRECT"))
    with pytest.raises(ValueError, match="algorithm='FFT' is not of cudnn_legacy; choose one of IMPLICIT_GEMM"):
        checked(peer, problem, cudnn_legacy.LegacyConfig("FFT"))


def test_what_cudnn_refuses_late_is_passed_over(played_cudnn: Any) -> None:
    library = played_cudnn(late={0: b"CUDNN_STATUS_NOT_SUPPORTED_SHAPE", 1: b"CUDNN_STATUS_NOT_SUPPORTED_SHAPE"})
    peer, problem = peer_of("conv2d", "cudnn_legacy"), parse_problem(TEXTS["conv2d"])
    checked(peer, problem)
    assert set(library.called) <= {2, 3}
    runtime: Any = HostRuntime()
    plan = peer.plan(problem, peer.configs(problem, FACTS)[0], runtime)
    said = "cudnnConvolutionForward says CUDNN_STATUS_NOT_SUPPORTED_SHAPE"
    assert str(plan.choice) == f"4 algorithms: 2 run, 2 failed: {said}"
    assert plan.ways[0] == ("IMPLICIT_GEMM", "failed", said)
    with pytest.raises(UnsupportedProblem, match="cudnnConvolutionForward says CUDNN_STATUS_NOT_SUPPORTED_SHAPE"):
        checked(peer, problem, cudnn_legacy.LegacyConfig("IMPLICIT_GEMM"))
    played_cudnn(late=dict.fromkeys(range(8), b"CUDNN_STATUS_ARCH_MISMATCH"))
    with pytest.raises(UnsupportedProblem, match="4 algorithms: 0 run, 4 failed: cudnnConvolutionForward says"):
        checked(peer, problem)


def test_a_class_of_which_cudnn_takes_nothing_is_refused(played_cudnn: Any) -> None:
    played_cudnn(refused=dict.fromkeys((4, 5), b"CUDNN_STATUS_NOT_SUPPORTED"))
    peer = peer_of("conv2d", "cudnn_legacy_fft")
    reason = str(refusal(peer, asked(TEXTS["conv2d"], peer), FACTS))
    assert "cuDNN 91900 takes it by none of these: FFT: cudnnGetConvolutionForwardWorkspaceSize says" in reason


def test_descriptors_end_with_their_convolution(played_cudnn: Any) -> None:
    library = played_cudnn()
    convolution = cudnn_library.LegacyConvolution(parse_problem(TEXTS["conv2d"]), "FMA")
    assert len(library.about) == 4
    del convolution
    gc.collect()
    assert sorted(library.destroyed) == sorted(library.about)


def test_arrays_with_gaps_are_not_handed_to_cudnn(played_cudnn: Any) -> None:
    played_cudnn()
    runtime: Any = HostRuntime()
    peer, problem = peer_of("conv2d", "cudnn_legacy"), parse_problem(TEXTS["conv2d"])
    plan = peer.plan(problem, peer.configs(problem, FACTS)[0], runtime)
    w, out = runtime.empty(problem.w_shape, "float32"), runtime.empty(problem.out_shape, "float32")
    x = runtime.empty((1, 3, 9, 16), "float32")[..., ::2]
    with pytest.raises(ValueError, match="cuDNN takes arrays whose elements lie side by side; one of shape"):
        plan({"x": x, "w": plan.prepare(w), "out": out})


# NaN and Inf: the check is run on the device's own arrays.


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_nan_and_inf_spread_as_declared(kind: str, played_cudnn: Any) -> None:
    played_cudnn()
    runtime: Any = HostRuntime()
    peer, problem = peer_of("conv2d", "cudnn_legacy"), parse_problem("n2c2h13w12_k3r3s3_st2_p1_f32_nchw")
    plan = peer.plan(problem, peer.configs(problem, FACTS)[0], runtime)
    with np.errstate(invalid="ignore"):
        verdict = check_nan_spread(plan, kind)
    assert verdict.ok, verdict.message
