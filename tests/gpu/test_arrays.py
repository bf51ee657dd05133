"""Arrays of PyTorch, CuPy and JAX on a GPU: no copy, no wait, the caller's stream and memory; captured; by threads."""

from __future__ import annotations

import importlib.util
import threading
from typing import Any

import numpy as np
import pytest
from tests.api.definition import convolved, whole
from tests.gpu.present import gpu_count, need_gpu
from tests.integrations.networks import CONVOLUTIONS, residual_network

import convforge
from convforge import api

need_gpu()

X, W, B = whole(2, 6, 32, 36), whole(8, 6, 3, 3), whole(8)
EXPECTED = convolved(X, W, pads=(1, 1, 1, 1)) + B[:, None, None]
# Methods of one launch and of several, with weights read, packed, factored, transformed, and in constant memory.
METHODS = ["auto", "direct_naive", "direct_constant", "direct_shared", "direct_tiled", "direct_boxes", "im2col",
           "implicit_gemm", "separable"]  # fmt: skip
# So many products of such matrices keep a stream busy for milliseconds.
BUSY, TIMES = 4096, 20


@pytest.fixture
def torch() -> Any:
    """PyTorch with a GPU; its absence is the one reason to skip."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    import torch

    if not torch.cuda.is_available():
        pytest.skip("this PyTorch uses no GPU")
    torch.cuda.set_device(0)  # tests of runtimes leave another
    return torch


@pytest.fixture
def cupy() -> Any:
    """CuPy; its absence is the one reason to skip."""
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("cupy is not installed")
    import cupy

    return cupy


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch) -> Any:
    """JAX with a GPU; its absence is the one reason to skip."""
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else it takes most of the memory of every GPU
    import jax

    if jax.default_backend() != "gpu":
        pytest.skip("this JAX uses no GPU")
    return jax


def there(torch: Any, *arrays: Any) -> list[Any]:
    return [torch.from_numpy(array).cuda() for array in arrays]


@pytest.mark.parametrize("method", METHODS)
def test_tensors(torch: Any, method: str) -> None:
    """The second and third call are made again from the first; other weights are seen."""
    for sign in (1, -1, 1):
        x, w, b = there(torch, X, sign * W, sign * B)
        y = convforge.conv2d(x, w, b, padding=1, algorithm=method)
        assert y.device == x.device
        np.testing.assert_allclose(y.cpu().numpy(), sign * EXPECTED, atol=1e-2 if method == "separable" else 0)


@pytest.mark.parametrize(
    "view",
    [lambda t: t.mT, lambda t: t[:, :, ::2, 1:], lambda t: t[:, :, 1:, 1:], lambda t: t[:1].expand(3, -1, -1, -1)],
)
@pytest.mark.parametrize("method", METHODS[:-1])
def test_strides(torch: Any, view: Any, method: str) -> None:
    x, w = there(torch, X, W)
    x, w = view(x), w.transpose(2, 3)
    if method == "direct_boxes" and x.shape[3] % 4:
        with pytest.raises(convforge.UnsupportedProblem, match="multiples of 16"):
            convforge.conv2d(x, w, algorithm=method)
        return
    y = convforge.conv2d(x, w, algorithm=method)
    np.testing.assert_array_equal(y.cpu().numpy(), convolved(x.cpu().numpy(), w.cpu().numpy()))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_element_types(torch: Any, dtype: str) -> None:
    """Small whole numbers: float16 and bfloat16 round the sums alone."""
    x, w, b = (t.to(getattr(torch, dtype)) for t in there(torch, X, W, B))
    y = convforge.conv2d(x, w, b, padding=1)
    assert y.dtype == x.dtype
    expected = torch.from_numpy(EXPECTED).to(y.dtype)
    torch.testing.assert_close(y.cpu(), expected, rtol=0, atol=0)


def test_out_and_the_other_operations(torch: Any) -> None:
    x, w = there(torch, X, W[:6])
    expected = convolved(X, W[:6], pads=(1, 1, 1, 1))
    out = torch.empty(2, 6, 36, 32, device="cuda").transpose(2, 3)
    assert convforge.conv2d(x, w, padding=1, out=out) is out
    np.testing.assert_array_equal(out.cpu().numpy(), expected)
    copy = x.clone()
    assert convforge.conv2d(copy, w, padding=1, out=copy) is copy, "it overlaps x"
    np.testing.assert_array_equal(copy.cpu().numpy(), expected)
    pooled = convforge.max_pool2d(x, 2)
    np.testing.assert_array_equal(pooled.cpu().numpy(), X.reshape(2, 6, 16, 2, 18, 2).max((3, 5)))
    for view in (x, x.permute(0, 2, 3, 1), x[:, :, ::2]):
        torch.testing.assert_close(convforge.relu(view), view.relu(), rtol=0, atol=0)
    torch.testing.assert_close(convforge.gemm(x[0, 0], x[0, 1].T), x[0, 0] @ x[0, 1].T, rtol=0, atol=0)
    picture = x[0].permute(1, 2, 0)
    np.testing.assert_array_equal(convforge.filter(picture, "laplacian").cpu().numpy(),
                                  convforge.filter(picture.cpu().numpy(), "laplacian"))  # fmt: skip


def test_mixed_kinds_and_devices(torch: Any) -> None:
    x, w = there(torch, X, W)
    with pytest.raises(ValueError, match="x is a PyTorch tensor on cuda:0 and w is a NumPy array on cpu"):
        convforge.conv2d(x, W)
    with pytest.raises(ValueError, match="x is a PyTorch tensor on cuda:0 and w is a PyTorch tensor on cpu"):
        convforge.conv2d(x, w.cpu())
    with pytest.raises(ValueError, match="device='cpu', but the arrays are on cuda:0"):
        convforge.conv2d(x, w, device="cpu")


def late(torch: Any, *arrays: Any) -> list[Any]:
    """Tensors that hold NaN until the current stream, which is busy first, gets to filling them."""
    sources = there(torch, *arrays)
    tensors = [torch.full_like(source, float("nan")) for source in sources]
    load = torch.ones(BUSY, BUSY, device="cuda")
    torch.cuda.synchronize()
    for _ in range(TIMES):
        load = load @ load * 0
    for tensor, source in zip(tensors, sources, strict=True):
        tensor.copy_(source)
    return tensors


@pytest.mark.parametrize("method", METHODS)
def test_work_is_on_the_current_stream_and_nothing_waits(torch: Any, method: str) -> None:
    """Inputs arrive late on the current stream; when the call returns, that stream is still busy."""
    stream = torch.cuda.Stream()
    warm = there(torch, X, W, B)
    with torch.cuda.stream(stream):
        for _ in range(2):
            convforge.conv2d(*warm, padding=1, algorithm=method)
        x, w, b = late(torch, X, W, B)
        y = convforge.conv2d(x, w, b, padding=1, algorithm=method)
        assert not stream.query(), "the call waited for the GPU"
    stream.synchronize()
    np.testing.assert_allclose(y.cpu().numpy(), EXPECTED, atol=1e-2 if method == "separable" else 0)


@pytest.mark.parametrize("method", METHODS)
def test_calls_are_captured(torch: Any, method: str) -> None:
    """A graph replays the call on what x and w then hold, whatever was computed and freed meanwhile."""
    x, w, b = there(torch, X, W, B)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            convforge.conv2d(x, w, b, padding=1, algorithm=method)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = convforge.conv2d(x, w, b, padding=1, algorithm=method)
    for sign in (-1, 1):
        x.copy_(torch.from_numpy(sign * X))
        b.copy_(torch.from_numpy(sign * B))
        convforge.conv2d(x, w * 3, b, padding=1, algorithm=method)
        y.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        np.testing.assert_allclose(y.cpu().numpy(), sign * EXPECTED, atol=1e-2 if method == "separable" else 0)


@pytest.mark.parametrize("method", ["auto", "direct_constant", "im2col"])
def test_many_threads_on_streams_of_their_own(torch: Any, method: str) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            x, w, b = there(torch, X, W, B)
            for turn in range(20):
                y = convforge.conv2d(x, w * (seed + turn), b, padding=1, algorithm=method)
                expected = (EXPECTED - B[:, None, None]) * (seed + turn) + B[:, None, None]
                if not np.array_equal(y.cpu().numpy(), expected):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(gpu_count() < 2, reason=f"needs two GPUs; the driver sees {gpu_count()}")
def test_the_gpu_of_the_arrays_is_used_and_the_threads_own_kept(torch: Any) -> None:
    torch.cuda.set_device(0)
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        y = convforge.conv2d(*(torch.from_numpy(a).to(device) for a in (X, W, B)), padding=1)
        assert str(y.device) == device
        np.testing.assert_array_equal(y.cpu().numpy(), EXPECTED)
        np.testing.assert_array_equal(convforge.conv2d(X, W, B, padding=1, device=device), EXPECTED)
        np.testing.assert_array_equal(convforge.Filter(W, B, padding=1, device=device)(X), EXPECTED)
        assert torch.cuda.current_device() == 0


def test_calls_are_made_again(torch: Any) -> None:
    api._CALLS.clear()
    x, w = there(torch, X, W)
    for _ in range(3):
        convforge.conv2d(x, w)
    assert len(api._CALLS) == 1


# The operator.


@pytest.mark.parametrize("last", [False, True])
def test_the_operator(torch: Any, last: bool) -> None:
    form = torch.channels_last if last else torch.contiguous_format
    x, w, b = there(torch, X, W, B)
    x = x.to(memory_format=form)
    y = convforge.torch.conv2d(x, w, b, padding=1)
    assert y.is_contiguous(memory_format=form)
    np.testing.assert_array_equal(y.cpu().numpy(), EXPECTED)
    given = (x.requires_grad_(), w.requires_grad_(), b, [1, 1], [1, 1, 1, 1], [1, 1], 1, "", False, "strict", "auto")
    assert set(torch.library.opcheck(torch.ops.convforge.conv2d, given).values()) == {"SUCCESS"}


def test_the_operator_is_called_again(torch: Any) -> None:
    from convforge.integrations import torch_operator as room

    room.CALLS.clear()
    x, w, b = there(torch, X, W, B)
    last = x.to(memory_format=torch.channels_last)
    for _ in range(3):  # the whole way, kept, again: on other numbers each time
        for given, form in ((x, torch.contiguous_format), (last, torch.channels_last)):
            y = convforge.torch.conv2d(given, w, b, padding=1)
            assert y.is_contiguous(memory_format=form)
            np.testing.assert_array_equal(y.cpu().numpy(), EXPECTED)
        np.testing.assert_array_equal(convforge.torch.conv2d(x[0], w, b, padding=1).cpu().numpy(), EXPECTED[0])
    assert len(room.CALLS) == 3
    changed = convforge.torch.conv2d(2 * x, w, None, padding=1)
    for _ in range(2):
        assert torch.equal(convforge.torch.conv2d(2 * x, w, None, [1], (1, 1)), changed)
    with torch.autocast("cuda", torch.float16):
        assert convforge.torch.conv2d(x, w, b, padding=1).dtype == torch.float16
    y = convforge.torch.conv2d(x, w.requires_grad_(), b, padding=1)
    assert y.requires_grad
    y.sum().backward()
    with pytest.raises(TypeError, match="stride"):
        convforge.torch.conv2d(x, w.detach(), b, 1.0, 1)
    with pytest.raises(ValueError, match="activation='tanh'"):
        convforge.torch.conv2d(x, w.detach(), b, 1, 1, activation="tanh")


def test_gradcheck(torch: Any) -> None:
    make = torch.Generator("cuda").manual_seed(3)
    x, w, b = (torch.randn(s, generator=make, device="cuda", dtype=torch.float64, requires_grad=True)
               for s in ((2, 4, 6, 7), (6, 2, 3, 2), (6,)))  # fmt: skip
    for stride, padding in ((1, 1), (2, 1), (1, ((1, 0), (2, 1)))):
        call = lambda *t, s=stride, p=padding: convforge.torch.conv2d(*t, s, p, 1, 2)  # noqa: E731
        assert torch.autograd.gradcheck(call, (x, w, b))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_calls_with_a_bias_of_16_bits_are_made_again(torch: Any, dtype: str) -> None:
    """Whole numbers are exact in both types. What a graph captures reads the bias when it runs."""
    from convforge.integrations import torch_operator as room

    x, w, b = (tensor.to(getattr(torch, dtype)) for tensor in there(torch, X, W, B))
    room.CALLS.clear()
    with torch.no_grad():
        for step in range(3):
            y = convforge.torch.conv2d(x, w, b, padding=1)
            torch.testing.assert_close(y.cpu(), torch.from_numpy(EXPECTED + step).to(y.dtype), rtol=0, atol=0)
            b.add_(1)
        assert len(room.CALLS) == 1
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = convforge.torch.conv2d(x, w, b, padding=1)
        for step in range(3, 5):
            graph.replay()
            torch.testing.assert_close(y.cpu(), torch.from_numpy(EXPECTED + step).to(y.dtype), rtol=0, atol=0)
            b.add_(1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_autocast(torch: Any, dtype: str) -> None:
    x, w, b = there(torch, X, W, B)
    with torch.autocast("cuda", getattr(torch, dtype)):
        y = convforge.torch.conv2d(x, w.requires_grad_(), b, padding=1)
    assert y.dtype == getattr(torch, dtype)
    torch.testing.assert_close(y.cpu(), torch.from_numpy(EXPECTED).to(y.dtype), rtol=0, atol=0)
    y.sum().backward()
    assert w.grad.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # PyTorch's own, of its own
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # as PyTorch begins: one it makes on purpose
def test_the_compiler_and_its_graphs(torch: Any) -> None:
    layer = convforge.torch.Conv2d(6, 8, 3, padding=1, activation="relu").cuda()
    compiled = torch.compile(lambda x: layer(x) * 2, fullgraph=True, mode="reduce-overhead")
    (x,) = there(torch, X)
    with torch.no_grad():
        for _ in range(4):
            x.add_(1)
            torch.testing.assert_close(compiled(x), layer(x) * 2)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")  # PyTorch's advice
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_replaced_network_is_compiled_as_one_graph(torch: Any, dtype: str, last: bool) -> None:
    """By the default backend: channels enough for tensor cores, so that layers differ in their methods."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    form = torch.channels_last if last else torch.contiguous_format
    options = {"dtype": getattr(torch, dtype), "device": "cuda", "memory_format": form}
    model, right = (residual_network(torch, 32).to(**options) for _ in range(2))
    report = convforge.torch.replace(model)
    assert [layer.by for layer in report.layers] == ["convforge"] * CONVOLUTIONS
    x = torch.randn(4, 3, 48, 40, generator=torch.Generator().manual_seed(1)).to(**options)
    compiled = torch.compile(model, fullgraph=True)
    with torch.no_grad():
        expected = right.cpu().double()(x.cpu().double())
        model(x)  # chooses the methods
        eager, found = model(x), compiled(x)
        again = compiled(x)
    assert (found.dtype, found.device) == (x.dtype, x.device)
    tolerance = {"float32": 1e-4, "float16": 0.01, "bfloat16": 0.06}[dtype] * expected.abs().max().item()
    for result in (eager, found, again):
        torch.testing.assert_close(result.cpu().double(), expected, rtol=0, atol=tolerance)
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 1
    assert model[0].__dict__["_fold"].holds(), "the compiler leaves what is folded"
    torch._dynamo.reset()


def test_a_network_that_is_timed_in_cuda_graphs(torch: Any) -> None:
    """Whatever is kept, the model computes what it did, before and after it is undone, and in a graph of its own."""
    model = residual_network(torch, 32).to(device="cuda", dtype=torch.float16, memory_format=torch.channels_last)
    x = torch.randn(8, 3, 64, 64).to(device="cuda", dtype=torch.float16, memory_format=torch.channels_last)
    with torch.no_grad():
        expected = model(x)
        report = convforge.torch.replace(model, x, cuda_graph=True, progress=False)
        assert "Times are of replays of CUDA graphs." in report.notes
        assert all(layer.ours_s and layer.torch_s for layer in report.layers), str(report)
        close = {"rtol": 0, "atol": 0.01 * expected.abs().max().item()}
        torch.testing.assert_close(model(x), expected, **close)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = model(x)
        graph.replay()
        torch.testing.assert_close(found, expected, **close)
        report.undo()
        torch.testing.assert_close(model(x), expected, **close)


# CuPy and JAX.


@pytest.mark.parametrize("method", METHODS)
def test_cupy(cupy: Any, method: str) -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for sign in (1, -1, 1):
            x, w, b = (cupy.asarray(array) for array in (X, sign * W, sign * B))
            y = convforge.conv2d(x[:, :, ::-1, ::-1], w[:, :, ::-1, ::-1], b, padding=1, algorithm=method)
            assert isinstance(y, cupy.ndarray)
            found = cupy.asnumpy(y[:, :, ::-1, ::-1], stream=stream)
            np.testing.assert_allclose(found, sign * EXPECTED, atol=1e-2 if method == "separable" else 0)


def test_cupys_other_operations(cupy: Any) -> None:
    x = cupy.asarray(X)
    np.testing.assert_array_equal(cupy.asnumpy(convforge.relu(x[:, :, ::2])), np.maximum(X[:, :, ::2], 0))
    np.testing.assert_array_equal(cupy.asnumpy(convforge.gemm(x[0, 0], x[0, 1].T)), X[0, 0] @ X[0, 1].T)
    with pytest.raises(TypeError, match="x has dtype complex64"):
        convforge.conv2d(x.astype("complex64"), x)


@pytest.mark.parametrize("method", METHODS)
def test_jax(jax: Any, method: str) -> None:
    """Computed lazily on both sides: x comes out of JAX's stream, and the result goes into it, with no wait between."""
    twice = jax.jit(lambda a: a * 2)
    for sign in (1, -1):
        x, w, b = (jax.numpy.asarray(array) for array in (X, sign * W, sign * B))
        y = convforge.conv2d(twice(x), w, b * 2, padding=1, algorithm=method)
        assert isinstance(y, jax.Array)
        assert y.devices() == x.devices()
        found = np.asarray(twice(y))
        np.testing.assert_allclose(found, 4 * sign * EXPECTED, atol=1e-1 if method == "separable" else 0)


def test_jaxs_bfloat16_and_tracers(jax: Any) -> None:
    x, w = (jax.numpy.asarray(array).astype("bfloat16") for array in (X, W))
    y = convforge.conv2d(x, w, padding=1)
    assert y.dtype == x.dtype
    expected = (EXPECTED - B[:, None, None]).astype(y.dtype)
    np.testing.assert_array_equal(np.asarray(y).astype(np.float32), expected.astype(np.float32))
    with pytest.raises(TypeError, match="x is traced by JAX"):
        jax.jit(lambda a: convforge.conv2d(a, w))(x)
