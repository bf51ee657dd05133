"""Kernel files as they are read: launches, signatures, and what cannot be compiled for either backend."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.algorithms.compiling import compiled as nvrtc
from tests.course.grader.kernels import NAIVE, SHARED

from convforge.course.grader.judge import plain_problem
from convforge.course.grader.source import parse_launch, read_kernel

PROBLEM = plain_problem("n2c3h20w35_k4r3s5_st2_p1_f32_nchw")


def own(folder: Path, text: str) -> Path:
    path = folder / "own.cu"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_launch_is_read_from_the_file(tmp_path: Path) -> None:
    info = read_kernel(own(tmp_path, SHARED)).rule.info("conv2d", PROBLEM)
    assert (info.block, info.grid) == ((8, 8), (3, 2, 8))
    assert info.scratch_bytes == 4 * (7 * 2 + 3) * (7 * 2 + 5)


def test_a_launch_of_the_command_line_comes_first(tmp_path: Path) -> None:
    kernel = read_kernel(own(tmp_path, SHARED), launch="block=32 grid=ceil(P*Q/32), N*K")
    info = kernel.rule.info("conv2d", PROBLEM)
    assert (info.block, info.grid, info.scratch_bytes) == ((32,), (-(-PROBLEM.p * PROBLEM.q // 32), 8), 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not understood"),
        ("block=16x16", "is not understood"),
        ("threads=16 block=16 grid=1", "is not understood"),
        ("block=1,2,3,4 grid=1", "has 4 sizes"),
        ("block=16 grid=Q/", "is no rule"),
        ("block=16 grid=width", "is no rule"),
        ("block=16 grid=__import__('os')", "is no rule"),
        ("block=16 grid=Q.real", "is no rule"),
        ("block=16 grid=2**Q", "is no rule"),
        ("block=16 grid=1.5", "is no rule"),
        ("block=16 grid=Q//0", "divides by zero"),
    ],
)
def test_a_launch_that_is_not_understood_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_launch(text)


def test_a_grid_of_part_of_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'Q/16' gives 1.0625, no whole number; write ceil"):
        parse_launch("block=16 grid=Q/16").info("conv2d", PROBLEM)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("int main() { return 0; }", "it holds host code"),
        ("void f() { conv2d<<<1, 1>>>(); }", "it holds host code"),
        ("\n__constant__ float kept[9];\n" + NAIVE, "own.cu:2: nobody fills this __constant__ array"),
        ("// nothing", "there is no kernel in it"),
        ("// __global__ void conv2d()", "there is no kernel in it"),
        (NAIVE.replace("conv2d(", "a(") + NAIVE.replace("conv2d(", "b("), "2 kernels, and none is called conv2d"),
        (NAIVE.replace("int N, ", ""), r"must take \(const float \*x"),
        (NAIVE.replace("const float *w", "const double *w"), r"must take \(const float \*x"),
        ('#include "mine.h"\n' + NAIVE, "it includes \"mine.h\""),
        (SHARED.replace("__global__", "extern __shared__ float all[];\n__global__"), "own.cu:3: .* outside of the"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_kernel(own(tmp_path, text))


def test_the_only_kernel_needs_no_name(tmp_path: Path) -> None:
    assert read_kernel(own(tmp_path, NAIVE.replace("conv2d(", "mine("))).source.name == "mine"
    with pytest.raises(ValueError, match="no kernel 'yours'; it has mine"):
        read_kernel(own(tmp_path, NAIVE.replace("conv2d(", "mine(")), "yours")


def test_lines_stay_where_they_are(tmp_path: Path) -> None:
    text = read_kernel(own(tmp_path, SHARED)).source.text()
    file = text.partition('#line 1 "own.cu"\n')[2]
    assert [i for i, line in enumerate(file.splitlines()) if "the tile is loaded" in line] == [
        i for i, line in enumerate(SHARED.splitlines()) if "the tile is loaded" in line
    ]


@pytest.mark.parametrize("text", [
    NAIVE, SHARED, NAIVE.replace('extern "C" __global__ void', "__global__ void __launch_bounds__(256)"),
    "#define K 3\n#define N 4\n" + SHARED.replace("int N,", "int n_,").replace("int K,", "int k_,"),
], ids=["naive", "shared", "bounds", "macros"])  # fmt: skip
@nvrtc
def test_nvrtc_takes_it(tmp_path: Path, text: str) -> None:
    from convforge.backends.cuda.compiler import compile_kernel

    compiled = compile_kernel(read_kernel(own(tmp_path, text)).source, "sm_90")
    assert compiled.registers > 0
    assert compiled.spill_bytes == 0
