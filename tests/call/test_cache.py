"""Calls on a device's arrays: in the caller's memory, without a copy; and made again, with the same results."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.a_library import ALibrary, There, a_library, aligned
from tests.api.definition import convolved, whole
from tests.kinds import KINDS, maker

import convforge
from convforge import api
from convforge.algorithms import ON_DEVICE
from convforge.backends.emulator import why_absent
from convforge.call import dispatch
from convforge.imaging import filtering
from convforge.problem import parse_problem
from convforge.tuning import CHOICES, key_of

pytestmark = pytest.mark.skipif(why_absent() is not None, reason=f"no emulator: {why_absent()}")


@pytest.fixture
def library() -> Iterator[ALibrary]:
    api._CALLS.clear()
    with a_library() as made:
        yield made
    api._CALLS.clear()


def there(array: Any) -> There:
    """A copy that begins where a GPU's memory would."""
    room = aligned(array.nbytes).view(array.dtype).reshape(array.shape)
    room[...] = array
    return There(room)


def kept() -> int:
    return len(api._CALLS)


# Options, and how x and w are shaped: staged and packed weights, several launches with memory meanwhile, NHWC, a flip.
CALLS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "small": ((2, 3, 9, 12), (4, 3, 3, 3), {"padding": 1, "algorithm": "direct_tiled"}),
    "strided": (
        (2, 3, 9, 12),
        (4, 3, 3, 3),
        {"padding": ((1, 0), (2, 1)), "stride": 2, "activation": "relu", "algorithm": "direct_tiled"},
    ),
    "nhwc": ((2, 9, 12, 3), (4, 3, 3, 3), {"layout": "NHWC", "padding": 1, "algorithm": "direct_tiled"}),
    "boxes": ((1, 3, 16, 16), (4, 3, 3, 3), {"padding": 1, "algorithm": "direct_boxes"}),
    "of a small image": ((1, 3, 9, 12), (3, 3, 3, 3), {"padding": 1, "algorithm": "direct_small"}),
    "flipped": ((1, 2, 9, 9), (3, 2, 3, 2), {"mode": "convolution"}),
    "no batch": ((3, 9, 12), (4, 3, 3, 3), {"algorithm": "direct_tiled"}),
    "depthwise": ((1, 8, 9, 9), (8, 1, 3, 3), {"groups": 8}),
    "implicit_gemm": ((1, 16, 8, 8), (16, 16, 3, 3), {"algorithm": "implicit_gemm"}),
    "im2col": ((1, 6, 8, 8), (8, 6, 3, 3), {"algorithm": "im2col"}),
    "im2col in chunks, by a convolution": (
        (2, 6, 8, 8),
        (8, 6, 3, 3),
        {"algorithm": "im2col", "config": "columns=16,gemm=gemm_split_mma"},
    ),
    "direct_naive": ((1, 6, 8, 8), (8, 6, 3, 3), {"algorithm": "direct_naive"}),
    "separable": ((1, 2, 8, 8), (2, 2, 5, 5), {"algorithm": "separable"}),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_call_made_again_is_the_call(library: ALibrary, name: str, with_bias: bool) -> None:
    """On other arrays of the same kind the result is that of the way through all checks, to the last bit."""
    x_shape, w_shape, options = CALLS[name]
    for again in range(3):
        x, w, b = there(whole(*x_shape)), there(whole(*w_shape)), there(whole(w_shape[0]))
        bias = b if with_bias else None
        result = convforge.conv2d(x, w, bias, **options)
        expected = convforge.conv2d(
            x.lies, w.lies, None if bias is None else b.lies, device="emulator", **{**options, "config": None}
        )
        np.testing.assert_array_equal(result.lies, expected, f"call {again}")
    assert kept() == 1, "all three are one kind, which can be made again"


@pytest.mark.parametrize("batch", [(2,), ()])
def test_a_residual_of_a_filter_is_another_one_in_each_call(library: ALibrary, batch: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    q = convforge.Quantization(x=(0.02, 5), w=(0.01, 0), output=(0.2, 3), residual=(0.3, 117))
    w, bias = rng.integers(-127, 128, (4, 3, 3, 3), np.int8), rng.integers(-9999, 9999, 4, np.int32)
    options: Any = {"padding": 1, "quantization": q, "activation": ("leaky_relu", 0.25), "algorithm": "direct_tiled"}
    layer = convforge.Filter(there(w), there(bias), **options)
    for again in range(4):
        x, added = (
            rng.integers(0, 256, (*batch, 3, 9, 12), np.uint8),
            rng.integers(0, 256, (*batch, 4, 9, 12), np.uint8),
        )
        expected = convforge.conv2d(x, w, bias, residual=added, device="emulator", **options)
        residual, out = there(added), there(np.empty_like(added))
        np.testing.assert_array_equal(layer(there(x), residual=residual).lies, expected, f"call {again}")
        assert layer(there(x), out, residual=residual) is out
        np.testing.assert_array_equal(out.lies, expected)
        assert layer(there(x), residual, residual=residual) is residual
        np.testing.assert_array_equal(residual.lies, expected)
    assert len(layer._calls) == 2, "with a result of the caller's, and without"


def test_it_is_the_launches_alone_that_are_made_again(library: ALibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = there(whole(1, 3, 9, 9)), there(whole(4, 3, 3, 3))
    convforge.conv2d(x, w)
    monkeypatch.setattr(api, "home_of", None)
    other = there(whole(1, 3, 9, 9))
    np.testing.assert_array_equal(convforge.conv2d(other, w).lies, convolved(other.lies, w.lies))
    with pytest.raises(TypeError, match="not callable"):
        convforge.conv2d(other, w, padding=1)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[..., :8],
        lambda x: x.transpose(0, 1, 3, 2),
        lambda x: x[:, :, ::-1],
        lambda x: x.astype(np.float64),
        lambda x: np.frombuffer(b"\0" * 4 + x.tobytes(), x.dtype)[1:].reshape(x.shape),
    ],
)
def test_another_kind_of_array_is_another_call(library: ALibrary, change: Any) -> None:
    x, w = whole(1, 3, 9, 9), whole(4, 3, 3, 3)
    weights = there(w)
    for _ in range(3):  # the whole way, looked up, compared with the last
        convforge.conv2d(there(x), weights)
    other = change(x)
    for _ in range(3):
        given = weights if other.dtype == w.dtype else there(w.astype(other.dtype))
        np.testing.assert_array_equal(convforge.conv2d(There(other), given).lies, convolved(other, w))
        np.testing.assert_array_equal(convforge.conv2d(there(2 * x), weights).lies, convolved(2 * x, w))


def test_the_last_call_of_some_weights_is_found_without_what_its_arrays_are(
    library: ALibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w, b = whole(1, 3, 9, 9), there(whole(4, 3, 3, 3)), there(whole(4))
    convforge.conv2d(there(x), w), convforge.conv2d(there(x), w)
    monkeypatch.setattr(ALibrary, "signature", lambda self, arrays: pytest.fail("it looked up"))
    monkeypatch.setattr(ALibrary, "guard", lambda self, arrays: pytest.fail("it is there"))
    again = convforge.conv2d(there(3 * x), w)
    np.testing.assert_array_equal(again.lies, convolved(3 * x, w.lies))
    monkeypatch.undo()
    np.testing.assert_array_equal(convforge.conv2d(there(x), w, b).lies, convolved(x, w.lies) + b.lies[:, None, None])


def test_memory_comes_from_the_caller(library: ALibrary) -> None:
    x, w = there(whole(1, 6, 8, 8)), there(whole(8, 6, 3, 3))
    convforge.conv2d(x, w, algorithm="im2col")
    first = list(library.taken)
    assert len(first) >= 1, "packed weights and a workspace"
    convforge.conv2d(x, w, algorithm="im2col")
    assert library.taken == [*first, *first]


def test_constant_memory_goes_the_whole_way(library: ALibrary) -> None:
    """A copy to constant memory is no launch. A module that a graph was captured with is never used by another call."""
    x, w = there(whole(1, 6, 8, 8)), there(whole(8, 6, 3, 3))
    plan = dispatch.find_plan(parse_problem("n1c6h8w8_k8r3s3_f32_nchw"), "direct_constant", None, "emulator", None)
    free = plan._prepare._free
    for capturing, modules in ((False, 1), (True, 0), (False, 1)):
        library.capturing = capturing
        y = convforge.conv2d(x, w, algorithm="direct_constant")
        np.testing.assert_array_equal(y.lies, convolved(x.lies, w.lies))
        assert len(free.get(library.current, [])) == modules
    assert len(plan._prepare._captured) == 1
    assert kept() == 0


@pytest.mark.parametrize("name", ["fft", "direct_constant"])
def test_what_a_library_does_is_not_left_out(library: ALibrary, name: str) -> None:
    """A transform and a copy are no launches of ours, so such a call goes the whole way."""
    w = there(whole(8, 6, 5, 5))
    for _ in range(2):
        x = there(whole(1, 6, 12, 12))
        y = convforge.conv2d(x, w, algorithm=name)
        np.testing.assert_allclose(y.lies, convolved(x.lies, w.lies), atol=0.01)
    assert kept() == 0


def test_a_filter_keeps_nothing_of_a_graph(library: ALibrary) -> None:
    x, blur = there(whole(1, 6, 8, 8)), convforge.Filter(there(whole(8, 6, 3, 3)))
    library.capturing = True
    blur(x)
    assert len(blur._kept) == 0
    library.capturing = False
    blur(x)
    assert len(blur._kept) == 1


def test_arrays_that_share_memory_are_told_apart(library: ALibrary) -> None:
    """First one array twice, and one within another; then others of the same kinds, each in memory of its own."""
    x = there(whole(3, 3, 3, 3))
    np.testing.assert_array_equal(convforge.conv2d(x, x).lies, convolved(x.lies, x.lies))
    wide = there(whole(1, 3, 16, 16))
    inner = There(wide.lies[0, :, :3, :3][None])
    np.testing.assert_array_equal(convforge.conv2d(wide, inner).lies, convolved(wide.lies, inner.lies))
    assert kept() == 2
    for _ in range(2):
        x, w = there(whole(3, 3, 3, 3)), there(whole(3, 3, 3, 3))
        np.testing.assert_array_equal(convforge.conv2d(x, w).lies, convolved(x.lies, w.lies))
        wide, other = there(whole(1, 3, 16, 16)), there(whole(1, 3, 16, 16))
        inner = There(other.lies[0, :, :3, :3][None])
        np.testing.assert_array_equal(convforge.conv2d(wide, inner).lies, convolved(wide.lies, inner.lies))
    assert kept() == 2


def test_a_cast_bias_goes_the_whole_way(library: ALibrary) -> None:
    x, w, b = there(whole(3, 3, 3, 3)), there(whole(4, 3, 3, 3)), there(whole(4, dtype=np.float64))
    for _ in range(2):
        np.testing.assert_array_equal(
            convforge.conv2d(x, w, b).lies, convolved(x.lies, w.lies) + b.lies[:, None, None].astype(np.float32)
        )
    assert kept() == 0


def test_out_may_overlap_x_there_too(library: ALibrary) -> None:
    x, w = there(whole(1, 3, 9, 9)), there(whole(3, 3, 3, 3))
    expected = convolved(x.lies, w.lies, pads=(1, 1, 1, 1))
    assert convforge.conv2d(x, w, padding=1, out=x) is x
    np.testing.assert_array_equal(x.lies, expected)


def test_a_result_goes_where_it_is_wanted_again(library: ALibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into another array than the first time, wherever that lies within its 256 bytes; one like x in strides too."""
    w, blur = there(whole(3, 3, 3, 3)), convforge.Filter(there(whole(3, 3, 3, 3)), padding=1)
    outs = [there(np.empty((1, 3, 9, 9), np.float32)) for _ in range(3)]
    made = library.made
    for out in outs:
        x = there(whole(1, 3, 9, 9))
        assert convforge.conv2d(x, w, padding=1, out=out) is out
        np.testing.assert_array_equal(out.lies, convolved(x.lies, w.lies, pads=(1, 1, 1, 1)))
        assert blur(x, out) is out
        np.testing.assert_array_equal(out.lies, convolved(x.lies, blur.w.lies, pads=(1, 1, 1, 1)))
    assert library.made == made, "no other result was made"
    assert kept() == len(blur._calls) == 1
    monkeypatch.setattr(api, "home_of", None)
    convforge.conv2d(there(whole(1, 3, 9, 9)), w, padding=1, out=outs[0])


def test_a_result_over_x_or_elsewhere_goes_the_whole_way(library: ALibrary) -> None:
    x, w = there(whole(1, 3, 9, 9)), there(whole(3, 3, 3, 3))
    out = there(np.empty((1, 3, 9, 9), np.float32))
    for target in (out, x, out):
        expected = convolved(x.lies, w.lies, pads=(1, 1, 1, 1))
        assert convforge.conv2d(x, w, padding=1, out=target) is target
        np.testing.assert_array_equal(target.lies, expected)
    assert kept() == 1
    with pytest.raises(ValueError, match="out has shape"):
        convforge.conv2d(x, w, out=out)


def test_pools_and_products_are_made_again(library: ALibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    x, b = there(whole(2, 4, 8, 10)), there(whole(10, 6))
    given = [there(whole(2, 4, 8, 10)) for _ in range(3)]
    convforge.max_pool2d(x, 2)
    convforge.gemm(There(x.lies[0, 0]), b)
    monkeypatch.setattr(api, "home_of", None)
    for x in given:
        pooled = convforge.max_pool2d(x, 2)
        np.testing.assert_array_equal(pooled.lies, x.lies.reshape(2, 4, 4, 2, 5, 2).max((3, 5)))
        np.testing.assert_array_equal(convforge.gemm(There(x.lies[0, 0]), b).lies, x.lies[0, 0] @ b.lies)


def test_what_is_measured_of_others_leaves_a_call_alone(library: ALibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice for problems like this one makes the call anew; one for others does not."""
    x, w = there(whole(1, 3, 9, 9)), there(whole(4, 3, 3, 3))
    convforge.conv2d(x, w)
    own, other = (key_of(parse_problem(text)) for text in ("n1c3h9w9_k4r3s3_f32_nchw", "n1c3h9w9_k8r3s3_f32_nchw"))
    asked = []
    monkeypatch.setattr(api, "home_of", lambda home_of=api.home_of, **given: asked.append(1) or home_of(**given))
    for key, count in ((other, 0), (own, 1), (other, 1), (own, 2)):
        CHOICES._of[key] = CHOICES._of.get(key, 0) + 1
        for _ in range(2):
            convforge.conv2d(x, w)
        assert len(asked) == count, key


# On the host.


@pytest.fixture(params=KINDS[:2])
def make(request: pytest.FixtureRequest) -> Iterator[Any]:
    api._CALLS.clear()
    yield maker(request.param)
    api._CALLS.clear()


def test_a_call_on_the_host_is_made_again_by_its_plan(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the strides: the plan looks at them anew."""
    w, b = whole(4, 3, 3, 3), whole(4)
    convforge.conv2d(make(whole(1, 3, 9, 9)), make(w), make(b))
    out = make(np.empty((1, 4, 7, 7), np.float32))
    convforge.conv2d(make(whole(1, 3, 9, 9)), make(w), make(b), out=out)
    monkeypatch.setattr(api, "home_of", None)
    for x in (whole(1, 3, 9, 9), whole(1, 3, 9, 9).transpose(0, 1, 3, 2), np.broadcast_to(whole(9), (1, 3, 9, 9))):
        w, b = whole(4, 3, 3, 3), whole(4)
        expected = convolved(x, w) + b[:, None, None]
        np.testing.assert_array_equal(np.asarray(convforge.conv2d(make(x), make(w), make(b))), expected)
        assert convforge.conv2d(make(x), make(w), make(b), out=out) is out
        np.testing.assert_array_equal(np.asarray(out), expected)


def test_a_filter_on_the_host_is_called_again(make: Any) -> None:
    w, b = whole(4, 3, 3, 3), whole(4)
    blur = convforge.Filter(make(w), make(b))
    for shape in ((1, 3, 9, 9), (3, 9, 9)) * 2:
        x = whole(*shape)
        expected = convolved(x.reshape(1, 3, 9, 9), w) + b[:, None, None]
        np.testing.assert_array_equal(np.asarray(blur(make(x))), expected.reshape(-1, *expected.shape[1:])[0]
                                      if len(shape) == 3 else expected)  # fmt: skip
    assert len(blur._calls) == 2


def test_a_call_that_is_kept_holds_no_array_of_the_caller(make: Any) -> None:
    x, w = make(whole(1, 3, 9, 9)), make(whole(4, 3, 3, 3))
    convforge.conv2d(x, w)
    gone = [weakref.ref(array) for array in (x, w)]
    del x, w
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_what_is_refused_is_refused_again(make: Any) -> None:
    """An array of the same shape and type that must not be read or written as it lies is told from one that may."""
    x, w = whole(1, 3, 9, 9), whole(4, 3, 3, 3)
    convforge.conv2d(make(x), make(w))
    masked, swapped = np.ma.masked_array(x, x > 0), x.astype(">f4")
    if type(make(x)) is np.ndarray:
        with pytest.raises(TypeError, match="masked array"):
            convforge.conv2d(masked, w)
        np.testing.assert_array_equal(convforge.conv2d(swapped, w), convolved(x, w))
        out = np.empty((1, 4, 7, 7), np.float32)
        convforge.conv2d(x, w, out=out)
        out.flags.writeable = False
        with pytest.raises(ValueError, match="out is read-only"):
            convforge.conv2d(x, w, out=out)
    else:
        with pytest.raises(ValueError, match="requires a gradient"):
            convforge.conv2d(make(x).requires_grad_(), make(w))
    with pytest.raises(TypeError, match=r"groups=1\.0"):
        convforge.conv2d(make(x), make(w), groups=1.0)


def test_the_other_operations_there(library: ALibrary) -> None:
    x = there(whole(2, 4, 8, 10))
    pooled = convforge.max_pool2d(x, 2)
    np.testing.assert_array_equal(pooled.lies, x.lies.reshape(2, 4, 4, 2, 5, 2).max((3, 5)))
    turned = There(x.lies.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(convforge.relu(turned).lies, np.maximum(turned.lies, 0))
    gaps = There(x.lies[:, :, ::2])
    np.testing.assert_array_equal(convforge.relu(gaps).lies, np.maximum(gaps.lies, 0))
    a, b = There(x.lies[0, 0]), There(x.lies[0, 1].T)
    np.testing.assert_array_equal(convforge.gemm(a, b).lies, a.lies @ b.lies)
    w = there(whole(3, 4, 3, 3))
    blur = convforge.Filter(w)
    for stream in (7, 8, 7):
        library.current = stream
        np.testing.assert_array_equal(blur(x).lies, convolved(x.lies, w.lies))
    assert len(blur._kept) == 2, "the weights are prepared for each stream"


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("method", ["auto", "direct_naive", "im2col", "separable"])
def test_a_filter_called_again(library: ALibrary, method: str, with_bias: bool) -> None:
    """It reads the weights that were prepared for the stream, and launches no preparation again."""
    w, b = there(whole(3, 4, 3, 3)), there(whole(3, dtype=np.float64)) if with_bias else None
    blur = convforge.Filter(w, b, algorithm=method)
    for stream in (7, 7, 7, 8, 8, 7):
        library.current = stream
        x = there(whole(2, 4, 8, 10))
        expected = convolved(x.lies, w.lies) + (0 if b is None else b.lies[:, None, None])
        np.testing.assert_allclose(blur(x).lies, expected, atol=1e-3 if method == "separable" else 0)
    assert len(blur._calls) == 1


# Those of 8-bit floats must be asked for by their precision.
METHODS = [a.name for a in ON_DEVICE if a.operation == "conv2d" and a.backend == "emulator" and not a.takes_fp8]
OF_BYTES = {
    *("direct_mma", "direct_dp4a", "depthwise_dp4a"),
    *("implicit_gemm_int8", "implicit_gemm_int8_mma", "implicit_gemm_dp4a"),
}


@pytest.mark.one_in(9)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_called_again_is_right(library: ALibrary, method: str) -> None:
    """Made again or not: a method that depends on more than its structs tell would be wrong here."""
    tolerance = 0.02 if method in ("separable", "fft", "fft_fused") else 0
    done = 0
    for channels, outputs, groups, layout in (
        (8, 8, 1, "NCHW"),
        (8, 8, 8, "NCHW"),
        (8, 8, 8, "NHWC"),
        (4, 2, 1, "NCHW"),
    ):
        for _ in range(3):
            x, taps = whole(2, channels, 16, 16), whole(outputs, channels // groups, 3, 3)
            if method in OF_BYTES:
                x, taps = np.abs(x).astype(np.uint8), taps.astype(np.int8)
            of_16_bits = ("depthwise_mma", "depthwise_batch", "implicit_gemm_wgmma", "implicit_gemm_mma")
            if method in (*of_16_bits, "implicit_gemm_few_channels", "implicit_gemm_few_outputs"):
                x, taps = x.astype(np.float16), taps.astype(np.float16)
            expected = convolved(x.astype(np.float32), taps.astype(np.float32), pads=(1, 1, 1, 1), groups=groups)
            w = there(taps)
            given = there(x if layout == "NCHW" else np.ascontiguousarray(x.transpose(0, 2, 3, 1)))
            try:
                y = convforge.conv2d(given, w, padding=1, groups=groups, layout=layout, algorithm=method)
            except convforge.UnsupportedProblem:
                break
            found = y.lies if layout == "NCHW" else y.lies.transpose(0, 3, 1, 2)
            np.testing.assert_allclose(found, expected, atol=tolerance)
            done += 1
    assert done >= 3


@pytest.mark.parametrize("channels", ["each", "sum"])
def test_a_picture_is_filtered_there(library: ALibrary, channels: str) -> None:
    """The taps are brought there once; each band is what the CPU makes of it."""
    filtering._TAPS.clear()
    image = there(whole(9, 12, 3))
    for _ in range(2):
        y = convforge.filter(image, "laplacian", channels=channels)
        np.testing.assert_array_equal(y.lies, convforge.filter(image.lies, "laplacian", channels=channels))
    assert len(filtering._TAPS) == 1


def test_arrays_stay_where_they_are(library: ALibrary) -> None:
    x, w = there(whole(1, 3, 9, 9)), there(whole(4, 3, 3, 3))
    with pytest.raises(ValueError, match="device='cpu', but the arrays are on emulator: leave device out"):
        convforge.conv2d(x, w, device="cpu")
    with pytest.raises(ValueError, match="x is an array that is there on emulator and w is a NumPy array on cpu"):
        convforge.conv2d(x, w.lies)


def test_many_threads_make_calls_again(library: ALibrary) -> None:
    wrong: list[Any] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(10):
            x, w = (there(random.integers(-8, 9, s).astype(np.float32)) for s in ((1, 3, 9, 9), (4, 3, 3, 3)))
            if not np.array_equal(convforge.conv2d(x, w).lies, convolved(x.lies, w.lies)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
