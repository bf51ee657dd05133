"""Axes without elements: no images, no channels, no pixels, no outputs; held to PyTorch where that is installed."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.api.definition import Array
from tests.backends.emulated import needs_emulator

from convforge import Filter, conv2d, filter, filter_many, max_pool2d, relu  # noqa: A004
from convforge.errors import UnsupportedProblem
from convforge.peers import every_algorithm

BIAS = np.array([-2, -1, 0, 7], np.float32)
EIGHT_BITS = np.dtype(ml_dtypes.float8_e4m3fn).name
# On the emulator one method reads the weights as they lie and one packs them; the others go their way.
FIRST = ("direct_naive", "depthwise_channels")
# Numba compiles this for 14 s, for results that only this test asks of it.
LONG = ("depthwise_int8",)


def marks_of(method: Any) -> list[pytest.MarkDecorator]:
    if method.backend != "emulator":
        return [pytest.mark.thorough] if method.name in LONG else []
    return [needs_emulator] if method.name in FIRST else [needs_emulator, pytest.mark.thorough]


METHODS = [
    pytest.param(a, marks=marks_of(a), id=f"{a.backend}-{a.name}")
    for a in every_algorithm()
    if a.operation == "conv2d" and a.backend in ("cpu", "emulator")
]
# Shapes of x and w, and options: what PyTorch computes.
COMPUTED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((0, 2, 5, 6), (4, 2, 3, 3), {}),
    ((0, 2, 5, 6), (4, 1, 3, 3), {"groups": 2, "stride": 2, "padding": 1}),
    ((2, 0, 5, 6), (4, 0, 3, 3), {}),
    ((0, 5, 6), (4, 0, 3, 3), {"padding": "same"}),
    ((2, 0, 5, 6), (4, 0, 3, 2), {"groups": 2, "stride": (1, 2), "dilation": 2, "padding": 1}),
    ((0, 0, 5, 6), (4, 0, 3, 3), {}),
    ((2, 0, 0, 6), (4, 0, 3, 3), {"padding": 2}),
    ((0, 2, 5, 0), (4, 2, 3, 3), {"padding": (0, 2)}),
    ((0, 2, 0, 0), (4, 2, 3, 3), {"padding": 2}),
]
REFUSED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], str]] = [
    ((2, 2, 5, 6), (0, 2, 3, 3), {}, "k=0: a convolution needs at least 1 output channel"),
    ((2, 0, 5, 6), (0, 0, 3, 3), {}, "k=0"),
    ((2, 2, 0, 6), (4, 2, 3, 3), {"padding": 2}, "h=0 and w=6: an image has at least 1 pixel"),
    ((2, 2, 5, 0), (4, 2, 3, 3), {"padding": 2}, "h=5 and w=0: an image has at least 1 pixel"),
    ((0, 2, 0, 6), (4, 2, 1, 1), {}, "neither pixels nor padding"),
    ((0, 2, 0, 6), (4, 2, 3, 3), {"padding": 1}, "the filter's height of 3 pixels"),
    ((0, 2, 2, 6), (4, 2, 3, 3), {}, "the filter's height of 3 pixels"),
    ((2, 0, 2, 6), (4, 0, 3, 3), {}, "the filter's height of 3 pixels"),
    ((2, 2, 5, 6), (4, 2, 0, 3), {}, "r=0 must be at least 1"),
    ((2, 0, 5, 6), (4, 2, 3, 3), {}, "w must have 0"),
    ((2, 0, 5, 6), (4, 0, 3, 3), {"groups": 3}, "groups=3 must divide"),
]


def computed(x: Array, w: Array, bias: Array | None, options: dict[str, Any], **more: Any) -> Array:
    """The result of conv2d, which :class:`Filter` gives too, twice, as the second call may go a shorter way."""
    result = conv2d(x, w, bias, **options, **more)
    made = Filter(w, bias, **options, **more)
    for again in (conv2d(x, w, bias, **options, **more), made(x), made(x)):
        np.testing.assert_array_equal(again, result)
    return result


@pytest.mark.parametrize(("x_shape", "w_shape", "options"), COMPUTED, ids=str)
def test_what_pytorch_computes(x_shape: Any, w_shape: Any, options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    x, w = np.ones(x_shape, np.float32), np.ones(w_shape, np.float32)
    for bias in (None, BIAS):
        given = None if bias is None else torch.from_numpy(bias)
        expected = functional.conv2d(torch.from_numpy(x), torch.from_numpy(w), given, **options)
        result = computed(x, w, bias, options)
        same = computed(torch.from_numpy(x), torch.from_numpy(w), given, options)
        np.testing.assert_array_equal(same, result)
        # Without channels PyTorch leaves the output without channels too, whatever w says: a shape that no layer after
        # it takes. Here it is that of every other convolution.
        wanted = list(expected.shape)
        wanted[-3] = 4
        assert list(result.shape) == wanted
        np.testing.assert_array_equal(
            result, np.broadcast_to((0 * BIAS if bias is None else bias)[:, None, None], wanted)
        )


@pytest.mark.parametrize(("x_shape", "w_shape", "options", "says"), REFUSED, ids=str)
def test_what_pytorch_refuses(x_shape: Any, w_shape: Any, options: dict[str, Any], says: str) -> None:
    torch = pytest.importorskip("torch")
    import convforge.torch

    x, w = torch.ones(x_shape), torch.ones(w_shape)
    with pytest.raises(RuntimeError):
        torch.nn.functional.conv2d(x, w, **options)
    for call in (
        lambda: conv2d(x.numpy(), w.numpy(), **options),
        lambda: conv2d(x, w, **options),
        lambda: Filter(w.numpy(), **options)(x.numpy()),
    ):
        with pytest.raises(ValueError, match=says):
            call()
    with pytest.raises((ValueError, RuntimeError)):
        convforge.torch.conv2d(x, w, **options)


@pytest.mark.parametrize("method", METHODS)
def test_every_method(method: Any) -> None:
    """The bias through an activation, or zeros, for no channels; nothing for no images."""
    dtypes = (EIGHT_BITS,) if method.takes_fp8 else ("float32", "float16", "uint8")
    forms = itertools.product(dtypes, (1, 4), (3, 1, 7), ("NCHW", "NHWC"), (None, BIAS))
    accepted = 0
    for dtype, groups, side, layout, bias in forms:
        # For methods that take no float32, or no output of few products.
        if accepted and (dtype not in ("float32", EIGHT_BITS) or side == 7):
            continue
        options = {
            "groups": groups,
            "padding": side // 2,
            "layout": layout,
            "activation": None if bias is None else "relu",
        }
        options |= {"algorithm": method.name, "device": method.backend}
        if method.takes_fp8:
            options["precision"] = method.precision
        w = np.ones((4, 0, side, side), "int8" if dtype == "uint8" else dtype)
        whole = np.ones((4, 4 // groups, side, side), w.dtype)
        given = None if bias is None else bias.astype({"uint8": "int32", EIGHT_BITS: "float32"}.get(dtype, dtype))
        shapes = [(2, 0, 5, 8), (0, 4, 5, 8)]
        if layout == "NHWC":
            shapes = [(n, h, width, c) for n, c, h, width in shapes]
        channels = (slice(None), None, None) if layout == "NCHW" else slice(None)
        try:
            result = computed(np.ones(shapes[0], dtype), w, given, options)
            nobody = computed(np.ones(shapes[1], dtype), whole, given, options)
        except UnsupportedProblem as refused:
            reason = str(refused)
        else:
            accepted += 1
            expected = np.maximum(0 * BIAS if bias is None else BIAS, 0)[channels]
            np.testing.assert_array_equal(result, np.broadcast_to(expected, result.shape))
            assert (result.size, nobody.size, nobody.shape[1:]) == (2 * 4 * 5 * 8, 0, result.shape[1:])
            continue
        assert method.name in reason
    assert accepted or not method.ours


@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.thorough), pytest.param("emulator", marks=needs_emulator)]
)
@pytest.mark.parametrize(("x_dtype", "w_dtype", "result"), [
    ("float16", "float16", "float16"), ("float64", "float64", "float64"), ("uint8", "int8", "int32"),
    ("int16", "float32", "float32"),
])  # fmt: skip
def test_every_element_type(x_dtype: str, w_dtype: str, result: str, device: str) -> None:
    bias = BIAS.astype(result)
    found = conv2d(np.ones((1, 0, 3, 3), x_dtype), np.ones((4, 0, 3, 3), w_dtype), bias, padding=1, device=device)
    assert (found.dtype, found[0, :, 1, 1].tolist()) == (result, BIAS.tolist())


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    found = conv2d(jax.numpy.ones((2, 0, 4, 4)), jax.numpy.ones((4, 0, 3, 3)), jax.numpy.asarray(BIAS))
    assert found.shape == (2, 4, 2, 2)
    assert found[1, :, 0, 0].tolist() == BIAS.tolist()


def test_out_is_written() -> None:
    out = np.full((2, 4, 3, 3), np.nan, np.float32)
    assert conv2d(np.ones((2, 0, 5, 5), np.float32), np.ones((4, 0, 3, 3), np.float32), BIAS, out=out) is out
    assert out[1, :, 2, 2].tolist() == BIAS.tolist()


def test_borders_that_repeat_pixels_need_some() -> None:
    x, w = np.ones((2, 0, 5, 6), np.float32), np.ones((4, 0, 3, 3), np.float32)
    assert conv2d(x, w, BIAS, padding=1, padding_mode="reflect")[0, :, 0, 0].tolist() == BIAS.tolist()
    with pytest.raises(ValueError, match="h=0 and w=6: an image has at least 1 pixel on each axis"):
        conv2d(x[:, :, :0], w, padding=2, padding_mode="reflect")


@pytest.mark.parametrize("device", ["cpu", pytest.param("emulator", marks=needs_emulator)])
def test_max_pool2d(device: str) -> None:
    torch = pytest.importorskip("torch")
    pooled = torch.nn.functional.max_pool2d
    assert (
        max_pool2d(np.ones((0, 2, 5, 6), np.float32), 2, device=device).shape == pooled(torch.ones(0, 2, 5, 6), 2).shape
    )
    for shape, says in (
        ((2, 0, 5, 6), "c=0"), ((0, 5, 6), "c=0"), ((2, 2, 0, 6), "h=0"), ((0, 2, 5, 0), "w=0"),
        ((0, 2, 1, 6), "exceeds"),
    ):  # fmt: skip
        with pytest.raises(RuntimeError):
            pooled(torch.ones(shape), 2)
        with pytest.raises(ValueError, match=says):
            max_pool2d(np.ones(shape, np.float32), 2, device=device)


@pytest.mark.parametrize("device", ["cpu", pytest.param("emulator", marks=needs_emulator)])
def test_relu(device: str) -> None:
    assert relu(np.ones((2, 0, 3), np.float32), device=device).shape == (2, 0, 3)


@pytest.mark.parametrize("device", ["cpu", pytest.param("emulator", marks=needs_emulator)])
def test_pictures(device: str) -> None:
    """A stack of no pages is one; a image without bands or pixels is none."""
    assert filter(np.ones((0, 5, 6, 3), np.uint8), "box:3", device=device).shape == (0, 5, 6, 3)
    assert filter(np.ones((0, 5, 6, 3), np.uint8), "box:3", channels="sum", device=device).shape == (0, 5, 6)
    for shape in ((5, 6, 0), (0, 6), (5, 0, 3), (2, 0, 6, 3)):
        with pytest.raises(ValueError, match="has no pixel"):
            filter(np.ones(shape, np.uint8), "box:3", device=device)
    with pytest.raises(ValueError, match="has no pixel"):
        list(filter_many([np.ones((5, 6, 0), np.uint8)], "box:3", device=device))
