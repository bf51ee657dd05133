"""Odd arrays, as somebody who wishes us ill would hand them in: the right result each time, or one sentence that helps.

Each is handed in twice, and after a call on a plain array of the same shape and type: what is kept of a call must not
let in, or read wrongly, what the whole way would not.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.api.definition import convolved, whole
from tests.kinds import maker, module

import convforge
from convforge import api

X, W, B = whole(2, 3, 9, 9), whole(4, 3, 3, 3), whole(4)
EXPECTED = convolved(X, W) + B[:, None, None]


class Sub(np.ndarray):
    """A class of arrays."""


def warm() -> None:
    """A call on plain arrays, which is kept."""
    convforge.conv2d(X, W, B)


# Views of four axes: what a user's slices and transposes come to.
STEPS: dict[str, Callable[[Any], Any]] = {
    "reversed rows": lambda a: a[:, :, ::-1],
    "reversed columns": lambda a: a[..., ::-1],
    "reversed images": lambda a: a[::-1],
    "turned": lambda a: a.transpose(0, 1, 3, 2),
    "every second row": lambda a: a[:, :, ::2],
    "cut": lambda a: a[:, :, 1:, :-1],
    "one channel for all": lambda a: np.broadcast_to(a[:, :1], a.shape),
    "one pixel for all": lambda a: np.broadcast_to(a[..., :1, :1], a.shape),
    "no images": lambda a: a[:0],
    "foreign bytes": lambda a: a.astype(a.dtype.newbyteorder("S")),
    "not aligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
    "a field of records": lambda a: _field(a),
    "read-only": lambda a: _read_only(a),
    "a subclass": lambda a: a.view(Sub),
    "columns first in memory": lambda a: np.asfortranarray(a),
}


def _field(array: Any) -> Any:
    records = np.zeros(array.shape, [("before", "u1"), ("value", array.dtype)])
    records["value"] = array
    return records["value"]


def _read_only(array: Any) -> Any:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=3), st.lists(st.sampled_from(sorted(STEPS)), max_size=2),
       st.sampled_from(["float32", "float64", "float16", "uint8"]))  # fmt: skip
def test_views_of_views_give_what_their_copies_give(of_x: list[str], of_w: list[str], dtype: str) -> None:
    x, w = whole(2, 3, 14, 14, low=0).astype(dtype), whole(4, 3, 3, 3, low=0).astype(dtype)
    for step in of_x:
        x = STEPS[step](x)
    for step in of_w:
        w = w if step in ("no images", "every second row", "cut") else STEPS[step](w)
    if min(x.shape[2:]) < 3:
        return
    expected = convolved(np.array(x, np.float64), np.array(w, np.float64))
    for _ in range(2):
        found = convforge.conv2d(x, w, algorithm="auto" if dtype == "float32" else "direct_naive")
        assert found.shape == expected.shape
        np.testing.assert_array_equal(found.astype(np.float64), expected)


def _refusals() -> dict[str, tuple[Callable[[], Any], type[Exception], str]]:
    out = np.empty(EXPECTED.shape, np.float32)
    spread = np.lib.stride_tricks.as_strided(np.empty(1, np.float32), EXPECTED.shape, (0, 0, 0, 0))
    whole = np.empty_like(out)
    sliding = np.lib.stride_tricks.as_strided(whole, whole.shape, (*whole.strides[:2], 4, 4))
    conv2d = convforge.conv2d
    return {
        "no x": (lambda: conv2d(None, W), TypeError, "x must be an array; got None"),
        "no w": (lambda: conv2d(X, None), TypeError, "w must be an array; got None"),
        "a list": (lambda: conv2d(X.tolist(), W), TypeError, "x must be a NumPy array.*got list"),
        "a number": (lambda: conv2d(X, np.float32(1)), TypeError, "w must be a NumPy array.*got float32"),
        "a mask": (lambda: conv2d(np.ma.masked_array(X), W, B), TypeError, "x is a masked array"),
        "a masked bias": (lambda: conv2d(X, W, np.ma.masked_array(B)), TypeError, "bias is a masked array"),
        "objects": (lambda: conv2d(X.astype(object), W), TypeError, "x has dtype object"),
        "records": (lambda: conv2d(X.view([("v", "f4")]), W), TypeError, "x has dtype"),
        "complex": (lambda: conv2d(X.astype("c8"), W), TypeError, "x has dtype complex64"),
        "a read-only out": (lambda: conv2d(X, W, B, out=_read_only(out)), ValueError, "out is read-only"),
        "an out whose rows overlap": (
            lambda: conv2d(X, W, B, out=sliding),
            ValueError,
            "several results would share one",
        ),
        "an out of one number": (lambda: conv2d(X, W, B, out=spread), ValueError, "several results would share one"),
        "an out in foreign bytes": (lambda: conv2d(X, W, B, out=out.astype(">f4")), ValueError, "dtype >f4"),
        "an out of another shape": (lambda: conv2d(X, W, B, out=out[:, :3]), ValueError, "out has shape"),
        "out=True": (lambda: conv2d(X, W, B, out=True), TypeError, "out must be a NumPy array"),
        "stride=True": (lambda: conv2d(X, W, B, True), TypeError, "stride=True"),
        "a stride of floats": (lambda: conv2d(X, W, B, (1.0, 1)), TypeError, r"stride=1\.0"),
        "groups=True": (lambda: conv2d(X, W, B, groups=True), TypeError, "groups=True"),
        "a huge stride": (lambda: conv2d(X, W, B, 2**70), ValueError, "must be at most"),
        "tune=1": (lambda: conv2d(X, W, B, tune=1), TypeError, "tune=1"),
        "deterministic=0": (lambda: conv2d(X, W, B, deterministic=0), TypeError, "deterministic=0"),
        "a pool of True": (lambda: convforge.max_pool2d(X, (2, True)), TypeError, "kernel_size=True"),
    }


@pytest.mark.parametrize("name", _refusals())
def test_a_refusal_is_a_sentence_and_stays_one(name: str) -> None:
    call, kind, says = _refusals()[name]
    warm()
    convforge.conv2d(X, W, B, (1, 1), tune=True, deterministic=False)
    convforge.conv2d(X, W, B, out=np.empty(EXPECTED.shape, np.float32))
    convforge.max_pool2d(X, (2, 1))
    for _ in range(2):
        with pytest.raises(kind, match=says):
            call()
    np.testing.assert_array_equal(convforge.conv2d(X, W, B), EXPECTED)


def test_results_go_to_views_too() -> None:
    warm()
    for make in (lambda a: a[::-1], lambda a: a.transpose(0, 1, 3, 2), lambda a: a.view(Sub), _field):
        out = make(np.empty(EXPECTED.shape, np.float32))
        for _ in range(2):
            out[...] = np.nan
            assert convforge.conv2d(X, W, B, out=out) is out
            np.testing.assert_array_equal(out, EXPECTED)


# PyTorch.


def test_odd_tensors_are_read_as_they_are() -> None:
    torch, make = module("torch"), maker("torch")
    x, w, b = make(X), make(W), make(B)

    def minus(tensor: Any) -> Any:
        """Minus the tensor, by a bit of its own."""
        return torch.complex(tensor, tensor).conj().imag

    class Tagged(torch.Tensor):  # type: ignore[misc]
        pass

    cases = {
        "plain": ((x, w, b), EXPECTED),
        "minus x": ((minus(x), w, b), convolved(-X, W) + B[:, None, None]),
        "minus w": ((x, minus(w), b), convolved(X, -W) + B[:, None, None]),
        "minus bias": ((x, w, minus(b)), convolved(X, W) - B[:, None, None]),
        "expanded": ((x[:, :1].expand(2, 3, 9, 9), w, b), convolved(np.repeat(X[:, :1], 3, 1), W) + B[:, None, None]),
        "channels last": ((x.to(memory_format=torch.channels_last), w, b), EXPECTED),
        "a subclass": ((x.as_subclass(Tagged), w, b), EXPECTED),
        "no images": ((x[:0], w, b), EXPECTED[:0]),
    }
    for name, (arrays, expected) in cases.items():
        for _ in range(2):
            np.testing.assert_array_equal(np.asarray(convforge.conv2d(*arrays)), expected, name)
    with torch.no_grad():
        np.testing.assert_array_equal(convforge.conv2d(x, torch.nn.Parameter(w), b).numpy(), EXPECTED)
    with torch.inference_mode():
        np.testing.assert_array_equal(convforge.conv2d(x * 1, w, b).numpy(), EXPECTED)


def test_odd_tensors_are_refused_in_a_sentence() -> None:
    torch, make = module("torch"), maker("torch")
    x, w, b = make(X), make(W), make(B)
    minus = torch.zeros(EXPECTED.shape, dtype=torch.complex64).conj().imag
    convforge.conv2d(x, w, b, out=torch.zeros(EXPECTED.shape))
    calls: dict[str, Callable[[], Any]] = {
        "out has a lazy minus sign": lambda: convforge.conv2d(x, w, b, out=minus),
        "several results would share one": lambda: convforge.conv2d(x, w, b, out=torch.zeros(1).expand(2, 4, 7, 7)),
        "out requires a gradient": lambda: convforge.conv2d(x, w, b, out=torch.zeros(2, 4, 7, 7, requires_grad=True)),
        "w requires a gradient": lambda: convforge.conv2d(x, torch.nn.Parameter(w), b),
        "w is a tensor of layout torch.sparse_coo": lambda: convforge.conv2d(x, w.to_sparse(), b),
        "w is on meta": lambda: convforge.conv2d(x, w.to("meta"), b),
        "dtype complex64": lambda: convforge.conv2d(torch.complex(x, x), w, b),
        "w is float32 and x is float8_e4m3fn": lambda: convforge.conv2d(x.to(torch.float8_e4m3fn), w),
        "dtype float8_e4m3fnuz": lambda: convforge.conv2d(x.to(torch.float8_e4m3fnuz), w),
        "inside of torch.func": lambda: torch.vmap(lambda a: convforge.conv2d(a, w))(x[None]),
        "bias is a NumPy array": lambda: convforge.conv2d(x, w, B),
        "x must be a PyTorch tensor; got ndarray": lambda: convforge.torch.conv2d(X, w),
        "weight must be a PyTorch tensor; got NoneType": lambda: convforge.torch.conv2d(x, None),
        r"stride=\(1, 1, 1\) must be": lambda: convforge.torch.conv2d(x, w, b, (1, 1, 1)),
        r"activation=\[\] must be None": lambda: convforge.torch.conv2d(x, w, b, activation=[]),
        "padding='1' is unknown": lambda: convforge.torch.conv2d(x, w, b, 1, "1"),
    }
    for says, call in calls.items():
        for _ in range(2):
            with pytest.raises((ValueError, TypeError), match=says):
                call()


@pytest.mark.thorough
def test_the_operator_knows_the_type_of_its_result() -> None:
    torch, make = module("torch"), maker("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    for x_dtype, w_dtype in ((torch.uint8, torch.int8), (torch.int16, torch.float32), (torch.float64, torch.float64)):
        x, w = make(X).to(x_dtype), make(W).to(w_dtype)
        real = convforge.torch.conv2d(x, w)
        mode = FakeTensorMode()
        with mode:
            fake = convforge.torch.conv2d(mode.from_tensor(x), mode.from_tensor(w))
        assert (fake.dtype, fake.shape) == (real.dtype, real.shape)


# Many threads, many kinds of calls.


def test_many_threads_of_mixed_calls() -> None:
    """Levels, shapes, types, results given and not, and the calls that are kept forgotten meanwhile."""
    wrong: list[Any] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        kept = convforge.Filter(W, B)
        for i in range(25):
            try:
                _one(rng, kept)
            except Exception as fault:  # told below, with the seed that makes it again
                wrong.append((seed, i, repr(fault)[:300]))
            if rng.random() < 0.1:
                api._CALLS.clear()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def _one(rng: random.Random, kept: Any) -> None:
    dtype = "f4"
    size = rng.randrange(5, 12)
    x = np.random.default_rng(rng.randrange(10**6)).integers(0, 5, (rng.randrange(3), 3, size, size)).astype(dtype)
    w = W.astype(dtype) if dtype != "u1" else np.abs(W).astype("u1")
    options: dict[str, Any] = {
        "algorithm": rng.choice(["auto", "heuristic", "direct_rows", "im2col"]),
        "tune": rng.choice([None, False]),
        "deterministic": rng.choice([True, False]),
    }
    expected = convolved(x.astype("f8"), w.astype("f8"))
    out = None if rng.random() < 0.5 else np.empty(expected.shape, "i4" if dtype == "u1" else dtype)
    found = convforge.conv2d(x, w, out=out, **options)
    np.testing.assert_array_equal(found.astype("f8"), expected)
    if dtype == "f4":
        np.testing.assert_array_equal(kept(x), expected + B[:, None, None])
