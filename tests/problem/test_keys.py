"""Text forms are total: what is written is read back, and three keys tell apart what they should."""

from __future__ import annotations

import dataclasses
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases import CASES
from tests.strategies import conv2d_problems

from convforge.problem import (
    ACTIVATIONS,
    DTYPES,
    PRECISIONS,
    Conv2dProblem,
    ElementwiseProblem,
    Epilogue,
    GemmProblem,
    Pool2dProblem,
    compile_key,
    parse_problem,
    result_key,
    tuning_key,
)
from convforge.problem.gemm import DTYPES as GEMM_DTYPES
from convforge.problem.types import is_integer


@st.composite
def any_conv2d(draw):
    """A convolution of any types, values and words at all, as long as it is valid."""
    problem = draw(conv2d_problems())
    floats = [d for d in DTYPES.values() if not is_integer(d)]
    x = draw(st.sampled_from(sorted(DTYPES.values())))
    w = draw(st.sampled_from(sorted(DTYPES.values()) if is_integer(x) else floats))
    acc = draw(st.sampled_from(["", "float32", "float64"]))
    name = draw(st.sampled_from(sorted(ACTIVATIONS)))
    alpha = None if ACTIVATIONS[name][1] is None else draw(st.floats(0, 1e30))
    residual = draw(st.booleans())
    fields = {
        "x_dtype": x, "w_dtype": w, "acc_dtype": acc,
        "out_dtype": draw(st.sampled_from(["", *sorted(DTYPES.values())])),
        "w_layout": draw(st.sampled_from(["KCRS", "KRSC"])), "precision": draw(st.sampled_from(sorted(PRECISIONS))),
        "epilogue": Epilogue(bias=draw(st.booleans()), residual=residual, activation=name, alpha=alpha,
                             scale=draw(st.sampled_from(["none", "tensor", "channel"])),
                             divisor=draw(st.integers(1, 2**31 - 1)),
                             residual_scale=draw(st.floats(-1e30, 1e30)) if residual else 1.0,
                             out_scale=draw(st.floats(1e-30, 1e30)), out_zero_point=draw(st.integers(-128, 255))),
    }  # fmt: skip
    if problem.padding_mode == "constant":
        fields["padding_value"] = draw(st.floats(-1e30, 1e30))
    try:
        return problem.replace(**fields)
    except ValueError:
        return problem


@settings(max_examples=300, deadline=None)
@given(any_conv2d())
def test_convolutions_are_read_back(problem):
    assert parse_problem(str(problem)) == problem
    assert hash(parse_problem(str(problem))) == hash(problem)


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_type_and_precision_is_read_back(dtype, precision):
    acc = "float32"
    problem = Conv2dProblem(n=1, c=1, h=4, w=4, k=1, r=3, s=3, x_dtype=dtype, acc_dtype=acc, precision=precision)
    assert parse_problem(str(problem)) == problem


MIXED = [{"dtype": "int8", "b_dtype": "uint8"}, {"dtype": "uint8", "b_dtype": "int8"}]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_other_problems_are_read_back(data):
    size, small = st.integers(1, 60), st.integers(1, 4)
    pair = st.tuples(small, small)
    dtype = data.draw(st.sampled_from(sorted(DTYPES.values())))
    problems = [ElementwiseProblem(size=data.draw(st.integers(0, 1 << 40)), dtype=dtype)]
    problems.append(
        GemmProblem(
            m=data.draw(st.integers(0, 99)),
            n=data.draw(size),
            k=data.draw(st.integers(0, 99)),
            transpose_a=data.draw(st.booleans()),
            transpose_b=data.draw(st.booleans()),
            **data.draw(st.sampled_from([*({"dtype": name} for name in GEMM_DTYPES), *MIXED])),
            precision=data.draw(st.sampled_from(sorted(PRECISIONS))),
        )
    )
    problems.append(
        Pool2dProblem(
            n=data.draw(st.integers(0, 9)),
            c=data.draw(size),
            h=data.draw(st.integers(16, 99)),
            w=data.draw(st.integers(16, 99)),
            r=data.draw(small),
            s=data.draw(small),
            stride=data.draw(pair),
            dilation=data.draw(pair),
            ceil_mode=data.draw(st.booleans()),
            dtype=dtype,
            layout=data.draw(st.sampled_from(["NCHW", "NHWC"])),
        )
    )
    extents = problems[-1].extent_h, problems[-1].extent_w
    pads = [data.draw(st.integers(0, extents[i // 2] - 1)) for i in range(4)]
    problems.append(dataclasses.replace(problems[-1], padding=tuple(pads)))
    for problem in problems:
        assert parse_problem(str(problem)) == problem


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(string.ascii_lowercase + string.digits + "_+-:.x", max_size=40),
        st.text("stpdgx0123456789_+f-biasrelu:.", max_size=12).map("n1c1h8w8_k1r3s3_".__add__),
    )
)
def test_any_other_text_is_refused_in_words(text):
    try:
        problem = parse_problem(text)
    except ValueError:
        with pytest.raises(ValueError, match=r".{10}"):
            parse_problem(text)
    else:
        assert parse_problem(str(problem)) == problem


def test_case_texts_name_what_they_parse_to():
    assert len({case.text for case in CASES}) == len(CASES)
    assert len({str(parse_problem(case.text)) for case in CASES}) == len(CASES)


BAD_TEXTS = {
    "": "is not a problem",
    "conv": "a convolution reads n1c3h64w64_k8r3s3_st1_p1_f32_nchw",
    "n1c1h8w8_k1r3s3_st": "token 'st' of problem 'n1c1h8w8_k1r3s3_st' is unknown",
    "n1c1h8w8_k1r3s3_f32-f32": "token 'f32-f32'",
    "n1c1h8w8_k1r3s3_p1x2x3": "token 'p1x2x3'",
    "n1c1h8w8_k1r3s3_nchw-nhwc": "token 'nchw-nhwc'",
    "n1c1h8w8_k1r3s3_edge": "token 'edge' of problem 'n1c1h8w8_k1r3s3_edge' is unknown; the border is written 'repl",
    "n1c1h8w8_k1r3s3_+dance": "'dance' in epilogue '+dance' is unknown",
    "n1c1h2w8_k1r3s3": "the filter's height of 3 pixels",
    "max_n1c1h8w8_r2s2_u4": "token 'u4'",
    "m4n4k4_u16": "the matrix product takes float32, float64",
    "m4n4k4_tc": "token 'tc'",
    "relu4_f32_f32": "after relu4096 comes one element type",
}


@pytest.mark.parametrize(("text", "message"), BAD_TEXTS.items())
def test_a_bad_text_is_refused(text, message):
    with pytest.raises(ValueError) as refused:
        parse_problem(text)
    assert message in str(refused.value)


def test_defaults_are_left_out():
    short = "n1c3h64w64_k8r3s3"
    assert str(parse_problem(short)) == "n1c3h64w64_k8r3s3_st1_p0_f32_nchw"
    assert parse_problem(short) == parse_problem(str(parse_problem(short)))


@settings(max_examples=100, deadline=None)
@given(conv2d_problems(), conv2d_problems())
def test_result_keys_are_as_distinct_as_problems(a, b):
    assert (result_key(a) == result_key(b)) == (a == b)


@settings(max_examples=100, deadline=None)
@given(conv2d_problems())
def test_tuning_keys_forget_the_exact_size_and_compile_keys_all_of_it(problem):
    def rounded_up(size):
        return 1 << (size - 1).bit_length() if size > 1 else size

    problem = problem.replace(h=problem.h + 100, w=problem.w + 128)  # beyond small planes
    larger = problem.replace(h=rounded_up(problem.h), n=rounded_up(problem.n))
    assert tuning_key(problem) == tuning_key(larger) != tuning_key(problem.replace(w=2 * problem.w))
    assert tuning_key(problem) != tuning_key(problem.replace(h=4 * larger.h))
    assert tuning_key(problem) != tuning_key(problem.replace(k=2 * problem.k))
    vectors = 16 * problem.stride[1]  # pixels, and outputs, from which a row divides into the same ones again
    assert compile_key(problem) == compile_key(problem.replace(n=5, h=177, w=problem.w + vectors))
    assert compile_key(problem) != compile_key(problem.replace(stride=(5, 5)))
    for key in (tuning_key(problem), compile_key(problem), result_key(problem)):
        assert " " not in key
        assert "/" not in key


@pytest.mark.parametrize(("text", "bucket"), [
    ("+zero:119+scale:tensor+relu+out:1.0:7", "+zero:1+scale:tensor+relu+out:1.0:1"),
    ("+zero:-3+scale:tensor+relu", "+zero:1+scale:tensor+relu"),
    ("+residual:0.25+sigmoid+out:1e-05:0", "+residual:2.0+sigmoid+out:2.0:0"),
    ("+residual+clippedrelu:2.5", "+residual+clippedrelu:6.0"),
])  # fmt: skip
def test_numbers_that_kernels_are_given_make_no_bucket_of_their_own(text, bucket):
    layer = "n1c4h64w64_k4r3s3_st1_p1_i8-i8-i8-i32_nhwc_"
    assert tuning_key(parse_problem(layer + text)) == layer + bucket
    assert compile_key(parse_problem(layer + text)) == f"c4_k4r3s3_st1_p1_i8-i8-i8-i32_nhwc_{bucket}"


@pytest.mark.parametrize(("dtypes", "text", "message"), [
    ("f32", "+residual:inf", "residual_scale=inf must be finite"),
    ("f32", "+residual:1e39", "residual_scale=1e+39 must be at most 2^127"),
    ("f32", "+residual:", "could not convert string to float"),
    ("f32", "+out:nan:0", "out_scale=nan must be finite"),
    ("f32", "+out:0.0:0", "out_scale=0.0 must be positive"),
    ("f32", "+out:1e-45:0", "out_scale=1e-45 must be from 2^-126 to 2^127"),
    ("f32", "+out:2.0", "'out:2.0' in epilogue '+out:2.0' is unknown"),
    ("f32", "+out:1.0:3", "out_zero_point=3 goes with an integer output alone; it is float32"),
    ("u8-i8-f32-i32", "+out:1.0:3", "out_zero_point=3 goes with an integer output alone; it is float32"),
    ("u8-i8-u8-i32", "+out:1.0:-1", "out_zero_point=-1 must be a value of uint8, 0 to 255"),
    ("f32-f32-i32-f32", "+out:1.0:16777217", "out_zero_point=16777217 is beyond 2^24"),
])  # fmt: skip
def test_a_scale_or_zero_point_that_cannot_be_is_refused(dtypes, text, message):
    with pytest.raises(ValueError) as refused:
        parse_problem(f"n1c1h8w8_k1r3s3_{dtypes}_nchw_{text}")
    assert message in str(refused.value)


def test_a_scale_of_no_residual_is_refused():
    with pytest.raises(ValueError, match=r"residual_scale=2.0 goes with a residual alone"):
        Epilogue(residual_scale=2.0)


def test_keys_of_other_operations():
    assert tuning_key(parse_problem("m100n200k300_tb_f32")) == "m128n256k512_tb_f32"
    assert compile_key(parse_problem("m100n200k300_tb_f32")) == "gemm_tb_f32"
    assert tuning_key(parse_problem("m100n200k304_tb_bf16")) == "m128n256k512_tb_bf16"
    assert compile_key(parse_problem("m100n204k302_f16")) == "gemm_f16_v4"
    assert tuning_key(parse_problem("max_n3c5h100w99_r3s3_st2_p1_f32_nchw")) == "max_n4c5h128w128_r3s3_st2_p1_f32_nchw"
    assert compile_key(parse_problem("max_n3c5h100w99_r3s3_st2_p1_f32_nchw_ceil")) == "max_r3s3_st2_p1_f32_nchw"
    assert tuning_key(parse_problem("relu1000_f16")) == "relu1024_f16"
    assert compile_key(parse_problem("relu1000_f16")) == "relu_f16"


def test_a_bound_of_the_weights_bounds_the_sums():
    text = "n1c64h8w8_k4r3s3_st1_p0_wmax255_u8-i16-u8-i32_nchw"
    problem = parse_problem(text)
    assert (str(problem), problem.largest_sum) == (text, 64 * 9 * 255 * 255)
    with pytest.raises(ValueError, match="can exceed int32"):
        problem.replace(w_bound=0)
