"""implicit_gemm_wgmma and implicit_gemm_tf32 on a GPU or the emulator: configs, gaps, equal bits, faults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.faults_wgmma import WGMMA_FAULTS
from tests.algorithms.planted import Fault
from tests.gpu.hopper import hopper, method_of, needs_hopper, on_gpu_alone, some
from tests.gpu.planted import check_that_it_is_noticed
from tests.judged import judge_of

import convforge
from convforge.algorithms.implicit_gemm.wgmma_tiles import PAIRS, WgmmaConfig
from convforge.problem import parse_problem
from convforge.verify import check_nan_spread, check_plan, make_inputs

METHODS: Any = {name: method_of("conv2d", name) for name in ("implicit_gemm_wgmma", "implicit_gemm_tf32")}
pytestmark = needs_hopper

# Ragged tiles, slices of channels that are not whole, strides, dilation, sides of padding, epilogues; layers.
PROBLEMS = (
    "n2c8h9w7_k8r3s3_p1_f16_nhwc", "n2c24h13w11_k40r3s2_p1_f16_nhwc_+bias+relu", "n3c64h12w9_k64r1s1_f16_nhwc",
    "n1c72h10w10_k136r5s5_p2_d2_bf16_nhwc_+scale:channel+bias+residual+silu", "n2c16h15w15_k24r3s3_st2_p1_f16_nhwc",
    "n1c128h17w19_k200r3s3_p2x0x1x3_st1x2_bf16_nhwc_+residual", "n1c64h1w1_k64r1s1_f16_nhwc",
    "n5c192h7w7_k320r3s3_p1_f16_nhwc_+bias+relu", "n1c64h5w70_k72r1s9_p0x4_f16_nhwc",
    "n4c256h14w14_k256r3s3_p1_bf16_nhwc", "n2c64h56w56_k64r3s3_p1_f16_nhwc",
    "n2c64h56w56_k256r1s1_f16_nhwc_+residual+relu", "n1c40h70w5_k64r7s1_p3x0_f16_nhwc",
)  # fmt: skip
# Pictures that are turned first, results that threads store, groups of all widths; TF32.
OTHERS = (
    "n2c12h9w10_k20r3s3_p1_f16_nchw_+bias+relu", "n2c24h13w11_k30r3s3_p1_reflect_bf16_nchw",
    "n1c64h12w12_k64r3s3_p2_circular_f16_nhwc", "n2c64h14w14_k64r3s3_p1_g4_f16_nhwc",
    "n2c96h9w9_k48r3s3_p1_g2_bf16_nhwc_+residual", "n1c144h9w8_k288r3s3_p1_g2_st2_f16_nhwc_+scale:channel+bias",
    "n2c48h8w9_k72r3s3_p1_g2_f16_nchw_+scale:channel+bias", "n2c128h8w8_k256r3s3_p1_g2_f16_nhwc_+bias+relu",
    "n2c64h13w9_k40r3s3_p1_f16-f16-f32-f32_nhwc", "n1c16h9w9_k16r3s3_p2_constant1.5_f16_nchw",
    "n2c32h7w7_k136r1s1_f16_nchw-kcrs-nhwc", "n1c64h9w9_k70r3s3_p1_bf16-bf16-f32-f32_nhwc-kcrs-nchw",
    "n2c8h9w7_k8r3s3_p1_f32_nhwc_math-tf32", "n2c36h13w11_k40r3s2_p1_f32_nhwc_+bias+relu_math-tf32",
    "n1c72h10w10_k136r5s5_p2_d2_f32_nhwc_+scale:channel+bias+residual+silu_math-tf32",
    "n2c33h9w9_k31r3s3_p1_reflect_f32_nchw_math-tf32", "n2c64h56w56_k64r3s3_p1_f32_nhwc_math-tf32",
    "n2c64h14w14_k64r3s3_p1_g4_f32_nchw_math-tf32", "n3c64h12w9_k64r1s1_f32_nhwc_math-tf32",
)  # fmt: skip
# Few tiles, whose channels are shared out.
FEW = (
    "n1c320h9w7_k72r3s3_p1_f16_nhwc_+scale:channel+bias+residual+relu", "n1c520h7w7_k130r3s2_p1_bf16_nchw_+bias",
    "n2c200h5w9_k65r1s1_f32_nhwc_+residual+silu_math-tf32", "n1c192h6w6_k96r3s3_st2_p1_f16-f16-f32-f32_nhwc-krsc-nchw",
)  # fmt: skip
ALL = (*PROBLEMS, *OTHERS, *FEW)


def method(text: str) -> Any:
    return METHODS["implicit_gemm_tf32" if "tf32" in text else "implicit_gemm_wgmma"]


def configs(text: str) -> list[WgmmaConfig]:
    """The default, others from all along the list, one of each way: each takes a second."""
    found = list(method(text).configs(parse_problem(text), hopper().facts))
    either = [next((c for c in found if (c.split_k > 1) == shared), found[0]) for shared in (False, True)]
    patches = [config for config in found if config.patch][:1]
    pairs = [config for kind in PAIRS[1:] for config in [c for c in found if c.pairs == kind][:1]]
    found = list(dict.fromkeys([*some(found, 6), *either, *patches, *pairs]))
    narrow = [replace(found[0], row_bytes=row) for row in (64, 32)]
    narrow = [c for c in narrow if c.refusal(parse_problem(text), hopper().facts) is None]
    return [
        *found,
        *narrow,
        replace(found[0], repacked=True, scattered=True),
        replace(found[-1], repacked=True, scattered=True),
    ]


@pytest.mark.one_in(84)
@pytest.mark.parametrize("kind", ["normal", "integers"])
@pytest.mark.parametrize("text", ALL)
def test_every_config_is_right(text: str, kind: str) -> None:
    found = configs(text)
    assert len(found) >= 4
    assert text not in FEW or {config.split_k > 1 for config in found} == {False, True}
    for config in found:
        verdict = check_plan(method(text).plan(parse_problem(text), config, hopper()), judge_of(text, kind))
        assert verdict.ok, f"{config}: {verdict.message}"


def result(text: str, config: WgmmaConfig, pictures: slice = slice(None)) -> Any:
    """The output of the first or some pictures of a problem's normal inputs, as the bits of its numbers."""
    problem: Any = parse_problem(text)
    inputs = make_inputs(problem, "normal")
    x, operands = inputs.x[pictures], {**inputs.operands}
    if "residual" in operands:
        operands["residual"] = operands["residual"][pictures]
    plan = method(text).plan(problem.replace(n=len(x)), config, hopper())
    out = hopper().upload(np.zeros(plan.problem.out_shape, problem.out_dtype))
    there = {name: hopper().upload(array) for name, array in operands.items()}
    plan(plan.buffers(hopper().upload(x), plan.prepare(hopper().upload(inputs.w)), there, out))
    return np.asarray(hopper().download(out)).view(f"u{np.dtype(problem.out_dtype).itemsize}")


@pytest.mark.one_in(27)
@pytest.mark.parametrize("text", ALL)
def test_every_config_and_batch_gives_the_same_bits(text: str) -> None:
    """Sums are taken slice after slice and tap after tap by tiles that have all channels: a choice changes nothing."""
    first, *others = (config for config in configs(text) if config.split_k == 1)
    expected = result(text, first)
    for config in others:
        np.testing.assert_array_equal(result(text, config), expected, err_msg=str(config))
    alone = parse_problem(text).replace(n=1)  # type: ignore[union-attr]
    for config in [config for config in configs(str(alone)) if config.split_k == 1][:2]:
        np.testing.assert_array_equal(result(text, config, slice(0, 1)), expected[:1], err_msg=str(config))


@on_gpu_alone
@pytest.mark.parametrize("text", [PROBLEMS[0], PROBLEMS[3], PROBLEMS[4], "n2c36h13w11_k40r3s2_p1_f32_nhwc_math-tf32"])
@pytest.mark.parametrize("ahead", [8, 3])
def test_parts_of_larger_arrays(text: str, ahead: int) -> None:
    """Gaps that are whole vectors, which the accelerator goes round, and others, of which rows are made first."""
    torch = pytest.importorskip("torch")
    problem: Any = parse_problem(text)
    kind = getattr(torch, problem.x_dtype)
    n, h, w, c = problem.x_shape
    wide = torch.randn(n + 1, h + 2, w + 2, c + 16, device="cuda").to(kind)
    x = wide[:n, 1 : h + 1, 1 : w + 1, ahead : ahead + c]
    taps = torch.randn(problem.w_shape, device="cuda").to(kind) / problem.taps
    options = {"layout": "NHWC", "stride": problem.stride, "dilation": problem.dilation, "algorithm": method(text).name,
               "padding": ((problem.padding[0],) * 2, (problem.padding[2],) * 2)}  # fmt: skip
    for _ in range(3):
        found = convforge.conv2d(x, taps, **options)
        dense = convforge.conv2d(x.contiguous(), taps, **options)
        torch.testing.assert_close(found, dense, rtol=0, atol=0)


@on_gpu_alone
@pytest.mark.parametrize("text", [PROBLEMS[0], PROBLEMS[2], PROBLEMS[3], OTHERS[3], OTHERS[0], OTHERS[14]])
def test_weights_are_taken_however_they_lie(text: str) -> None:
    """Channels side by side, which no kernel packs; taps side by side; parts of larger arrays; turned filters."""
    torch = pytest.importorskip("torch")
    problem: Any = parse_problem(text)
    kind = getattr(torch, problem.x_dtype)
    x = torch.randn(problem.x_shape, device="cuda").to(kind)
    k, c, r, s = problem.w_shape
    options = {"layout": problem.x_layout, "stride": problem.stride, "dilation": problem.dilation,
               "padding": (problem.padding[:2], problem.padding[2:]), "groups": problem.groups,
               "precision": problem.precision, "algorithm": method(text).name}  # fmt: skip
    wide = torch.randn((k + 1, r, s, c + 16), device="cuda").to(kind)
    for ahead in (0, 8, 3):
        w = wide[:k, :, :, ahead : ahead + c].permute(0, 3, 1, 2)
        for mode in ("cross-correlation", "convolution"):
            expected = convforge.conv2d(x, w.contiguous(), mode=mode, **options)
            for taps in (w, w.contiguous(memory_format=torch.channels_last)):
                for _ in range(3):
                    torch.testing.assert_close(
                        convforge.conv2d(x, taps, mode=mode, **options), expected, rtol=0, atol=0
                    )
            doubled = convforge.conv2d(x, taps.mul_(2), mode=mode, **options)
            torch.testing.assert_close(doubled, 2 * expected, rtol=0, atol=0)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("text", [*PROBLEMS[:5], *OTHERS[:8], *OTHERS[-6:-4]])
def test_a_nan_reaches_the_outputs_that_see_it(text: str) -> None:
    for config in configs(text)[::5]:
        for kind in ("nan", "inf"):
            verdict = check_nan_spread(method(text).plan(parse_problem(text), config, hopper()), kind)
            assert verdict.ok, f"{config}: {verdict.message}"


@on_gpu_alone
@pytest.mark.parametrize("fault", WGMMA_FAULTS, ids=str)
def test_a_planted_fault_is_noticed(fault: Fault, tmp_path: Path) -> None:
    run = fault.run
    check_that_it_is_noticed(METHODS[run.method], fault, judge_of(run.problem, run.kind), tmp_path)
