"""gemm_mma on a GPU or the emulator: every config in all four transposes, any size, gaps, equal bits, NaN, bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.gpu.hopper import bits_of, hopper, is_gpu, method_of, needs_hopper, on_gpu_alone, some
from tests.judged import judge_of

import convforge
from convforge.algorithms import algorithms, refusal
from convforge.algorithms.gemm.mma import TILES, GemmMmaConfig
from convforge.algorithms.traits import Rank
from convforge.problem import parse_problem
from convforge.verify import Inputs, check_nan_spread, check_plan, make_inputs

METHOD: Any = method_of("gemm", "gemm_mma")
CONFIGS = list(TILES)
pytestmark = needs_hopper

# One element; ragged in every way; whole pieces of 16 bytes; rows of 16 bytes and a K that is none; a long K.
SIZES = ("m1n1k1", "m45n37k37", "m200n136k72", "m72n136k35", "m33n40k262")
TRANSPOSES = ("", "_ta", "_tb", "_ta_tb")
PROBLEMS = [f"{size}{way}_{kind}" for size in SIZES for way in TRANSPOSES for kind in ("f16", "bf16")]

# Bytes: the same, with whole pieces of 16 bytes along M, N and K; sums beyond 2^24.
BYTE_SIZES = ("m1n1k1", "m45n37k37", "m208n144k80", "m80n144k35", "m33n40k262", "m48n32k1200")
PAIRS = ("i8", "u8", "u8-i8", "i8-u8")


@pytest.mark.one_in(21)
@pytest.mark.parametrize("kind", ["normal", "integers"])
@pytest.mark.parametrize("text", PROBLEMS)
def test_every_config_is_right(text: str, kind: str) -> None:
    for config in some(CONFIGS, len(CONFIGS)) if "bf16" not in text else CONFIGS[-2:]:
        verdict = check_plan(METHOD.plan(parse_problem(text), config, hopper()), judge_of(text, kind))
        assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.one_in(49)
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("way", TRANSPOSES)
@pytest.mark.parametrize("size", BYTE_SIZES)
def test_bytes_are_summed_exactly(size: str, way: str, pair: str) -> None:
    problem: Any = parse_problem(f"{size}{way}_{pair}")
    for config in some(_configs(problem), len(TILES)):
        verdict = check_plan(METHOD.plan(problem, config, hopper()), judge_of(str(problem), "normal"))
        assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.parametrize("pair", PAIRS)
def test_sums_as_large_as_they_can_be(pair: str) -> None:
    """Every byte is the one of the largest magnitude, and K the most that int32 has room for."""
    first, second = (np.dtype({"i": "int8", "u": "uint8"}[name[0]]) for name in (pair.split("-") * 2)[:2])
    a, b = (np.iinfo(kind).max if kind == np.uint8 else np.iinfo(kind).min for kind in (first, second))
    k = (2**31 - 1) // abs(a * b) if is_gpu() else 2000
    problem: Any = parse_problem(f"m17n18k{k}_{pair}")
    inputs = Inputs(np.full((17, k), a, first), np.full((k, 18), b, second), {})
    plan = METHOD.plan(problem, _configs(problem)[-1], hopper())
    np.testing.assert_array_equal(_results(plan, inputs), np.full((17, 18), a * b * k, np.int32))


def test_auto_takes_it_for_bytes() -> None:
    problem: Any = parse_problem("m256n256k256_u8-i8")
    assert METHOD.preference_for(problem, hopper().facts).rank is Rank.TENSOR_CORES_OF_WARPS
    others = [
        a for a in algorithms() if a.operation == "gemm" and a.backend == METHOD.backend and a.name != METHOD.name
    ]
    assert all(refusal(other, problem, hopper().facts) is not None for other in others)


def _configs(problem: Any) -> list[GemmMmaConfig]:
    return list(METHOD.configs(problem, hopper().facts))


def _results(plan: Any, inputs: Inputs) -> Any:
    runtime = hopper()
    out = runtime.upload(np.zeros(plan.problem.out_shape, plan.problem.out_dtype))
    plan(plan.buffers(runtime.upload(inputs.x), plan.prepare(runtime.upload(inputs.w)), {}, out))
    return np.asarray(runtime.download(out))


@pytest.mark.parametrize("text", ["m45n37k70_f16", "m45n40k72_ta_tb_bf16"])
def test_every_config_gives_the_same_bits(text: str) -> None:
    """K is added up in steps of 16, whatever the tiles."""
    problem: Any = parse_problem(text)
    inputs = make_inputs(problem, "normal")
    found = [bits_of(METHOD.plan(problem, config, hopper()), inputs) for config in CONFIGS[2::3]]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("text", ["m45n37k37_f16", "m72n64k88_ta_tb_f16"])
def test_a_nan_reaches_the_results_that_see_it(text: str) -> None:
    for config in CONFIGS[1::4]:
        for kind in ("nan", "inf"):
            verdict = check_nan_spread(METHOD.plan(parse_problem(text), config, hopper()), kind)
            assert verdict.ok, f"{config}: {verdict.message}"


def test_what_warps_cannot_share_is_refused() -> None:
    for change, words in (
        ({"block_m": 96}, "block_m=96 is no power of 2 from 16 on"),
        ({"block_k": 16}, "block_k=16 is no power of 2 from 32 on"),
        ({"warp_n": 24}, "warps of 64 x 24, multiples of 16, do not cover 128 x 128 exactly"),
        ({"warp_m": 256}, "do not cover 128 x 128 exactly"),
        ({"warp_m": 128, "warp_n": 64}, "a lane would have 256 sums; it has room for 128"),
        ({"warp_m": 16, "warp_n": 16}, "a block has at most 32 warps, not 64"),
        ({"stages": 1}, "one tile is used while another is on its way: stages=1"),
    ):
        with pytest.raises(ValueError, match=words):
            METHOD.tiling(replace(GemmMmaConfig(), **change), 2)
    with pytest.raises(ValueError, match="block_k=32 is no power of 2 from 64 on"):
        METHOD.tiling(GemmMmaConfig(), 1)


def test_float32_and_older_gpus_are_refused() -> None:
    facts = hopper().facts
    assert str(METHOD.refuses(parse_problem("m64n64k64_f32"), facts)).startswith(
        "A and B must be of one type of float16"
    )
    old = replace(facts, architecture="sm_75")
    assert "came with sm_80; this is sm_75" in str(METHOD.refuses(parse_problem("m64n64k64_f16"), old))
    small = replace(facts, block_shared_bytes=48 << 10)
    assert all(
        METHOD.tiling(c, 2).shared_bytes <= 48 << 10 for c in METHOD.configs(parse_problem("m64n64k64_f16"), small)
    )


@on_gpu_alone
@pytest.mark.parametrize("ahead", [8, 3])
def test_parts_of_larger_matrices_and_views(ahead: int) -> None:
    """Gaps, rows that are not aligned, transposed views."""
    torch = pytest.importorskip("torch")
    wide_a, wide_b = (torch.randint(-4, 5, (300, 300), device="cuda").half() for _ in range(2))
    a, b = wide_a[:200, ahead : ahead + 137], wide_b[:137, ahead : ahead + 151]
    expected = (a.double() @ b.double()).half()
    for left, right in ((a, b), (a.contiguous(), b), (a.T.contiguous().T, b), (a, b.T.contiguous().T)):
        torch.testing.assert_close(convforge.gemm(left, right, algorithm="gemm_mma"), expected, rtol=0, atol=0)


@on_gpu_alone
@pytest.mark.parametrize("ahead", [16, 3])
def test_parts_and_views_of_bytes(ahead: int) -> None:
    """The same of bytes: rows that are whole pieces, and rows that are not; PyTorch multiplies float64."""
    torch = pytest.importorskip("torch")
    for kinds in ((torch.int8, torch.uint8), (torch.uint8, torch.int8), (torch.int8, torch.int8)):
        wide_a, wide_b = (torch.randint(0, 256, (320, 320), device="cuda").to(torch.uint8).view(kind) for kind in kinds)
        a, b = wide_a[:208, ahead : ahead + 144], wide_b[:144, ahead : ahead + 160]
        expected = (a.double() @ b.double()).int()
        for left, right in ((a, b), (a.contiguous(), b), (a.T.contiguous().T, b), (a, b.T.contiguous().T)):
            found = convforge.gemm(left, right)
            assert found.dtype == torch.int32
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
