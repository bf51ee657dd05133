"""gemm_wgmma on a GPU or the emulator: every config in all four transposes, gaps, equal bits, NaN, faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.faults_gemm_wgmma import GEMM_WGMMA_FAULTS
from tests.algorithms.planted import Fault
from tests.gpu.hopper import MANY_TILES, bits_of, hopper, method_of, needs_hopper, on_gpu_alone, some
from tests.gpu.planted import check_that_it_is_noticed
from tests.judged import judge_of

import convforge
from convforge.algorithms.gemm.wgmma import GemmWgmmaConfig
from convforge.problem import parse_problem
from convforge.verify import check_nan_spread, check_plan, make_inputs

METHOD: Any = method_of("gemm", "gemm_wgmma")
pytestmark = needs_hopper

# One tile and less; ragged in every way; whole boxes; many steps; several tiles for each SM.
SIZES = ("m8n8k8", "m200n328k136", "m512n192k320", "m72n64k2056", MANY_TILES)
TRANSPOSES = ("", "_ta", "_tb", "_ta_tb")
PROBLEMS = [f"{size}{way}_{kind}" for size in SIZES for way in TRANSPOSES for kind in ("f16", "bf16")]


def configs(text: str) -> list[GemmWgmmaConfig]:
    """Those of the problem, and those of a large one: tiles may be larger than the matrices."""
    large = parse_problem("m8192n8192k8192_f16")
    problems: Any = (parse_problem(text), large)
    found = list(dict.fromkeys(config for problem in problems for config in METHOD.configs(problem, hopper().facts)))
    return list(dict.fromkeys([*some(found, len(found)), *[config for config in found if config.paired][-1:]]))


@pytest.mark.one_in(49)
@pytest.mark.parametrize("kind", ["normal", "integers"])
@pytest.mark.parametrize("text", PROBLEMS)
def test_every_config_is_right(text: str, kind: str) -> None:
    for config in configs(text) if "f16" in text and "bf16" not in text else configs(text)[:2]:
        verdict = check_plan(METHOD.plan(parse_problem(text), config, hopper()), judge_of(text, kind))
        assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.parametrize("text", ["m200n328k136_f16", "m512n192k320_ta_tb_bf16"])
def test_every_config_gives_the_same_bits(text: str) -> None:
    problem: Any = parse_problem(text)
    inputs = make_inputs(problem, "normal")
    found = [bits_of(METHOD.plan(problem, config, hopper()), inputs) for config in configs(text)]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@on_gpu_alone
@pytest.mark.parametrize("ahead", [8, 3])
def test_parts_of_larger_matrices_and_views(ahead: int) -> None:
    """Gaps of whole 16 bytes, which the TMA goes round; others, and transposed views, go to another step."""
    torch = pytest.importorskip("torch")
    wide_a, wide_b = (torch.randint(-4, 5, (300, 300), device="cuda").half() for _ in range(2))
    a, b = wide_a[:200, ahead : ahead + 136], wide_b[:136, ahead : ahead + 152]
    expected = (a.double() @ b.double()).half()
    for left, right in ((a, b), (a.contiguous(), b), (a.T.contiguous().T, b), (a, b.T.contiguous().T)):
        for _ in range(3):
            torch.testing.assert_close(convforge.gemm(left, right, algorithm="gemm_wgmma"), expected, rtol=0, atol=0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("text", ["m200n328k136_f16", "m200n328k136_ta_tb_bf16"])
def test_a_nan_reaches_the_results_that_see_it(text: str) -> None:
    for config in configs(text)[::4]:
        for kind in ("nan", "inf"):
            verdict = check_nan_spread(METHOD.plan(parse_problem(text), config, hopper()), kind)
            assert verdict.ok, f"{config}: {verdict.message}"


@on_gpu_alone
@pytest.mark.parametrize("fault", GEMM_WGMMA_FAULTS, ids=str)
def test_a_planted_fault_is_noticed(fault: Fault, tmp_path: Path) -> None:
    run = fault.run
    check_that_it_is_noticed(METHOD, fault, judge_of(run.problem, run.kind), tmp_path)
