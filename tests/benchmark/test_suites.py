"""Suites: each of ours parses, bad ones are refused with file and line, and the choice of cases."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path

import numpy as np
import pytest

from convforge.benchmark.suites import SIZE_COLUMNS, load, read_suite, select, suite_folder, suite_names
from convforge.imaging.filtering import filter_problem
from convforge.problem import Conv2dProblem, parse_problem

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", suite_names())
def test_every_suite_parses_to_problems_whose_text_form_gives_them_back(name: str) -> None:
    suite, cases = load([name])
    assert suite == name
    for case in cases:
        assert parse_problem(str(case.problem)) == case.problem
        assert case.source


def test_the_image_grid_is_whole() -> None:
    grid = {
        (c.problem.h, c.problem.k, c.problem.stride[0])
        for c in load(["images"])[1]
        if isinstance(c.problem, Conv2dProblem)
    }
    assert grid == {(2**e, k, stride) for e in range(5, 14) for k in (1, 3) for stride in (1, 2, 3)}


def test_layers_are_the_57_of_the_table_and_three_are_heavy() -> None:
    with (suite_folder() / "layers.csv").open(newline="") as file:
        assert next(csv.reader(file))[:15] == ["name", "source", *SIZE_COLUMNS]
    cases = load(["layers"])[1]
    assert len(cases) == 57
    assert {c.name for c in cases if c.heavy} == {"over_2g_elements", "replknet_speedtest_dw31", "shortconv_k4"}
    assert len(select(cases)) == 54
    assert len(select(cases, heavy=True)) == 57
    aspp = next(c.problem for c in cases if c.name == "deeplabv3_aspp_d12")
    assert str(aspp) == "n4c2048h33w33_k256r3s3_st1_p12_d12_f32_nchw"


def test_the_smoke_suite_is_small_and_has_every_operation() -> None:
    cases = load(["smoke"])[1]
    assert {c.problem.operation for c in cases} == {"conv2d", "gemm", "max_pool2d", "relu"}
    assert max(c.problem.flops for c in cases) < 10**7


def test_pictures_are_those_that_filter_poses() -> None:
    cases = {case.name: case for case in load(["pictures"])[1]}
    assert all(case.weights == "shared" for case in cases.values())
    rng = np.random.default_rng(0)
    for name, image, kernel, channels in (
        ("rgb8_4096_3x3_nhwc", np.uint8, rng.uniform(0, 1, (3, 3)), "each"),
        ("rgb8_4096_5x5_nhwc", np.uint8, rng.uniform(0, 1, (5, 5)), "each"),
        ("rgb8_4096_3x3_whole_nhwc", np.uint8, "laplacian", "each"),
        ("rgb8_sum_4096_3x3_nhwc", np.uint8, rng.uniform(0, 1, (3, 3)), "sum"),
        ("rgb16_4096_3x3_nhwc", np.uint16, rng.uniform(0, 1, (3, 3)), "each"),
        ("rgbf16_4096_3x3_nhwc", np.float16, rng.uniform(0, 1, (3, 3)), "each"),
    ):
        posed, _, _ = filter_problem(np.empty((4096, 4096, 3), image), kernel, channels=channels)
        assert cases[name].problem == posed
    both = [case.problem for case in cases.values() if isinstance(case.problem, Conv2dProblem) and case.problem.c == 3]
    assert {p.x_layout for p in both} == {"NCHW", "NHWC"}


def test_the_wheel_has_every_suite() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shipped = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    for path in sorted((ROOT / "benchmarks").glob("*.csv")):
        assert shipped.get(f"benchmarks/{path.name}") == f"convforge/benchmark/suites/{path.name}"


def test_problems_and_paths_are_targets_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("name,source,problem\na,b,m4n5k6_f32\n")
    suite, cases = load([str(path), "relu64_f32"])
    assert suite == "mine+problems"
    assert [case.name for case in cases] == ["a", "relu64_f32"]


def test_further_columns(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    columns = ["name", "source", *SIZE_COLUMNS, "dtype", "layout", "precision", "weights", "heavy"]
    path.write_text(",".join(columns) + "\na,b,1,3,8,9,2,3,3,2,1,1,0,1,1,f16,nhwc,winograd,gaussian,1\n")
    (case,) = read_suite(path)
    assert str(case.problem) == "n1c3h8w9_k2r3s3_st2x1_p1x0_f16_nhwc_math-winograd"
    assert (case.weights, case.heavy) == ("gaussian", True)


def test_a_spreadsheets_byte_order_mark_is_read_over_and_other_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "of-a-spreadsheet.csv"
    path.write_bytes(b"\xef\xbb\xbfname,source,problem\r\na,b,m4n5k6_f32\r\n")
    assert [case.name for case in read_suite(path)] == ["a"]
    path.write_bytes(b"\xff\xfename")
    with pytest.raises(ValueError, match=r"of-a-spreadsheet.csv is no text of UTF-8"):
        read_suite(path)


@pytest.mark.parametrize(
    "text, said",
    [
        ("name,source\na,b\n", "lacks the columns"),
        ("name,source,problem,colour\na,b,m4n5k6_f32,red\n", "unknown columns colour"),
        ("name;source;problem\na;b;m4n5k6_f32\n", "parted by commas, of the columns name, source and problem"),
        ("", "lacks the columns"),
        ("name,source,problem\n", "has no case"),
        ("name,source,problem\na,b\n", "line 2: problem is missing"),
        ("name,source,problem\na,b,\n", "line 2: problem is missing"),
        ("name,source,problem\na,b,m4n5k6_f32,more\n", "line 2: more cells than there are columns"),
        ("name,source,problem\na,b,m4n5k6_f33\n", "line 2: .*f33"),
        ("name,source,problem\na,b,m4n5k6_f32\na,b,m4n5k7_f32\n", "line 3: a second case is called 'a'"),
        ("name,source,problem\n,b,m4n5k6_f32\n", "needs a name"),
        ("name,source,problem,heavy\na,b,m4n5k6_f32,yes\n", "heavy='yes'"),
        ("name,source,problem,weights\na,b,m4n5k6_f32,gaussian\n", "convolutions alone"),
        (f"name,source,{','.join(SIZE_COLUMNS)}\na,b,1,3,8,8,1,3,3,0,1,1,1,1,1\n", "line 2: stride"),
        (f"name,source,{','.join(SIZE_COLUMNS)}\na,b,1,x,8,8,1,3,3,1,1,1,1,1,1\n", "c='x' must be a whole number"),
        (f"name,source,{','.join(SIZE_COLUMNS)}\na,b,1\n", "c='' must be a whole number"),
        (f"name,source,{','.join(SIZE_COLUMNS)},dtype\na,b,1,3,8,8,1,3,3,1,1,1,1,1,1,f33\n", "dtype='f33'"),
    ],
)
def test_a_bad_suite_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_suite(path)


@pytest.mark.parametrize(
    "target, said",
    [("imges", "did you mean 'images'"), ("n1c1h2w2_k1r3s3_st1_p0_f32_nchw", "exceeds the padded image")],
)
def test_an_unknown_target_is_refused_with_the_nearest(target: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load([target])


def test_a_missing_file_and_no_target_at_all_are_refused() -> None:
    with pytest.raises(FileNotFoundError):
        load(["none.csv"])
    with pytest.raises(ValueError, match="name a suite"):
        load([])


def test_choosing_sizes_and_strides() -> None:
    cases = load(["images"])[1]
    assert len(select(cases, sizes=[32, 8192], strides=[2])) == 4
    with pytest.raises(ValueError, match=r"there are sizes 32, 64, .* strides 1, 2, 3"):
        select(cases, sizes=[33])
    assert [c.name for c in select(load(["gemm"])[1], sizes=[512])] == ["square_512", "transposed_b", "double_512"]
