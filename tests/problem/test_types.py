"""Element types: names, limits and rounding of NumPy's own, and of those that ml_dtypes adds."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

from convforge.problem import DTYPES, Conv2dProblem, GemmProblem, parse_problem
from convforge.problem.types import ADDED, FP8, accumulation_dtype, finfo, itemsize, numpy_dtype, output_dtype, to_float

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
# Explicit bits of the mantissa, and the largest finite number.
FORMS = {"float16": (10, 65504), "bfloat16": (7, 3.38953139e38), "float8_e4m3fn": (3, 448), "float8_e5m2": (2, 57344)}


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_numpy_knows_every_type_by_its_name(dtype: str) -> None:
    assert numpy_dtype(dtype).name == dtype
    assert itemsize(dtype) == BYTES.get(dtype) or dtype.startswith(("int", "uint"))
    assert np.dtype(dtype) == numpy_dtype(dtype)


@pytest.mark.parametrize("dtype", FORMS)
def test_limits(dtype: str) -> None:
    bits, largest = FORMS[dtype]
    for asked in (dtype, numpy_dtype(dtype)):
        assert float(finfo(asked).eps) == 2.0**-bits
        assert float(finfo(asked).max) == pytest.approx(largest)


@pytest.mark.parametrize("dtype", sorted(FORMS))
def test_float64_is_rounded_once(dtype: str) -> None:
    """Beside a tie by less than float32 can hold, on either side, and on it: ties go to even."""
    step = 2.0 ** -FORMS[dtype][0]
    for sign in (1, -1):
        tie, above = sign * (1 + step / 2), sign * (1 + step)
        values = np.array([tie - sign * 2.0**-40, tie, tie + sign * 2.0**-40, tie + sign * step])
        expected = [sign, sign, above, sign * (1 + 2 * step)]
        assert to_float(values, numpy_dtype(dtype)).astype(np.float64).tolist() == expected


def test_rounding_keeps_infinities_nan_and_zeros() -> None:
    values = np.array([np.inf, -np.inf, np.nan, -0.0, 1e300, 3.4e38, 1e-300, -1e-300])
    with np.errstate(all="ignore"):
        got = to_float(values, numpy_dtype("bfloat16")).astype(np.float64)
    np.testing.assert_array_equal(got, [np.inf, -np.inf, np.nan, 0, np.inf, np.inf, 0, 0])
    assert np.signbit(got).tolist() == [False, True, False, True, False, False, False, True]


def test_all_bfloat16_numbers_come_back() -> None:
    words = np.arange(1 << 16, dtype=np.uint16).view(numpy_dtype("bfloat16"))
    with np.errstate(invalid="ignore"):
        for wide in (np.float32, np.float64):
            numbers = words.astype(wide)
            np.testing.assert_array_equal(to_float(numbers, words.dtype).astype(wide), numbers)


def test_sums_and_results() -> None:
    for dtype in sorted(FP8):
        assert (accumulation_dtype(dtype, dtype), output_dtype(dtype, dtype)) == ("float32", "float32")
        product = GemmProblem(m=2, n=3, k=4, dtype=dtype)
        assert (product.acc_dtype, product.out_dtype, product.least_bytes) == ("float32", "float32", 8 + 12 + 24)
    assert output_dtype("bfloat16", "bfloat16") == "bfloat16"


@pytest.mark.parametrize("dtypes", [("int8", ""), ("int8", "uint8"), ("uint8", "int8"), ("uint8", "uint8")])
def test_products_of_bytes(dtypes: tuple[str, str]) -> None:
    product = GemmProblem(m=2, n=3, k=4, dtype=dtypes[0], b_dtype=dtypes[1])
    assert (product.acc_dtype, product.out_dtype, product.least_bytes) == ("int32", "int32", 8 + 12 + 24)
    assert [operand.dtype for operand in product.operands] == [dtypes[0], dtypes[1] or dtypes[0]]
    assert parse_problem(str(product)) == product


def test_products_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="A is int8 and B is float32; only int8 and uint8 go together"):
        GemmProblem(m=2, n=3, k=4, dtype="int8", b_dtype="float32")
    with pytest.raises(ValueError, match="the matrix product takes float32, float64, float16, bfloat16, int8, uint8"):
        GemmProblem(m=2, n=3, k=4, dtype="int16")
    for dtypes, most in ((("int8", "int8"), 131071), (("uint8", "int8"), 65793), (("uint8", "uint8"), 33025)):
        GemmProblem(m=2, n=3, k=most, dtype=dtypes[0], b_dtype=dtypes[1])
        with pytest.raises(ValueError, match=f"can exceed int32; {most} cannot"):
            GemmProblem(m=2, n=3, k=most + 1, dtype=dtypes[0], b_dtype=dtypes[1])


@pytest.mark.parametrize(
    "text",
    [
        "n1c3h8w8_k4r3s3_st1_p0_f8e4m3_nchw", "n1c3h8w8_k4r3s3_st1_p0_f8e5m2-f8e4m3-bf16-f32_nhwc", "m2n3k4_f8e5m2",
        "m2n3k4_ta_i8", "m2n3k4_u8-i8",
        "max_n1c3h8w8_r2s2_st2_p0_f8e4m3_nchw", "relu64_f8e5m2", "relu64_bf16",
    ],
)  # fmt: skip
def test_text_forms(text: str) -> None:
    problem = parse_problem(text)
    assert str(problem) == text
    assert str(pickle.loads(pickle.dumps(problem))) == text


def test_ml_dtypes_is_imported_for_its_types_alone() -> None:
    code = (
        "import sys, numpy, convforge; from convforge.problem import parse_problem; convforge.relu(numpy.ones(3)); "
        "parse_problem('relu3_f16'); print('ml_dtypes' in sys.modules); parse_problem('relu3_bf16'); "
        "print('ml_dtypes' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "True"]


def test_an_unknown_type_is_told_all() -> None:
    with pytest.raises(ValueError, match="x_dtype='float8_e4m3' is not an element type") as caught:
        Conv2dProblem(n=1, c=1, h=4, w=4, k=1, r=3, s=3, x_dtype="float8_e4m3")
    assert all(name in str(caught.value) for name in ADDED)
