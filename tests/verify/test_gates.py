"""Every class's gate, tried both ways: honest arithmetic passes with margin, the next narrower arithmetic does not."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy import fft
from tests.verify.arithmetic import (
    BF16,
    FP16,
    FP32,
    H100,
    HOPPER_FP8,
    HOPPER_FP8_TWO_LEVELS,
    SUMS_OF_11_BITS,
    TF32,
    TF32_CUT,
    Floats,
    Rounding,
    exact,
    nearest,
    pairwise,
    sequential,
    split_products,
)
from tests.verify.narrow import (
    BF16_SUMS,
    DATA,
    DRAINED,
    FP16_SUMS,
    HONEST,
    NARROWER,
    OF_HALVES,
    SIZES,
    both,
    inputs_of,
    problem_of,
    result,
)

from convforge.backends.cpu import cpu_runtime
from convforge.problem import PRECISIONS, parse_problem
from convforge.verify import Inputs, Judge, Sample, make_inputs, truth
from convforge.verify.factors import ROUNDINGS
from convforge.verify.gate import ALLOWED, Gate

# Honest models must stay below this share of what is allowed.
MARGIN = 0.85
SMALL = [size for size in SIZES if size[0] in (1, 3, 8)]
LARGE = [size for size in SIZES if size[0] > 8]
# From so many products on, FP8 sums of 14 bits differ enough from those that are added in FP32 after each 128.
PRODUCTS_OF_14_BITS = 2304
# Over so many products of one sign, sums of 14 bits that are cut off err as much as sums of 11 bits that are rounded.
PRODUCTS_OF_14_BITS_ALONE = 2048
# Products of FP8 factors have 8 bits, so FP16 holds a few of them nearly as well as units of 14 bits do.
PRODUCTS_OF_FP16 = 9
# Of widely spread numbers a few make the sum.
PRODUCTS_OF_FP16_WIDE = 256
# Over so many products of one sign FP32 sums that are cut off err as much as BF16 factors.
PRODUCTS_OF_ONE_SIGN = 18432


def ratio(judge: Judge, precision: str, got: Floats) -> float:
    """Times what the gate allows; infinite where the elementwise bound is broken."""
    assert judge.gate is not None
    found = judge.gate.measured(precision, got)
    assert found is not None
    if not judge.verdict(precision, got).ok:
        return max(found.ratio, np.nextafter(1, 2))
    return found.ratio


def check_both_ways(judge: Judge, precision: str, honest: dict[str, Any], narrower: dict[str, Any]) -> None:
    """Judge models of honest and of narrower arithmetic on a judge's inputs."""
    problem: Any = judge.problem
    dtype = judge.truth.value.astype(getattr(problem, "out_dtype", None) or problem.dtype).dtype
    with np.errstate(over="ignore"):
        good = {n: ratio(judge, precision, result(problem, judge.inputs, m).astype(dtype)) for n, m in honest.items()}
        bad = {n: ratio(judge, precision, result(problem, judge.inputs, m).astype(dtype)) for n, m in narrower.items()}
    assert {name: value for name, value in good.items() if not value <= MARGIN} == {}
    assert {name: value for name, value in bad.items() if not value > 1} == {}


def narrow_both_ways(precision: str, data: str, c: int, r: int) -> None:
    problem: Any = problem_of(c, r)
    narrower = dict(NARROWER[precision])
    if precision == "fp8" and c * max(r * r, 1) < PRODUCTS_OF_14_BITS:
        del narrower["14-bit sums"]
    few = PRODUCTS_OF_FP16_WIDE if data == "wide" else PRODUCTS_OF_FP16
    if precision in ("fp8", "fp8_fast") and c * max(r * r, 1) < few:
        del narrower["FP16 sums"]
        narrower.pop("11-bit sums", None)
    if precision == "fp8_fast" and data in ("positive", "smooth") and c * max(r * r, 1) >= PRODUCTS_OF_14_BITS_ALONE:
        del narrower["FP16 sums"], narrower["11-bit sums"]
        if c * r * r >= PRODUCTS_OF_ONE_SIGN:
            del narrower["e2m1 factors"]
    if precision in ("tf32", "fp16") and data == "smooth" and c * max(r * r, 1) >= PRODUCTS_OF_ONE_SIGN:
        for hidden in ("bf16 factors", "8 explicit bits", "x in bf16"):
            narrower.pop(hidden, None)
    honest = dict(HONEST[precision])
    if c * max(r * r, 1) == 1:
        honest.pop("three FP16 products", None)  # FMAs round a single product once, these three times
    check_both_ways(Judge(problem, inputs_of(problem, data)), precision, honest, narrower)


@pytest.mark.one_in(7)
@pytest.mark.parametrize(("c", "r"), SMALL)
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("precision", HONEST)
def test_a_class_of_narrow_factors_fails_the_next_narrower(precision: str, data: str, c: int, r: int) -> None:
    narrow_both_ways(precision, data, c, r)


@pytest.mark.thorough
@pytest.mark.parametrize(("c", "r"), LARGE)
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("precision", HONEST)
def test_a_class_of_narrow_factors_fails_the_next_narrower_over_many_channels(
    precision: str, data: str, c: int, r: int
) -> None:
    narrow_both_ways(precision, data, c, r)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("stored", ["float16", "float32"])
@pytest.mark.parametrize(("c", "r"), [(3, 3), (256, 3), (2048, 1)])
@pytest.mark.parametrize("data", ["normal", "positive"])
def test_arrays_of_8_bit_floats_need_sums_in_float32_after_every_128_products(
    data: str, c: int, r: int, stored: str
) -> None:
    problem: Any = problem_of(c, r, "float8_e4m3fn", stored)
    judge = Judge(problem, inputs_of(problem, data))
    honest = {"FMA": both(exact, sequential), "Hopper": both(exact, HOPPER_FP8_TWO_LEVELS)}
    narrower = {"FP16 sums": both(exact, FP16_SUMS)}
    if c * r * r >= 2048:
        narrower["14-bit sums"] = both(exact, HOPPER_FP8)
    check_both_ways(judge, "fp8", honest, narrower)
    # Without a second level 14 bits are enough, and 11 bits are too few.
    one_level, few_bits = {"14-bit sums": both(exact, HOPPER_FP8)}, {"11-bit sums": both(exact, SUMS_OF_11_BITS)}
    if data != "positive" or c * r * r < PRODUCTS_OF_14_BITS_ALONE:
        few_bits["FP16 sums"] = both(exact, FP16_SUMS)
    check_both_ways(judge, "fp8_fast", honest | one_level, few_bits)


SPLIT = {
    "FMA": sequential,
    "backward": partial(sequential, backward=True),
    "two by two": pairwise,
    "six BF16 products": partial(split_products, rounding=BF16, products=6, sums=DRAINED, parts=3),
}
COARSE = {
    "BF16x2": partial(split_products, rounding=BF16, products=3, sums=DRAINED),
    "TF32": both(TF32, H100),
    "TF32 cut off": both(TF32_CUT, sequential),
    "FP16 sums": FP16_SUMS,
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("c", "r"), [size for size in SIZES if size[0] in (1, 8, 64)])
@pytest.mark.parametrize("data", ["normal", "positive"])
def test_strict_passes_fp32_and_three_fp16_products_alone(data: str, c: int, r: int) -> None:
    problem: Any = problem_of(c, r)
    three = {"three FP16 products": partial(split_products, rounding=FP16, products=3, sums=DRAINED)}
    if c == 1:
        three = {}  # FMAs round one product once, and nine products hardly err
    coarse = dict(COARSE)
    if data == "positive" and c * r * r > 64:
        del coarse["BF16x2"]  # over many positive products a loop of FMAs errs more than it does
    check_both_ways(Judge(problem, inputs_of(problem, data)), "strict", SPLIT | three, coarse)


@pytest.mark.parametrize(("c", "r"), [(8, 3), (64, 1), (256, 0)])
@pytest.mark.parametrize("data", DATA)
def test_strict_in_float64_fails_fp32_sums(data: str, c: int, r: int) -> None:
    problem: Any = problem_of(c, r, "float64")
    honest = {"FMA": partial(sequential, rounding=exact), "two by two": partial(pairwise, rounding=exact)}
    check_both_ways(Judge(problem, inputs_of(problem, data)), "strict", honest, {"FP32 sums": sequential})


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("c", "r"), [(1, 3), (3, 3), (8, 1), (8, 3), (64, 1), (64, 3), (256, 1)])
@pytest.mark.parametrize("data", ["normal", "positive", "smooth"])
def test_strict_on_float16_arrays_fails_fp16_sums(data: str, c: int, r: int) -> None:
    problem: Any = problem_of(c, r, "float16")
    honest, narrower = OF_HALVES
    check_both_ways(Judge(problem, inputs_of(problem, data, nearest(10, -14))), "strict", honest, narrower)


@pytest.mark.parametrize(("c", "r"), [(1, 3), (8, 1), (8, 3), (64, 3), (256, 1)])
@pytest.mark.parametrize("data", ["normal", "positive", "smooth"])
def test_strict_on_bfloat16_arrays_fails_bf16_sums(data: str, c: int, r: int) -> None:
    problem: Any = problem_of(c, r, "bfloat16")
    inputs = inputs_of(problem, data, BF16)
    gate = Gate(problem, inputs, truth(problem, inputs))
    for model in OF_HALVES[0].values():
        found = gate.measured("strict", BF16(result(problem, inputs, model)))
        assert found is not None
        assert found.ratio <= MARGIN, found
    assert gate.excess("strict", BF16(result(problem, inputs, BF16_SUMS))) is not None


@pytest.mark.parametrize("wrapped", [np.int16, np.float32])
def test_integer_sums_are_exact(wrapped: Any) -> None:
    problem = parse_problem("n1c2048h5w6_k2r1s1_i8_nchw")
    inputs: Any = make_inputs(problem)
    inputs.x[...], inputs.w[...] = 127, 127
    inputs.w[1, ::2] = 126
    inputs.x[:, ::3] = 125
    sums = np.einsum("nchw,kc->nkhw", inputs.x.astype(np.int64), inputs.w[:, :, 0, 0].astype(np.int64))
    judge = Judge(problem, inputs)
    assert judge.verdict("strict", sums.astype(np.int32)).ok
    assert sums.max() > 2**24
    float32 = np.zeros(sums.shape, np.float32)
    for c in range(2048):
        float32 += inputs.x[:, [c]].astype(np.float32) * inputs.w[:, c, 0, 0].astype(np.float32)[:, None, None]
    narrow = sums.astype(np.int16).astype(np.int32) if wrapped is np.int16 else float32.astype(np.int32)
    assert not judge.verdict("strict", narrow).ok


WINOGRAD: dict[int, tuple[Any, Any, Any]] = {
    2: (
        [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]],
        [[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]],
        [[1, 1, 1, 0], [0, 1, -1, -1]],
    ),
    4: (
        [[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0], [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0],
         [0, 4, 0, -5, 0, 1]],
        [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6],
         [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]],
        [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]],
    ),
}  # fmt: skip


def winograd(problem: Any, inputs: Inputs, m: int, rounding: Rounding) -> Floats:
    """F(m x m, 3 x 3) in float32, with the factors of its products rounded."""
    to_x, to_w, to_y = (np.array(matrix, np.float32) for matrix in WINOGRAD[m])
    assert inputs.w is not None
    down, across = -(-problem.p // m), -(-problem.q // m)
    wide = np.zeros((problem.c, down * m + 2, across * m + 2), np.float32)
    wide[:, 1 : problem.h + 1, 1 : problem.w + 1] = inputs.x[0]
    tiles = np.lib.stride_tricks.sliding_window_view(wide, (m + 2, m + 2), (1, 2))[:, ::m, ::m]
    of_x = np.einsum("ij,cpqjl->cpqil", to_x, tiles).astype(np.float32) @ to_x.T
    of_w = np.einsum("ij,kcjl->kcil", to_w, inputs.w).astype(np.float32) @ to_w.T
    of_x, of_w = rounding(of_x).astype(np.float32), rounding(of_w).astype(np.float32)
    total = np.zeros((problem.k, down, across, m + 2, m + 2), np.float32)
    for c in range(problem.c):
        total = total + of_x[c] * of_w[:, c, None, None]
    out = np.einsum("ij,kpqjl->kpqil", to_y, total).astype(np.float32) @ to_y.T
    return out.transpose(0, 1, 3, 2, 4).reshape(problem.k, down * m, across * m)[None, :, : problem.p, : problem.q]


@pytest.mark.one_in(7)
@pytest.mark.parametrize("c", [1, 3, 8, 64, 256])
@pytest.mark.parametrize("data", ["normal", "positive", "smooth"])
@pytest.mark.parametrize("m", WINOGRAD)
def test_winograd_fails_products_of_narrow_factors(m: int, data: str, c: int) -> None:
    problem: Any = problem_of(c, 3)
    judge = Judge(problem, inputs_of(problem, data))
    assert ratio(judge, "winograd", winograd(problem, judge.inputs, m, exact).astype(np.float32)) <= MARGIN
    # Over very many products of one sign the sums of a loop err as much as a few narrow factors.
    for rounding in (TF32, TF32_CUT, nearest(10), BF16) if c <= 64 or data == "normal" else (BF16,):
        assert ratio(judge, "winograd", winograd(problem, judge.inputs, m, rounding).astype(np.float32)) > 1


def by_fft(problem: Any, inputs: Inputs, rounding: Rounding) -> Floats:
    """Products of spectra in float32, whose parts are rounded."""
    assert inputs.w is not None
    size = (problem.h + 2, problem.w + 2)
    of_x, of_w = fft.rfft2(inputs.x[0], size), fft.rfft2(inputs.w[..., ::-1, ::-1].copy(), size)
    of_x, of_w = (
        (rounding(part.real).astype(np.float32) + 1j * rounding(part.imag).astype(np.float32)).astype(np.complex64)
        for part in (of_x, of_w)
    )
    out = fft.irfft2((of_x * of_w).sum(axis=1), size)
    return np.asarray(out[None, :, 1 : 1 + problem.p, 1 : 1 + problem.q], np.float32)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("c", [1, 3, 8, 64, 256])
@pytest.mark.parametrize("data", ["normal", "positive", "smooth"])
def test_fft_fails_spectra_of_narrow_factors(data: str, c: int) -> None:
    problem: Any = problem_of(c, 3)
    judge = Judge(problem, inputs_of(problem, data))
    assert ratio(judge, "fft", by_fft(problem, judge.inputs, exact)) <= MARGIN
    for rounding in (nearest(8), BF16) if c > 8 else (TF32, TF32_CUT, nearest(10), BF16):
        assert ratio(judge, "fft", by_fft(problem, judge.inputs, rounding)) > 1


def in_two_passes(x: Floats, columns: Floats, rows: Floats, rounding: Rounding) -> Floats:
    """Rows, then columns, channel by channel in float32; the factors of products are rounded before each pass."""
    total: Floats = np.zeros(1)
    for c in range(x.shape[0]):
        wide = np.pad(x[c], 1)
        first = np.zeros((wide.shape[0], x.shape[2]))
        for s in range(3):
            first = FP32(first + rounding(wide[:, s : s + x.shape[2]]) * rounding(rows[:, c, s, None, None]))
        for r in range(3):
            part = rounding(first[:, r : r + x.shape[1]]) * rounding(columns[:, c, r, None, None])
            total = FP32(total + part)
    return np.asarray(total[None], np.float32)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("c", [1, 3, 8, 64])
@pytest.mark.parametrize("data", ["normal", "positive", "smooth"])
def test_separable_fails_passes_of_narrow_factors(data: str, c: int) -> None:
    problem: Any = problem_of(c, 3)
    given, rng = inputs_of(problem, data), np.random.default_rng(c)
    columns, rows = (rng.uniform(0.5, 1.5, (2, c, 3)).astype(np.float32) for _ in range(2))
    w = (columns[..., None] * rows[:, :, None]).astype(np.float32)
    judge = Judge(problem, Inputs(given.x, w, {}))
    assert ratio(judge, "separable", in_two_passes(given.x[0], columns, rows, exact)) <= MARGIN
    for rounding in (TF32, TF32_CUT, nearest(10), BF16):
        assert ratio(judge, "separable", in_two_passes(given.x[0], columns, rows, rounding)) > 1


def test_every_class_has_a_gate() -> None:
    assert set(PRECISIONS) - {"fft", "int8", "epilogue32"} <= set(ALLOWED) | set(ROUNDINGS)
    problem: Any = problem_of(1, 3)
    judge = Judge(problem, inputs_of(problem, "normal"))
    assert judge.gate is not None
    with pytest.raises(ValueError, match="no gate is known for precision 'unknown'"):
        judge.gate.excess("unknown", judge.truth.value)


@pytest.mark.parametrize("precision", HONEST)
def test_sampled_outputs_pass_the_same_gate(precision: str) -> None:
    problem: Any = parse_problem("n2c8h40w13_k2r3s3_p1_f32_nchw")
    inputs = inputs_of(problem, "normal")
    sample = Sample(problem, inputs)
    images = [Inputs(inputs.x[[n]], inputs.w, {}) for n in range(2)]
    one = problem.replace(n=1)
    for models, right in ((HONEST, True), (NARROWER, False)):
        for name, model in models[precision].items():
            if name != "14-bit sums":
                out = np.concatenate([result(one, image, model) for image in images]).astype(np.float32)
                fault = sample.fault(precision, out, cpu_runtime())
                assert (fault is None) == right, (name, fault)
