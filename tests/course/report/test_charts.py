"""Charts: valid specs, the right rows in them, PNG and SVG without a network, a fixed look for each method."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.course.report import runs

from convforge.benchmark.records import Run
from convforge.course.report import KINDS, chart_png, chart_spec, chart_svg
from convforge.course.report.palette import looks, named_looks
from convforge.course.report.panels import panels, roofline_entries
from convforge.course.report.records import load, view
from convforge.course.report.theme import ink_of, log_ticks, size_axis


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
    point = next(row for row in _rows(found[0][1]) if (row["method"], row["size"]) == ("direct_rows", 2048))
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


def test_a_method_looks_the_same_whoever_stands_beside_it() -> None:
    alone = looks([("fft", True)])["fft"]
    among = looks([(name, ours) for name, (ours, *_) in runs.METHODS.items()])
    assert among["fft"] == alone
    assert looks([("torch_conv2d", False)])["torch_conv2d"] == among["torch_conv2d"]
    signs = [(look.light, look.shape, look.dash) for look in among.values()]
    assert len(set(signs)) == len(signs)


def test_every_method_of_the_list_has_a_look_of_its_own_per_operation() -> None:
    from convforge.peers import every_algorithm

    for operation in {a.operation for a in every_algorithm()}:
        found = looks([(a.name, a.ours) for a in every_algorithm() if a.operation == operation])
        signs = [(look.light, look.shape, look.dash) for look in found.values()]
        assert len(set(signs)) == len(signs), operation
        assert all(bool(look.dash) is not look.ours for look in found.values())


def _luminance(colour: str) -> float:
    """Relative luminance by WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_colour_stands_out_from_its_page() -> None:
    from convforge.course.report.theme import INKS
    from convforge.peers import every_algorithm

    names = [(a.name, a.ours) for a in every_algorithm()]
    names += [(f"new_{i}", ours) for i in range(4) for ours in (True, False)]
    for name, look in looks(names).items():
        for colour, paper in zip((look.light, look.dark), INKS["paper"], strict=True):
            high, low = sorted((_luminance(colour), _luminance(paper)), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 3, (name, colour)


@pytest.mark.parametrize("domain", [(0.004, 700.0), (0.8, 3.3), (0.98, 1.3), (1e-9, 1e3), (2.1, 2.9), (5e-8, 9e-8)])
def test_ticks_are_few_round_and_inside(domain: tuple[float, float]) -> None:
    ticks = log_ticks(domain)
    assert 2 <= len(ticks) <= 8
    assert all(domain[0] <= tick <= domain[1] for tick in ticks)


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_no_two_methods_of_a_device_look_the_same(backend: str) -> None:
    """Products and convolutions stand in one roofline and in one chart of errors."""
    from convforge.peers import every_algorithm

    found = looks([(a.name, a.ours) for a in every_algorithm() if a.backend == backend])
    assert len(set(found.values())) == len(found)


def test_every_method_states_its_look_and_the_same_one_on_every_backend() -> None:
    from convforge.peers import every_algorithm

    assert [a.key for a in every_algorithm() if a.look is None] == []
    stated = {(a.name, a.look) for a in every_algorithm()}
    assert len(stated) == len({a.name for a in every_algorithm()})
    assert all(bool(a.look and a.look.dash) is not a.ours for a in every_algorithm())


def test_however_many_new_methods_there_are_none_looks_like_another() -> None:
    known = [(name, True) for name in ("direct_naive", "gemm_naive", "fft")]
    found = looks([*known, *((f"new_{i}_{ours}", ours) for i in range(200) for ours in (True, False))])
    assert len(set(found.values())) == len(found)
    assert found["fft"] == looks([("fft", True)])["fft"]


def test_what_a_chart_tells_apart_differs_in_colour_and_shape_and_dash() -> None:
    found = named_looks([f"clock {i}" for i in range(8)]).values()
    for sign in ("light", "dark", "shape", "dash"):
        assert len({getattr(look, sign) for look in found}) == 8, sign


def test_an_axis_of_sizes_says_of_what() -> None:
    titles = {operation: size_axis([1, 2], operation).to_dict()["title"] for operation in ("conv2d", "gemm", "relu")}
    assert "pixels" in titles["conv2d"]
    assert titles["gemm"].startswith("M = N = K")
    assert titles["relu"] == "elements"
