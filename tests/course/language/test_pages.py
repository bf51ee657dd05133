"""A page in Chinese: nothing on it is English but names and what a run stores as free text, which is marked so."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.course.language.english import english
from tests.course.language.pages import Said, chart_texts
from tests.course.report import runs

from convforge.benchmark.records import Run
from convforge.course.language import in_language
from convforge.course.report import KINDS, chart_png, chart_spec, chart_svg, load, render
from convforge.course.report.records import view


def grid() -> list[Any]:
    return runs.records(moved=0.5, dirty=True)


def others() -> list[Any]:
    """Single cases of every operation, steps, times on host arrays, copies; no end."""
    base = runs.result("direct_rows", 1, 64, 1)
    time = base["time"] | {"noisy": True, "cold": False}
    steps = [
        {"name": name, "time": time, "launches": 1, "least_bytes": None if name == "product" else 4096}
        for name in ("expansion", "product")
    ]
    rows = [
        base | {"transfer_time": time, "note": {"form": "weights packed by oneDNN", "values": {}}, "digest": "0" * 64},
        base | {"case": "product", "problem": "m96n80k64_f32", "operation": "gemm", "algorithm": "gemm_blas"},
        base | {"case": "rectified", "problem": "relu4096_f32", "operation": "relu", "algorithm": "relu", "flops": 0},
        base | {"case": "pooled", "problem": "max_n2c16h56w56_r3s3_st2_p1_f32_nchw", "operation": "max_pool2d"},
        base | {"case": "grouped", "problem": "n2c4h64w64_k4r3s3_st1_p1_g2_d2_reflect_f32_nchw_+bias+relu"},
        runs.result("im2col", 3, 64, 2) | {"steps": steps},
        runs.result("opencv_filter2d", 3, 64, 2),
        runs.result("opencv_filter2d", 1, 64, 1),
    ]
    copy = {"kind": "copy", "case": rows[0]["case"], "bytes": 4096, "time": {"samples": [1e-5] * 3}}
    return [runs.header(commit=None), runs.ceilings("before"), copy, *rows]


def alone() -> list[Any]:
    return [runs.header(machine={}, versions={}, settings={"budget_s": 60, "heavy": True}),
            runs.result("direct_rows", 1, 64, 1), {"kind": "end", "complete": True}]  # fmt: skip


def nothing() -> list[Any]:
    row = runs.result("separable", 1, 64, 1)
    return [runs.header(), *(row | {"case": f"case_{i}"} for i in range(9))]


# Parts of a problem's text form, and a class of arithmetic.
NAMED = {"reflect", "bias", "winograd"}
MADE = {"grid": grid, "others": others, "alone": alone, "nothing": nothing}


def made(tmp_path: Path, name: str) -> Run:
    return load([runs.write(tmp_path / f"{name}.jsonl", MADE[name]())])[0][0]


def names(run: Run) -> set[str]:
    """Of methods, and what the machine says of itself."""
    said = json.dumps([run.machine, run.versions, run.suite, run.device, run.run])
    words = set(re.findall(r"[A-Za-z][\w.-]*", said)) - {"name", "device", "load", "cores", "backend"}
    words |= {name for r in run.results for name in r.library_versions}
    return words | {r.algorithm for r in run.results} | {r.case for r in run.results} | {"conv2d", "gemm", "relu"}


@pytest.mark.parametrize("name", MADE)
def test_a_chinese_page_has_no_english_words_but_names(tmp_path: Path, name: str) -> None:
    run = made(tmp_path, name)
    said = Said(render([run], language="zh", left_out=[dataclasses.replace(run, complete=False)]))
    assert said.language == "zh"
    known = names(run) | NAMED
    wrong = {text: found for text in said.everything if (found := english(text, known))}
    assert wrong == {}
    assert len(said.texts) > 100


def test_the_check_of_a_page_would_find_english(tmp_path: Path) -> None:
    """On the English page nearly every text is found, in the page and in every chart."""
    run = made(tmp_path, "grid")
    said = Said(render([run]))
    known = names(run)
    assert {"time a call", "method", "Roofline", "Against the peers", "Show rows with", "{n} rows"} <= {
        text for text in said.everything if english(text, known)
    }
    assert all(any(english(text, known) for text in chart_texts(spec)) for spec in said.specs)


@pytest.mark.thorough
def test_english_after_chinese_is_english(tmp_path: Path) -> None:
    run = made(tmp_path, "grid")
    before = render([run])
    assert render([run], language="zh") != before
    assert render([run]) == before
    with in_language("zh"):
        assert render([run], language="en") == before


@pytest.mark.thorough
def test_stored_texts_without_words_are_marked_as_english(tmp_path: Path) -> None:
    page = render([made(tmp_path, "grid")], language="zh")
    quoted = re.findall(r'<td lang="en">(.*?)</td>', page)
    assert any("skipped border: index (0, 1, 0, 3)" in text for text in quoted)
    assert "sepFilter2D 只接受秩为 1 的卷积核；这里的秩为 3" in page
    assert 'lang="en"' not in render([made(tmp_path, "grid")]).replace('<html lang="en">', "")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
def test_charts_are_labelled_in_chinese(tmp_path: Path, kind: Any) -> None:
    run = made(tmp_path, "grid" if kind in ("time", "gflops") else "others")
    spec = chart_spec(run, kind, language="zh")
    assert {text for text in chart_texts(spec) if english(text, names(run) | NAMED)} == set()
    assert chart_spec(run, kind) != spec


def test_pictures_of_charts_are_made_in_chinese(tmp_path: Path) -> None:
    run = made(tmp_path, "others")
    assert "每次调用的时间" in chart_svg(run, "cases", language="zh")
    assert chart_png(run, "cases", language="zh", scale=1) != chart_png(run, "cases", scale=1)
    with pytest.raises(ValueError, match="language='fr' is unknown"):
        chart_spec(run, "cases", language="fr")
    with pytest.raises(ValueError, match="language='fr' is unknown"):
        render([run], language="fr")


def test_families_stay_apart_in_chinese(tmp_path: Path) -> None:
    texts = [
        "n1c3h64w64_k1r3s3_st1_p1_f32_nchw", "n1c3h64w64_k1r3s3_st1_p1_f32_nhwc", "n2c3h64w64_k1r3s3_st1_p1_f32_nchw",
        "n1c3h64w64_k1r3s3_st1_p0_f32_nchw", "n1c4h64w64_k4r3s3_st1_p1_g4_f32_nchw", "m64n64k64_f32",
        "n1c4h64w64_k4r3s3_st1_p1_g2_f32_nchw", "n1c3h64w64_k1r3s3_st1_p1_d2_f32_nchw", "relu4096_f32",
        "max_n1c3h64w64_r3s3_st2_p1_f32_nchw",
    ]  # fmt: skip
    base = runs.result("direct_rows", 1, 64, 1)
    rows = [base | {"case": f"case {i}", "problem": text} for i, text in enumerate(texts)]
    run = load([runs.write(tmp_path / "a.jsonl", [runs.header(), *rows])])[0][0]
    with in_language("zh"):
        shown = view(run)
    families = [entry.family for entry in shown.entries]
    assert len(set(families)) == len(texts), families
    assert families[0] == "RGB 图像到 1 通道，3x3，填充 1，float32，NCHW"
    assert shown.entries[0].title == "RGB 图像到 1 通道，3x3"
