"""Findings of the tables that others published: what their texts got wrong, the rules get right."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.course.studies.made_up import found, one

from convforge.course.studies import STUDIES
from convforge.course.studies.published import TABLES, Doubt

B, D = TABLES["B"].run, TABLES["D"].run


def test_table_d_does_not_say_that_im2col_is_never_the_best() -> None:
    findings = found("stride", D, "ahead")
    (own,) = [f for f in findings if f.values.get("method") == "im2col"]
    assert own.form == "ahead/some"
    assert own.values["cases"] == ["rgb_to_3_128_s2", "rgb_to_3_128_s3"]
    assert own.values["tried"] == 15
    assert own.values["most"] == pytest.approx(1.74 / 1.46)
    assert own.sentence == "im2col is the fastest on 2 of 15 cases."
    assert "fastest on: rgb_to_3_128_s2 and rgb_to_3_128_s3" in own.details
    assert not [f for f in findings if "im2col" in f.values.get("methods", ())]


def test_table_d_stride_by_stride() -> None:
    by_stride = {f.values["stride"]: f for f in found("stride", D, "im2col-against-direct")}
    assert {stride: f.form for stride, f in by_stride.items()} == {1: "im2col/none", 2: "im2col/some", 3: "im2col/some"}
    assert by_stride[2].values["won"] == ["rgb_to_3_128_s2"]


def test_table_d_at_stride_1_alone_im2col_is_never_ahead() -> None:
    """The study of sizes reads stride 1, where it is true."""
    (never,) = [f for f in found("size", D, "ahead") if f.form == "ahead/never"]
    assert never.values["methods"] == ["im2col"]


def test_table_b_stays_under_a_tenth_of_the_peak() -> None:
    finding = one("gemm", B, "share-of-peak")
    assert finding.form == "peak/low"
    assert finding.values["peak"] == 82.6e12
    assert finding.values["n"] == 15
    assert (finding.values["top"], finding.values["top_case"]) == ("gemm_shared", "square_8192")
    assert finding.values["top_share"] == pytest.approx(7750 / 82600, rel=1e-3)
    assert finding.sentence == "No method reaches 10 % of the FMA peak."
    assert finding.details[0] == "peak: 82.6 TFLOP/s"


def test_kernels_of_others_are_not_called_ours() -> None:
    finding = one("gemm", B, "against-library")
    assert finding.sentence.startswith("The fastest method of the ladder is faster than the best library")
    assert {"fastest methods of the ladder: gemm_shared", "best libraries: cublas"} < set(finding.details)
    for name, table in TABLES.items():
        findings = STUDIES["gemm" if name == "B" else "stride"].findings(table.run)
        assert not [f.form for f in findings if " ours" in f.sentence]


def test_what_rests_on_doubtful_figures_is_doubtful() -> None:
    findings = TABLES["B"].findings(STUDIES["gemm"])
    assert {f.rule: f.supported for f in findings} == {
        "ladder": True, "ladder-step": True, "ahead": False, "against-library": False, "share-of-peak": False,
        "filling": False, "quality": False,
    }  # fmt: skip
    trusted = replace(TABLES["B"], doubts=(Doubt("anything", ("direct_naive",)),))
    assert {f.rule for f in trusted.findings(STUDIES["gemm"]) if not f.supported} == {"quality"}
    assert not [f for f in TABLES["C"].findings(STUDIES["stride"]) if f.supported]
    for table in TABLES.values():
        known = {r.algorithm for r in table.run.results}
        assert all(set(doubt.methods) <= known for doubt in table.doubts)


def test_single_figures_are_said_to_have_no_spread() -> None:
    for name, table in TABLES.items():
        (doubt,) = found("gemm" if name == "B" else "stride", table.run, "quality")
        assert (doubt.form, doubt.supported) == ("quality/no-spread", False)
        assert doubt.values["times"] == len(table.run.results)


def test_the_tables_are_whole() -> None:
    assert {name: len(table.run.results) for name, table in TABLES.items()} == {"A": 35, "B": 15, "C": 42, "D": 45}
    rate = next(r.gflops for r in D.results if (r.case, r.algorithm) == ("rgb_to_3_1024_s1", "cudnn"))
    assert rate == pytest.approx(20.34)
    rate = next(r.gflops for r in B.results if (r.case, r.algorithm) == ("square_4096", "cublas"))
    assert rate == pytest.approx(6230, rel=1e-3)


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("table", TABLES)
def test_every_study_reads_every_table(name: str, table: str) -> None:
    assert [f.sentence for f in STUDIES[name].findings(TABLES[table].run)]
