"""Floats as two numbers of 16 bits: the arithmetic of implicit_gemm_split on the emulator, and its filters."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.algorithms.faults_split import FILTER_FAULTS
from tests.algorithms.planted import Fault
from tests.algorithms.split_inputs import FAR, KINDS, split_inputs
from tests.algorithms.test_planted_faults import ORDERS, copy_with
from tests.backends.emulated import needs_emulator

import convforge
from convforge.algorithms import find
from convforge.algorithms.host.conv import address
from convforge.algorithms.implicit_gemm.split import SplitFilters
from convforge.backends.emulator import EmulatorError, EmulatorRuntime
from convforge.backends.kernel import KernelSource
from convforge.backends.runtime import upload_weights
from convforge.problem import Conv2dProblem, parse_problem
from convforge.problem.conv2d import FILTER_LAYOUTS
from convforge.verify import make_inputs

pytestmark = needs_emulator

TEXTS = ("n1c70h9w9_k5r3s2_p1_f32_nhwc", "n1c12h9w9_k3r3s3_p1_flip_f32_nchw")
# Filters of one tap: more of them than are compared with each other; in groups of other channels.
ONE_TAP = ("n1c70h4w4_k37r1s1_f32_nhwc", "n1c60h4w4_k40r1s1_g2_f32_nchw")
# A filter too large to be held in shared memory.
LARGE = "n1c6000h3w3_k2r3s3_p1_f32_nhwc"

TOP, SHIFT = 14, 7
# Kinds whose filters cannot be split, or not all of them.
PLAIN_FILTERS = (
    "small taps",
    "small channels",
    "small filter channels",
    "half small channel",
    "uneven filters",
    "far filters",
)


def of_one_tap(sizes: NDArray[Any], of_group: int) -> NDArray[Any]:
    """Of scaled numbers (K, C), the filters that lose a quarter of theirs, or a channel that all neighbours lose."""
    small = (sizes < 2.0**-12) & (sizes > 0)
    found = small.sum(axis=1) * 4 > (sizes > 0).sum(axis=1)
    for group in range(0, len(sizes), of_group):
        for first in range(group, group + of_group, 16):
            those = slice(first, min(first + 16, group + of_group))
            found[those] |= (small[those] & (sizes[those] < 2.0**-12).all(axis=0)).any(axis=1)
    return found


def expected(w: NDArray[Any], flip: bool, groups: int = 1) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Floats (K, R, S, C), their halves (2, K, R, S, C), and scales (K,), of which those that do not count are NaN."""
    plain = (w[:, :, ::-1, ::-1] if flip else w).transpose(0, 2, 3, 1)
    largest = np.abs(plain).max(axis=(1, 2, 3))
    exponent = np.maximum(np.floor(np.log2(largest)), -100).astype(int)  # smaller numbers are whole with that scale
    up = np.ldexp(1.0, TOP - exponent)[:, None, None, None]
    high = (plain * up).astype(np.float16)
    low = ((plain * up - high) * 2048).astype(np.float16)
    lines = np.concatenate(
        [np.abs(plain).max(axis=3).reshape(len(w), -1), np.abs(plain).max(axis=(1, 2))], axis=1, dtype=np.float64
    )
    least = np.where(lines == 0, np.inf, lines).min(axis=1) * up[:, 0, 0, 0]
    lost = least < 2.0**-12
    if w.shape[2:] == (1, 1):
        lost = of_one_tap(np.abs(plain[:, 0, 0]) * up[:, 0, 0], len(w) // groups)
    plainly = (exponent > 100) | (lost & (largest >= 2.0**-100))
    return plain, np.stack([high, low]), np.where(plainly, 0, np.ldexp(1.0, exponent - TOP + SHIFT))


def prepared(problem: Conv2dProblem, w: NDArray[Any], runtime: Any, layout: str = "KCRS") -> Any:
    made = SplitFilters(problem, runtime)(upload_weights(runtime, w, layout))
    return {name: np.asarray(runtime.download(array)) for name, array in made.tensors.items()} | {"note": made.note}


def what_is_wrong(text: str, kind: str, runtime: Any, layout: str = "KCRS") -> str | None:
    problem: Any = parse_problem(text)
    w: Any = split_inputs(problem, kind).w
    w[0] = -np.abs(w[0])
    with np.errstate(all="ignore"):
        plain, halves, scales = expected(w, problem.mode == "convolution", problem.groups)
    made = prepared(problem, w, runtime, layout)
    c = problem.c_per_group
    if not np.array_equal(made["w"].transpose(0, 2, 3, 1), plain):
        return "floats"
    if not np.array_equal(made["scales"], scales.astype(np.float32)):
        return "scales"
    split = scales != 0
    if not np.array_equal(made["halves"][:, split, :, :, :c], halves[:, split]):
        return "halves"
    if made["halves"][:, split, :, :, c:].any() or made["redone"].any():
        return "what lies beside"
    return None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_filters_are_split(text: str, kind: str) -> None:
    for layout in FILTER_LAYOUTS:
        assert what_is_wrong(text, kind, EmulatorRuntime(), layout) is None
    made = prepared(parse_problem(text), split_inputs(parse_problem(text), kind).w, EmulatorRuntime())  # type: ignore[arg-type]
    assert (made["scales"] == 0).any() == (kind in PLAIN_FILTERS)
    assert (made["note"] is not None) == (kind in PLAIN_FILTERS)


@pytest.mark.parametrize("text", TEXTS)
def test_weights_that_are_lent_are_read_where_they_lie(text: str) -> None:
    """The halves are the same; the floats are the weights themselves, from the first tap on."""
    problem: Any = parse_problem(text)
    w, runtime = split_inputs(problem, "normal").w, EmulatorRuntime()
    for layout in FILTER_LAYOUTS:
        given = upload_weights(runtime, w, layout)
        kept = SplitFilters(problem, runtime)
        lent = kept.borrow(given)
        assert "w" not in kept.borrow.pieces
        assert lent.tensors["given"] is given
        seen = lent.tensors["w"]
        first = given[:, :, -1, -1] if problem.mode == "convolution" else given
        assert (seen.shape, address(seen)) == (given.shape, address(first))
        steps = np.sign(seen.strides[2:])
        assert set(steps) == ({-1} if problem.mode == "convolution" else {1})
        for name in ("halves", "scales"):
            np.testing.assert_array_equal(lent.tensors[name], kept(given).tensors[name])


@pytest.mark.parametrize("mode", ["cross-correlation", "convolution"])
@pytest.mark.parametrize("near", [False, True])
def test_a_call_computes_plainly_from_weights_where_they_lie(near: bool, mode: str) -> None:
    """To the bits of a Filter, which has floats of its own."""
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 40, 9, 7), (5, 40, 3, 2)))
    w[2] *= 1e33
    w[4, 3] *= 1e-20
    given = np.ascontiguousarray(w.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) if near else w
    options: Any = {"mode": mode, "padding": 1, "algorithm": "implicit_gemm_split", "device": "emulator"}
    made = convforge.Filter(given, **options)
    for _ in range(3):
        np.testing.assert_array_equal(convforge.conv2d(x, given, **options), made(x))
    assert made.note.startswith("2 of 5 filters")


@pytest.mark.parametrize("text", ONE_TAP)
def test_a_filter_of_one_tap_may_have_a_few_small_numbers(text: str) -> None:
    """Among millions of random weights some are that small; a channel that no filter sees well is another matter."""
    problem: Any = parse_problem(text)
    for kind in KINDS:
        assert what_is_wrong(text, kind, EmulatorRuntime()) is None, kind

    def plain(w: Any) -> list[int]:
        made: list[int] = np.flatnonzero(prepared(problem, w, EmulatorRuntime())["scales"] == 0).tolist()
        return made

    w: Any = split_inputs(problem, "small numbers").w
    assert plain(w) == []
    w[:16, 3] /= FAR
    w[18, 3] = 0
    assert plain(w) == list(range(16))
    w[22, : problem.c_per_group // 2] /= FAR
    assert plain(w) == [*range(16), 22]


def test_a_large_filter_is_split() -> None:
    assert what_is_wrong(LARGE, "normal", EmulatorRuntime()) is None


def test_a_filter_with_a_nan_is_computed_from_floats() -> None:
    problem: Any = parse_problem(TEXTS[0])
    for number in (np.nan, np.inf, -np.inf):
        w: Any = split_inputs(problem, "normal").w
        w[2, 1, 1, 1] = number
        made = prepared(problem, w, EmulatorRuntime())
        assert np.flatnonzero(made["scales"] == 0).tolist() == [2]
        assert str(made["note"]).startswith("1 of 5 filters and 0 tiles")


class Faulty(EmulatorRuntime):
    """An emulator whose kernels have a fault planted in them."""

    def plant(self, fault: Fault, folder: Path) -> Faulty:
        self.fault, self.folder = fault, folder
        return self

    def compile(self, kernel: KernelSource) -> Any:
        copy = copy_with(self.fault, kernel.file, self.folder)
        assert copy != kernel.file
        return super().compile(dataclasses.replace(kernel, path=str(copy)))

    def empty(self, shape: Any, dtype: Any, stream: Any = None) -> Any:
        array = super().empty(shape, dtype, stream)
        self.fill(array, 0x55)
        return array


@pytest.mark.one_in(7)
@pytest.mark.parametrize("fault", FILTER_FAULTS, ids=str)
def test_a_planted_fault_is_noticed(fault: Fault, tmp_path: Path) -> None:
    for order in ORDERS:
        runtime = Faulty(order=order).plant(fault, tmp_path)
        for text in (*TEXTS, *ONE_TAP):
            for kind in ("normal", *PLAIN_FILTERS, "small numbers"):
                try:
                    if what_is_wrong(text, kind, runtime) is not None:
                        return
                except EmulatorError:
                    return
    pytest.fail(f"{fault}: nobody noticed")


METHOD: Any = find("conv2d", "emulator", "implicit_gemm_split")


@pytest.mark.parametrize("kind", ["normal", "relu", "positive", "binades", "wide", "integers", "cancelling"])
def test_sums_of_split_products_are_as_good_as_of_floats(kind: str) -> None:
    """The RMS error of three products, added up each 32, is below that of one multiply-add after the other."""
    problem: Any = parse_problem("n1c64h8w8_k64r3s3_p1_f32_nhwc")
    inputs: Any = make_inputs(problem, "integers") if kind == "integers" else split_inputs(problem, kind)
    order = np.random.default_rng(3).permutation(64)  # pairs that cancel do not stand side by side
    inputs = dataclasses.replace(inputs, x=inputs.x[..., order].copy(), w=inputs.w[:, order].copy())
    runtime = EmulatorRuntime()
    plan = METHOD.plan(problem, METHOD.configs(problem, runtime.facts)[0], runtime)
    out = runtime.empty(problem.out_shape, "float32")
    plan(plan.buffers(runtime.upload(inputs.x), plan.prepare(runtime.upload(inputs.w)), {}, out))
    exact, size, loop = (np.zeros(problem.out_shape) for _ in range(3))
    padded = np.pad(inputs.x, ((0, 0), (1, 1), (1, 1), (0, 0))).astype(np.float64)
    for r, s, c in np.ndindex(3, 3, 64):
        products = padded[:, r : r + 8, s : s + 8, c, None] * inputs.w[:, c, r, s].astype(np.float64)
        exact, size, loop = exact + products, size + products**2, (loop + products).astype(np.float32)
    if kind == "integers":
        assert np.array_equal(runtime.download(out), exact)
    else:
        ours, theirs = (np.sqrt(np.mean((found - exact) ** 2 / size)) for found in (runtime.download(out), loop))
        assert ours < theirs, f"{ours:.2e} beside {theirs:.2e}"
