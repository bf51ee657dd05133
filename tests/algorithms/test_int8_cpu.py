"""8-bit integers on the CPU, beyond the shared cases: every layout of pairs, and the bits of direct_naive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import convforge
from convforge.algorithms import find
from convforge.algorithms.contract import Config
from convforge.algorithms.depthwise.int8 import DepthwiseInt8, DepthwiseInt8Config
from convforge.algorithms.implicit_gemm.int8 import ImplicitGemmInt8, ImplicitGemmInt8Config
from convforge.backends.cpu import cpu_facts, cpu_runtime
from convforge.problem import parse_problem
from convforge.problem.types import limits
from convforge.tuning import choose

END = "_+zero:7+scale:channel+bias"
DENSE = [
    # Pairs of channels, of neighbours in a row of pixels, of an odd number; strides, dilation, groups, borders.
    ("n2c16h13w15_k20r3s3_p1_u8-i8-u8-i32_nhwc" + END, ImplicitGemmInt8Config(4, 16)),
    ("n2c16h13w15_k20r3s3_p1_u8-i8-u8-i32_nchw" + END, ImplicitGemmInt8Config(4, 8, 2)),
    ("n1c3h21w22_k9r7s7_p3_st2_u8-i8-i8-i32_nhwc" + END, ImplicitGemmInt8Config(3, 8)),
    ("n1c3h21w22_k9r7s7_p3_st2_i8-u8-u8-i32_nchw" + END, ImplicitGemmInt8Config(3, 16)),
    ("n1c9h12w11_k33r3s2_p1_d2_reflect_i8-i8-u8-i32_nchw" + END, ImplicitGemmInt8Config(5, 16, 3)),
    ("n1c5h12w11_k7r2s3_p2_d1x3_circular_u8-u8-u8-i32_nhwc" + END, ImplicitGemmInt8Config(12, 8)),
    ("n1c12h9w10_k8r3s3_p1_symmetric_g4_u8-i16-i8-i32_nhwc" + END, ImplicitGemmInt8Config(2, 8)),
    ("n1c12h9w10_k24r3s3_p1_replicate_g2_u8-i16-i8-i32_nchw" + END, ImplicitGemmInt8Config(9, 16)),
    ("n3c64h7w7_k40r1s1_u8-i8-u8-i32_nchw-kcrs-nhwc" + END, ImplicitGemmInt8Config(7, 16)),
    ("n1c64h8w9_k40r1s1_st2_u8-i8-u8-i32_nhwc-kcrs-nchw" + END, ImplicitGemmInt8Config(1, 8)),
    ("n1c1h9w40_k6r3s3_p1_constant9.0_flip_u8-i8-i32-i32_nchw_+zero:7", ImplicitGemmInt8Config(3, 8)),
    # Sums that pass 2^24, and more pairs than are summed at a time.
    ("n1c700h4w5_k17r2s2_u8-i8-i32-i32_nhwc", ImplicitGemmInt8Config(3, 16)),
    ("n1c701h4w5_k17r2s2_u8-i8-i32-i32_nchw", ImplicitGemmInt8Config(3, 16)),
]  # fmt: skip
DEPTHWISE = [
    ("n2c20h13w15_k20r3s3_p1_g20_u8-i8-u8-i32_nhwc" + END, DepthwiseInt8Config("channels", 4, 16)),
    ("n2c9h13w15_k18r3s3_p1_g9_u8-i8-u8-i32_nhwc" + END, DepthwiseInt8Config("channels", 13, 64)),
    ("n1c5h13w35_k5r3s3_p1_st2_g5_i8-u8-i8-i32_nchw" + END, DepthwiseInt8Config("columns", 3, 1)),
    ("n1c3h13w5_k6r5s4_p2_reflect_g3_u8-i16-u8-i32_nchw" + END, DepthwiseInt8Config("columns", 4, 1)),
    ("n1c16h15w17_k16r5s5_p2_st2x3_d1x2_g16_u8-i8-u8-i32_nhwc" + END, DepthwiseInt8Config("channels", 2, 8)),
    ("n1c2h15w50_k2r3s5_p2_st1x4_d2x3_circular_g2_u8-i8-u8-i32_nchw" + END, DepthwiseInt8Config("columns", 2, 1)),
    ("n1c3h9w20_k3r2s1_g3_u8-i8-i32-i32_nhwc_+zero:7", DepthwiseInt8Config("columns", 9, 1)),
    ("n1c24h6w6_k24r1s1_g24_u8-u8-i32-i32_nchw-kcrs-nhwc", DepthwiseInt8Config("channels", 6, 24)),
]  # fmt: skip
WAYS = [*((ImplicitGemmInt8(), *way) for way in DENSE), *((DepthwiseInt8(), *way) for way in DEPTHWISE)]
ENDS = (
    "", "+scale:tensor", "+bias+relu", "+scale:channel+leakyrelu:-0.5", "+scale:channel+bias+clippedrelu:9.5+out:1.0:3",
    "+scale:channel+bias+residual+relu", "+scale:channel+bias+residual:0.75+out:1.0:5", "+over:3",
    "+scale:tensor+bias+sigmoid+out:0.01:-4", "+scale:channel+residual:-2.0+tanh+out:0.25:0",
)  # fmt: skip


def arrays_of(problem: Any, rng: np.random.Generator) -> dict[str, Any]:
    """Whole ranges of the types, scales of which half are 0.5, so that many sums are ties."""
    found = {}
    for operand in problem.operands:
        if operand.name == "scale":
            found["scale"] = rng.choice([0.5, 0.001, -0.25, 0.013], operand.shape)
        elif operand.name == "bias":
            found["bias"] = rng.integers(-400, 400, operand.shape) / 4
        elif operand.dtype.startswith("float"):
            found[operand.name] = rng.standard_normal(operand.shape).astype(operand.dtype)
        else:
            low, high = limits(operand.dtype)
            found[operand.name] = rng.integers(low, high, operand.shape, operand.dtype, endpoint=True)
    return found


def computed(method: Any, config: Config | None, problem: Any, arrays: dict[str, Any], out: Any = None) -> Any:
    plan = method.plan(problem, config or method.configs(problem, cpu_facts())[0], cpu_runtime())
    operands = {name: array for name, array in arrays.items() if name not in ("x", "w")}
    out = np.zeros(problem.results[0].shape, problem.out_dtype) if out is None else out
    return plan(plan.buffers(arrays["x"], plan.prepare(arrays["w"]), operands, out))


def way(method: Any, text: str, config: Config) -> Any:
    """A way as parameters; ``make test`` has those of the types and strides that other tests here compile too."""
    shared = "_u8-i8-u8-i32_" in text and "_st1x4_" not in text
    shared |= "_u8-i8-i32-i32_" in text and method.name == "implicit_gemm_int8"
    return pytest.param(method, text, config, id=f"{text}-{config}", marks=[] if shared else [pytest.mark.thorough])


@pytest.mark.parametrize(("method", "text", "config"), [way(*found) for found in WAYS])
def test_every_way_has_the_bits_of_direct_naive(method: Any, text: str, config: Config) -> None:
    problem = parse_problem(text)
    if problem.w_dtype == "int16":
        problem = problem.replace(w_bound=255)
    arrays = arrays_of(problem, np.random.default_rng(3))
    if problem.w_bound:
        arrays["w"] = np.clip(arrays["w"], -255, 255)
    expected = computed(find("conv2d", "cpu", "direct_naive"), None, problem, arrays)
    assert np.array_equal(computed(method, config, problem, arrays), expected)


def epilogue(out: str, end: str) -> Any:
    """An epilogue as parameters: all but the plain ones of a type share the kernels, which take seconds to compile."""
    shared = out == "u8" and end
    return pytest.param(out, end, id=f"{out}-{end or 'plain'}", marks=[] if shared else [pytest.mark.thorough])


@pytest.mark.parametrize(("out", "end"), [epilogue(o, end) for o in ("u8", "i8", "i32", "f32", "f16") for end in ENDS])
def test_every_epilogue_has_the_bits_of_direct_naive(out: str, end: str) -> None:
    if (":-4" in end and out == "u8") or ("out:1.0:" in end and out[0] == "f") or ("out:0" in end and out[0] == "f"):
        pytest.skip("the zero point is no value of the type")
    for method, size in ((ImplicitGemmInt8(), "n1c8h6w7_k20r3s3_p1"), (DepthwiseInt8(), "n1c20h6w7_k20r3s3_p1_g20")):
        for layout in ("nhwc", "nchw"):
            problem = parse_problem(f"{size}_u8-i8-{out}-i32_{layout}" + (f"_{end}" if end else ""))
            arrays = arrays_of(problem, np.random.default_rng(4))
            expected = computed(find("conv2d", "cpu", "direct_naive"), None, problem, arrays)
            found = computed(method, None, problem, arrays)
            assert found.tobytes() == expected.tobytes(), (method, layout)


@pytest.mark.parametrize("name", ["implicit_gemm_int8", "depthwise_int8"])
@pytest.mark.parametrize(
    "dtype", ["uint8", *(pytest.param(t, marks=pytest.mark.thorough) for t in ("int8", "float32"))]
)
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_scales_that_make_nan_have_the_bits_of_direct_naive(name: str, dtype: str, layout: str) -> None:
    short = {"uint8": "u8", "int8": "i8", "float32": "f32"}[dtype]
    group = "_g12" if name == "depthwise_int8" else ""
    problem = parse_problem(f"n1c12h5w9_k12r3s3_p1{group}_u8-i8-{short}-i32_{layout}_+scale:channel+bias+relu")
    arrays = arrays_of(problem, np.random.default_rng(5))
    arrays["scale"][:6] = [np.nan, np.inf, -np.inf, 1e300, -1e300, 0.0]
    arrays["bias"][1:8] = [-np.inf, np.inf, 1e308, 0.0, np.nan, 1e200, -1e200]
    expected = computed(find("conv2d", "cpu", "direct_naive"), None, problem, arrays)
    found = computed(find("conv2d", "cpu", name), None, problem, arrays)
    assert np.array_equal(found, expected, equal_nan=dtype == "float32")


def test_sums_near_the_bound_of_int32_are_exact() -> None:
    taps = (2**31 - 1) // (255 * 128)
    x, w = np.full((1, 1, 1, taps), 255, np.uint8), np.full((16, taps, 1, 1), -128, np.int8)
    for layout, image in (("NHWC", x), ("NCHW", x.reshape(1, taps, 1, 1))):
        sums = convforge.Quantization(x=(1.0, 0), w=(1.0, 0))
        found = convforge.conv2d(image, w, layout=layout, quantization=sums, algorithm="implicit_gemm_int8")
        assert (found == -128 * 255 * taps).all()


@pytest.mark.parametrize("name", ["implicit_gemm_int8", "depthwise_int8"])
def test_arrays_with_any_strides(name: str) -> None:
    rng = np.random.default_rng(6)
    for layout in ("nhwc", "nchw"):
        group = "_g12" if name == "depthwise_int8" else ""
        problem = parse_problem(
            f"n1c12h9w21_k12r3s3_p1{group}_u8-i8-u8-i32_{layout}_+zero:7+scale:channel+bias+residual:0.5"
        )
        arrays = arrays_of(problem, rng)
        for step in (2, -1, -3):
            wide = [
                np.zeros([n * abs(step) for n in array.shape], np.uint8) for array in (arrays["x"], arrays["residual"])
            ]
            x, residual, out = (array[(slice(None, None, step),) * 4] for array in (*wide, wide[1].copy()))
            x[...], residual[...] = arrays["x"], arrays["residual"]
            expected = computed(find("conv2d", "cpu", "direct_naive"), None, problem, arrays)
            found = computed(find("conv2d", "cpu", name), None, problem, arrays | {"x": x, "residual": residual}, out)
            assert np.array_equal(found, expected), (layout, step)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("n1c64h14w14_k64r3s3_p1_u8-i8-u8-i32_nhwc_+zero:7+scale:channel+bias", "implicit_gemm_int8"),
        ("n1c64h14w14_k64r3s3_p1_g64_u8-i8-u8-i32_nchw_+zero:7+scale:channel", "depthwise_int8"),
        ("n1c64h14w14_k64r1s1_i8-i8-i32-i32_nchw", "implicit_gemm_int8"),
        ("n1c64h14w14_k64r3s3_p1_i16-i16-i32-i32_nchw_wmax8", "implicit_gemm"),
        ("n1c64h14w14_k64r3s3_p1_f32_nchw", "implicit_gemm"),
        ("n1c1h99w99_k1r3s3_p1_u8-i8-u8-i32_nchw", "direct_rows"),
    ],
)
def test_the_rule_takes_them_for_layers_of_bytes(text: str, name: str) -> None:
    assert choose(parse_problem(text), cpu_runtime()).algorithm.name == name


def test_a_wrong_config_is_refused() -> None:
    problem = parse_problem("n1c8h5w5_k8r3s3_g8_u8-i8-i32-i32_nchw")
    with pytest.raises(ValueError, match="block_k=5 must be one of 16, 8"):
        ImplicitGemmInt8().plan(problem, ImplicitGemmInt8Config(1, 5), cpu_runtime())
    with pytest.raises(ValueError, match="along='rows' must be"):
        DepthwiseInt8().plan(problem, DepthwiseInt8Config("rows", 1), cpu_runtime())
