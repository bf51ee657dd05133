"""gemm_split and gemm_tf32 on a GPU or the emulator: transposes, numbers out of reach, gaps, NaN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.gpu.hopper import MANY_TILES, hopper, method_of, needs_hopper, on_gpu_alone, some
from tests.judged import judge_of

import convforge
from convforge.problem import parse_problem
from convforge.verify import Inputs, Judge, check_nan_spread, check_plan, make_inputs

METHODS: dict[str, Any] = {name: method_of("gemm", name) for name in ("gemm_split", "gemm_tf32")}
SPLIT = METHODS["gemm_split"]
pytestmark = needs_hopper

# One pixel; less than a tile; ragged in every way; whole tiles; many steps; several tiles for each SM; few filters.
SIZES = (
    "m1n1k32", "m8n8k32", "m1n130k64", "m203n331k137", "m200n328k136", "m512n192k320", "m72n64k2056", MANY_TILES,
    "m5000n3k100",
)  # fmt: skip
TRANSPOSES = ("", "_ta", "_tb", "_ta_tb")
PROBLEMS = [f"{size}{way}_f32" for size in SIZES for way in TRANSPOSES]


def allowing(name: str, text: str) -> Any:
    return parse_problem(text).allowing(METHODS[name].precision)


def configs(name: str, text: str, every: int = 1) -> list[Any]:
    """The default, and others from all along the list; the first of them with rows that are written first, too."""
    found = list(METHODS[name].configs(allowing(name, text), hopper().facts))
    chosen = some(found, len(found) // every)
    if name == "gemm_split":
        chosen += [next(config for config in found if config.split_first == first) for first in (False, True)]
    turned = [replace(c, repacked=True) for c in chosen if not c.repacked and not getattr(c, "split_first", False)]
    return [*dict.fromkeys(chosen), *turned[:1]]


@pytest.mark.one_in(108)
@pytest.mark.parametrize("kind", ["normal", "integers"])
@pytest.mark.parametrize("text", PROBLEMS)
@pytest.mark.parametrize("name", METHODS)
def test_configs_are_right(name: str, text: str, kind: str) -> None:
    for config in configs(name, text, every=7):
        verdict = check_plan(METHODS[name].plan(allowing(name, text), config, hopper()), judge_of(text, kind))
        assert verdict.ok, f"{config}: {verdict.message}"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("text", ["m200n328k136_f32", "m203n331k137_ta_f32", "m512n192k320_ta_tb_f32"])
@pytest.mark.parametrize("name", METHODS)
def test_every_config_is_right(name: str, text: str) -> None:
    for config in configs(name, text):
        for kind in ("normal", "integers"):
            verdict = check_plan(METHODS[name].plan(allowing(name, text), config, hopper()), judge_of(text, kind))
            assert verdict.ok, f"{config}: {verdict.message}"


def inputs_of(text: str, kind: str) -> Inputs:
    """Numbers that 16 bits hold badly, or not at all."""
    problem: Any = parse_problem(text)
    made = make_inputs(problem, "normal")
    a = np.array(made.x.T if problem.transpose_a else made.x, np.float64)
    b = np.array(made.w.T if problem.transpose_b else made.w, np.float64)  # type: ignore[union-attr]
    if kind == "rows of 1e30 and of 1e-30":
        a[3] *= 1e30
        a[5] *= 1e-30
    elif kind == "columns of 1e30 and of 1e-30":
        b[:, 3] *= 1e30
        b[:, 5] *= 1e-30
    elif kind == "one huge number of A":
        a[7, 9] = 1e30
    elif kind == "one huge number of B":
        b[9, 7] = 1e30
    elif kind == "a small part of K":
        a[:, 1:] /= 2.0**40
        b[1:] *= 2.0**40
    elif kind == "many powers of two":
        a *= 2.0 ** np.arange(-20, a.shape[0] - 20).clip(max=20)[:, None]
    elif kind == "denormals":
        a, b = a * 2.0**-130, b * 2.0**60
    elif kind == "zeros":
        a[:64], b[:, :64] = 0, 0
    a, b = a.astype(np.float32), b.astype(np.float32)
    return replace(
        made, x=np.ascontiguousarray(a.T if problem.transpose_a else a),
        w=np.ascontiguousarray(b.T if problem.transpose_b else b), kind="given",
    )  # fmt: skip


# Kind -> whether some results must be computed by multiply-adds of float32.
KINDS = {
    "rows of 1e30 and of 1e-30": True, "columns of 1e30 and of 1e-30": False, "one huge number of A": True,
    "one huge number of B": True, "a small part of K": True, "many powers of two": False, "denormals": True,
    "zeros": False,
}  # fmt: skip


@pytest.mark.one_in(25)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["m203n331k137_f32", "m200n328k136_ta_f32", "m200n328k136_tb_f32"])
def test_numbers_that_halves_hold_badly(text: str, kind: str) -> None:
    """As good as sums of floats, whatever the range; and by multiply-adds where it must be."""
    problem: Any = parse_problem(text)
    inputs, runtime = inputs_of(text, kind), hopper()
    judge = Judge(problem, inputs)
    for config in configs("gemm_split", text, every=4):
        plan = SPLIT.plan(problem, config, runtime)
        verdict = check_plan(plan, judge)
        assert verdict.ok, f"{config}: {verdict.message}"
        prepared = plan.prepare(runtime.upload(inputs.w))
        plan(plan.buffers(runtime.upload(inputs.x), prepared, {}, runtime.empty(problem.out_shape, problem.out_dtype)))
        assert not KINDS[kind] or "multiply-adds of float32" in str(prepared.note)
        assert kind != "zeros" or prepared.note is None


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", METHODS)
def test_a_nan_reaches_the_results_that_see_it(name: str) -> None:
    for text in ("m200n328k136_f32", "m203n331k137_ta_tb_f32"):
        for config in configs(name, text, every=5):
            for kind in ("nan", "inf"):
                verdict = check_nan_spread(METHODS[name].plan(allowing(name, text), config, hopper()), kind)
                assert verdict.ok, f"{text} {config}: {verdict.message}"


@on_gpu_alone
@pytest.mark.parametrize("ahead", [4, 3])
@pytest.mark.parametrize("name", METHODS)
def test_parts_of_larger_matrices_and_views(name: str, ahead: int) -> None:
    """Gaps of whole 16 bytes, which the TMA goes round; of others, and of transposed views, rows are written first."""
    torch = pytest.importorskip("torch")
    wide_a, wide_b = (torch.randint(-4, 5, (300, 300), device="cuda").float() for _ in range(2))
    a, b = wide_a[:200, ahead : ahead + 136], wide_b[:136, ahead : ahead + 151]
    around = torch.full((210, 320), 7.0, device="cuda")
    outs = (None, around[3:203, ahead : ahead + 151], around.T[9:160, 5:205].T, around[3:203, : 2 * 151 : 2])
    for left, right in (
        (a, b), (a.contiguous(), b.contiguous()), (a.T.contiguous().T, b), (a, b.T.contiguous().T),
        (wide_a[:200, ahead : ahead + 272 : 2], b), (a.flip(0), b.flip(1)), (a[:1].expand(200, 136), b),
    ):  # fmt: skip
        expected = left.double() @ right.double()
        for out in outs:
            for _ in range(3):  # the later ones are made again by their launches alone
                around.fill_(7)
                found = convforge.gemm(left, right, algorithm=name, out=out)
                torch.testing.assert_close(found.double(), expected, rtol=0, atol=0)
                if out is not None:
                    out.fill_(7)
                    assert (around == 7).all(), "nothing around C is written"


@on_gpu_alone
@pytest.mark.parametrize("name", METHODS)
def test_calls_made_again_read_what_is_in_the_arrays_now(name: str) -> None:
    torch = pytest.importorskip("torch")
    for transposed in (False, True):
        a, b = (torch.empty(256, 256, device="cuda") for _ in range(2))
        left, right = (a.T, b.T) if transposed else (a, b)
        for seed in range(4):
            torch.manual_seed(seed)
            a.copy_(torch.randint(-8, 9, a.shape, device="cuda"))
            b.copy_(torch.randint(-8, 9, b.shape, device="cuda"))
            found = convforge.gemm(left, right, algorithm=name)
            torch.testing.assert_close(found.double(), left.double() @ right.double(), rtol=0, atol=0)


@on_gpu_alone
def test_auto_takes_them_by_rule() -> None:
    torch = pytest.importorskip("torch")
    a, b = torch.randn(512, 384, device="cuda"), torch.randn(384, 256, device="cuda")
    exact = a.double() @ b.double()
    strict = (convforge.gemm(a, b, algorithm="heuristic").double() - exact).square().mean().sqrt()
    narrow = (convforge.gemm(a, b, algorithm="heuristic", precision="tf32").double() - exact).square().mean().sqrt()
    plain = (convforge.gemm(a, b, algorithm="gemm_warp_tiled").double() - exact).square().mean().sqrt()
    assert strict < 2 * plain
    assert narrow > 20 * plain


@on_gpu_alone
def test_many_rows() -> None:
    """More rows than 2^20, whose rows of pixels are one."""
    torch = pytest.importorskip("torch")
    a = torch.randint(-2, 3, (1_500_000, 64), device="cuda").float()
    b = torch.randint(-2, 3, (64, 72), device="cuda").float()
    torch.testing.assert_close(convforge.gemm(a, b, algorithm="gemm_split"), (a.double() @ b.double()).float(),
                               rtol=0, atol=0)  # fmt: skip
