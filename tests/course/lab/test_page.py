"""The page: every finding with its figures, every kernel with its text, published figures beside ours."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from tests.course.lab import books
from tests.course.studies.made_up import CALM, LOUD, STILL, result, rgb, run

from convforge.benchmark.digests import current_digest
from convforge.benchmark.records import Result
from convforge.course.lab import bind, render
from convforge.course.lab.charts import chapter_panels, ink_of, nearest_to_roof, roofline
from convforge.course.lab.page import kernels, markdown
from convforge.course.lab.published import comparisons
from convforge.course.lab.words import glossary
from convforge.course.language import in_language
from convforge.course.pages.charts import panel_spec
from convforge.course.report.tables import result_table
from convforge.course.studies import STUDIES, Finding
from convforge.course.studies.published import TABLES
from convforge.course.studies.words import clock_name
from convforge.errors import Reason


@cache
def page() -> str:
    return render(books.stored())


@cache
def said() -> str:
    """The page's text without tags."""
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", page(), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def test_the_same_book_gives_the_same_page() -> None:
    book = bind({"size": books.pictures()})
    assert render(book) == render(book)


def test_problems_are_named_in_the_language_of_the_page() -> None:
    book = bind({"size": books.pictures()})
    english, chinese = render(book), render(book, code="zh")
    assert "RGB image to 1 channel" in english
    assert "RGB image to 1 channel" not in chinese
    assert "RGB 图像到 1 通道" in chinese


def fresh_digest(r: Result) -> str:
    """The digest that a result of a made-up run has today, in the method's default config."""
    return current_digest(r.operation, r.backend, r.algorithm, r.problem, "", run().machine["facts"]) or ""


def test_a_chapter_on_changed_sources_says_so() -> None:
    runs = {"size": books.pictures(), "stride": books.pictures("stride")}
    fresh = replace(runs["size"], results=[replace(r, digest=fresh_digest(r)) for r in runs["size"].results])
    changed = replace(runs["stride"], results=[replace(r, digest="of before") for r in runs["stride"].results])
    text = render(bind({"size": fresh, "stride": changed}))
    assert text.count("times are of sources that have changed since") == 2, "at the answer, and in its chapter"
    assert "18 of 18 times are of sources that have changed since" in text


def test_a_chapter_counts_as_stale_what_its_table_marks() -> None:
    """Mistaken clocks too, which compete with nothing."""
    clocks = [("clock=right", 1.0), ("clock=no_wait", 0.1)]
    rows = [result("direct_tiled", s, rgb(64), case="a", precision="mistaken", config=config) for config, s in clocks]
    current = result("direct_tiled", 1.0, rgb(64), case="a")
    current = replace(current, digest=fresh_digest(current))
    text = render(bind({"timer": run(*rows, current)}))
    assert "2 of 3 times are of sources that have changed since" in text
    assert len(re.findall(r">~?\*[\d.]+</td>", text.split('id="study-timer-results"')[1].split("</table>")[0])) == 2
    assert "Counted here are the times that are compared" not in text, "the one that competes is sound"
    both = [replace(r, digest="of before") for r in books.pictures().results]
    assert "Counted here are the times that are compared" in render(bind({"size": run(*both)}))


def test_a_kernel_is_changed_where_one_of_the_times_beside_it_is() -> None:
    made = [result("direct_tiled", 1e-3, rgb(size), case=f"rgb_{size}") for size in (32, 64, 128, 256, 512, 1024, 2048)]
    old, large = replace(made[0], digest="of before"), [replace(r, digest=fresh_digest(r)) for r in made[1:]]
    (kernel,) = kernels(bind({"size": run(old, *large)}))
    assert (kernel.stale, len(kernel.measured.rows)) == (False, 6)
    (kernel,) = kernels(bind({"size": run(old, *large[1:])}))
    assert kernel.stale


def test_every_finding_is_said_with_its_rule_and_all_its_figures() -> None:
    figures = 0
    for chapter in books.stored().chapters:
        for finding in chapter.findings:
            assert " ".join(finding.sentence.split()) in said()
            assert f'<span class="rule">{finding.rule}</span>' in page()
            figures += len(finding.data)
    figures += sum(len(f.data) for found in comparisons(books.stored()) for f in (*found.theirs, *found.orders))
    rows = re.findall(r'<tr><td>[^<]*</td><td>[^<]*</td><td class="n">[^<]+</td><td class="n">[^<]*</td></tr>', page())
    assert len(rows) == figures > 1000


def test_mistaken_clocks_stand_in_the_table_of_their_study() -> None:
    (timer,) = [chapter for chapter in books.stored().chapters if chapter.study.name == "timer"]
    section = page().split('<section class="chapter" id="study-timer">')[1].split("</section>")[0]
    wrong = [e for e in timer.listed.timed if e.result.precision == "mistaken"]
    assert len({e.result.config for e in wrong}) == 6
    names = [f"{e.result.algorithm}, {clock_name(e.result.config)}" for e in wrong]
    assert all(html.unescape(section).count(name) >= 2 for name in names), "a row for each of the two cases"
    clocks = [("clock=right", 1.0), ("clock=no_wait", 0.1)]
    alone = [result("direct_tiled", s, rgb(64), case="a", precision="mistaken", config=config) for config, s in clocks]
    text = render(bind({"timer": run(*alone), "size": books.pictures()}))
    assert "direct_tiled, without waiting" in text, "also where no other time is of its case"


def test_the_table_of_blocks_shows_their_occupancy() -> None:
    (blocks,) = [chapter for chapter in books.stored().chapters if chapter.study.name == "block-size"]
    columns = [column.name for column in result_table(blocks.listed, occupancy=True).columns]
    cells = [row[columns.index("occupancy")] for row in result_table(blocks.listed, occupancy=True).rows]
    assert [cell.sort for cell in cells] == [r.launches[0]["occupancy"] for r in blocks.run.results if r.time]
    section = page().split('<section class="chapter" id="study-block-size">')[1].split("</section>")[0]
    assert ">occupancy</th>" in section
    text = markdown(bind({"block-size": books.blocks()}), title="it", drawn={})
    assert text.split("## Errors")[0].count("| 50 % |") == 4, "a row a config"


def test_the_page_asks_no_network_for_anything() -> None:
    body = re.sub(r"<script\b.*?</script>", "", page(), flags=re.DOTALL)
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(?!data:)", body)
    assert "<script src" not in page()
    assert "default-src 'none'" in page()


def test_every_kernel_stands_beside_its_times() -> None:
    found = kernels(books.stored())
    assert {"direct_naive", "direct_tiled", "gemm_warp_tiled", "separable", "im2col"} <= {k.name for k in found}
    for kernel in found:
        assert kernel.files
        assert kernel.measured.rows
        assert all(name.endswith(".cu") for name, _ in kernel.files)
        first = next(line for _, text in kernel.files for line in text.splitlines() if line.startswith("//"))
        assert html.escape(first, quote=False)[3:60].strip() in html.unescape(re.sub(r"<[^>]+>", "", page()))


def test_published_figures_stand_as_they_were_published() -> None:
    tables = {found.published.name: found for found in comparisons(books.stored())}
    assert set(tables) == set(TABLES)
    rows = {(row[0].text, row[1].text): [cell.text for cell in row[2:]] for row in tables["B"].table.rows}
    assert rows[("square_4096", "gemm_shared")][:2] == ["18.6", "1.00x"]
    assert rows[("square_4096", "cublas")][:2] == ["22.1", "1.19x"]
    rates = {(row[0].text, row[1].text): row[2].text for row in tables["D"].table.rows}
    assert rates[("rgb_to_3_128_s1", "direct_naive")] == "9.42"
    for found in tables.values():
        published = {(r.case, r.algorithm) for r in found.published.run.results}
        shown = {(row[0].text, row[1].text.removesuffix(" (host)")) for row in found.table.rows if row[2].sort}
        assert shown == published


def test_published_figures_stand_open_and_what_is_doubtful_of_them_apart() -> None:
    section = page().split('<section id="published">')[1].split("</section>")[0]
    parts = section.split("<h3>")[1:]
    assert len(parts) == len(TABLES)
    for part, found in zip(parts, comparisons(books.stored()), strict=True):
        table = f'<table id="published-published-{found.published.name}"'
        assert part.count("<details", 0, part.index(table)) == 0
        sound, _, doubtful = part.partition('<div class="doubtful">')
        for finding in found.theirs:
            said = html.escape(finding.sentence, quote=False)
            assert said in html.unescape(sound if finding.supported else doubtful)


def test_the_order_of_two_published_methods_is_held_against_ours() -> None:
    """A: im2col takes 0.077 to 0.75 of direct_naive's time at each size; cuDNN's figures are doubtful."""

    def of(size: int, method: str, seconds: float, shape: Sequence[float] = STILL) -> Result:
        return result(method, seconds, rgb(size), case=f"rgb_to_1_{size}_s1", shape=shape)

    def found(*rows: Result) -> dict[tuple[str, str], Finding]:
        (a,) = [b for b in comparisons(bind({"size": run(*rows)})) if b.published.name == "A"]
        return {(f.values["a"], f.values["b"]): f for f in a.orders}

    slower = [of(s, m, t) for s in (128, 2048) for m, t in (("direct_naive", 1e-5), ("im2col", 63e-6))]
    turned = found(*slower, *(of(s, "cudnn", 1e-6) for s in (128, 2048)))
    assert turned["im2col", "direct_naive"].sentence == "im2col is faster than direct_naive there and slower here."
    assert turned["im2col", "direct_naive"].details == [
        "there, im2col is faster on 2 of 2 cases",
        "here, the order is the same on 0, the other way round on 2, level on 0",
        "rgb_to_1_2048_s1, the largest: direct_naive takes 1.68x the time of im2col there, 0.16x here",
    ]
    assert turned["im2col", "direct_naive"].supported
    assert turned["cudnn", "direct_naive"].form == "order/holds"
    assert not turned["cudnn", "direct_naive"].supported
    level = [of(512, "direct_naive", 1e-5, CALM), of(512, "im2col", 1.03e-5, CALM)]
    level += [of(1024, "direct_naive", 1e-5, LOUD), of(1024, "im2col", 1.1e-5, LOUD)]
    mixed = found(*slower[:2], of(2048, "direct_naive", 9e-5), of(2048, "im2col", 1e-5), *level)
    values = mixed["im2col", "direct_naive"].values
    assert mixed["im2col", "direct_naive"].form == "order/mixed"
    assert [values[name] for name in ("same", "turned", "level")] == [1, 1, 1]
    assert values["unsure"] == ["rgb_to_1_1024_s1"]
    noisy = found(*level[2:])["im2col", "direct_naive"]
    assert noisy.sentence == "The times here are too noisy to order im2col and direct_naive."
    assert noisy.details == ["too noisy to rank: rgb_to_1_1024_s1"]
    (host, *_) = [b for b in comparisons(books.stored()) if b.published.name == "A"]
    assert {row[3].text for row in host.table.rows if row[0].text.endswith("_host")} == {"–"}
    text = markdown(bind({"size": run(*slower)}), title="it", drawn={}).replace("\\", "")
    assert "the other way round on 2" in text


def test_a_dash_stands_below_the_numbers_of_its_column() -> None:
    table = page().split('<table id="published-published-A"')[1].split("</table>")[0]
    row = next(row for row in table.split("<tr>") if "_host" in row)
    assert row.count('<td class="n">–</td>') == 3, "two ratios and our time"
    assert '<td class="ahead"' in page(), "a verdict is no number"


def test_the_words_that_are_used_are_explained() -> None:
    """And of configs and cases those alone that the book holds."""
    text = markdown(books.stored(), title="it", drawn={}).split("## Names, units and words")[1].replace("\\", "")
    for name in ("strict", "nominal", "full rank", "cold, hot", "Kendall's tau", "resident", "out_p, out_q, out_k"):
        assert f"- {name}: " in text
        assert f"<dt>{name}</dt>" in html.unescape(page())
    assert "resnet50_res3_3x3_s2_nchw" in text
    small = dict(glossary(bind({"size": books.pictures()})))
    assert "strict" in small
    assert not {"resident", "stages", "blur_512_7x7"} & set(small)


def test_one_notation_of_sizes_and_ratios() -> None:
    assert "×" not in page()


def test_chinese_has_colons_and_brackets_of_its_own() -> None:
    book = books.stored()
    with in_language("zh"):
        text = markdown(book, title="它", drawn={})
        labels = [row[1].text for found in comparisons(book) for row in found.table.rows]
    assert "direct_naive（主机）" in labels
    assert re.findall(r"[\u4e00-\u9fff]: ?$|[\u4e00-\u9fff]: | （", text, flags=re.MULTILINE) == []


def test_ours_beside_the_published_come_from_this_machine() -> None:
    (table,) = [found for found in comparisons(books.stored()) if found.published.name == "B"]
    whole = books.stored().whole
    best = {(e.result.case, e.result.algorithm): e.seconds for e in whole.best}
    checked = 0
    for row in table.table.rows:
        seconds = best.get((row[0].text, row[1].text))
        if seconds is not None:
            assert row[4].sort == pytest.approx(1e3 * seconds)
            checked += 1
    assert checked >= 15
    assert table.matched == 5


def test_a_machine_without_the_published_cases_says_so() -> None:
    book = bind({"gemm": run(result("direct_tiled", 1e-3, rgb(64)))})
    assert all(found.matched == 0 for found in comparisons(book))
    assert "None of its cases was timed here." in render(book)


@pytest.mark.parametrize("name", STUDIES)
def test_every_chapter_has_a_chart(name: str) -> None:
    book = books.stored()
    (chapter,) = [chapter for chapter in book.chapters if chapter.study.name == name]
    ink = ink_of(book, "light")
    drawn = chapter_panels(chapter, ink)
    assert drawn
    assert len({panel.key for panel in drawn}) == len(drawn)
    for panel in drawn:
        panel.chart.to_dict(validate=True)
        assert set(panel.names) <= set(ink.methods)
        assert panel_spec(panel, ink)["datasets"]


def test_made_up_studies_are_drawn() -> None:
    book = bind({"partition": books.blocks(), "breakdown": books.layers(), "block-size": books.blocks()})
    drawn = {c.study.name: chapter_panels(c, ink_of(book, "light")) for c in book.chapters}
    (partition,) = drawn["partition"]
    (rows,) = partition.data.values()
    assert {row["method"]: row["ratio"] for row in rows} == pytest.approx({"pixel": 1.0, "row": 9.0})
    (shapes,) = drawn["block-size"][0].data.values()
    assert {row["shape"]: round(row["ratio"], 6) for row in shapes} == {"32x4": 1.0, "32x1": 3.0, "64x4": 2.0}
    (steps,) = drawn["breakdown"][0].data.values()
    assert {(row["case"], row["method"]): round(row["share"], 6) for row in steps} == {
        (f"layer_{size}", step): share
        for size in (14, 28) for step, share in (("expansion", 0.333333), ("product", 0.666667))
    }  # fmt: skip


def test_the_roofline_has_every_method_of_its_arithmetic_once() -> None:
    """The roof is float32's: what multiplies narrower factors has no place under it."""
    book = books.stored()
    chosen = nearest_to_roof(book)
    names = [entry.result.algorithm for entry in chosen]
    assert len(set(names)) == len(names)
    assert "cudnn_tf32" not in names
    assert set(names) == {e.result.algorithm for e in book.whole.best if e.gflops and e.result.precision != "tf32"}
    for entry in chosen:
        same = [e for e in book.whole.best if e.result.algorithm == entry.result.algorithm and e.gflops]
        assert entry.timing is not None
        if entry.timing.cold:
            shares = [e.gflops / book.whole.roof(e) for e in same if e.timing.cold]  # type: ignore[union-attr, operator]
            assert entry.gflops / book.whole.roof(entry) == max(shares)  # type: ignore[operator]
    assert [panel.key for panel in roofline(book, ink_of(book, "light"))] == ["one-case", "roofline"]
    assert roofline(bind({"size": books.pictures(ceilings=())}), ink_of(book, "light")) == []


def test_methods_are_compared_under_the_roof_on_one_case() -> None:
    rows = [r for r in books.pictures().results if r.case == "rgb_256_s1"]
    quick = replace(rows[0], algorithm="cudnn_tf32", precision="tf32", ours=False)
    book = bind({"size": run(*books.pictures().results, quick)})
    (one, _) = roofline(book, ink_of(book, "light"))
    assert {row["case"] for rows in one.data.values() for row in rows if "case" in row} == {"rgb_256_s1"}
    assert one.names == ["direct_tiled", "cudnn", "direct_naive"]
    text = markdown(book, title="it", drawn={})
    section = text.split("## Roofline")[1].split("\n## ")[0].replace("\\", "")
    # 54 operations an output over 16 bytes, three read and one written, at 1 TB/s.
    assert "On rgb_256_s1 (RGB image to 1 channel, 3x3, 256x256, stride 1) the roof is 3375 GFLOP/s, set by" in section
    assert "copy bandwidth. Of 3 methods that do the direct method's operations direct_tiled comes nearest" in section
    assert "direct_naive comes least near" in section
    assert "Left out, as their factors are narrower than float32: cudnn_tf32." in section
    table = section.split("one case:")[1].split("Under the roof: each")[0]
    assert [line.split(" | ")[0].strip("| ") for line in table.strip().splitlines()[2:]] == [
        "direct_tiled", "cudnn", "direct_naive"
    ]  # fmt: skip
    assert "direct_naive comes least near" in render(book)


@pytest.mark.thorough
def test_what_is_no_method_is_named_in_the_language_of_the_page() -> None:
    """Partitions, steps and clocks in charts, legends and figures; kernels and methods keep their names."""
    book = books.stored()
    with in_language("zh"):
        ink = ink_of(book, "light")
        drawn = {c.study.name: chapter_panels(c, ink) for c in book.chapters}
    assert drawn["partition"][0].names == ["像素", "块", "行", "列"]
    assert {"展开", "乘法", "im2col_expand"} <= set(drawn["breakdown"][0].names)
    assert drawn["timer"][0].names[:2] == ["正确的计时", "不等待"]
    chinese = render(book, code="zh")
    for word in ("no_wait", "host_clock", "clock=", "same_arrays", "<td>expansion<", "<td>bound ratio<", "<td>waves<"):
        assert word not in re.sub(r"<script\b.*?</script>", "", chinese, flags=re.DOTALL), word


@pytest.mark.parametrize("name", STUDIES)
def test_no_two_lines_of_a_chapter_look_the_same(name: str) -> None:
    book = books.stored()
    (chapter,) = [chapter for chapter in book.chapters if chapter.study.name == name]
    ink = ink_of(book, "light")
    for panel in chapter_panels(chapter, ink):
        found = [ink.methods[method] for method in panel.names]
        assert len(set(found)) == len(found), panel.key
    if name in ("timer", "partition", "breakdown"):
        for sign in ("light", "shape"):
            assert len({getattr(look, sign) for look in found}) == len(found), sign


def test_what_is_skipped_says_what_was_left() -> None:
    row = "its row would take about {time}, with what is cheaper and still to come {needed}"
    left = "{left} of {budget} are left, {kept} % of them in reserve"
    parts = [
        Reason("a call takes {time}", time="570 us"),
        Reason(row, time="61 ms", needed="3.2 s"),
        Reason(left, left="2.9 s", budget="70 s", kept=20),
    ]
    reason = Reason.joined(parts)
    rows = [result("direct_naive", 1e-3, rgb(64)), result("direct_tiled", None, rgb(64), reason=reason)]
    book = bind({"size": run(*rows)})
    assert str(reason) in render(book)
    assert "70 s 中还剩 2.9 s，其中 20% 留作余量" in render(book, code="zh")
