"""The page: complete, deterministic, escaped, small, written whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import statistics
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.course.pages.test_page import HOSTILE, picture
from tests.course.report import runs

from convforge.course.pages.page import chart_script
from convforge.course.report import find_images, load, render


class Reader(HTMLParser):
    """Collects elements, their attributes and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.words: list[str] = []
        self._script = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._script = tag == "script"
        if self._script:
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._script = False

    def handle_data(self, data: str) -> None:
        if self._script:
            attrs, before = self.scripts[-1]
            self.scripts[-1] = (attrs, before + data)
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = runs.write(tmp_path_factory.mktemp("page") / "a.jsonl", runs.records())
    return render(load([path])[0])


def test_the_headline_comes_first_and_every_part_is_there(page: str) -> None:
    text = Reader(page).text
    places = [
        text.index(words)
        for words in ("the speed of the best peer", "Against the peers", "By size and stride", "Roofline", "Every time",
                      "Errors", "No time, and why", "Machine", "How it was measured")
    ]  # fmt: skip
    contents = text.index("Against the peers")
    assert places[0] < contents
    for words in (
        "2048x2048", "opencv_filter2d", "Example 9000", "scipy-openblas 0.3.31", "0123456789ab", "0.31 / 0.42 / 0.4",
        "They held", "its tiles share their transforms", "skipped border", "nominal", "OMP_NUM_THREADS=2",
    ):  # fmt: skip
        assert words in text, words


def test_it_asks_no_network_for_anything_and_holds_one_bundle(page: str) -> None:
    reader = Reader(page)
    for tag, attrs in reader.elements:
        for name in ("src", "href", "data", "action", "srcset", "poster"):
            value = attrs.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, name, value)
    assert not re.search(r"url\(|@import", page[: page.index("</style>")])
    assert page.count(chart_script()) == 1
    assert len(page.encode()) < 3_000_000


def test_the_policy_names_the_scripts_by_digest_and_nothing_else(page: str) -> None:
    reader = Reader(page)
    policy = next(a["content"] for t, a in reader.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy
    rule = next(part for part in policy.split(";") if "script-src" in part)
    assert "unsafe-inline" not in rule
    executed = [text for attrs, text in reader.scripts if attrs.get("type") != "application/json"]
    assert len(executed) == 2
    for text in executed:
        assert f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in rule


def test_every_chart_has_a_spec_and_a_table(page: str) -> None:
    reader = Reader(page)
    specs = {attrs["id"]: json.loads(text) for attrs, text in reader.scripts if attrs.get("type") == "application/json"}
    plots = [attrs for tag, attrs in reader.elements if tag == "div" and attrs.get("class") == "plot"]
    # Two ratios, three strides of two families by time and by rate, roofline, errors.
    assert len(plots) == 2 + 12 + 2
    assert {attrs["data-spec"] for attrs in plots} == set(specs)
    assert all(attrs["aria-label"] for attrs in plots)
    assert all(spec["width"] == "container" and spec["datasets"] for spec in specs.values())
    assert sum(1 for tag, _ in reader.elements if tag == "details") == 1 + 2 + 1
    ids = [attrs["id"] for _, attrs in reader.elements if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_the_same_input_gives_the_same_page(tmp_path: Path, page: str) -> None:
    path = runs.write(tmp_path / "b.jsonl", runs.records())
    assert render(load([path])[0]) == page


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    def poison(row: dict[str, Any]) -> None:
        row["case"] += HOSTILE
        if row["algorithm"] == "direct_rows":
            row |= {"algorithm": HOSTILE, "note": HOSTILE, "config": ""}
        if row["reason"]:
            row["reason"] = HOSTILE
        row["library_versions"] = {HOSTILE: HOSTILE}

    lines = runs.records(poison, suite=HOSTILE, device=HOSTILE, run=HOSTILE, commit=HOSTILE, started=HOSTILE)
    lines = [line for line in lines if line["kind"] != "finalists"]
    lines[0]["versions"] = {HOSTILE: HOSTILE}
    lines[0]["settings"] = {HOSTILE: HOSTILE}
    machine = lines[0]["machine"]
    machine |= {"os": HOSTILE, "python": HOSTILE, "governor": HOSTILE, "threads": {HOSTILE: HOSTILE}, "load": [HOSTILE]}
    machine["facts"]["name"] = HOSTILE
    shown, _ = load([runs.write(tmp_path / "a.jsonl", lines)])
    shown_picture = picture(tmp_path / "p.png")
    page = render(shown, title=HOSTILE, images=[(HOSTILE, shown_picture)], left_out=shown)
    reader = Reader(page)
    assert len([1 for attrs, _ in reader.scripts if attrs.get("type") != "application/json"]) == 2
    assert not any(name.startswith("on") for _, attrs in reader.elements for name in attrs)
    images = [attrs for tag, attrs in reader.elements if tag == "img"]
    assert [(attrs["src"] or "")[:16] for attrs in images] == ["data:image/webp;"]
    assert images[0]["alt"] == HOSTILE
    assert "alert(1)" in reader.text
    assert "{{7*7}}" in reader.text
    for attrs, text in reader.scripts:
        if attrs.get("type") == "application/json":
            json.loads(text)


def test_a_run_without_anything_optional_still_makes_a_page(tmp_path: Path) -> None:
    row = runs.result("separable", 1, 64, 1)
    first = runs.header(machine={}, versions={}, commit=None, settings={})
    page = render(load([runs.write(tmp_path / "a.jsonl", [first, row])])[0])
    text = Reader(page).text
    assert "No time" in text
    assert "No ceilings were measured" in text
    assert "not known: installed, or no git" in text
    assert "Roofline" not in text


def test_other_operations_and_single_cases_make_a_page(tmp_path: Path) -> None:
    base = runs.result("direct_rows", 1, 64, 1)
    rows = [
        base | {"case": "product", "problem": "m96n80k64_f32", "operation": "gemm", "algorithm": "gemm_blas"},
        base | {"case": "relu", "problem": "relu4096_f32", "operation": "relu", "algorithm": "relu", "flops": 0},
        base | {"case": "pool", "problem": "max_n1c16h56w56_r3s3_st2_p1_f32_nchw", "operation": "max_pool2d"},
        runs.result("direct_rows", 3, 64, 2),
        runs.result("opencv_filter2d", 3, 64, 2),
    ]
    page = render(load([runs.write(tmp_path / "a.jsonl", [runs.header(), runs.ceilings("before"), *rows])])[0])
    text = Reader(page).text
    for words in ("Single cases", "m96n80k64_f32", "max pooling", "single cases: images of up to 4 channels"):
        assert words in text


def test_several_configs_of_a_method_are_told_apart_and_the_fastest_drawn(tmp_path: Path) -> None:
    slow = runs.result("direct_rows", 1, 64, 1) | {"config": "rows=1"}
    fast = runs.result("direct_rows", 1, 64, 1) | {"config": "rows=4"}
    fast["time"] = fast["time"] | {"samples": [1e-6] * 15}
    page = render(load([runs.write(tmp_path / "a.jsonl", [runs.header(), slow, fast])])[0])
    reader = Reader(page)
    assert "direct_rows[rows=1]" in reader.text
    specs = [json.loads(text) for attrs, text in reader.scripts if "cases-conv2d" in (attrs.get("id") or "")]
    [rows] = specs[0]["datasets"].values()
    assert [row["time"] for row in rows] == ["1.00 us"]


def _columns(page: str, key: str) -> list[dict[str, str]]:
    """The rows of a table of the page, by the names of its columns."""
    [table] = re.findall(rf'<table id="run0-{key}".*?</table>', page, re.DOTALL)
    heads = [re.sub("<.*?>", "", head) for head in re.findall(r"<th scope=\"col\".*?</th>", table)]
    body = table.split("<tbody>")[1]
    rows = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>.*?</tr>", body, re.DOTALL)]
    return [dict(zip(heads, row, strict=True)) for row in rows]


def test_times_from_host_to_host_are_shown_where_there_are_any(tmp_path: Path) -> None:
    first, second = runs.result("direct_rows", 1, 64, 1), runs.result("im2col", 1, 64, 1)
    time = first["time"] | {"samples": [3e-3] * 3, "noisy": True}
    lines = [runs.header(), first | {"transfer_time": time}, second]
    page = render(load([runs.write(tmp_path / "a.jsonl", lines)])[0])
    assert [row["with copies, ms"] for row in _columns(page, "results")] == ["~3.00", "–"]
    plain = render(load([runs.write(tmp_path / "b.jsonl", [runs.header(), first])])[0])
    assert "with copies, ms" not in _columns(plain, "results")[0]


def test_the_share_of_a_copy_is_shown_where_there_are_any(tmp_path: Path) -> None:
    rows = [runs.result("direct_rows", 1, size, 1) for size in (64, 128)]

    def copy(row: Any, of: float) -> dict[str, Any]:
        samples = [of * statistics.median(row["time"]["samples"])] * 3
        return {"kind": "copy", "case": row["case"], "bytes": row["least_bytes"], "time": {"samples": samples}}

    lines = [runs.header(), runs.ceilings("before"), copy(rows[1], 0.25), *rows]
    page = render(load([runs.write(tmp_path / "a.jsonl", lines)])[0])
    assert [row["of a copy"] for row in _columns(page, "results")] == ["–", "25 %"]
    assert [row["of a copy"] for row in _columns(page, "roofline")] == ["25 %"]
    plain = render(load([runs.write(tmp_path / "b.jsonl", [runs.header(), runs.ceilings("before"), *rows])])[0])
    assert "of a copy" not in _columns(plain, "results")[0]
    assert "of a copy" not in _columns(plain, "roofline")[0]
    lines[2] = copy(rows[1], 0)
    with pytest.raises(ValueError, match="the copy has a time that is not positive"):
        render(load([runs.write(tmp_path / "c.jsonl", lines)])[0])


def test_steps_are_shown_where_there_are_any(tmp_path: Path, page: str) -> None:
    row = runs.result("im2col", 1, 64, 1)
    time = row["time"] | {"samples": [2e-3] * 3, "noisy": False, "cold": True}
    moved = int(0.8 * runs.COPY * 2e-3)
    steps = [
        {"name": "expansion", "time": time, "launches": 4, "least_bytes": moved},
        {"name": "product", "time": time | {"samples": [6e-3] * 3, "cold": False}, "launches": 4, "least_bytes": None},
    ]
    lines = [runs.header(), runs.ceilings("before"), row | {"steps": steps}, runs.result("direct_rows", 1, 64, 1)]
    shown = render(load([runs.write(tmp_path / "a.jsonl", lines)])[0])
    assert "Where the time goes" in Reader(shown).text
    expansion, product = _columns(shown, "steps")
    assert (expansion["method"], expansion["step"], expansion["launches"]) == ("im2col", "expansion", "4")
    assert (expansion["time, ms"], expansion["of all steps"]) == ("2.00", "25 %")
    assert (expansion["of the copy ceiling"], expansion["remarks"]) == ("80 %", "")
    assert (product["time, ms"], product["moves at least"], product["of the copy ceiling"]) == ("6.00", "–", "–")
    assert product["remarks"] == "hot in the cache"
    assert "Where the time goes" not in Reader(page).text


@pytest.mark.parametrize("field", ["transfer_time", "steps"])
def test_times_that_are_none_are_refused_wherever_they_stand(tmp_path: Path, field: str) -> None:
    row = runs.result("im2col", 1, 64, 1)
    bad = row["time"] | {"samples": [0.0]}
    value = bad if field == "transfer_time" else [{"name": "a", "time": bad, "launches": 1, "least_bytes": None}]
    shown, _ = load([runs.write(tmp_path / "a.jsonl", [runs.header(), row | {field: value}])])
    with pytest.raises(ValueError, match="has a time that is not positive"):
        render(shown)


def test_several_runs_stand_one_after_the_other(tmp_path: Path) -> None:
    rows = list(runs.results(sizes=(32, 64, 128)))
    runs.write(tmp_path / "a.jsonl", [runs.header(run="a"), *rows])
    runs.write(tmp_path / "b.jsonl", [runs.header(run="b", suite="layers"), *rows[:50]])
    page = render(load([tmp_path])[0])
    reader = Reader(page)
    assert [a["id"] for t, a in reader.elements if t == "article"] == ["run0", "run1"]
    ids = [attrs["id"] for _, attrs in reader.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert page.count(chart_script()) == 1


def test_no_run_is_no_report() -> None:
    with pytest.raises(ValueError, match="needs runs"):
        render([])


def test_pictures_are_shrunk_in_shape_and_in_order(tmp_path: Path) -> None:
    for name, shape in (("b_edges.png", (600, 900, 3)), ("a.PNG", (64, 32))):
        picture(tmp_path / name, shape)
    (tmp_path / "notes.txt").write_text("no picture")
    found = find_images(tmp_path)
    assert [caption for caption, _ in found] == ["a", "b_edges"]
    shown, _ = load([runs.write(tmp_path / "r" / "a.jsonl", [runs.header(), *runs.results(sizes=(32,))])])
    images = [a for t, a in Reader(render(shown, images=found)).elements if t == "img"]
    assert [(a["width"], a["height"]) for a in images] == [("32", "64"), ("480", "320")]


def test_pictures_that_are_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no folder"):
        find_images(tmp_path / "none")
    with pytest.raises(ValueError, match="holds no image"):
        find_images(tmp_path)
    (tmp_path / "bad.png").write_bytes(b"no picture")
    shown, _ = load([runs.write(tmp_path / "a.jsonl", [runs.header(), *runs.results(sizes=(32,))])])
    with pytest.raises(ValueError, match=r"bad\.png is no image"):
        render(shown, images=find_images(tmp_path))
    whole = picture(tmp_path / "bad.png").read_bytes()
    (tmp_path / "bad.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"bad\.png is no image"):
        render(shown, images=find_images(tmp_path))
