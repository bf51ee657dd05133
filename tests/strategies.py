"""Strategies for random problems, for tests of properties that hold for every problem."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from convforge.problem import ACTIVATIONS, PADDING_MODES, Conv2dProblem, Epilogue
from convforge.problem.types import is_integer, limits

# Element types of x, w, output and sums.
DTYPES = [
    ("float32", "float32", "float32", "float32"),
    ("bfloat16", "bfloat16", "bfloat16", "float32"),
    ("float64", "float64", "float64", "float64"),
    ("float16", "float16", "float16", "float32"),
    ("uint8", "int8", "int32", "int32"),
    ("uint8", "int8", "uint8", "int32"),
    ("uint8", "int8", "float32", "int32"),
    ("int8", "int8", "int8", "int32"),
    ("uint8", "float32", "uint8", "float32"),
]
# `make test` compiles every CPU method for these types, which takes seconds per method. `make test-all` tests the other
# types; only direct_naive, which compiles ten times faster, always tests them. bfloat16 uses the kernels of float32.
FIRST_DTYPES = DTYPES[:2]
# Types with floating-point sums.
FLOAT_SUMS = [dtypes for dtypes in DTYPES if dtypes[3] != "int32"]


def first_and_all(dtypes: list[tuple[str, ...]]) -> pytest.MarkDecorator:
    """Parametrize a test with the first types among these, and in ``make test-all`` with all of them."""
    first = [types for types in dtypes if types in FIRST_DTYPES]
    later = pytest.param(dtypes, marks=pytest.mark.thorough)
    return pytest.mark.parametrize("dtypes", [first, later], ids=["first types", "all types"])


def dtypes_of(problem: Any) -> tuple[str, ...]:
    """Return the element types of a problem as (x, w, output, sums)."""
    if problem.operation == "conv2d":
        return problem.x_dtype, problem.w_dtype, problem.out_dtype, problem.acc_dtype
    return (problem.dtype,) * 4


@st.composite
def epilogues(draw: Any, dtypes: tuple[str, ...]) -> Epilogue:
    """Draw any epilogue that these types allow."""
    activation, residual = draw(st.sampled_from(["identity", *ACTIVATIONS])), draw(st.booleans())
    return Epilogue(
        scale=draw(st.sampled_from(["none", "tensor", "channel"])),
        bias=draw(st.booleans()),
        residual=residual,
        residual_scale=draw(st.sampled_from([1.0, 1.0, -0.5, 0.3])) if residual else 1.0,
        out_scale=draw(st.sampled_from([1.0, 1.0, 4.0, 0.3])),
        out_zero_point=draw(st.integers(*limits(dtypes[2])).filter(lambda z: abs(z) <= 2**24))
        if is_integer(dtypes[2]) and draw(st.booleans())
        else 0,
        activation=activation,
        x_zero_point=draw(st.integers(*limits(dtypes[0]))) if is_integer(dtypes[3]) else 0,
        divisor=draw(st.sampled_from([1, 1, 9, 2**24])),
    )


@st.composite
def conv2d_problems(
    draw: Any, largest: int = 12, epilogues: bool = True, dtypes: Any = None, channels: Any = None
) -> Conv2dProblem:
    """Draw a valid convolution, H and W at most `largest`; channels and filters per group are `channels` or 1 to 4."""
    chosen = draw(st.sampled_from(DTYPES if dtypes is None else dtypes))
    size = st.integers(1, largest)
    small = st.integers(1, 4)
    counts = small if channels is None else channels
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    mode = draw(st.sampled_from(list(PADDING_MODES)))
    pads = st.integers(0, 5)
    value = float(draw(st.integers(0, 3))) if mode == "constant" else 0.0
    fields: dict[str, Any] = {
        "n": draw(st.sampled_from([1, 1, 2, 3, 0])), "c": groups * draw(counts), "h": draw(size), "w": draw(size),
        "k": groups * draw(counts), "r": draw(st.integers(1, 5)), "s": draw(st.integers(1, 5)),
        "stride": (draw(small), draw(small)), "padding": (draw(pads), draw(pads), draw(pads), draw(pads)),
        "dilation": draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 3)])), "groups": groups, "padding_mode": mode,
        "padding_value": value, "mode": draw(st.sampled_from(["cross-correlation", "convolution"])),
        "x_dtype": chosen[0], "w_dtype": chosen[1], "out_dtype": chosen[2], "acc_dtype": chosen[3],
        "x_layout": draw(st.sampled_from(["NCHW", "NHWC"])), "out_layout": draw(st.sampled_from(["NCHW", "NHWC"])),
        "epilogue": draw(_epilogue(chosen)) if epilogues else Epilogue(),
    }  # fmt: skip
    top, bottom, left, right = fields["padding"]
    assume(fields["dilation"][0] * (fields["r"] - 1) < fields["h"] + top + bottom)
    assume(fields["dilation"][1] * (fields["s"] - 1) < fields["w"] + left + right)
    return Conv2dProblem(**fields)


_epilogue = epilogues
