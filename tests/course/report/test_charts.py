"""The charts of a run: valid specs, the right rows in them, PNG and SVG without a network."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.course.report import runs

from convforge.benchmark.records import Run
from convforge.course.report import KINDS, chart_png, chart_spec, chart_svg
from convforge.course.report.charts import ink_of, panels, roofline_entries, size_title
from convforge.course.report.records import load, view


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load([runs.write(tmp_path_factory.mktemp("grid") / "a.jsonl", runs.records())])[0][0]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Cases that share no family."""
    rows = [r for r in runs.results(sizes=(64,)) if r["case"].endswith("s1")]
    return load(
        [runs.write(tmp_path_factory.mktemp("single") / "a.jsonl", [runs.header(), runs.ceilings("before"), *rows])]
    )[0][0]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One family of three sizes."""
    rows = [r for r in runs.results(sizes=(32, 64, 128)) if r["case"].startswith("rgb_to_1") and "_s1" in r["case"]]
    lines = [runs.header(), runs.ceilings("before"), *rows]
    return load([runs.write(tmp_path_factory.mktemp("small") / "a.jsonl", lines)])[0][0]


@pytest.mark.parametrize("kind", KINDS)
def test_every_spec_is_valid_by_the_schema(small: Run, single: Run, kind: Any) -> None:
    import altair as alt

    run = small if kind in ("time", "gflops") else single
    spec = chart_spec(run, kind)
    alt.VConcatChart.from_dict(spec, validate=True)
    assert "url" not in str(spec["datasets"])


def test_a_wrong_spec_would_be_caught(single: Run) -> None:
    import altair as alt

    spec = chart_spec(single, "roofline")
    spec["vconcat"][0]["hconcat"][0]["layer"][0]["mark"]["type"] = "blob"
    with pytest.raises(Exception, match="blob"):
        alt.VConcatChart.from_dict(spec, validate=True)


def _rows(panel: Any) -> Iterator[dict[str, Any]]:
    for rows in panel.data.values():
        yield from rows


def test_time_has_a_panel_for_each_stride_and_a_point_for_each_time(grid: Run) -> None:
    shown = view(grid)
    found = list(panels(shown, "time", ink_of(shown, "page")))
    assert [(family, panel.title) for family, panel in found] == [
        (family, f"stride {stride}") for family in shown.series for stride in (1, 2, 3)
    ]
    assert sum(len(list(_rows(panel))) for _, panel in found) == len(shown.best)
    point = next(row for row in _rows(found[0][1]) if (row["method"], row["size"]) == ("direct_rows", "2048"))
    entry = next(e for e in shown.best if (e.label, e.result.case) == ("direct_rows", "rgb_to_1_2048_s1"))
    assert point["ms"] == pytest.approx(1e3 * (entry.seconds or 0))
    assert point["low"] < point["ms"] < point["high"]
    assert point["error"].endswith("e-08")


def test_the_strides_of_a_family_share_a_scale(grid: Run) -> None:
    shown = view(grid)
    domains = [
        re.findall(r"'domain': \[0\.0, ([\d.]+)\]", str(panel.chart.to_dict()))[0]
        for family, panel in panels(shown, "gflops", ink_of(shown, "page"))
        if family == shown.series[0]
    ]
    assert len(domains) == 3
    assert len(set(domains)) == 1


def test_the_roofline_shows_the_largest_of_each_family_and_stride(grid: Run) -> None:
    shown = view(grid)
    found = roofline_entries(shown)
    # FFT was skipped at 2048 with stride 1: it is not shown at a smaller size instead.
    assert {(e.family, e.stride): e.size for e in found} == {(f, s): 2048 for f in shown.series for s in "123"}
    assert {e.result.algorithm for e in found if e.stride == "1"} == set(shown.methods) - {"fft"}
    entry = next(e for e in found if e.label == "direct_rows" and e.stride == "1")
    assert entry.intensity == pytest.approx(entry.result.flops / entry.result.least_bytes)


def test_nothing_to_show_is_an_error_in_words(grid: Run) -> None:
    with pytest.raises(ValueError, match="holds nothing for a chart of cases"):
        chart_spec(grid, "cases")
    with pytest.raises(ValueError, match="kind='bar' is unknown"):
        chart_spec(grid, "bar")  # type: ignore[arg-type]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_png_and_svg_are_made_offline(single: Run, theme: Any) -> None:
    from PIL import Image

    with Image.open(io.BytesIO(chart_png(single, "cases", theme=theme, scale=1))) as picture:
        picture.load()
        assert picture.width > 600
        corner = picture.convert("RGB").getpixel((1, 1))
    assert corner == ((255, 255, 255) if theme == "light" else (0x14, 0x18, 0x1D))
    svg = chart_svg(single, "cases", theme=theme)
    assert svg.startswith("<svg")
    assert "var(--" not in svg
    assert "direct_rows" in svg


def test_an_axis_of_sizes_says_of_what() -> None:
    titles = {operation: size_title(operation) for operation in ("conv2d", "gemm", "relu")}
    assert "pixels" in titles["conv2d"]
    assert titles["gemm"].startswith("M = N = K")
    assert titles["relu"] == "elements"
