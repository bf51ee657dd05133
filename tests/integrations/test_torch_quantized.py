"""convforge.torch.QuantConv2d and quantize: exact beside ONNX's reference and whole numbers; states, graphs, models."""

from __future__ import annotations

import copy
import pickle
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integrations.networks import residual_network
from tests.kinds import module

import convforge

torch = module("torch")
ops = convforge.torch
nn, F = torch.nn, torch.nn.functional

NAIVE: Any = {"algorithm": "direct_naive"}  # compiles in a third of the time


def layer_of(output: Any, x: Any = (0.02, 7), seed: int = 3, **options: Any) -> Any:
    """A layer whose weights, scales and bias are random."""
    make = torch.Generator().manual_seed(seed)
    words = {"stride": 2, "padding": 1, "groups": 2, "w_scale": torch.rand(6, generator=make) * 0.01 + 0.001, **options}
    layer = ops.QuantConv2d(4, 6, 3, x=x, output=output, **NAIVE, **words)
    layer.weight.random_(-127, 128, generator=make)
    layer.bias.random_(-5000, 5000, generator=make)
    return layer


def image(*shape: int, dtype: Any = torch.uint8, seed: int = 1) -> Any:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return torch.randint(low, high + 1, shape or (2, 4, 9, 8), generator=torch.Generator().manual_seed(seed)).to(dtype)


X = image()


def by_definition(layer: Any, x: Any) -> Any:
    """The result in exact numbers: float64 is exact for whole numbers, and Python's fractions for the scales."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    rows, columns = layer.padding
    whole = F.pad(x.double() - layer.input_zero_point, (columns, columns, rows, rows), mode=mode)
    given = layer.weight.double(), layer.bias.double()
    sums = F.conv2d(whole, *given, layer.stride, 0, layer.dilation, layer.groups)
    scales = np.float32(layer.input_scale) * layer.weight_scale.numpy()
    if layer.output_scale is None:
        return sums.to(torch.int32) if not layer.output_dtype else None
    scales, zero = scales / np.float32(layer.output_scale), int(layer.output_zero_point)
    kind = getattr(torch, layer.output_dtype or str(x.dtype).removeprefix("torch."))
    found = torch.empty(sums.shape, dtype=kind)
    for at, value in np.ndenumerate(sums.numpy()):
        exact = round(Fraction(float(scales[at[1]])) * int(value) + zero)
        found[at] = min(max(exact, torch.iinfo(kind).min), torch.iinfo(kind).max)
    return found


# ---- QuantizeLinear and DequantizeLinear


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_quantize_linear_is_onnxs(dtype: str) -> None:
    reference, helper = pytest.importorskip("onnx.reference"), pytest.importorskip("onnx.helper")
    make = torch.Generator().manual_seed(0)
    ties = torch.arange(-300, 300) / 2 * 0.25
    x = torch.cat([ties, 30 * torch.randn(20_000, generator=make), torch.tensor([torch.inf, -torch.inf, 1e30])])
    for scale, zero in ((0.25, 3), (0.1, 100), (1 / 3, 0)):
        there = np.float32(scale), np.array(zero, dtype)
        expected = reference.ReferenceEvaluator(helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])).run(
            None, {"x": x[:-3].numpy(), "s": there[0], "z": there[1]}
        )[0]
        q = ops.quantize_linear(x, scale, zero, dtype)
        assert q[:-3].numpy().dtype == expected.dtype
        np.testing.assert_array_equal(q[:-3].numpy(), expected)
        assert q[-3:].tolist() == [torch.iinfo(q.dtype).max, torch.iinfo(q.dtype).min, torch.iinfo(q.dtype).max]
        back = reference.ReferenceEvaluator(helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"])).run(
            None, {"x": expected, "s": there[0], "z": there[1]}
        )[0]
        np.testing.assert_array_equal(ops.dequantize_linear(q[:-3], scale, zero).numpy(), back)
        module = ops.QuantizeLinear(scale, zero, dtype)
        assert torch.equal(module(x), q)
        assert torch.equal(ops.DequantizeLinear(scale, zero)(q), ops.dequantize_linear(q, scale, zero))
    compiled = torch.compile(lambda x: module(x), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), q)
    torch._dynamo.reset()


def test_quantize_linear_keeps_memory_formats_and_names_mistakes() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    q = ops.quantize_linear(x, torch.full((3, 1, 1), 0.5), 1, torch.int8)
    assert q.is_contiguous(memory_format=torch.channels_last)
    assert ops.dequantize_linear(q, 0.5, 1, torch.float16).dtype == torch.float16
    assert ops.dequantize_linear(torch.tensor([2**24 + 3], dtype=torch.int32), 1.0, 2).item() == 2**24
    for call, error, says in (
        (lambda: ops.quantize_linear(q, 0.5, 1), TypeError, "takes float tensors"),
        (lambda: ops.quantize_linear(x, 0.5, 1, "int4"), ValueError, "must be one of uint8, int8"),
        (lambda: ops.dequantize_linear(x, 0.5, 1), TypeError, "takes integers"),
        (lambda: ops.QuantizeLinear(0.0, 1), ValueError, "must be positive"),
        (lambda: ops.QuantizeLinear(1.0, 300), ValueError, "must be a value of uint8"),
        (lambda: ops.DequantizeLinear(1.0, 0.5), TypeError, "must be a whole number"),
    ):
        with pytest.raises(error, match=says):
            call()


# ---- The layer


@pytest.mark.parametrize("output", [(0.04, 90), (0.04, -3, "int8"), None], ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_the_result_is_the_definition(output: Any, last: bool) -> None:
    layer = layer_of(output)
    x = X.to(memory_format=torch.channels_last) if last else X
    y, expected = layer(x), by_definition(layer, X)
    assert y.dtype == expected.dtype
    assert torch.equal(y, expected)
    assert y.is_contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    assert torch.equal(layer(X[0]), expected[0]), "an image without a batch axis"
    assert len(y.unique()) > 20, "not all saturated"


def test_the_result_is_onnxs() -> None:
    reference, helper = pytest.importorskip("onnx.reference"), pytest.importorskip("onnx.helper")
    layer = layer_of((0.4, 3), activation=None)
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    node = helper.make_node("QLinearConv", names, ["y"], group=2, strides=[2, 2], pads=[1, 1, 1, 1])
    x_zero, zero = (one.to(torch.uint8) for one in (layer.input_zero_point, layer.output_zero_point))
    values = (X, layer.input_scale, x_zero, layer.weight, layer.weight_scale, torch.zeros(6, dtype=torch.int8),
              layer.output_scale, zero, layer.bias)  # fmt: skip
    given = {name: value.numpy() for name, value in zip(names, values, strict=True)}
    (expected,) = reference.ReferenceEvaluator(node).run(None, given)
    np.testing.assert_array_equal(layer(X).numpy(), expected)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_other_borders(mode: str) -> None:
    layer = layer_of(None, padding_mode=mode, padding=(1, 2), stride=1)
    assert torch.equal(layer(X), by_definition(layer, X))


def test_floats_and_activations() -> None:
    sums = layer_of(None)(X)
    like = layer_of("float32")
    unit = (np.float32(like.input_scale) * like.weight_scale.numpy()).astype(np.float64).reshape(-1, 1, 1)
    exact = torch.from_numpy(sums.numpy() * unit)
    for name, end in ((None, lambda y: y), ("relu", torch.relu), ("relu6", F.relu6)):
        y = layer_of("float32", activation=name)(X)
        assert y.dtype == torch.float32
        assert torch.equal(y, end(exact).float())
    assert torch.equal(layer_of("float16")(X), exact.half())
    plain, relu = layer_of((0.4, 0)), layer_of((0.4, 0), activation="relu")
    assert torch.equal(relu(X), plain(X)), "saturation is the relu"


def test_both_types_of_input() -> None:
    layer = layer_of((0.4, 3))
    x = image(dtype=torch.int8)
    assert torch.equal(layer(x), by_definition(layer, x))
    assert layer(x).dtype == torch.int8
    with pytest.raises(TypeError, match=r"input is torch\.float32; this layer takes uint8 or int8: quantise it"):
        layer(X.float())
    with pytest.raises(TypeError, match=r"input is torch\.int8; this layer takes uint8:"):
        layer_of((0.4, 3), x=(0.02, 7, "uint8"))(x)


@pytest.mark.parametrize(
    "words, error, says",
    [
        ({"x": (0.0, 0)}, ValueError, "must be positive and finite"),
        ({"x": 0.5}, TypeError, r"must be \(scale, zero_point\)"),
        ({"x": (0.5, 0, "int4")}, ValueError, "must be one of uint8, int8"),
        ({"x": (0.5, 200, "int8")}, ValueError, "the zero point 200 of x must be a value of int8"),
        ({"output": "int8"}, ValueError, "is unknown"),
        ({"output": (0.1, 300, "uint8"), "x": (1.0, 0, "uint8")}, ValueError, "must be a value of uint8"),
        ({"w_scale": torch.ones(3)}, ValueError, "there are 6 output channels"),
        ({"activation": "gelu"}, ValueError, "must be None, 'relu' or 'relu6'"),
        ({"output": None, "activation": "relu6"}, ValueError, "a sum has no scale"),
        ({"groups": 3}, ValueError, "divisible by groups"),
    ],
)
def test_mistakes_are_named(words: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        layer_of(**{"output": (0.4, 3), **words})


def test_a_state_is_loaded_into_a_layer_with_other_numbers() -> None:
    first, second = layer_of((0.4, 3)), layer_of((0.9, 100), x=(0.5, 0), seed=4)
    expected = first(X)
    assert not torch.equal(second(X), expected)
    state = first.state_dict()
    assert list(state) == ["weight", "bias", "weight_scale", "input_scale", "input_zero_point", "output_scale",
                           "output_zero_point"]  # fmt: skip
    second.load_state_dict({name: value.clone() for name, value in state.items()})
    assert torch.equal(second(X), expected), "nothing that was prepared before is used"
    third = layer_of((0.9, 100), x=(0.5, 0), seed=5)
    third(X)
    third.load_state_dict(state, assign=True)
    assert torch.equal(third(X), expected)
    assert not list(first.parameters())
    with pytest.raises(RuntimeError, match="output_scale"):
        layer_of(None).load_state_dict(state)


@pytest.mark.parametrize("name", ["weight", "bias", "weight_scale", "input_scale", "input_zero_point", "output_scale",
                                  "output_zero_point"])  # fmt: skip
def test_each_changed_buffer_takes_effect(name: str) -> None:
    layer = layer_of((0.4, 3))
    before = layer(X)
    buffer = getattr(layer, name)
    buffer.copy_(buffer * 2)
    assert not torch.equal(layer(X), before)
    assert torch.equal(layer(X), by_definition(layer, X))


def test_a_layer_prepares_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from convforge.integrations import torch_quantized_operator as room

    made = []
    honest = room._made
    monkeypatch.setattr(room, "_made", lambda *given: made.append(1) or honest(*given))
    layer = layer_of((0.4, 3))
    for _ in range(3):
        layer(X)
        layer(image(1, 4, 5, 5))
    assert len(made) == 1
    for _ in range(2):
        layer(X.to(memory_format=torch.channels_last))
    assert len(made) == 2
    layer.bias.add_(1)
    layer(X)
    assert len(made) == 3
    assert len(room._FILTERS[layer.weight]) == 2, "the old one is dropped"
    for _ in range(2):
        torch.compile(layer, fullgraph=True, backend="aot_eager")(X)
        torch.export.export(layer, (X,)).module()(X)
    assert len(made) == 3, "compiled code has the same buffers"
    with torch.inference_mode():
        unversioned = layer_of((0.4, 3))
        for _ in range(2):
            assert torch.equal(unversioned(X), by_definition(unversioned, X))
            unversioned.bias.add_(1)
    torch._dynamo.reset()


def test_copies_pickles_and_types() -> None:
    layer = layer_of((0.4, 3)).eval()
    expected = layer(X)
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer).half().float()):
        assert torch.equal(again(X), expected)
        assert again.weight_scale.dtype == torch.float32
        again.input_scale.mul_(3)
        assert not torch.equal(again(X), expected)
    assert torch.equal(layer(X), expected)
    there = copy.deepcopy(layer).to("meta")
    y = there(X.to("meta"))
    assert (y.shape, y.dtype, y.device.type) == (expected.shape, torch.uint8, "meta")
    assert "QuantConv2d(4, 6, kernel_size=(3, 3), stride=(2, 2)" in repr(layer)
    assert "output=as input" in repr(layer)


@pytest.mark.parametrize("last", [False, True])
def test_compilers_and_traces_see_one_operator(last: bool) -> None:
    torch._dynamo.reset()
    chain = nn.Sequential(layer_of((0.4, 3), stride=1), ops.DequantizeLinear(0.4, 3))
    seen: list[Any] = []

    def note(graph: Any, inputs: Any) -> Any:
        seen.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    compiled = torch.compile(chain, fullgraph=True, backend=note)
    for size in (9, 6):
        x = image(2, 4, size, 7).to(memory_format=torch.channels_last if last else torch.contiguous_format)
        y, expected = compiled(x), chain(x)
        assert torch.equal(y, expected)
        assert y.stride() == expected.stride()
    assert all(sum("quant_conv2d" in name for name in names) == 1 for names in seen)
    assert torch.equal(torch.export.export(chain, (x,)).module()(x), expected)
    assert torch.equal(torch.fx.symbolic_trace(chain)(x), expected)
    words = chain[0]._words()
    done = torch.library.opcheck(torch.ops.convforge.quant_conv2d, (x, *chain[0]._numbers(), *words))
    assert set(done.values()) == {"SUCCESS"}
    torch._dynamo.reset()


# ---- From a float layer


def test_from_float_rounds_as_it_says() -> None:
    conv = nn.Conv2d(4, 6, 3, 2, 1, groups=2)
    with torch.no_grad():
        conv.weight[2] = 0
        conv.bias[2] = 0.3
    for per_channel in (True, False):
        layer = ops.QuantConv2d.from_float(conv, (0.02, 7, "uint8"), (0.05, 9), per_channel=per_channel, **NAIVE)
        w = conv.weight.detach()
        peak = w.abs().amax((1, 2, 3)) if per_channel else w.abs().amax()
        scale = torch.where(peak > 0, (peak.double() / 127).float(), layer.weight_scale)
        assert torch.equal(layer.weight_scale, scale)
        shape = (-1, 1, 1, 1) if per_channel else ()
        assert torch.equal(layer.weight, (w / scale.reshape(shape)).round().to(torch.int8))
        assert int(layer.weight.abs().max()) == 127
        unit = scale * layer.input_scale
        assert torch.equal(layer.bias, (conv.bias.detach().double() / unit.double()).round().int())
        assert abs(layer.bias[2] * unit.expand(6)[2] - 0.3) < 0.3e-3
        assert layer.quantization().output == (pytest.approx(0.05), 9)
        real = F.conv2d((X.float() - 7) * 0.02, w, conv.bias, 2, 1, 1, 2)
        y = ops.dequantize_linear(layer(X), 0.05, 9)
        saturated = real.clamp(-9 * 0.05, 246 * 0.05)
        assert (y - saturated).abs().max() < 0.06
    plain = nn.Conv2d(4, 6, 3, bias=False)
    layer = ops.QuantConv2d.from_float(plain, (0.02, 7), **NAIVE)
    assert layer.bias is None
    torch.testing.assert_close(layer(X), plain((X.float() - 7) * 0.02), rtol=0, atol=0.1)


def test_a_bias_that_does_not_fit() -> None:
    conv = nn.Conv2d(4, 6, 3)
    with torch.no_grad():
        conv.weight[3] *= 1e-9
        conv.bias[3] = 2.5
    with pytest.raises(ValueError, match=r"the bias 2.5 of output channel 3 does not fit int32.*widen=True"):
        ops.QuantConv2d.from_float(conv, (0.02, 7))
    wide = ops.QuantConv2d.from_float(conv, (0.02, 7), widen=True, **NAIVE)
    assert abs(wide(X)[:, 3] - 2.5).max() < 1e-4
    with torch.no_grad():
        conv.bias[0] = torch.nan
    with pytest.raises(ValueError, match="the bias have values that are not finite"):
        ops.QuantConv2d.from_float(conv, (0.02, 7))
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.Conv2d; got Linear"):
        ops.QuantConv2d.from_float(nn.Linear(3, 3), (0.02, 7))


# ---- A whole model


def batches(count: int = 4, size: tuple[int, ...] = (2, 3, 24, 20), dtype: Any = torch.float32) -> list[Any]:
    make = torch.Generator().manual_seed(1)
    return [torch.randn(size, generator=make).to(dtype) for _ in range(count)]


def error_of(quantized: Any, model: Any, x: Any) -> float:
    """RMS of the error over the standard deviation of the float model's result."""
    with torch.no_grad():
        expected = model(x).double()
        return float((quantized.model(x).double() - expected).square().mean().sqrt() / expected.std())


def inputs_of(quantized: Any, x: Any) -> dict[str, Any]:
    """The type of each quantised convolution's input and result."""
    found: dict[str, Any] = {}
    for name, one in quantized.model.named_modules():
        if isinstance(one, ops.QuantConv2d):
            one.register_forward_hook(lambda m, given, y, name=name: found.update({name: (given[0].dtype, y.dtype)}))
    quantized.model(x)
    return found


def test_a_residual_network_keeps_its_results() -> None:
    model, given = residual_network(torch), batches()
    before = copy.deepcopy(model.state_dict())
    quantized = ops.quantize(model, given, **NAIVE)
    assert all(torch.equal(now, then) for now, then in zip(model.state_dict().values(), before.values(), strict=True))
    layers = {layer.name: layer for layer in quantized.layers}
    assert {layer.by for layer in quantized.layers} == {"int8"}
    assert (layers["0"].folded, layers["3.conv1"].folded, layers["5"].folded) == (
        ("1", "2"),
        ("3.bn1", "3.relu"),
        ("6", "7"),
    )
    assert error_of(quantized, model, given[0]) < 0.02
    assert not [one for one in quantized.model.modules() if isinstance(one, (nn.BatchNorm2d, nn.Conv2d))]
    types = inputs_of(quantized, given[0])
    assert all(x == torch.uint8 for x, _ in types.values())
    passed = {name for name, (_, y) in types.items() if y == torch.uint8}
    assert passed == {"0", "3.conv1", "4.conv1"}, "what another convolution reads"
    first, second = quantized.model.get_submodule("3.conv1"), quantized.model.get_submodule("3.conv2")
    assert torch.equal(first.output_scale, second.input_scale)
    assert (int(first.output_zero_point), int(second.input_zero_point), first.activation) == (0, 0, "relu")
    assert "3.conv1" in str(quantized)
    assert "uint8, scale" in str(quantized)


def test_a_quantised_network_is_copied_saved_and_compiled() -> None:
    torch._dynamo.reset()
    model, given = residual_network(torch), batches()
    quantized = ops.quantize(model, given, **NAIVE).model
    with torch.no_grad():
        expected = quantized(given[0])
        for again in (copy.deepcopy(quantized), pickle.loads(pickle.dumps(quantized))):
            assert torch.equal(again(given[0]), expected)
        other = ops.quantize(model, [3 * one for one in given], **NAIVE).model
        assert not torch.equal(other(given[0]), expected)
        other.load_state_dict(quantized.state_dict())
        assert torch.equal(other(given[0]), expected)
        compiled = torch.compile(quantized, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(given[0]), expected)
        last = given[0].to(memory_format=torch.channels_last)
        torch.testing.assert_close(quantized(last), expected)
    torch._dynamo.reset()


class Pooled(nn.Module):  # type: ignore[misc]
    """Pooling between convolutions, as module and function; a shared layer; a functional relu."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.pool = nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(3, 2, 1)
        self.shared, self.drop, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Dropout(), nn.Conv2d(4, 2, 1)

    def forward(self, x: Any) -> Any:
        y = self.pool(F.relu(self.first(x)))
        y = F.max_pool2d(torch.relu(self.shared(y)), 2)
        return self.last(self.drop(self.shared(y).relu_()))


def test_pooling_stays_in_integers() -> None:
    torch.manual_seed(2)
    model, given = Pooled().eval(), batches()
    quantized = ops.quantize(model, given, **NAIVE)
    names = [type(one).__name__ for one in quantized.model.modules()]
    assert (names.count("QuantizeLinear"), names.count("DequantizeLinear"), names.count("IntegerMaxPool2d")) == (
        1,
        0,
        2,
    )
    assert names.count("QuantConv2d") == 4, "each call of the shared layer has its own ranges"
    assert [layer.folded for layer in quantized.layers] == [("relu",), ("relu",), ("relu",), ()]
    assert error_of(quantized, model, given[0]) < 0.03
    x = image(2, 3, 9, 8, dtype=torch.int8)
    for form in (torch.contiguous_format, torch.channels_last):
        given_x = x.to(memory_format=form)
        y = torch.ops.convforge.max_pool2d(given_x, [3, 2], [2, 2], [1, 0], [1, 1], True)
        expected = F.max_pool2d(x, (3, 2), 2, (1, 0), 1, True)
        assert torch.equal(y, expected)
        fake = torch.ops.convforge.max_pool2d(given_x.to("meta"), [3, 2], [2, 2], [1, 0], [1, 1], True)
        assert (fake.shape, fake.stride(), fake.dtype) == (y.shape, y.stride(), y.dtype)


@pytest.mark.parametrize(
    "words", [{"observer": "moving"}, {"observer": ("percentile", 99.9)}, {"dtype": "int8"}, {"per_channel": False}],
    ids=str,
)  # fmt: skip
def test_other_ways_to_calibrate(words: Any) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU6(), nn.Conv2d(6, 4, 3), nn.Conv2d(4, 2, 1)).eval()
    given = batches()
    quantized = ops.quantize(model, given, **words, **NAIVE)
    assert error_of(quantized, model, given[0]) < 0.06
    kind = getattr(torch, words.get("dtype", "uint8"))
    assert {x for x, _ in inputs_of(quantized, given[0]).values()} == {kind}


def test_the_activation_of_a_layer_of_convforge_is_kept() -> None:
    torch.manual_seed(4)
    own = ops.Conv2d(3, 6, 3, activation="relu", **NAIVE)
    model, given = nn.Sequential(own, nn.BatchNorm2d(6), nn.Conv2d(6, 2, 1)).eval(), batches()
    model[1].running_mean.fill_(0.3)
    quantized = ops.quantize(model, given, **NAIVE)
    assert [layer.folded for layer in quantized.layers] == [(), ()]
    assert error_of(quantized, model, given[0]) < 0.05
    assert ops.QuantConv2d.from_float(own, (0.02, 7)).activation == "relu"


def test_symmetric_values_have_the_zero_point_0() -> None:
    model, given = (
        nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval(),
        batches(),
    )
    quantized = ops.quantize(model, given, symmetric=True, **NAIVE)
    convolutions = [one for one in quantized.model.modules() if isinstance(one, ops.QuantConv2d)]
    assert [(one.input_dtype, int(one.input_zero_point)) for one in convolutions] == [
        ("int8", 0), ("int8", 0), ("uint8", 0)
    ]  # fmt: skip
    assert error_of(quantized, model, given[0]) < 0.05


def test_layers_left_in_float_are_listed() -> None:
    class Subclass(nn.Conv2d):  # type: ignore[misc]
        pass

    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.ConvTranspose2d(4, 4, 2), Subclass(4, 4, 1), nn.Conv2d(4, 4, 1),
        nn.Conv2d(4, 4, 1), nn.Sequential(nn.Conv2d(4, 4, 1)), nn.Conv2d(4, 4, 1),
    ).eval()  # fmt: skip
    model[4].register_forward_hook(lambda *_: None)
    with torch.no_grad():
        model[5].weight[0] = torch.nan
    given = batches()
    quantized = ops.quantize(model, given, skip=["6"], **NAIVE)
    reasons = {layer.name: layer.why for layer in quantized.layers if layer.by == "float"}
    assert reasons["2"] == "convforge has no transposed convolution"
    assert reasons["3"] == "Subclass is a subclass of Conv2d, which may compute something else"
    assert reasons["4"] == "it has a hook, which would see other values"
    assert reasons["5"] == "the weights have values that are not finite, which no scale can represent"
    assert reasons["6.0"] == "skip= names it"
    assert "which no scale can represent" in reasons["7"]
    assert [layer.name for layer in quantized.layers if layer.by == "int8"] == ["0", "1"]
    assert "left in float because" in str(quantized)


def test_what_is_changed_in_place_is_not_passed_on() -> None:
    class Changed(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))

        def forward(self, x: Any) -> Any:
            y = self.a(x)
            z = self.b(y)
            y += 1
            return self.c(y), z + self.b(y)

    model, given = Changed().eval(), batches()
    quantized = ops.quantize(model, given, **NAIVE)
    with torch.no_grad():
        for y, expected in zip(quantized.model(given[0]), model(given[0]), strict=True):
            assert (y - expected).abs().max() < 0.1

    class Aliased(Changed):
        def forward(self, x: Any) -> Any:
            y = self.a(x)
            z = self.b(y)
            y.add_(1)
            return self.c(y) + z

    quantized = ops.quantize(Aliased().eval(), given, **NAIVE)
    reasons = {layer.name: layer.why for layer in quantized.layers if layer.why}
    assert reasons == {"c": "its input has been changed in place"}


def test_float_weights_that_are_read_elsewhere_stay() -> None:
    class Tied(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, padding=1)

        def forward(self, x: Any) -> Any:
            return F.conv_transpose2d(self.conv(x), self.conv.weight, padding=1)

    model, given = Tied().eval(), batches()
    quantized = ops.quantize(model, given, **NAIVE)
    assert [layer.by for layer in quantized.layers] == ["int8"]
    assert error_of(quantized, model, given[0]) < 0.03


def test_a_model_that_cannot_be_traced() -> None:
    class Branching(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.norm, self.b, self.idle = (
                nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 1)
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            y = self.norm(self.a(x))
            return self.b(y) if y.sum() > -1e9 else self.idle(y)

    model, given = Branching().eval(), batches()
    quantized = ops.quantize(model, given, **NAIVE)
    assert "cannot be traced" in quantized.notes[0]
    assert {layer.name: (layer.by, layer.why) for layer in quantized.layers} == {
        "a": ("int8", ""), "b": ("int8", ""), "idle": ("float", "the batches do not reach it")
    }  # fmt: skip
    assert error_of(quantized, model, given[0]) < 0.05


def test_models_of_16_bits_and_lone_layers() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.AvgPool2d(2)).eval().to(dtype)
        given = batches(2, dtype=dtype)
        quantized = ops.quantize(model, given, **NAIVE)
        assert quantized.model(given[0]).dtype == dtype
        assert error_of(quantized, model, given[0]) < 0.06
    conv = nn.Conv2d(3, 4, 3)
    lone = ops.quantize(conv, batches(), **NAIVE)
    assert [layer.by for layer in lone.layers] == ["int8"]
    assert error_of(lone, conv, batches()[0]) < 0.03
    assert ops.quantize(nn.ReLU(), batches()).notes == [
        "Nothing was done: the model has no two-dimensional convolution."
    ]


@pytest.mark.parametrize(
    "call, error, says",
    [
        (lambda m: ops.quantize(m, []), ValueError, "batches is empty"),
        (lambda m: ops.quantize(m, torch.zeros(1, 3, 8, 8)), TypeError, "give a list of batches"),
        (lambda m: ops.quantize(len, batches()), TypeError, "takes a torch.nn.Module"),
        (lambda m: ops.quantize(m, batches(), dtype="int4"), ValueError, "must be one of uint8, int8"),
        (lambda m: ops.quantize(m, batches(), observer="median"), ValueError, "must be 'minmax'"),
        (lambda m: ops.quantize(m, batches(), observer=("percentile", 20)), ValueError, "must be above 50"),
        (lambda m: ops.quantize(m, batches(), skip=["9"]), ValueError, "the model has no module 9"),
    ],
)
def test_mistakes_in_a_conversion_are_named(call: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        call(nn.Sequential(nn.Conv2d(3, 4, 3)))


def test_the_examples_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/quantization.md").read_text(encoding="utf-8")
    section = page.partition("\n## PyTorch")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    text, count = re.subn(
        r"(quantize\(model|from_float\(conv), ([^()]+|x=.*)\)", r'\1, \2, algorithm="direct_naive")', "\n".join(blocks)
    )
    assert count == 3
    exec(text, {})
    assert "left in float because" in capsys.readouterr().out
