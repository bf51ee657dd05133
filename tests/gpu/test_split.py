"""implicit_gemm_split on a GPU or the emulator: configs, numbers that 16 bits hold badly, batches, gaps, faults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.faults_split import SPLIT_FAULTS
from tests.algorithms.planted import Fault
from tests.algorithms.split_inputs import KINDS, REDONE, SCALED, SPLIT, split_inputs, split_judge
from tests.gpu.hopper import hopper, method_of, needs_hopper, on_gpu_alone, some
from tests.gpu.planted import check_that_it_is_noticed

import convforge
from convforge.algorithms.implicit_gemm.split_tiles import SplitConfig
from convforge.algorithms.implicit_gemm.wgmma_tiles import PAIRS
from convforge.problem import parse_problem
from convforge.verify import check_nan_spread, check_plan

METHOD: Any = method_of("conv2d", "implicit_gemm_split")
pytestmark = needs_hopper

# Ragged tiles, slices of channels that are not whole, every border, strides, dilation, epilogues, both layouts; layers.
PROBLEMS = (
    "n2c8h9w7_k8r3s3_p1_f32_nhwc", "n2c24h13w11_k40r3s2_p1_f32_nhwc_+bias+relu", "n3c64h12w9_k64r1s1_f32_nhwc",
    "n1c72h10w10_k136r5s5_p2_d2_f32_nhwc_+scale:channel+bias+residual+silu", "n2c16h15w15_k24r3s3_st2_p1_f32_nhwc",
    "n2c70h9w11_k65r3s3_p1_f32_nhwc", "n2c64h14w14_k64r3s3_p1_f32_nchw", "n1c33h9w21_k17r3s3_p1_reflect_f32_nchw_+bias",
    "n1c20h11w13_k30r3s3_p2_constant9.0_f32_nchw", "n2c68h15w7_k72r3s3_st2_p1_f32_nchw",
    "n1c128h17w19_k200r3s3_p2x0x1x3_st1x2_f32_nhwc_+residual", "n1c64h14w14_k64r3s3_p1_flip_f32_nhwc",
    "n2c64h8w8_k64r3s3_p1_f32_nchw-kcrs-nhwc", "n1c4h9w9_k1r3s3_p1_f32_nchw", "n2c40h9w9_k40r3s3_p2_circular_f32_nhwc",
    "n2c64h14w14_k64r3s3_p1_g2_f32_nhwc", "n2c144h9w8_k100r3s3_p1_g2_st2_f32_nhwc_+bias",
    "n1c36h9w9_k40r3s3_p1_g2_f32_nchw",
    "n4c256h14w14_k256r3s3_p1_f32_nhwc", "n2c64h56w56_k256r1s1_f32_nchw_+residual+relu",
    "n1c320h9w7_k72r3s3_p1_f32_nhwc_+scale:channel+bias+residual+relu", "n1c200h7w9_k65r3s2_p1_f32_nchw_+bias",
)  # fmt: skip


def configs(text: str) -> list[SplitConfig]:
    """The default, and others from all along the list; some of them with pictures that are turned first, too."""
    every = list(METHOD.configs(parse_problem(text), hopper().facts))
    either = [next((c for c in every if c.split_first == first), every[0]) for first in (False, True)]
    pairs = [config for kind in PAIRS[1:] for config in [c for c in every if c.pairs == kind][:1]]
    found = list(dict.fromkeys([*some(every, 6), *either, *pairs]))
    return [*found, *(replace(c, repacked=True) for c in found[:3] if not c.repacked and not c.split_first)]


@pytest.mark.one_in(56)
@pytest.mark.parametrize("kind", ["normal", "integers"])
@pytest.mark.parametrize("text", PROBLEMS)
def test_every_config_is_right(text: str, kind: str) -> None:
    for config in configs(text):
        verdict = check_plan(METHOD.plan(parse_problem(text), config, hopper()), split_judge(text, kind))
        assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.one_in(72)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text", ["n2c72h13w12_k70r3s3_p1_f32_nhwc", "n2c72h13w12_k70r3s3_st2_p1_f32_nchw", "n1c136h8w8_k70r3s3_p1_f32_nhwc"]
)
def test_inputs_that_halves_hold_badly(text: str, kind: str) -> None:
    """As good as sums of floats, whatever the range; and only where it must be by multiply-adds."""
    problem: Any = parse_problem(text)
    inputs, runtime = split_inputs(problem, kind), hopper()
    for config in configs(text)[::2]:
        plan = METHOD.plan(problem, config, runtime)
        verdict = check_plan(plan, split_judge(text, kind))
        assert verdict.ok, f"{config}: {verdict.message}"
        prepared = plan.prepare(runtime.upload(inputs.w))
        plan(plan.buffers(runtime.upload(inputs.x), prepared, {}, runtime.empty(problem.out_shape, problem.out_dtype)))
        redone = int(np.asarray(runtime.download(prepared.tensors["redone"])).view(np.uint32)[0])
        assert kind not in REDONE or redone or (config.split_first and kind in SCALED)
        assert kind not in SPLIT or (not redone and prepared.note is None)


@on_gpu_alone
def test_no_tile_of_ordinary_data_is_computed_anew() -> None:
    """10^8 normal numbers have some that are 2^27 smaller than the largest; those of SiLU are smaller still."""
    torch = pytest.importorskip("torch")
    x = torch.randn(50, 64, 200, 160, device="cuda")
    w = torch.randn(64, 64, 3, 3, device="cuda") / 24
    for made in (x, torch.nn.functional.silu(4 * x), torch.nn.functional.relu(x), x**3):
        blur = convforge.Filter(w, padding=1, algorithm=METHOD.name)
        blur(made)
        assert blur.note == ""
    project = convforge.Filter(torch.randn(8192, 8192, 1, 1, device="cuda"), algorithm=METHOD.name)
    project(torch.randn(1, 8192, 16, 8, device="cuda"))
    assert project.note == ""


@pytest.mark.one_in(21)
@pytest.mark.parametrize("text", [text for text in PROBLEMS if "_st" not in text])
def test_a_picture_does_not_depend_on_its_batch(text: str) -> None:
    """With patches, whose scale is of one picture's numbers."""
    problem: Any = parse_problem(text).replace(n=3)  # type: ignore[union-attr]
    alone, runtime = problem.replace(n=1), hopper()
    inputs = split_inputs(problem, "binades")
    for config in (config for config in configs(text) if config.patch or config.split_first):
        outs = []
        for part, pictures in ((problem, slice(0, 3)), (alone, slice(1, 2))):
            operands = {name: runtime.upload(array[pictures] if name == "residual" else array)
                        for name, array in inputs.operands.items()}  # fmt: skip
            plan = METHOD.plan(part, config, runtime)
            out = runtime.empty(part.out_shape, part.out_dtype)
            x = runtime.upload(np.ascontiguousarray(inputs.x[pictures]))
            plan(plan.buffers(x, plan.prepare(runtime.upload(inputs.w)), operands, out))
            outs.append(np.asarray(runtime.download(out)))
        np.testing.assert_array_equal(outs[0][1:2], outs[1], err_msg=str(config))


@on_gpu_alone
@pytest.mark.parametrize("text", [PROBLEMS[0], PROBLEMS[4], PROBLEMS[6]])
@pytest.mark.parametrize("ahead", [4, 3])
def test_parts_of_larger_arrays(text: str, ahead: int) -> None:
    """Gaps that are whole vectors, which the accelerator goes round, and others, of which rows are made first."""
    torch = pytest.importorskip("torch")
    problem: Any = parse_problem(text)
    n, a, b, c = problem.x_shape
    x = torch.randn(n + 1, a + 2, b + 2, c + 8, device="cuda")[:n, 1 : a + 1, 1 : b + 1, ahead : ahead + c]
    taps = torch.randn(problem.w_shape, device="cuda") / problem.taps
    options = {"layout": problem.x_layout, "stride": problem.stride, "padding": 1, "algorithm": METHOD.name}
    for _ in range(3):
        found, dense = convforge.conv2d(x, taps, **options), convforge.conv2d(x.contiguous(), taps, **options)
        torch.testing.assert_close(found, dense, rtol=1e-5, atol=1e-6)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("text", [*PROBLEMS[:8], *PROBLEMS[15:18]])
def test_a_nan_reaches_the_outputs_that_see_it(text: str) -> None:
    for config in configs(text)[::4]:
        for kind in ("nan", "inf"):
            verdict = check_nan_spread(METHOD.plan(parse_problem(text), config, hopper()), kind)
            assert verdict.ok, f"{config}: {verdict.message}"


@on_gpu_alone
@pytest.mark.parametrize("fault", SPLIT_FAULTS, ids=str)
def test_a_planted_fault_is_noticed(fault: Fault, tmp_path: Path) -> None:
    check_that_it_is_noticed(METHOD, fault, split_judge(fault.run.problem, fault.run.kind), tmp_path)


@on_gpu_alone
def test_auto_takes_it_for_layers_and_filters_say_what_was_computed_anew() -> None:
    torch = pytest.importorskip("torch")
    x, w = torch.randn(8, 64, 28, 28, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    layer = convforge.Filter(w, padding=1, tune=False)
    expected = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
    torch.testing.assert_close(layer(x).double(), expected, rtol=0, atol=3e-4)
    assert layer.note == ""
    x[3, 5, 7, 9] = float("inf")
    found = layer(x)
    assert (~found.isfinite()).sum() == 64 * 9
    assert "so far were computed by multiply-adds of float32" in layer.note
