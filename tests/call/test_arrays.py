"""Arrays of NumPy, PyTorch and JAX on the host: the same results, of the same kind, and the same words for mistakes."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from tests.api.definition import convolved, whole
from tests.kinds import KINDS, maker, module

import convforge
from convforge.problem.types import numpy_dtype

X, W, B = whole(2, 6, 9, 11), whole(4, 6, 3, 3), whole(4)
EXPECTED = convolved(X, W, pads=(1, 1, 1, 1)) + B[:, None, None]
# Where types are the question and not the method: it compiles for new ones in a quarter of the others' time.
NAIVE = "direct_naive"


def cast(array: Any, dtype: str) -> Any:
    """An array in another type, which each library has under the same name."""
    return array.to(getattr(module("torch"), dtype)) if hasattr(array, "to_sparse") else array.astype(dtype)


def transposed(array: Any, axes: tuple[int, ...]) -> Any:
    return array.permute(axes) if hasattr(array, "to_sparse") else array.transpose(axes)


def as_numpy(array: Any) -> Any:
    """NumPy's array of the same numbers; PyTorch gives none in the types of ml_dtypes."""
    return array.float().numpy() if hasattr(array, "to_sparse") else np.asarray(array)


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Any:
    return maker(request.param)


def test_conv2d_gives_the_kind_that_it_is_given(make: Any) -> None:
    y = convforge.conv2d(make(X), make(W), make(B), padding=1)
    assert type(y) is type(make(X))
    np.testing.assert_array_equal(np.asarray(y), EXPECTED)


def test_a_picture_without_a_batch_axis(make: Any) -> None:
    np.testing.assert_array_equal(np.asarray(convforge.conv2d(make(X[0]), make(W), make(B), padding=1)), EXPECTED[0])


def test_a_filter_keeps_its_own_weights(make: Any) -> None:
    w = make(W.copy())
    kept = convforge.Filter(w, make(B), padding=1)
    if not hasattr(w, "at"):  # JAX's arrays do not change
        w[...] = 0
    y = kept(make(X))
    assert type(y) is type(make(X))
    np.testing.assert_array_equal(np.asarray(y), EXPECTED)


def test_the_other_operations(make: Any) -> None:
    pooled = convforge.max_pool2d(make(X), 2)
    np.testing.assert_array_equal(np.asarray(pooled), X[:, :, :8, :10].reshape(2, 6, 4, 2, 5, 2).max((3, 5)))
    np.testing.assert_array_equal(np.asarray(convforge.relu(make(X))), np.maximum(X, 0))
    np.testing.assert_array_equal(np.asarray(convforge.gemm(make(X[0, 0]), make(X[0, 1].T))), X[0, 0] @ X[0, 1].T)
    assert {type(pooled), type(convforge.relu(make(X)))} == {type(make(X))}


def test_a_picture_is_filtered(make: Any) -> None:
    y = convforge.filter(make(X[0, 0]), "box:3", channels="each")
    assert type(y) is type(make(X))
    np.testing.assert_array_equal(np.asarray(y), convforge.filter(X[0, 0], "box:3"))


def test_bfloat16(make: Any) -> None:
    """On the CPU: sums in float32, rounded once, and of the same kind on every call."""
    x, w, b = (cast(make(array), "bfloat16") for array in (X, W, B))
    exact = EXPECTED.astype("bfloat16")
    filtered, kept = convforge.filter(x[0, 0], "box:3"), convforge.Filter(w, b, padding=1, algorithm=NAIVE)
    for y in (convforge.conv2d(x, w, b, padding=1, algorithm=NAIVE), kept(x), kept(x)):
        assert (type(y), y.dtype) == (type(x), x.dtype)
        np.testing.assert_array_equal(as_numpy(y), exact)
    last = transposed(x, (0, 2, 3, 1))
    y = convforge.conv2d(last, w, padding=1, layout="NHWC", activation="relu", algorithm=NAIVE)
    sums = np.maximum(EXPECTED - B[:, None, None], 0).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(as_numpy(y), sums.astype("bfloat16"))
    np.testing.assert_array_equal(as_numpy(convforge.relu(x)), np.maximum(X, 0))
    np.testing.assert_array_equal(as_numpy(convforge.max_pool2d(x, 2)), convforge.max_pool2d(X, 2))
    np.testing.assert_array_equal(as_numpy(filtered), convforge.filter(X[0, 0], "box:3").astype("bfloat16"))
    assert convforge.conv2d(x[:0], w, algorithm=NAIVE).shape == (0, 4, 7, 9)


FP8_CALLS: dict[str, Any] = {
    "conv2d": lambda x: convforge.conv2d(x, x),
    "Filter": lambda x: convforge.Filter(x)(x),
    "max_pool2d": lambda x: convforge.max_pool2d(x, 2),
    "relu": convforge.relu,
    "gemm": lambda x: convforge.gemm(x[0, 0], x[0, 0]),
    "filter": lambda x: convforge.filter(x[0, 0], "box:3"),
}


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("call", FP8_CALLS)
def test_8_bit_floats_are_refused_by_name(make: Any, call: str, dtype: str) -> None:
    x = cast(make(np.ones((1, 3, 3, 3), np.float32)), dtype)
    with pytest.raises(convforge.UnsupportedProblem) as caught:
        FP8_CALLS[call](x)
    assert set(caught.value.reasons.values()) == {f"it does not take {dtype}; cast to float16, bfloat16 or float32"}


def test_results_of_a_filter_in_types_of_ml_dtypes() -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    wide = convforge.filter(pixels, "box:3", out_dtype="float32")
    for wanted in ("bfloat16", numpy_dtype("bfloat16"), "torch.bfloat16"):
        found = convforge.filter(pixels, "box:3", out_dtype=wanted)
        assert found.dtype == "bfloat16"
        np.testing.assert_allclose(found.astype(np.float32), wide, rtol=2**-8)
    with pytest.raises(convforge.UnsupportedProblem, match="it does not take float8_e5m2"):
        convforge.filter(pixels, "box:3", out_dtype="float8_e5m2")
    kernel = np.ones((3, 3), "bfloat16")
    np.testing.assert_array_equal(convforge.filter(pixels, kernel / 8), convforge.filter(pixels, np.ones((3, 3)) / 8))


@pytest.mark.parametrize("dtype", ["float64", "float16", "uint8", "int8"])
def test_element_types(make: Any, dtype: str) -> None:
    x, w = make(whole(1, 2, 5, 6, low=0).astype(dtype)), make(whole(3, 2, 3, 3, low=0).astype(dtype))
    y = convforge.conv2d(x, w, algorithm=NAIVE)  # JAX makes float32 of float64 unless it is told not to
    np.testing.assert_array_equal(np.asarray(y), convforge.conv2d(np.asarray(x), np.asarray(w), algorithm=NAIVE))
    assert y.dtype == (x.dtype if "float" in dtype else make(np.zeros(1, np.int32)).dtype)


# What is wrong, as arguments of conv2d: each kind of array is told the same.
MISTAKES: dict[str, Any] = {
    "axes of x": lambda a: ((a(X[0, 0]), a(W)), {}),
    "axes of w": lambda a: ((a(X), a(W[0])), {}),
    "channels": lambda a: ((a(X), a(W[:, :5])), {}),
    "element type": lambda a: ((a(X > 0), a(W)), {}),
    "complex": lambda a: ((a(X.astype(np.complex64)), a(W)), {}),
    "two types": lambda a: ((a(X), a(W.astype(np.float16))), {}),
    "bias": lambda a: ((a(X), a(W), a(whole(3))), {}),
    "axes of bias": lambda a: ((a(X), a(W), a(whole(4, 1))), {}),
    "stride": lambda a: ((a(X), a(W)), {"stride": 0}),
    "an empty image": lambda a: ((a(X[:, :, :0]), a(W)), {}),
    "too large a filter": lambda a: ((a(X), a(whole(4, 6, 10, 3))), {}),
    "device": lambda a: ((a(X), a(W)), {"device": "tpu"}),
    "algorithm": lambda a: ((a(X), a(W)), {"algorithm": "direct_row"}),
    "a list": lambda a: ((a(X), W.tolist()), {}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_mistake_is_told_in_the_same_words(kind: str, mistake: str) -> None:
    said = []
    for make in (maker("numpy"), maker(kind)):
        arguments, options = MISTAKES[mistake](make)
        with pytest.raises((ValueError, TypeError)) as caught:
            convforge.conv2d(*arguments, **options)
        said.append((type(caught.value), str(caught.value)))
    assert said[0] == said[1]


@pytest.mark.parametrize("kind", KINDS[1:])
def test_kinds_do_not_mix(kind: str) -> None:
    make = maker(kind)
    for x, w, b in ((make(X), W, None), (X, make(W), None), (make(X), make(W), B)):
        with pytest.raises(ValueError, match=r"x is a .* on cpu and (w|bias) is a .* on cpu; .*: move (w|bias) to"):
            convforge.conv2d(x, w, b)


# PyTorch.


@pytest.mark.parametrize(
    "view", [lambda t: t.transpose(2, 3), lambda t: t[:, :, ::2, 1:], lambda t: t.expand(2, 6, 9, 11)]
)
def test_tensors_of_any_strides(view: Any) -> None:
    x = view(maker("torch")(X))
    w = maker("torch")(W).transpose(2, 3)
    y = convforge.conv2d(x, w)
    np.testing.assert_array_equal(y.numpy(), convolved(x.numpy(), w.numpy()))


def test_a_tensor_to_write_to() -> None:
    torch, make = module("torch"), maker("torch")
    out = torch.empty(2, 4, 9, 11).transpose(2, 3).contiguous().transpose(2, 3)
    assert convforge.conv2d(make(X), make(W), make(B), padding=1, out=out) is out
    np.testing.assert_array_equal(out.numpy(), EXPECTED)
    x = make(whole(2, 4, 9, 11))
    expected = convolved(x.numpy(), W[:, :4], pads=(1, 1, 1, 1))
    assert convforge.conv2d(x, make(W[:, :4]), padding=1, out=x) is x
    np.testing.assert_array_equal(x.numpy(), expected)
    with pytest.raises(ValueError, match=r"out has shape .* and dtype int64; the result has .* float32"):
        convforge.conv2d(make(X), make(W), out=torch.empty(2, 4, 7, 9, dtype=torch.int64))


def test_a_tensor_that_wants_a_gradient_is_sent_to_the_operator() -> None:
    torch, make = module("torch"), maker("torch")
    w = make(W).requires_grad_()
    with pytest.raises(ValueError, match=r"w requires a gradient.*convforge\.torch\.conv2d.*w\.detach"):
        convforge.conv2d(make(X), w)
    with torch.no_grad():
        np.testing.assert_array_equal(convforge.conv2d(make(X), w).numpy(), convolved(X, W))


def test_tensors_whose_elements_cannot_be_read() -> None:
    torch, make = module("torch"), maker("torch")
    for x, says in ((make(X).to_sparse(), "to_dense"), (make(X).to("meta"), "on meta")):
        with pytest.raises((TypeError, ValueError), match=says):
            convforge.conv2d(x, x)
    imaginary = torch.complex(make(X), make(X)).conj().imag  # minus X, by a bit of the tensor
    np.testing.assert_array_equal(convforge.relu(imaginary).numpy(), np.maximum(-X, 0))


# JAX.


def test_traced_arrays_are_refused() -> None:
    jax, make = module("jax"), maker("jax")
    for transform in (jax.jit, jax.grad):
        with pytest.raises(TypeError, match=r"x is traced by JAX .*: call convforge outside, on arrays"):
            transform(lambda x: convforge.conv2d(x, make(W)).sum())(make(X))


def test_a_jax_array_is_not_written_to() -> None:
    make = maker("jax")
    with pytest.raises(TypeError, match="out is a JAX array, which cannot be written to"):
        convforge.conv2d(make(X), make(W), out=make(EXPECTED))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("told", [False, True])
def test_jaxs_float64_stays_float64(told: bool) -> None:
    """JAX makes arrays of float64 where it is told to; its default has nothing to say about results of such."""
    jax = module("jax")
    with jax.enable_x64(True):
        x, w, b = (jax.numpy.asarray(array.astype(np.float64) + 2.0**-40) for array in (X, W, B))
        small = jax.numpy.asarray(X, "int8")
    with jax.enable_x64(told), warnings.catch_warnings():
        warnings.simplefilter("error")
        found = convforge.conv2d(x, w, b, padding=1, algorithm=NAIVE)
        prepared = convforge.Filter(w, b, padding=1, algorithm=NAIVE)(x)
        others = {
            "relu": convforge.relu(x),
            "relu of a view": convforge.relu(x[:, :, ::2]),
            "max_pool2d": convforge.max_pool2d(x, 2),
            "gemm": convforge.gemm(x[0, 0], x[0, 0].T),
            "filter": convforge.filter(x[0, 0], "box:3", algorithm=NAIVE),
            "filter to float64": convforge.filter(small[0, 0], "box:3", out_dtype="float64", algorithm=NAIVE),
            "int8 by float64": convforge.conv2d(small, w, algorithm=NAIVE),
        }
    expected = convforge.conv2d(*(np.asarray(array) for array in (x, w, b)), padding=1, algorithm=NAIVE)
    assert not (expected == expected.astype(np.float32)).all()
    for result in (found, prepared):
        assert isinstance(result, jax.Array)
        np.testing.assert_array_equal(np.asarray(result), expected)
    assert {name: str(result.dtype) for name, result in others.items()} == dict.fromkeys(others, "float64")


def test_nobody_is_imported_who_was_not_there() -> None:
    code = (
        "import sys, numpy as np, convforge; x = np.ones((1, 1, 5, 5), 'f4'); convforge.conv2d(x, x);"
        "print([m for m in ('torch', 'cupy', 'jax') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
