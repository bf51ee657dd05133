"""The GPU's peers without a GPU: what they refuse, what they hand over, and that it adds up where NumPy computes it."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.cases import CASES
from tests.peers import host_gpu
from tests.peers.host_gpu import (
    FACTS,
    STREAM,
    TEXTS,
    HostRuntime,
    asked,
    checked,
    column_major_gemm,
    open_library,
    peer_of,
)

from convforge.algorithms import refusal
from convforge.benchmark.digests import code_files
from convforge.peers import PEERS, contract, cublas, torch_cuda
from convforge.peers.cublas import column_major, leading_dimension
from convforge.peers.cupy import BORDERS
from convforge.problem import PADDING_MODES, GemmProblem, parse_problem
from convforge.verify import Judge, make_inputs
from convforge.verify.plans import upload_inputs

CONVOLUTIONS = [case.text for case in CASES if parse_problem(case.text).operation == "conv2d"]
GPU_PEERS = [peer for peer in PEERS if peer.backend == "cuda"]
NEW = [peer for peer in GPU_PEERS if not peer.name.startswith("cudnn")]


# Presence.


@pytest.mark.parametrize("peer", GPU_PEERS, ids=lambda p: f"{p.operation}-{p.name}")
def test_an_absent_library_is_a_refusal_with_the_line_that_installs_it(peer: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    open_library(monkeypatch, "none", None)
    assert str(refusal(peer, asked(TEXTS[peer.operation], peer), FACTS)) in {
        "PyTorch is not installed: pip install torch",
        "CuPy is not installed: pip install cupy-cuda13x",
        "cuBLAS is not installed: pip install nvidia-cublas",
        "cuDNN's frontend is not installed: pip install nvidia-cudnn-frontend==1.18.0",
        "NPP is not installed: pip install nvidia-npp",
    }


@pytest.mark.parametrize("peer", NEW, ids=lambda p: f"{p.operation}-{p.name}")
def test_a_gpu_peer_is_never_ours_and_names_its_files_and_versions(peer: Any, monkeypatch: Any) -> None:
    open_library(monkeypatch, "none", None)
    assert not peer.ours
    assert Path(inspect.getfile(type(peer))) in code_files(peer, (), FACTS)
    assert set(peer.versions()) <= {"torch", "cupy", "cublas", "cudnn", "npp"}


def test_a_library_is_looked_for_in_the_wheels_folders(monkeypatch: Any, tmp_path: Any) -> None:
    for folder, file in (("cudnn", "libcudnn.so.9"), ("cu13", "libcublas.so.13"), ("cudnn", "libcudnn_ops.so.9")):
        (tmp_path / folder / "lib").mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "lib" / file).touch()
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    assert contract._in_wheels("cudnn") == [str(tmp_path / "cudnn/lib/libcudnn.so.9")]
    assert contract._first_that_opens(contract._in_wheels("cudnn")) is None, "it is no library"


def test_a_library_without_a_function_says_so(monkeypatch: Any) -> None:
    library = host_gpu.cublas([])
    del library.cublasSgemm_v2
    open_library(monkeypatch, "cublas", library)
    assert str(refusal(peer_of("gemm", "cublas"), parse_problem(TEXTS["gemm"]), FACTS)) == (
        "the cuBLAS that is installed has no cublasSgemm_v2 any more: install an older one to measure it"
    )


def test_a_pytorch_without_cuda_is_a_refusal() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this PyTorch has a GPU")
    reason = refusal(peer_of("conv2d", "torch_conv2d"), parse_problem(TEXTS["conv2d"]), FACTS)
    assert "was built without CUDA: pip install torch" in str(reason) or "finds no GPU" in str(reason)


@pytest.mark.parametrize(
    ("operation", "name", "text", "reason"),
    [
        ("gemm", "cublas", "m0n5k3_f32", "products that sum at least one number"),
        ("gemm", "cublas_tf32", "m4n5k3_f64", "TF32 is about float32"),
        ("gemm", "torch_matmul", "m4n5k0_f32", "products that sum at least one number"),
        ("gemm", "torch_matmul", "m4n8k8_i8", "int8 holds no such sums"),
        ("gemm", "cublas", "m4n8k8_u8-i8", "multiplies int8 by int8, not uint8 by int8"),
        ("gemm", "cublas", "m4n6k8_i8", "multiples of 4 bytes; B has rows of 6"),
        ("conv2d", "cudnn", "n1c3h9w9_k2r3s3_u8-f32-u8-f32_nchw", "float32, float16 and bfloat16 alone, the same"),
        ("conv2d", "cudnn", "n1c3h9w9_k2r3s3_f64_nchw", "float32, float16 and bfloat16 alone"),
        ("conv2d", "cudnn", "n1c3h9w9_k2r3s3_p1_reflect_f32_nchw", "pads with zeros"),
        ("conv2d", "cudnn", "n1c3h9w9_k2r3s3_f32_nchw_+relu", "without an epilogue"),
        ("conv2d", "cudnn", "n1c3h9w9_k2r3s3_f32_nhwc-kcrs-nchw", "asked for one layout"),
        ("conv2d", "cudnn", "n0c3h9w9_k2r3s3_f32_nchw", "no empty batch"),
        ("conv2d", "cudnn_tf32", "n1c3h9w9_k2r3s3_f16_nchw", "TF32 is about float32"),
        ("conv2d", "torch_conv2d", "n1c3h9w9_k2r3s3_f32_nchw_+residual", "it has no epilogue +residual"),
        ("conv2d", "torch_conv2d", "n1c3h9w9_k2r3s3_p1_symmetric_f32_nchw", "has no symmetric border"),
        ("conv2d", "torch_conv2d", "n1c3h9w9_k2r3s3_u16-f32-u16-f32_nchw", "no uint16 on a GPU"),
        ("conv2d", "torch_conv2d", "n1c3h9w9_k2r3s3_f32-f32-bf16-f32_nchw", "not asked for bfloat16"),
        (
            "conv2d",
            "torch_conv2d",
            "n1c3h9w9_k2r3s3_p1_constant0.1_f16_nchw",
            "does not hold a border",
        ),
        (
            "conv2d",
            "torch_conv2d",
            "n1c3h9w9_k2r3s3_p1_constant1e5_f16_nchw",
            "does not hold a border",
        ),
        ("conv2d", "torch_conv2d_tf32", "n1c3h9w9_k2r3s3_f64_nchw", "TF32 is about float32"),
        ("conv2d", "cupy_ndimage", "n1c3h9w9_k2r3s3_f32_nchw_+bias", "has no epilogue +bias"),
        ("conv2d", "cupy_ndimage", "n1c256h14w14_k256r3s3_p1_f32_nchw", "65536 calls are not in 1 to 4096"),
        ("conv2d", "cupy_ndimage", "n1c3h9w9_k2r3s3_f32-f32-f32-f64_nchw", "sums float32 in float32"),
        ("max_pool2d", "torch_max_pool2d", "max_n1c1h4w4_r2s2_u8_nchw", "no array of uint8 on a GPU"),
        ("relu", "torch_relu", "relu9_u16", "no array of uint16 on a GPU"),
    ],
)
def test_refusals_are_sentences(operation: str, name: str, text: str, reason: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    peer = peer_of(operation, name)
    assert reason in str(peer.refuses(asked(text, peer), FACTS))


@pytest.mark.parametrize("text", ["p1_constant0.5_f16", "p1_constant0.1_f32", "constant0.1_f16", "p1_f16"])
def test_a_border_that_is_held_is_taken(text: str, monkeypatch: Any) -> None:
    from convforge.peers.torch_cuda import _border_refusal

    peer = peer_of("conv2d", "torch_conv2d")
    assert _border_refusal(asked(f"n1c3h9w9_k2r3s3_{text}_nchw", peer)) is None


# cuBLAS: a row-major product of column-major calls.

PRODUCTS = [(2, 3, 4), (1, 7, 5), (6, 1, 3), (5, 4, 1), (1, 1, 1), (33, 17, 9)]


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("pitch", [0, 3])
@pytest.mark.parametrize("size", PRODUCTS, ids=str)
def test_the_row_major_rule(size: tuple[int, int, int], pitch: int, transpose_a: bool, transpose_b: bool) -> None:
    m, n, k = size
    problem = GemmProblem(m=m, n=n, k=k, transpose_a=transpose_a, transpose_b=transpose_b)
    rng = np.random.default_rng(1)

    def matrix(rows: int, columns: int) -> Any:
        return rng.integers(-5, 5, (rows, columns + pitch)).astype(np.float64)[:, :columns]

    a = matrix(k, m) if transpose_a else matrix(m, k)
    b = matrix(n, k) if transpose_b else matrix(k, n)
    c = matrix(m, n)
    call = column_major(problem, *(leading_dimension(x, "x") for x in (a, b, c)))
    flat = {"a": a.base.reshape(-1), "b": b.base.reshape(-1)}
    first, second, out = flat[call.first], flat[call.second], c.base.reshape(-1)
    at_a, at_b, at_c = column_major_gemm(
        call.op_first == "T", call.op_second == "T", call.m, call.n, call.k, first, call.ld_first, second,
        call.ld_second, call.ld_out,
    )  # fmt: skip
    beyond = c.base[:, n:].copy()
    out[at_c] = first[at_a] @ second[at_b]
    assert np.array_equal(c, (a.T if transpose_a else a) @ (b.T if transpose_b else b))
    assert np.array_equal(c.base[:, n:], beyond)


def test_matrices_that_cublas_cannot_be_told_of() -> None:
    whole = np.zeros((6, 8), np.float32)
    assert leading_dimension(whole[:, :5], "A") == 8
    assert leading_dimension(whole[:1, :5], "A") == 5
    assert leading_dimension(whole[:, :1], "A") == 8
    for wrong in (whole[:, ::2], whole[::-1], whole.T):
        with pytest.raises(ValueError, match="cuBLAS takes rows whose elements lie side by side; B of shape"):
            leading_dimension(wrong, "B")


@pytest.fixture
def cublas_said(monkeypatch: Any) -> Iterator[list[Any]]:
    said: list[Any] = []
    open_library(monkeypatch, "cublas", host_gpu.cublas(said))
    monkeypatch.setattr(cublas, "_make_current", lambda device: None)
    cublas._handle.cache_clear()
    yield said
    cublas._handle.cache_clear()


@pytest.mark.parametrize("name", ["cublas", "cublas_tf32"])
@pytest.mark.parametrize("text", ["m4n5k6_f32", "m33n40k21_ta_f32", "m33n40k21_tb_f32", "m7n1k9_ta_tb_f32",
                                  "m1n8k3_f64", "m17n12k30_ta_tb_f64", "m33n40k21_ta_f16",
                                  "m9n5k30_tb_bf16", "m9n12k32_i8", "m8n5k32_ta_tb_i8"])  # fmt: skip
def test_products_by_a_played_cublas(name: str, text: str, cublas_said: list[Any]) -> None:
    peer = peer_of("gemm", name)
    problem = asked(text, peer)
    if refusal(peer, problem, FACTS) is not None:
        assert problem.dtype != "float32"
        return
    wide_sums = 16 if problem.dtype in ("float16", "bfloat16") else 0
    for config in peer.configs(problem, FACTS):
        del cublas_said[:]
        checked(peer, problem, config)
        stream, workspace, math, product = cublas_said[:4]
        assert stream == ("stream", STREAM)
        assert workspace[0] == "workspace", "after the stream, which forgets it"
        assert workspace[2] == cublas.WORKSPACE_BYTES
        assert math == ("math", {"default": 0, "pedantic": 2, "tf32": 3}[config.math] | wide_sums)
        assert product == ("gemm", problem.dtype)


def test_cublas_says_its_version_and_its_status(cublas_said: list[Any], monkeypatch: Any) -> None:
    peer = peer_of("gemm", "cublas")
    assert peer.versions() == {"cublas": "13.1.0"}
    monkeypatch.setattr(cublas, "leading_dimension", lambda array, name: 1)
    with pytest.raises(RuntimeError, match="cublasSgemm_v2 says CUBLAS_STATUS_INVALID_VALUE"):
        checked(peer, parse_problem("m4n5k6_f32"))


# PyTorch.


@pytest.fixture
def played_torch(monkeypatch: Any) -> Any:
    """PyTorch on the host's memory: what is called is the same, but for the stream."""
    torch = pytest.importorskip("torch")

    @contextlib.contextmanager
    def running(runtime: Any, stream: Any, tf32: bool = False) -> Iterator[None]:
        assert runtime.stream_handle(stream) == STREAM
        with torch.inference_mode(), torch_cuda.flags(tf32):
            yield

    monkeypatch.setattr(torch_cuda, "_shared", lambda array: torch.from_numpy(array.described))
    monkeypatch.setattr(torch_cuda, "missing_cuda", lambda: None)
    monkeypatch.setattr(torch_cuda, "running", running)
    return torch


TORCH_PAIRS = [(peer, case.text) for peer in NEW if peer.name.startswith("torch") for case in CASES
               if parse_problem(case.text).operation == peer.operation]  # fmt: skip


@pytest.mark.peer
@pytest.mark.one_in(19)
@pytest.mark.parametrize(("peer", "text"), TORCH_PAIRS, ids=[f"{p.name}-{t}" for p, t in TORCH_PAIRS])
def test_cases_by_pytorch_on_the_hosts_memory(peer: Any, text: str, played_torch: Any) -> None:
    problem = asked(text, peer)
    reason = refusal(peer, problem, FACTS)
    if reason is not None:
        assert len(str(reason)) > 20
        return
    checked(peer, problem)
    runtime: Any = HostRuntime()
    inputs = make_inputs(problem)
    plan = peer.plan(problem, peer.configs(problem, FACTS)[0], runtime)
    prepared = plan.prepare(None if inputs.w is None else runtime.upload(inputs.w))
    own = runtime.download(
        plan(plan.buffers(plan.lay(runtime.upload(inputs.x)), prepared, upload_inputs(runtime, inputs).operands))
    )
    verdict = Judge(problem, inputs).verdict(peer.precision, own)
    assert verdict.ok, verdict.message


def test_flags_are_as_asked_and_then_as_they_were() -> None:
    torch = pytest.importorskip("torch")
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul

    def now() -> tuple[bool, bool, bool]:
        return (cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32)

    before = now()
    for tf32 in (True, False):
        with torch_cuda.flags(tf32):
            assert now() == (True, tf32, tf32)
        assert now() == before
        with pytest.raises(KeyError), torch_cuda.flags(tf32):
            raise KeyError
        assert now() == before


def test_a_tensor_as_an_array_of_ours_keeps_its_memory() -> None:
    torch = pytest.importorskip("torch")
    found = torch.arange(6, dtype=torch.float16).reshape(2, 3)
    array = torch_cuda.device_array(found)
    assert (array.shape, str(array.dtype), array.address) == ((2, 3), "float16", found.data_ptr())
    assert array.owner is found
    assert array.described.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_float16_is_computed_as_such_where_it_is_rounded_once() -> None:
    def of(text: str) -> str:
        return torch_cuda.compute_dtype(parse_problem(text))  # type: ignore[arg-type]

    assert of("n1c3h9w9_k2r3s3_f16_nchw") == of("n1c3h9w9_k2r3s3_f16_nchw_+relu") == "float16"
    assert of("n1c3h9w9_k2r3s3_f16_nchw_+bias") == of("n1c3h9w9_k2r3s3_f16_nchw_+gelu") == "float32"
    assert of("n1c3h9w9_k2r3s3_f16-f16-f32-f32_nchw") == "float32"
    assert of("n1c3h9w9_k2r3s3_u8-i8-i32-i32_nchw") == "float32"


# CuPy.


@pytest.fixture
def played_cupy(monkeypatch: Any) -> None:
    pytest.importorskip("scipy")
    for name, module in host_gpu.cupy().items():
        monkeypatch.setitem(sys.modules, name, module)
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "cupy" else real(name))


BORDERED = [f"n2c2h9w11_k3r{r}s{s}_st{stride}_p{pads}{'' if mode == 'zeros' else f'_{mode}'}_f32_{layout}"
            for mode in ("zeros", "constant2.5", "reflect", "symmetric", "replicate", "circular")
            for r, s, stride, pads, layout in ((3, 3, 1, "1", "nchw"), (4, 5, 2, "2x1x0x3", "nhwc"),
                                               (3, 2, 3, "6x5x4x7", "nchw"))]  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("text", [*CONVOLUTIONS, *BORDERED, "n1c6h12w11_k6r3s3_p1_g6_circular_f32_nhwc"])
def test_cases_by_cupy_played_by_numpy(text: str, played_cupy: None) -> None:
    peer, problem = peer_of("conv2d", "cupy_ndimage"), parse_problem(text)
    reason = refusal(peer, problem, FACTS)
    if reason is not None:
        assert len(str(reason)) > 20
        return
    if "float16" in (problem.x_dtype, problem.out_dtype):  # CuPy's filters take it, SciPy's do not
        return
    checked(peer, problem)


def test_every_border_has_cupys_name() -> None:
    # What SciPy calls them, which CuPy follows, but for the one whose name it has twice.
    scipy = {mode: names.partition(",")[0] for mode, (names, _) in PADDING_MODES.items()}
    assert scipy | {"circular": "grid-wrap"} == {mode: border.ndimage for mode, border in BORDERS.items()}


def test_arrays_that_run_backwards_are_refused_where_pytorch_would_be_handed_them() -> None:
    """PyTorch has no negative strides, also along axes of size 1; CuPy has."""
    from convforge.backends.cuda.arrays import DeviceArray
    from convforge.call.dispatch import execute
    from convforge.errors import UnsupportedProblem

    called = []
    problem = parse_problem("n1c1h4w4_k1r1s1_f32_nchw")
    x, w, out = (DeviceArray(np.zeros(shape, np.float32), None) for shape in ((1, 1, 4, 4), (1, 1, 1, 1), (1, 1, 4, 4)))

    class Plan:
        runtime = HostRuntime()

        def __init__(self, peer: Any) -> None:
            self.algorithm, self.problem = peer, problem

        def borrow(self, w: Any, stream: Any) -> Any:
            return w

        def buffers(self, *arrays: Any) -> Any:
            return arrays

        def __call__(self, buffers: Any, stream: Any) -> None:
            called.append(self.algorithm.name)

    for peer in (peer for peer in GPU_PEERS if peer.operation == "conv2d"):
        plan: Any = Plan(peer)
        execute(plan, x, w, {}, out, stream=object())
        for turned in ((x[:, :, ::-1], w, out), (x, w[::-1], out), (x, w, out[..., ::-1])):
            if peer.name.startswith("torch"):
                with pytest.raises(UnsupportedProblem, match=r"it reads strides of whole elements .* copy \w+ first"):
                    execute(plan, *turned[:2], {}, turned[2], stream=object())
            else:
                execute(plan, *turned[:2], {}, turned[2], stream=object())
    assert called.count("torch_conv2d") == 1
    assert called.count("cupy_ndimage") == 4
