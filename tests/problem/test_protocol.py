"""The protocol: every kind of problem describes its operands, its result, its size and its arithmetic alike."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from convforge.problem import parse_problem

TEXTS = [
    "n1c3h64w48_k3r3s3_st1_p1_f32_nchw",
    "n2c8h30w40_k4r3s5_st2x1_p1x0x2x2_d2_g4_reflect_flip_u8-i8-i32-i32_nhwc_+scale:channel+bias+residual+relu",
    "n0c1h5w5_k1r3s3_st1_p0_f16_nchw",
    "max_n2c3h11w9_r3s2_st2_p1x0_f32_nhwc_ceil",
    "m5n7k3_ta_f32",
    "m5n7k0_tb_f64_math-tf32",
    "n1c32h9w9_k16r3s3_st1_p1_f8e4m3_nchw_math-fp8fast",
    "relu40_u8",
]


@pytest.mark.parametrize("text", TEXTS)
def test_sizes_follow_from_the_operands(text):
    problem = parse_problem(text)
    (result,) = problem.results
    moved = [problem.input, *([problem.weights] if problem.weights else []), result]
    assert problem.direction == "fprop"
    assert (result.role, result.shape, result.dtype) == ("output", problem.out_shape, problem.out_dtype)
    assert result.size == problem.outputs
    assert problem.least_bytes == sum(operand.nbytes for operand in moved)
    assert problem.flops == (2 if problem.multiplies else 1) * problem.outputs * problem.taps
    assert problem.operands[0].role == "input"
    assert (problem.weights is not None) == problem.multiplies
    assert {operand.role for operand in problem.operands} <= {"input", "weights", "epilogue"}


def test_operands_are_as_a_call_takes_them():
    conv2d, product = parse_problem(TEXTS[1]), parse_problem(TEXTS[4])
    assert [(o.name, o.shape, o.dtype, o.layout) for o in conv2d.operands] == [
        ("x", (2, 30, 40, 8), "uint8", "NHWC"),
        ("w", (4, 2, 3, 5), "int8", "KCRS"),
        ("scale", (4,), "float64", ""),
        ("bias", (4,), "float64", ""),
        ("residual", (2, 14, 36, 4), "int32", "NHWC"),
    ]
    assert [(o.name, o.shape, o.layout) for o in product.operands] == [("a", (3, 5), "KM"), ("b", (3, 7), "KN")]


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_derived_is_no_field_and_comes_back_with_every_copy(text):
    problem = parse_problem(text)
    copies = [pickle.loads(pickle.dumps(problem)), copy.copy(problem), copy.deepcopy(problem)]
    for each in (*copies, dataclasses.replace(problem)):
        assert each == problem
        assert hash(each) == hash(problem)
        assert repr(each) == repr(problem)
        assert vars(each) == vars(problem)
    fields = {field.name for field in dataclasses.fields(problem)}
    assert not fields & {"taps", "flops", "least_bytes", "out_shape", "outputs", "p", "q"}
    with pytest.raises((AttributeError, TypeError)):
        problem.taps = 1


@pytest.mark.parametrize("text", TEXTS)
def test_only_sums_of_products_are_asked_for_by_their_arithmetic(text):
    problem = parse_problem(text)
    asked = problem.allowing("tf32")
    expected = "tf32" if problem.multiplies else problem.precision
    assert asked.precision == expected
    assert asked.allowing(problem.precision) == problem
