"""Every refusal names the field, the value and the rule."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from convforge.problem import Conv2dProblem, ElementwiseProblem, Epilogue, GemmProblem, Pool2dProblem

CONV2D = {"n": 1, "c": 4, "h": 8, "w": 9, "k": 6, "r": 3, "s": 3}
POOL = {"n": 1, "c": 4, "h": 8, "w": 9, "r": 3, "s": 3}
GEMM = {"m": 4, "n": 5, "k": 6}

REFUSED = [
    (Conv2dProblem, CONV2D, {"n": -1}, "n=-1: a batch has 0 or more images"),
    *[(Conv2dProblem, CONV2D, {name: 0}, f"{name}=0 must be at least 1") for name in "chwkrs"],
    (Conv2dProblem, CONV2D, {"groups": 0}, "groups=0 must be at least 1"),
    (Conv2dProblem, CONV2D, {"stride": (0, 1)}, "stride=(0, 1) must be at least 1 on both axes"),
    (Conv2dProblem, CONV2D, {"stride": (1, -2)}, "stride=(1, -2) must be at least 1"),
    (Conv2dProblem, CONV2D, {"dilation": (1, 0)}, "dilation=(1, 0) must be at least 1 on both axes"),
    (Conv2dProblem, CONV2D, {"padding": (0, -1, 0, 0)}, "padding=(0, -1, 0, 0) (top, bottom, left, right) must not be"),
    (Conv2dProblem, CONV2D, {"padding": (2**31 - 9, 2, 0, 0)}, "the padded image's height of 2147483649 pixels must"),
    (Conv2dProblem, CONV2D, {"groups": 3}, "groups=3 must divide the 4 channels of x and the 6 output channels"),
    (Conv2dProblem, CONV2D, {"groups": 4}, "groups=4 must divide"),
    (Conv2dProblem, CONV2D, {"r": 9}, "the filter's height of 9 pixels (dilation included) exceeds the padded image"),
    (Conv2dProblem, CONV2D, {"dilation": (1, 5)}, "the filter's width of 11 pixels (dilation included) exceeds the pa"),
    (Conv2dProblem, CONV2D, {"padding_mode": "mirror"}, "padding_mode='mirror' is unknown; choose one of zeros, const"),
    (Conv2dProblem, CONV2D, {"mode": "conv"}, "mode='conv' is unknown; choose one of cross-correlation, convolution"),
    (Conv2dProblem, CONV2D, {"direction": "dgrad"}, "direction='dgrad' is unknown; choose one of fprop"),
    (Conv2dProblem, CONV2D, {"x_layout": "CHWN"}, "x_layout='CHWN' is unknown; choose one of NCHW, NHWC"),
    (Conv2dProblem, CONV2D, {"out_layout": "chw"}, "out_layout='chw' is unknown"),
    (Conv2dProblem, CONV2D, {"w_layout": "RSCK"}, "w_layout='RSCK' is unknown; choose one of KCRS, KRSC"),
    (Conv2dProblem, CONV2D, {"precision": "fast"}, "precision='fast' is unknown; choose one of strict, separable, win"),
    (Conv2dProblem, CONV2D, {"padding_value": 2.0}, "padding_value=2.0 goes with padding_mode='constant' alone"),
    (Conv2dProblem, CONV2D, {"padding_mode": "constant", "padding_value": math.nan}, "padding_value=nan must be finit"),
    (Conv2dProblem, CONV2D, {"padding_mode": "constant", "padding_value": math.inf}, "padding_value=inf must be finit"),
    *[(Conv2dProblem, CONV2D, {name: "complex64"}, f"{name}='complex64' is not an element type of convforge; cast")
      for name in ("x_dtype", "w_dtype", "out_dtype", "acc_dtype")],
    (Conv2dProblem, CONV2D, {"w_dtype": "int8"}, "w_dtype=int8 with x_dtype=float32: cast the filter to float32"),
    (Conv2dProblem, CONV2D, {"acc_dtype": "float16"}, "acc_dtype=float16 must be int32, float32 or float64"),
    (Conv2dProblem, CONV2D, {"acc_dtype": "int32"}, "acc_dtype=int32 needs integer x and w; they are float32, float32"),
    (Conv2dProblem, CONV2D, {"x_dtype": "uint16"}, "36 products of uint16 and uint16 can exceed int32; convert x and"),
    (Conv2dProblem, CONV2D, {"x_dtype": "int32"}, "36 products of int32 and int32 can exceed int32"),
    (Conv2dProblem, CONV2D, {"x_dtype": "uint8", "padding_mode": "constant", "padding_value": 0.5},
     "padding_value=0.5 must be a value of uint8"),
    (Conv2dProblem, CONV2D, {"x_dtype": "uint8", "padding_mode": "constant", "padding_value": 256.0},
     "padding_value=256.0 must be a value of uint8"),
    (Conv2dProblem, CONV2D, {"x_dtype": "uint8", "epilogue": Epilogue(x_zero_point=300)},
     "x_zero_point=300 must be a value of uint8"),
    (Conv2dProblem, CONV2D, {"w_bound": 9}, "w_bound=9 must be a positive value of integer weights"),
    (Conv2dProblem, CONV2D, {"x_dtype": "uint8", "w_dtype": "int8", "w_bound": 129}, "w_bound=129 must be a positive"),
    (Conv2dProblem, CONV2D, {"epilogue": Epilogue(x_zero_point=3)}, "x_zero_point=3 goes with integer x and w alone"),
    (Conv2dProblem, CONV2D, {"epilogue": Epilogue(divisor=2**24 + 1)}, "divisor=16777217 is beyond 2^24; sum in"),
    (Epilogue, {}, {"divisor": 0}, "divisor=0 must be from 1 to 2^31 - 1"),
    (Epilogue, {}, {"scale": "row"}, "scale='row' is unknown; choose none, tensor or channel"),
    (Epilogue, {}, {"activation": "swish"}, "activation='swish' is unknown; choose one of identity, relu"),
    (Epilogue, {}, {"activation": "relu", "alpha": 0.1}, "activation='relu' takes no alpha; got 0.1"),
    (Epilogue, {}, {"activation": "leaky_relu", "alpha": math.inf}, "alpha=inf of leaky_relu must be finite"),
    (Epilogue, {}, {"activation": "clipped_relu", "alpha": -1}, "alpha=-1.0 of clipped_relu, its upper limit, must no"),
    (Pool2dProblem, POOL, {"n": -2}, "n=-2: a batch has 0 or more images"),
    *[(Pool2dProblem, POOL, {name: 0}, f"{name}=0 must be at least 1") for name in "chwrs"],
    (Pool2dProblem, POOL, {"stride": (0, 1)}, "stride=(0, 1) must be at least 1 on both axes"),
    (Pool2dProblem, POOL, {"dilation": (0, 1)}, "dilation=(0, 1) must be at least 1 on both axes"),
    (Pool2dProblem, POOL, {"padding": (-1, 0, 0, 0)}, "padding=(-1, 0, 0, 0) (top, bottom, left, right) must not be n"),
    (Pool2dProblem, POOL, {"padding": (3, 0, 0, 0)}, "a window's height of 3 (dilation included) must exceed the padd"),
    (Pool2dProblem, POOL, {"padding": (0, 0, 0, 3)}, "a window's width of 3 (dilation included) must exceed the paddi"),
    (Pool2dProblem, POOL, {"dilation": (9, 1), "padding": (1, 10, 0, 0)},
     "dilation=(9, 1): the window that begins 1 before the image steps over its height of 8 and would hold no pixel"),
    (Pool2dProblem, POOL, {"dilation": (1, 12), "padding": (0, 0, 2, 14), "dtype": "uint8"}, "lower the dilation to 9"),
    (Pool2dProblem, POOL, {"layout": "CHW"}, "layout='CHW' is unknown; choose NCHW or NHWC"),
    (Pool2dProblem, POOL, {"dtype": "bool"}, "dtype='bool' is not an element type of convforge"),
    (Pool2dProblem, POOL, {"r": 9}, "the window of 9x3 pixels (dilation included) exceeds the padded image of 8x9"),
    *[(GemmProblem, GEMM, {name: -1}, f"{name}=-1: a matrix has 0 or more rows and columns") for name in "mnk"],
    (GemmProblem, GEMM, {"dtype": "int16"}, "dtype=int16: the matrix product takes float32, float64, float16, bf"),
    (GemmProblem, GEMM, {"dtype": "int64"}, "dtype=int64: the matrix product takes float32, float64, float16, b"),
    (GemmProblem, GEMM, {"precision": "half"}, "precision='half' is unknown; choose one of strict"),
    (ElementwiseProblem, {"size": 4}, {"size": -1}, "size=-1: an array has 0 or more elements"),
    (ElementwiseProblem, {"size": 4}, {"dtype": "str"}, "dtype='str' is not an element type"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "fields", "change", "message"), REFUSED, ids=[f"{r[0].__name__}-{r[2]}" for r in REFUSED]
)
def test_a_broken_rule_is_named(kind, fields, change, message):
    kind(**fields)  # valid as it stands
    with pytest.raises(ValueError) as refused:
        kind(**{**fields, **change})
    assert message in str(refused.value)


def test_sizes_that_follow_are_those_of_the_formula():
    problem = Conv2dProblem(**CONV2D, stride=(2, 3), padding=(1, 2, 0, 4), dilation=(2, 1), x_layout="NHWC")
    assert (problem.p, problem.q) == ((8 + 3 - 2 * 2 - 1) // 2 + 1, (9 + 4 - 2 - 1) // 3 + 1)
    assert problem.x_shape == (1, 8, 9, 4)
    assert problem.out_shape == (1, problem.p, problem.q, 6)
    assert problem.flops == 2 * 6 * problem.p * problem.q * 36
    assert problem.least_bytes == 4 * (8 * 9 * 4 + 6 * 36 + 6 * problem.p * problem.q)


def test_default_types():
    def types(**fields):
        problem = Conv2dProblem(**{**CONV2D, **fields})
        return problem.w_dtype, problem.out_dtype, problem.acc_dtype

    assert types() == ("float32", "float32", "float32")
    assert types(x_dtype="float16") == ("float16", "float16", "float32")
    assert types(x_dtype="float64") == ("float64", "float64", "float64")
    assert types(x_dtype="uint8", w_dtype="int8") == ("int8", "int32", "int32")
    assert types(x_dtype="uint8", w_dtype="float32") == ("float32", "float32", "float32")


@settings(max_examples=500, deadline=None)
@given(
    size=st.integers(1, 7), taps=st.integers(1, 4), stride=st.integers(1, 6), dilation=st.integers(1, 8),
    before=st.integers(0, 12), after=st.integers(0, 12), ceil_mode=st.booleans(), upright=st.booleans(),
)  # fmt: skip
def test_a_pooling_problem_is_made_if_every_window_holds_a_pixel(
    size, taps, stride, dilation, before, after, ceil_mode, upright
):
    extent = dilation * (taps - 1) + 1
    assume(max(before, after) < extent <= size + before + after)
    free = size + before + after - extent
    starts = [start - before for start in range(0, free + 1, stride)]
    if ceil_mode and free % stride and starts[-1] + stride < size:  # as in PyTorch, none begins beyond
        starts.append(starts[-1] + stride)
    holds = [any(0 <= start + tap * dilation < size for tap in range(taps)) for start in starts]
    along, across = (size, taps, stride, dilation), (1, 1, 1, 1)
    (h, r, *down), (w, s, *right) = (along, across) if upright else (across, along)
    fields = {
        "n": 1, "c": 1, "h": h, "w": w, "r": r, "s": s, "stride": (down[0], right[0]), "dilation": (down[1], right[1]),
        "padding": (before, after, 0, 0) if upright else (0, 0, before, after), "ceil_mode": ceil_mode,
    }  # fmt: skip
    if all(holds):
        problem = Pool2dProblem(**fields)
        assert (problem.p, problem.q) == ((len(starts), 1) if upright else (1, len(starts)))
    else:
        first = -starts[holds.index(False)]
        with pytest.raises(ValueError, match=f"the window that begins {first} before the image steps over"):
            Pool2dProblem(**fields)


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("size", range(3, 12))
@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (2, 0), (2, 1), (3, 1), (4, 1)])
def test_every_pooling_window_starts_inside(size, stride, padding, ceil_mode):
    pool = Pool2dProblem(n=1, c=1, h=size, w=size, r=3, s=3, stride=(stride, stride), padding=(padding,) * 4,
                         ceil_mode=ceil_mode)  # fmt: skip
    assert (pool.p - 1) * stride < size + padding
    if ceil_mode:
        reached = (pool.p - 1) * stride + 3
        assert reached >= size + 2 * padding or pool.p * stride >= size + padding
