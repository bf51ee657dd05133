"""Quantised layers and models on a GPU: the bits of the CPU, CUDA graphs, PyTorch's compiler."""

from __future__ import annotations

import copy
import importlib.util
from typing import Any

import pytest
from tests.gpu.present import need_gpu
from tests.integrations.networks import residual_network

import convforge

need_gpu()


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


def layer_of(torch: Any, **options: Any) -> Any:
    make = torch.Generator().manual_seed(3)
    scale = torch.rand(32, generator=make) * 0.01 + 0.001
    layer = convforge.torch.QuantConv2d(16, 32, 3, padding=1, x=(0.02, 7), w_scale=scale, **options)
    layer.weight.random_(-127, 128, generator=make)
    layer.bias.random_(-5000, 5000, generator=make)
    return layer


def image(torch: Any, shape: tuple[int, ...] = (2, 16, 20, 24)) -> Any:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("output", [(0.5, 90), "float32", "float16", None], ids=str)
def test_a_layer_gives_the_bits_of_the_cpu(torch: Any, output: Any, last: bool) -> None:
    layer, x = layer_of(torch, output=output), image(torch)
    form = torch.channels_last if last else torch.contiguous_format
    expected = layer(x)
    there = copy.deepcopy(layer).cuda()
    y = there(x.cuda().to(memory_format=form))
    assert y.is_contiguous(memory_format=form)
    assert torch.equal(y.cpu(), expected)
    assert torch.equal(layer.cuda()(x.cuda()).cpu(), expected), "the layer moves"
    assert torch.equal(layer.cpu()(x), expected)
    with pytest.raises(ValueError, match="on one device"):
        layer(x.cuda())


def test_a_layer_is_captured(torch: Any) -> None:
    """A graph keeps the numbers that it was captured with, also after the layer has changed."""
    layer, x = layer_of(torch, output=(0.5, 90)).cuda(), image(torch).cuda()

    def captured_too_early() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            _ = x + 1  # a graph without launches warns
            layer(x)

    with pytest.raises(RuntimeError, match="call it once before the graph is captured"):
        captured_too_early()
    torch.cuda.synchronize()
    expected = layer(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x)
    for _ in range(2):
        y.zero_()
        graph.replay()
        assert torch.equal(y, expected)
        layer.input_scale.mul_(2)
        assert not torch.equal(layer(x), expected)
        torch.empty(1 << 20, device="cuda").fill_(1)
    x.zero_()
    graph.replay()
    layer.input_scale.div_(4)
    assert torch.equal(y, layer(x))


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_quantised_network_is_compiled(torch: Any, mode: str) -> None:
    torch._dynamo.reset()
    make = torch.Generator().manual_seed(1)
    given = [torch.randn(2, 3, 24, 20, generator=make).cuda() for _ in range(3)]
    model = residual_network(torch, 16).cuda()
    quantized = convforge.torch.quantize(model, given).model
    compiled = torch.compile(quantized, fullgraph=True, mode=mode)
    with torch.no_grad():
        for x in given:
            expected, right = quantized(x), model(x)
            assert (expected - right).abs().max() < 0.05 * right.abs().max()
            torch.testing.assert_close(compiled(x), expected, rtol=0.02, atol=0.02)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
def test_quantize_linear_is_exact_in_every_way(torch: Any) -> None:
    torch._dynamo.reset()
    x = torch.randn(1 << 20, generator=torch.Generator().manual_seed(1)) * 20
    for scale in (0.1, 1 / 3, 0.07):
        module = convforge.torch.QuantizeLinear(scale, 100)
        expected = module(x)
        there = module.cuda()
        compiled = torch.compile(there, fullgraph=True)
        for call in (there, compiled, lambda x, s=scale: convforge.torch.quantize_linear(x, s, 100)):
            assert torch.equal(call(x.cuda()).cpu(), expected)
    torch._dynamo.reset()


def test_pooling_of_integers(torch: Any) -> None:
    nn = torch.nn
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 4, 1)).eval()
    x = torch.randn(2, 3, 20, 18, generator=torch.Generator().manual_seed(1))
    quantized = convforge.torch.quantize(model, [x]).model
    assert "IntegerMaxPool2d" in {type(one).__name__ for one in quantized.modules()}
    torch.testing.assert_close(quantized.cuda()(x.cuda()).cpu(), quantized.cpu()(x), rtol=0, atol=1e-6)
