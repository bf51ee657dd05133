"""convforge.torch: the operator beside PyTorch's own, its gradients, autocast, memory formats, compiler, threads."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import warnings
from typing import Any

import numpy as np
import pytest
from tests.integrations.networks import CONVOLUTIONS, NORMS, residual_network
from tests.kinds import module

import convforge
from convforge.call import libraries

torch = module("torch")
ops = convforge.torch
nn, F = torch.nn, torch.nn.functional

# Stride, padding, dilation, groups: of the output's gradient a convolution or not, with sides alike or not.
GEOMETRIES = [
    (1, 1, 1, 1),
    (1, (2, 0), (1, 2), 2),
    (2, 1, 1, 2),
    (1, ((1, 0), (2, 1)), 1, 2),
    (2, ((1, 0), (2, 1)), 1, 1),
    (1, 3, 1, 1),
]


def tensors(groups: int = 1, dtype: Any = None, **options: Any) -> tuple[Any, Any, Any]:
    make = torch.Generator().manual_seed(5)
    shapes = (2, 4, 6, 7), (6, 4 // groups, 3, 2), (6,)
    x, w, b = (torch.randn(s, generator=make, dtype=dtype or torch.float64) for s in shapes)
    return x, w, b


def reference(x: Any, w: Any, b: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    if isinstance(padding, tuple) and isinstance(padding[0], tuple):
        (top, bottom), (left, right) = padding
        return F.conv2d(F.pad(x, (left, right, top, bottom)), w, b, stride, 0, dilation, groups)
    return F.conv2d(x, w, b, stride, padding, dilation, groups)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("activation", [None, "relu", "relu6"])
def test_results_and_gradients_are_pytorchs(geometry: Any, activation: str | None) -> None:
    found, expected = [], []
    for results, call in ((found, ops.conv2d), (expected, reference)):
        given = [t.requires_grad_() for t in tensors(geometry[3])]
        y = call(*given, *geometry) if call is reference else call(*given, *geometry, activation=activation)
        y = getattr(F, activation)(y) if call is reference and activation else y
        (y * torch.arange(y.numel()).reshape(y.shape)).sum().backward()
        results += [y, *(t.grad for t in given)]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("geometry", GEOMETRIES[:4], ids=str)
def test_gradcheck(geometry: Any) -> None:
    """Of few numbers: each is moved, twice."""
    x, w, b = tensors(geometry[3])
    given = tuple(t.clone().requires_grad_() for t in (x[..., :4, :4], w[:4], b[:4]))
    for activation in (None, "relu", "relu6") if geometry is GEOMETRIES[0] else (None,):
        assert torch.autograd.gradcheck(lambda *t, a=activation: ops.conv2d(*t, *geometry, activation=a), given)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("x_dtype, w_dtype", [("int8", "float32"), ("uint8", "float64"), ("int16", "float16")])
def test_weights_of_integer_pictures_have_gradients(geometry: Any, x_dtype: str, w_dtype: str) -> None:
    x, w, b = tensors(geometry[3])
    x, w = (10 * x).abs().to(getattr(torch, x_dtype)), w.to(getattr(torch, w_dtype)).requires_grad_()
    b = b.to(torch.float64 if w_dtype == "float64" else torch.float32).requires_grad_()  # what is summed in
    y = ops.conv2d(x, w, b, *geometry, activation="relu", algorithm="direct_naive")  # compiles in a third of the time
    y.square().sum().backward()
    like = [t.detach().double().requires_grad_() for t in (w, b)]
    F.relu(reference(x.double(), *like, *geometry)).square().sum().backward()
    for ours, theirs in zip((w, b), like, strict=True):
        assert ours.grad.dtype == ours.dtype
        torch.testing.assert_close(ours.grad, theirs.grad.to(ours.dtype), rtol=2e-3 if w_dtype == "float16" else 1e-4,
                                   atol=1e-2)  # fmt: skip


def test_gradients_of_gradients() -> None:
    """Of few numbers: each is moved for each."""
    x, w, b = tensors()
    given = tuple(t.clone().requires_grad_() for t in (x[:, :2, :3, :3], w[:2, :2], b[:2]))
    assert torch.autograd.gradgradcheck(lambda *t: ops.conv2d(*t, 1, 1), given)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_opcheck(last: bool, with_bias: bool) -> None:
    x, w, b = tensors(dtype=torch.float32)
    x = x.to(memory_format=torch.channels_last) if last else x
    given = (x.requires_grad_(), w.requires_grad_(), b if with_bias else None)
    options = ([1, 2], [1, 0, 2, 1], [1, 1], 1, "relu6", False, "strict", "auto")
    done = torch.library.opcheck(torch.ops.convforge.conv2d, (*given, *options))
    assert set(done.values()) == {"SUCCESS"}


def test_the_input_gradient_is_our_own_where_the_stride_is_1(monkeypatch: pytest.MonkeyPatch) -> None:
    from convforge.integrations import torch_operator as room

    calls = []
    compute = room.compute
    monkeypatch.setattr(room, "compute", lambda *a, **k: calls.append(k["mode"]) or compute(*a, **k))
    for stride, expected in ((1, ["cross-correlation", "convolution"]), (2, ["cross-correlation"])):
        x, w, _ = tensors()
        ops.conv2d(x.requires_grad_(), w, None, stride, 1).sum().backward()
        assert calls == expected
        calls.clear()


@pytest.mark.parametrize("shape", [(2, 4, 6, 7), (1, 1, 6, 7), (2, 4, 1, 1)])
def test_the_memory_format_is_kept(shape: tuple[int, ...]) -> None:
    for form in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(shape).to(memory_format=form)
        y = ops.conv2d(x, torch.randn(6, shape[1], 1, 1))
        assert y.is_contiguous(memory_format=form)


def test_a_picture_without_a_batch_axis_and_words_for_padding() -> None:
    x, w, b = tensors()
    w = w[..., :1]
    for padding in ("same", "valid", 2):
        torch.testing.assert_close(ops.conv2d(x[0], w, b, 1, padding), F.conv2d(x[0], w, b, 1, padding))
    with pytest.raises(ValueError, match="padding='same' goes with stride 1"):
        ops.conv2d(x, w, b, 2, "same")
    with pytest.raises(ValueError, match="'full' is unknown"):
        ops.conv2d(x, w, b, 1, "full")
    with pytest.raises(ValueError, match="activation='gelu' must be None, 'relu' or 'relu6' here"):
        ops.conv2d(x, w, b, activation="gelu")
    with pytest.raises(ValueError, match="w has 3 channels"):
        ops.conv2d(x, w[:, :3])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: Any) -> None:
    x, w, b = (t.float().requires_grad_() for t in tensors())
    with torch.autocast("cpu", dtype):
        y = ops.conv2d(x, w, b, padding=1)
        expected = F.conv2d(x, w, b, padding=1)
    assert y.dtype == expected.dtype == dtype
    torch.testing.assert_close(y, expected, atol=0.1, rtol=0.02)
    y.sum().backward()
    assert x.grad.dtype == torch.float32
    assert y.is_contiguous()


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_the_layer_is_nn_conv2ds(mode: str) -> None:
    theirs = torch.nn.Conv2d(4, 6, (3, 2), padding=(1, 0), padding_mode=mode, groups=2).double()
    ours = ops.Conv2d(4, 6, (3, 2), padding=(1, 0), padding_mode=mode, groups=2).double()
    assert ours.load_state_dict(theirs.state_dict()).missing_keys == []
    x = tensors()[0]
    torch.testing.assert_close(ours(x), theirs(x))
    shared = ops.Conv2d.of(theirs)
    assert shared.weight is theirs.weight
    torch.testing.assert_close(shared(x), theirs(x))
    assert isinstance(ours, torch.nn.Conv2d)


@pytest.mark.parametrize("last", [False, True])
def test_the_compiler_sees_one_whole_graph(last: bool) -> None:
    torch._dynamo.reset()
    layer = ops.Conv2d(4, 6, 3, padding=1, activation="relu")
    compiled = torch.compile(lambda x: (layer(x) * 2).sum(dim=1), fullgraph=True, backend="aot_eager")
    for size in (6, 9):
        x = torch.randn(2, 4, size, 7).to(memory_format=torch.channels_last if last else torch.contiguous_format)
        given = [x.clone().requires_grad_() for _ in range(2)]
        y, expected = compiled(given[0]), (F.relu(F.conv2d(given[1], layer.weight, layer.bias, 1, 1)) * 2).sum(dim=1)
        torch.testing.assert_close(y, expected)
        y.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(given[0].grad, given[1].grad)


@pytest.fixture
def graphs() -> Any:
    """Graphs that PyTorch's compiler has been handed, and a backend that notes them."""
    torch._dynamo.reset()
    seen: list[Any] = []

    def note(graph: Any, inputs: Any) -> Any:
        seen.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    yield seen, note
    torch._dynamo.reset()


def calls_of(graph: Any) -> tuple[int, int]:
    """Numbers of convolutions by convforge and of normalisations in a graph."""
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    return sum("convforge" in name for name in names), sum("batch_norm" in name for name in names)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_replaced_network_is_one_graph(dtype: Any, last: bool, graphs: Any) -> None:
    seen, backend = graphs
    form = torch.channels_last if last else torch.contiguous_format
    model, right = (residual_network(torch).to(dtype=dtype, memory_format=form) for _ in range(2))
    report = ops.replace(model)
    assert [layer.by for layer in report.layers] == ["convforge"] * CONVOLUTIONS
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    x = torch.randn(2, 3, 24, 20, generator=torch.Generator().manual_seed(1)).to(dtype=dtype, memory_format=form)
    with torch.no_grad():
        y, expected = compiled(x), right.double()(x.double())
        torch.testing.assert_close(y, model(x), rtol=0, atol=1e-5 if dtype == torch.float32 else 0.02)
    assert y.dtype == dtype
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.03}[dtype] * expected.abs().max().item()
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=tolerance)
    assert [calls_of(graph) for graph in seen] == [(CONVOLUTIONS, 0)], "one graph, its normalisations folded in"
    assert model[0].__dict__["_fold"].holds(), "outside of the compiled model too"


def test_a_replaced_network_is_one_graph_in_training_too(graphs: Any) -> None:
    seen, backend = graphs
    model, right = residual_network(torch), residual_network(torch)
    ops.replace(model)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    x = torch.randn(2, 3, 24, 20, generator=torch.Generator().manual_seed(1))
    for call, one in ((compiled, model), (right, right)):
        one.train()
        call(x).square().sum().backward()
        one.eval()
    assert [calls_of(graph) for graph in seen] == [(CONVOLUTIONS, NORMS)], "nothing is folded in training"
    for mine, theirs in zip(model.parameters(), right.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(model.buffers(), right.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), right(x), rtol=1e-4, atol=1e-5)
    assert [calls_of(graph) for graph in seen[1:]] == [(CONVOLUTIONS, 0)]


def test_fake_tensors_know_the_result() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(2, 3, 9, 11).to(memory_format=torch.channels_last)
        w = torch.empty(4, 3, 3, 3)
        y = ops.conv2d(x, w, stride=2, padding=1)
        assert (y.shape, y.stride()) == ((2, 4, 5, 6), (120, 1, 24, 4))
        with pytest.raises(TypeError, match=r"fake tensor.*convforge\.torch\.conv2d"):
            convforge.conv2d(x, w)


def test_many_threads() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        make = torch.Generator().manual_seed(seed)
        for _ in range(10):
            x = torch.randn(2, 3, 8, 9, generator=make, dtype=torch.float64, requires_grad=True)
            w = torch.randn(4, 3, 3, 3, generator=make, dtype=torch.float64)
            ops.conv2d(x, w, padding=1).sum().backward()
            (expected,) = torch.autograd.grad(F.conv2d(x, w, padding=1).sum(), x)
            if not torch.allclose(x.grad, expected):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "code, loaded",
    [
        ("import convforge", False),
        ("import convforge.torch as ct; ct.conv2d, ct.replace", True),
        ("from convforge.torch import Conv2d; Conv2d(3, 4, 3)", True),
        ("from convforge import torch as ct; ct.Conv2d", True),
        ("import convforge; convforge.torch.Conv2d; import convforge.torch; convforge.torch.conv2d", True),
    ],
)
def test_it_is_imported_by_its_name_and_only_then(code: str, loaded: bool) -> None:
    ask = f"{code}\nimport sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(loaded)


ABSENT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


@pytest.mark.parametrize(
    "code", ["import convforge.torch", "import convforge; convforge.torch", "from convforge import torch"]
)
def test_without_pytorch_the_install_line_is_said(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", ABSENT + code], capture_output=True, text=True, check=False)
    says = "convforge.torch needs PyTorch, which is not installed. Install it with: python -m pip install torch"
    assert done.stderr.strip().splitlines()[-1] == f"ModuleNotFoundError: {says}"
    assert done.stderr.count("Traceback") == 1


def test_tune_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from convforge.integrations import torch_operator as room

    asked = []
    compute = room.compute
    monkeypatch.setattr(room, "compute", lambda *a, **k: asked.append(k["tune"]) or compute(*a, **k))
    x, w, _ = tensors()
    ops.conv2d(x, w, tune=False)
    ops.conv2d(x.requires_grad_(), w, tune=False).sum().backward()
    ops.Conv2d(4, 6, 3, tune=False).double()(x.detach())
    assert asked == [False] * 4
    with pytest.raises(TypeError, match="tune='yes'"):
        ops.conv2d(x.detach(), w, tune="yes")


# Who is to hear of the operator does: each is lost where the function behind it is called in its place.
def test_the_operator_is_seen_by_all_that_look_on() -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(call))
            return call(*args, **(kwargs or {}))

    class Function(TorchFunctionMode):
        def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(call))
            return call(*args, **(kwargs or {}))

    x, w, _ = tensors()
    for mode in (Dispatch, Function):
        with mode():
            ops.conv2d(x, w)
        assert any("convforge" in name for name in seen), mode
        seen.clear()
    with warnings.catch_warnings(action="ignore"):  # of newer PyTorch: tracing is deprecated
        traced = torch.jit.trace(lambda x: ops.conv2d(x, w), x)
    assert "convforge::conv2d" in str(traced.graph)
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda x: ops.conv2d(x, w))(x).graph
    assert any("convforge" in str(node.target) for node in graph.nodes)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # PyTorch's own, of jvp
def test_forward_mode() -> None:
    from torch.autograd import forward_ad

    x, w, _ = tensors()
    with forward_ad.dual_level():
        assert forward_ad.unpack_dual(ops.conv2d(x, w)).tangent is None
        found = forward_ad.unpack_dual(ops.conv2d(forward_ad.make_dual(x, x + 1), w, padding=1, activation="relu6"))
        expected = forward_ad.unpack_dual(F.relu6(F.conv2d(forward_ad.make_dual(x, x + 1), w, padding=1)))
    torch.testing.assert_close(found.primal, expected.primal)
    torch.testing.assert_close(found.tangent, expected.tangent)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "options, error, says",
    [
        ({"algorithm": "nonsense"}, ValueError, "conv2d has no algorithm 'nonsense' on cpu. It has: direct_naive"),
        ({"algorithm": "direct_row"}, ValueError, "did you mean 'direct_rows'"),
        ({"algorithm": 5}, TypeError, "algorithm=5 must be a string"),
        ({"precision": "nonsense"}, ValueError, "precision='nonsense' is unknown; choose one of strict"),
        ({"tune": "yes"}, TypeError, "tune='yes' must be True, False or None"),
    ],
)
def test_unknown_methods_are_refused_in_every_type(dtype: Any, options: Any, error: Any, says: str) -> None:
    x, w, _ = tensors(dtype=dtype)
    with pytest.raises(error, match=says):
        ops.conv2d(x, w, **options)


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [-1, (1, -1)])
def test_negative_padding_is_what_nn_conv2d_makes_of_it(mode: str, padding: Any) -> None:
    """It crops under the modes that are PyTorch's pad, and is refused with zeros."""
    x, _, _ = tensors(dtype=torch.float32)
    theirs = torch.nn.Conv2d(4, 6, (3, 2), padding=padding, padding_mode=mode, bias=False)
    ours = ops.Conv2d.of(theirs)
    if mode == "zeros":
        for layer, error in ((theirs, RuntimeError), (ours, ValueError)):
            with pytest.raises(error, match=r"padding.* (not supported|must not be negative)"):
                layer(x)
        return
    torch.testing.assert_close(ours(x), theirs(x))


def test_numpys_numbers_and_unknown_borders() -> None:
    x, w = torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3)
    found = convforge.torch.conv2d(x, w, None, np.int64(2), (np.int32(1), 1))
    torch.testing.assert_close(found, torch.nn.functional.conv2d(x, w, None, 2, 1))
    for mode in ("symmetric", "foo"):
        for padding in (0, 1):
            with pytest.raises(ValueError, match=f"padding_mode='{mode}' must be one of zeros, reflect, replicate"):
                convforge.torch.conv2d(x, w, padding=padding, padding_mode=mode)


def test_autocast_leaves_doubles_and_meta_tensors_alone() -> None:
    x, w = torch.ones(1, 2, 5, 5, dtype=torch.float64), torch.ones(3, 2, 3, 3, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        assert convforge.torch.conv2d(x, w).dtype == torch.float64
    assert convforge.torch.conv2d(x.to("meta"), w.to("meta")).shape == (1, 3, 3, 3)


@pytest.mark.parametrize("options", [{}, {"groups": 2}, {"padding": "same"}, {"activation": "relu"}], ids=str)
def test_pictures_without_channels_are_pytorchs(options: dict[str, Any]) -> None:
    groups = options.get("groups", 1)
    for shape in ((2, 0, 5, 6), (0, 5, 6), (0, 0, 5, 6)):
        for bias in (None, torch.arange(4.0) - 1):
            x, w = torch.ones(shape, requires_grad=True), torch.ones(4, 0, 3, 3)
            found = ops.conv2d(x, w, bias, **options)
            plain = {name: value for name, value in options.items() if name != "activation"}
            expected = F.conv2d(x, w, bias, **plain)
            expected = F.relu(expected) if "activation" in options else expected
            torch.testing.assert_close(found, expected)
            found.sum().backward()
            assert x.grad.shape == shape
    assert ops.conv2d(torch.ones(2, 0, 5, 6), torch.ones(4, 0, 3, 3), None, 1, ((1, 0), (2, 1)), 1, groups).shape[
        2:
    ] == (4, 7)
    with pytest.raises(RuntimeError, match="expected input"):
        ops.conv2d(torch.ones(2, 0, 5, 6), torch.ones(4, 2, 3, 3))


@pytest.mark.parametrize(("height", "padding"), [(5, 1), (0, 2)])
@pytest.mark.parametrize("stride", [1, 2])
def test_an_empty_batch_is_pytorchs(stride: int, height: int, padding: int) -> None:
    x, w, b = torch.ones(0, 4, height, 6, requires_grad=True), torch.ones(6, 4, 3, 3, requires_grad=True), torch.ones(6)
    found = ops.conv2d(x, w, b, stride, padding)
    torch.testing.assert_close(found, F.conv2d(x, w, b, stride, padding))
    found.sum().backward()
    assert (x.grad.shape, int(w.grad.abs().sum())) == (x.shape, 0)


def test_without_gradients_the_result_is_the_same() -> None:
    x, w, b = tensors()
    layer = torch.nn.Parameter(w)
    with torch.no_grad():
        for form in (torch.contiguous_format, torch.channels_last):
            given = x.to(memory_format=form)
            y, through = ops.conv2d(given, layer, b, 1, 1), torch.ops.convforge.conv2d(
                given, layer, b, [1, 1], [1, 1, 1, 1], [1, 1], 1, "", False, "strict", "auto"
            )  # fmt: skip
            assert (y.stride(), y.requires_grad) == (through.stride(), False)
            torch.testing.assert_close(y, through, rtol=0, atol=0)
    assert ops.conv2d(x, layer).requires_grad


def test_convforge_has_no_other_attributes_by_chance() -> None:
    with pytest.raises(AttributeError, match="'convforge' has no attribute 'tensorflow'"):
        _ = convforge.tensorflow


def placed(shape: tuple[int, ...], remainder: int = 0) -> Any:
    """A tensor that begins so many bytes behind a multiple of 256."""
    wide = torch.randn(math.prod(shape) + 128)
    start = (remainder - wide.data_ptr()) % 256 // 4
    return wide[start : start + math.prod(shape)].view(shape)


def test_arrays_alike_are_those_of_one_signature() -> None:
    """What compares a call's tensors with the last ones tells apart all that a signature does."""
    library = libraries.library_of(torch.zeros(1), "x")
    x, w, same = placed((1, 8, 16, 16)), placed((8, 8, 3, 3)), placed((1, 8, 16, 16))
    lent = nn.Parameter(w)
    guard = library.guard((x, w))
    assert guard is not None
    assert guard(same, w) == [same.data_ptr(), w.data_ptr()]
    others = {
        "another type": x.double(), "another shape": x[:, :, :8], "fewer axes": x[0], "other strides": x.mT,
        "its own order": x.to(memory_format=torch.channels_last), "negated": torch._neg_view(x), "meta": x.to("meta"),
        "a sub-class": x.as_subclass(type("Named", (torch.Tensor,), {})), "sparse": x.to_sparse(), "NumPy": x.numpy(),
        "aligned otherwise": placed((1, 8, 16, 16), 64), "nothing": None, "someone's weights": nn.Parameter(x),
        "with a gradient": x.view_as(x).requires_grad_(),
    }  # fmt: skip
    for name, other in others.items():
        assert guard(other, w) is None, name
    with torch.no_grad():
        learned = library.guard((x, lent))
        assert learned(same, lent) == [same.data_ptr(), w.data_ptr()]
    assert learned(same, lent) is None, "a gradient is wanted"
    seen: list[Any] = []
    torch.func.vmap(lambda one: seen.append(guard(one.expand(x.shape), w)) or one)(x[0])
    torch.func.grad(lambda one: seen.append(guard(one, w)) or one.sum())(x)
    assert seen == [None, None]
    same.untyped_storage().resize_(0)
    assert guard(same, w) is None, "it has no memory"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_bias_of_16_bits_is_cast_once_for_a_stream(dtype: Any) -> None:
    from convforge.integrations.torch_functional import in_float32

    bias = nn.Parameter(torch.tensor([1.5, -2.0], dtype=dtype))
    assert in_float32(bias, 1) is bias, "what it is cast to has to have its gradient"
    with torch.no_grad():
        first = in_float32(bias, 1)
        assert (first.dtype, first.tolist()) == (torch.float32, [1.5, -2.0])
        assert in_float32(bias, 1) is first
        assert in_float32(bias, 2) is not first, "another stream does not wait for this one's cast"
        bias.mul_(2)
        assert in_float32(bias, 1).tolist() == in_float32(bias, 2).tolist() == [3, -4]
        bias.data = torch.zeros(2, dtype=dtype)
        assert in_float32(bias, 1).tolist() == [0, 0]
    with torch.inference_mode():
        unversioned = torch.ones(2, dtype=dtype)
        assert in_float32(unversioned, 1) is unversioned


@pytest.mark.thorough
def test_a_fold_of_16_bits_has_gradients() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval().half()
    x = torch.randn(1, 3, 6, 6).half()
    model(x).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    ops.replace(model)
    model(x).sum().backward()
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        assert parameter.grad.dtype == torch.float16
        torch.testing.assert_close(parameter.grad, grad, rtol=0.02, atol=0.02)
