"""conv2d's arguments: their order, layouts, every form of padding, groups, dilation, mode."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from tests.api.definition import W, X, convolved, whole

from convforge import conv2d


def test_positional_arguments_are_those_of_torch(torch: Any) -> None:
    names = list(inspect.signature(conv2d).parameters)
    assert names[:7] == ["x", "w", "bias", "stride", "padding", "dilation", "groups"]
    defaults = {name: inspect.signature(conv2d).parameters[name].default for name in names[2:7]}
    assert defaults == {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    w, bias = whole(4, 3, 3, 3), whole(4)
    for arguments in ((), (2,), ((1, 3), (2, 1)), (2, 1, 2, 2), (1, "valid", (2, 1), 2), (1, "same", 1, 2)):
        grouped = len(arguments) == 4
        weights = w if grouped else whole(4, 6, 3, 3)
        mine = conv2d(X, weights, bias, *arguments)
        theirs = torch.nn.functional.conv2d(*map(torch.from_numpy, (X, weights, bias)), *arguments)
        np.testing.assert_array_equal(mine, theirs.numpy(), str(arguments))


def test_random_calls_agree_with_torch(torch: Any) -> None:
    for seed in range(25):
        random = np.random.default_rng(seed)
        r, s, c, k, groups = random.integers(1, 5), random.integers(1, 5), 2 * random.integers(1, 4), 4, 2
        x = random.normal(size=(2, c, 12, 13)).astype(np.float32)
        w = random.normal(size=(k, c // groups, r, s)).astype(np.float32)
        stride, padding = tuple(random.integers(1, 4, 2).tolist()), tuple(random.integers(0, 4, 2).tolist())
        arguments = (stride, padding, tuple(random.integers(1, 3, 2).tolist()), groups)
        theirs = torch.nn.functional.conv2d(torch.from_numpy(x), torch.from_numpy(w), None, *arguments)
        np.testing.assert_allclose(conv2d(x, w, None, *arguments), theirs.numpy(), atol=2e-5)


def test_worked_values() -> None:
    x = np.tile(np.array([[1, 2, 3, 4, 5], [6, 7, 8, 9, 0]] * 3, np.float32)[:5], (3, 1, 1))
    w = np.tile(np.arange(1, 10, dtype=np.float32).reshape(3, 3), (1, 3, 1, 1))
    assert conv2d(x, w, stride=2, padding=1).tolist() == [[[384, 723, 312], [483, 873, 339], [150, 291, 150]]]
    assert conv2d(x, w, stride=3, padding=1).tolist() == [[[384, 570], [318, 603]]]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "CHW", "HWC"])
def test_layouts(layout: str) -> None:
    x = X[:1] if len(layout) == 3 else X
    expected = convolved(x, W, pads=(1, 1, 1, 1))
    if layout[-1] == "C":
        x, expected = x.transpose(0, 2, 3, 1), expected.transpose(0, 2, 3, 1)
    if len(layout) == 3:
        x, expected = x[0], expected[0]
    result = conv2d(np.ascontiguousarray(x), W, padding=1, layout=layout)
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(conv2d(x, W, padding=1, layout=layout), expected, "the same through a view")


def test_a_picture_without_a_batch_axis_in_a_four_letter_layout() -> None:
    np.testing.assert_array_equal(conv2d(X[0], W), convolved(X[:1], W)[0])
    hwc = X[0].transpose(1, 2, 0)
    np.testing.assert_array_equal(conv2d(hwc, W, layout="NHWC"), convolved(X[:1], W)[0].transpose(1, 2, 0))


@pytest.mark.parametrize("stride", [1, 2, 3, (2, 3)])
@pytest.mark.parametrize("size", [(3, 3), (2, 4), (5, 1)])
def test_same_gives_one_output_a_stride(stride: Any, size: tuple[int, int]) -> None:
    steps = (stride, stride) if isinstance(stride, int) else stride
    w = whole(2, 6, *size)
    result = conv2d(X, w, stride=stride, padding="same")
    assert result.shape[2:] == (-(-9 // steps[0]), -(-11 // steps[1]))
    pads = []
    for n, window, step in zip((9, 11), size, steps, strict=True):
        total = max((-(-n // step) - 1) * step + window - n, 0)
        pads += [total // 2, total - total // 2]
    np.testing.assert_array_equal(result, convolved(X, w, steps, (pads[0], pads[1], pads[2], pads[3])))


def test_same_with_dilation(torch: Any) -> None:
    w = whole(2, 6, 3, 5)
    theirs = torch.nn.functional.conv2d(torch.from_numpy(X), torch.from_numpy(w), None, 1, "same", (2, 3))
    np.testing.assert_array_equal(conv2d(X, w, padding="same", dilation=(2, 3)), theirs.numpy())


@pytest.mark.parametrize(
    "padding, pads",
    [
        (2, (2, 2, 2, 2)),
        ((1, 2), (1, 1, 2, 2)),
        ([1, 2], (1, 1, 2, 2)),
        (np.int64(1), (1, 1, 1, 1)),
        ("valid", (0, 0, 0, 0)),
        (((1, 2), (3, 0)), (1, 2, 3, 0)),
        ([[0, 4], [5, 0]], (0, 4, 5, 0)),
        (((9, 7), (8, 12)), (9, 7, 8, 12)),
    ],
)
def test_every_form_of_padding(padding: Any, pads: tuple[int, int, int, int]) -> None:
    np.testing.assert_array_equal(conv2d(X, W, padding=padding, stride=2), convolved(X, W, (2, 2), pads))


@pytest.mark.parametrize(
    "mode, border", [("reflect", "reflect"), ("symmetric", "symmetric"), ("replicate", "edge"), ("circular", "wrap")]
)
def test_padding_modes(mode: str, border: str) -> None:
    pads = (3, 1, 2, 4)
    result = conv2d(X, W, padding=((3, 1), (2, 4)), padding_mode=mode)
    np.testing.assert_array_equal(result, convolved(X, W, pads=pads, border=border))


@pytest.mark.parametrize("groups, outputs", [(1, 5), (2, 4), (3, 6), (6, 6), (6, 12)])
@pytest.mark.parametrize("dilation", [1, (2, 3)])
def test_groups_depthwise_and_dilation(groups: int, outputs: int, dilation: Any) -> None:
    w = whole(outputs, 6 // groups, 3, 2)
    steps = (1, 1) if dilation == 1 else dilation
    result = conv2d(X, w, groups=groups, dilation=dilation, padding=1)
    np.testing.assert_array_equal(result, convolved(X, w, pads=(1, 1, 1, 1), dilation=steps, groups=groups))


def test_convolution_flips_the_filter() -> None:
    impulse = np.zeros((1, 5, 5), np.float32)
    impulse[0, 2, 2] = 1
    w = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
    assert conv2d(impulse, w)[0].ravel().tolist() == [9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert conv2d(impulse, w, mode="convolution")[0].ravel().tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
