"""Results of one byte from sums of integers, rounded in float where that is certain, else in double (bytes.cuh)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.backends.emulated import needs_emulator, run, source

from convforge.backends.emulator import EmulatorRuntime

pytestmark = needs_emulator

TYPES = {"uint8": "unsigned char", "int8": "signed char"}

EIGHT = 8  # sums that are rescaled at once

# x: a scale and a bias, then n sums as doubles, n a multiple of EIGHT. out: five bytes of a sum: the result, the result
# in double, the result in float, 1 if that is certain, and 1 if the results in float of all its EIGHT are.
BODY = """
const double scale = args.x[0], bias = args.x[1];
Rescaling<{type}, {relu}, {doubles}> factors;
const float certain = factors.set(scale, bias, false);
const auto by = [&](int) {{ return factors; }};
const auto exactly = [&](int, int sum) {{ return rescaled_exactly<{type}, {relu}>(sum, scale, bias); }};
for (int i = threadIdx.x * {eight}; i < args.n; i += blockDim.x * {eight}) {{
    int sums[{eight}];
    for (int e = 0; e < {eight}; e++) sums[e] = static_cast<int>(args.x[2 + i + e]);
    bool sure;
    const auto words = rescaled_in_float(sums, certain, by, sure);
    const auto in_float = words.template as<{type}>();
    const auto slowly = rescaled_slowly(words, sums, certain, by, exactly).template as<{type}>();
    for (int e = 0; e < {eight}; e++) {{
        bool own = true;
        factors.result(static_cast<float>(sums[e]), certain, own);
        {type} *const to = args.out + 5 * (i + e);
        to[0] = sure ? in_float.at[e] : slowly.at[e];
        to[1] = static_cast<{type}>(exactly(0, sums[e]));
        to[2] = in_float.at[e], to[3] = own, to[4] = sure;
    }}
}}
"""

Kernels = dict[tuple[str, bool, bool], Any]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """By type of the results, with a relu, and with factors that are prepared in double, as on some GPUs."""
    found = {}
    for (dtype, name), relu, doubles in itertools.product(TYPES.items(), (False, True), (False, True)):
        body = BODY.format(type=name, relu=str(relu).lower(), doubles=str(doubles).lower(), eight=EIGHT)
        folder = tmp_path_factory.mktemp(f"{dtype}{relu}{doubles}")
        found[dtype, relu, doubles] = source(folder, body, "double", name, '#include "bytes.cuh"')
    return found


def bytes_of(kernel: Any, scale: float, bias: float, sums: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Five bytes of each sum, as BODY writes them."""
    whole = np.pad(sums.astype(np.float64), (0, -sums.size % EIGHT))
    out = np.zeros(5 * whole.size, dtype)
    found = run(kernel, np.concatenate([[scale, bias], whole]), out, 1, n=whole.size, runtime=EmulatorRuntime())
    return found.reshape(-1, 5)[: sums.size]


def expected(scale: float, bias: float, sums: NDArray[Any], dtype: str, relu: bool) -> NDArray[Any]:
    """The definition: multiplied and added in float64, rounded to an integer, ties to even, saturated; NaN is 0."""
    with np.errstate(invalid="ignore", over="ignore"):
        values = np.rint(np.nan_to_num(sums.astype(np.float64) * scale + bias, nan=0.0, posinf=1e9, neginf=-1e9))
    info = np.iinfo(dtype)
    return np.clip(values, 0 if relu else info.min, info.max).astype(dtype)


def sums_around_ties(scale: float, bias: float, reach: int = 2) -> NDArray[Any]:
    """The sums whose results are next to a tie, and the least and largest sums."""
    ends = np.array([-(2**31), -(2**31) + 1, -(2**24) - 1, -1, 0, 1, 2**24 + 1, 2**31 - 2, 2**31 - 1], np.float64)
    ties = np.arange(-130, 257) + 0.5
    if scale == 0 or not np.isfinite(scale) or not np.isfinite(bias):
        return ends
    with np.errstate(over="ignore"):
        near = np.rint((ties - bias) / scale)[:, None] + np.arange(-reach, reach + 1)
    return np.unique(np.clip(np.concatenate([near.ravel(), ends]), -(2**31), 2**31 - 1))


SCALES = st.one_of(
    st.floats(1e-9, 4.0), st.floats(2.0**-30, 4.0, width=32), st.integers(-12, 3).map(lambda power: 2.0**power),
    st.integers(1, 99).map(lambda part: part / 100), st.floats(-2.0, -1e-9),
    st.sampled_from([0.0, 1e-300, 1e39, np.inf]),
)  # fmt: skip
BIASES = st.one_of(
    st.floats(-600, 600), st.integers(-512, 512).map(lambda halves: halves / 2), st.floats(-3e8, 3e8),
    st.sampled_from([0.0, -0.0, 5e-324, 262143.5, 262144.5, 1e308, -np.inf, np.nan]),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(scale=SCALES, bias=BIASES, dtype=st.sampled_from(list(TYPES)), relu=st.booleans(), doubles=st.booleans())
@example(scale=0.5, bias=3.0, dtype="uint8", relu=False, doubles=False)
@example(scale=2.0**-24, bias=0.5, dtype="int8", relu=False, doubles=True)
@example(scale=np.nan, bias=0.0, dtype="uint8", relu=True, doubles=False)
@example(scale=-np.nan, bias=np.nan, dtype="int8", relu=False, doubles=False)
@example(scale=2.0**-127, bias=-1.5, dtype="int8", relu=False, doubles=False)
def test_results_are_those_of_double(
    kernels: Kernels, scale: float, bias: float, dtype: str, relu: bool, doubles: bool
) -> None:
    sums = sums_around_ties(scale, bias)
    found = bytes_of(kernels[dtype, relu, doubles], scale, bias, sums, dtype)
    np.testing.assert_array_equal(found[:, 0], found[:, 1])
    certain = found[:, 3] != 0
    assert certain[found[:, 4] != 0].all()
    np.testing.assert_array_equal(found[certain, 2], found[certain, 1])
    # Here float64 has all bits of results that do not saturate, so that it rounds nothing.
    if 2**-18 <= abs(scale) <= 4 and scale == np.float32(scale) and abs(bias) < 512 and bias * 2 == np.rint(bias * 2):
        np.testing.assert_array_equal(found[:, 0], expected(scale, bias, sums, dtype, relu))


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("doubles", [False, True])
@pytest.mark.parametrize(("scale", "bias"), [(0.01, 3.0), (1 / 512, -7.5), (float(np.float32(0.0371)), 128.0)])
def test_all_sums_of_a_range(kernels: Kernels, scale: float, bias: float, dtype: str, doubles: bool) -> None:
    sums = np.arange(-150 / scale, 300 / scale).round()
    found = bytes_of(kernels[dtype, False, doubles], scale, bias, sums, dtype)
    np.testing.assert_array_equal(found[:, 0], expected(scale, bias, sums, dtype, False))
    certain = found[:, 3] != 0
    np.testing.assert_array_equal(found[certain, 2], found[certain, 0])
    assert certain.mean() > 0.9 if scale != 1 / 512 else certain.mean() > 0.99


@pytest.mark.parametrize("doubles", [False, True])
def test_large_scales_and_biases_are_left_to_double(kernels: Kernels, doubles: bool) -> None:
    sums = np.array([-5, 0, 3, 200], np.float64)
    for scale, bias in ((1e39, 0.0), (0.5, 2.0**18), (np.nan, 0.0), (0.5, -np.inf)):
        assert not bytes_of(kernels["uint8", False, doubles], scale, bias, sums, "uint8")[:, 3].any()
