"""A book: which runs it is made of, what its chapters hold, and what is compared with what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.course.lab import books
from tests.course.studies.made_up import result, rgb, run

from convforge.benchmark.records import Finalist, Finalists
from convforge.course.lab import bind, find_runs
from convforge.course.lab.book import merged
from convforge.course.report.summary import duels
from convforge.course.studies import STUDIES


def test_chapters_stand_in_the_order_of_the_studies_and_the_rest_is_named() -> None:
    book = bind({"block-size": books.blocks(), "size": books.pictures()})
    assert [chapter.study.name for chapter in book.chapters] == ["size", "block-size"]
    assert {study.name for study in book.absent} == set(STUDIES) - {"size", "block-size"}


def test_nothing_and_several_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one study"):
        bind({})
    with pytest.raises(ValueError, match=r"several devices \(here, there\)"):
        bind({"size": books.pictures(device="here"), "stride": books.pictures(device="there")})
    with pytest.raises(ValueError, match="holds no result"):
        bind({"size": run()})


def test_a_case_counts_from_the_first_run_that_has_it() -> None:
    first, second = books.pictures("size"), books.pictures("stride")
    slower = replace(second, results=tuple(replace(r, algorithm="late") for r in second.results))
    whole = merged([first, slower])
    assert {r.algorithm for r in whole.results} == {"direct_naive", "direct_tiled", "cudnn"}


def test_one_name_of_two_problems_is_kept_apart() -> None:
    a = run(result("direct_naive", 1.0, rgb(64), case="it"), suite="size")
    b = run(result("direct_naive", 2.0, rgb(128), case="it"), result("direct_tiled", 2.0, rgb(32), case="own"),
            suite="stride")  # fmt: skip
    assert [(r.case, r.problem) for r in merged([a, b]).results] == [
        ("it", rgb(64)), ("it (stride)", rgb(128)), ("own", rgb(32))
    ]  # fmt: skip


def test_the_fastest_config_stands_for_a_method_by_the_timing_that_counts() -> None:
    a, b = (result("direct_naive", s, rgb(64), case="it", config=c) for s, c in ((1e-3, "a=1"), (2e-3, "a=2")))
    assert a.time is not None
    assert b.time is not None
    final = Finalists("it", (Finalist("direct_naive", "a=1", b.time), Finalist("direct_naive", "a=2", a.time)))
    assert [r.config for r in merged([run(a, b)]).results] == ["a=1"]
    assert [r.config for r in merged([run(a, b, finals=(final,))]).results] == ["a=2"]


def test_a_host_s_rows_and_mistaken_clocks_do_not_compete() -> None:
    rows = (
        result("direct_tiled", 1e-3, rgb(64), case="it"),
        result("direct_rows", 1e-6, rgb(64), case="it_host", backend="cpu"),
        result("direct_tiled", 1e-6, rgb(64), case="it", precision="mistaken", config="clock=no_wait"),
    )
    book = bind({"timer": run(*rows)})
    assert [e.result.precision for e in book.whole.entries] == ["strict"]


def test_answers_are_findings_of_the_rules_that_are_asked() -> None:
    for chapter in books.stored().chapters:
        assert chapter.answers
        assert {finding.rule for finding in chapter.answers} <= set(chapter.study.answered_by)
        every = [*chapter.answers, *chapter.supported, *chapter.doubtful]
        assert sorted(map(id, every)) == sorted(map(id, chapter.findings))


def test_the_chapter_of_sizes_holds_one_stride() -> None:
    size, stride = bind({"size": books.pictures(), "stride": books.pictures("stride")}).chapters
    assert {e.stride for e in size.shown.entries} == {"1"}
    assert {e.stride for e in stride.shown.entries} == {"1", "2"}


def test_a_question_that_the_data_does_not_answer_says_why() -> None:
    (chapter,) = bind({"gemm": run(result("direct_tiled", 1e-3, rgb(64)))}).chapters
    assert [(f.rule, f.supported) for f in chapter.answers] == [
        ("ladder", False), ("against-library", False), ("share-of-peak", False)
    ]  # fmt: skip


def test_each_part_of_a_question_is_answered() -> None:
    """By its first finding that the data supports, else by the one that says why there is none."""
    (chapter,) = bind({"size": books.pictures()}).chapters
    assert [(f.rule, f.supported) for f in chapter.answers] == [
        ("growth", True), ("winner-by-size", True), ("gpu-worth-it-with-transfer", False)
    ]  # fmt: skip


def test_every_study_has_rules_that_answer() -> None:
    page = (books.ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    for name, study in STUDIES.items():
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert study.answered_by
        assert [rule for rule in study.answered_by if f"`{rule}`" not in section] == []


def test_a_study_s_own_run_goes_before_a_suite_s(tmp_path: Path) -> None:
    found = find_runs([books.STORED])
    assert (found["size"].suite, found["stride"].suite, found["timer"].suite) == ("size", "images", "timer")
    assert "channels" not in find_runs([books.STORED / "images-20261126T025656Z.jsonl"])
    text = found["stride"].path.read_text(encoding="utf-8").replace('"suite":"images"', '"suite":"stride"', 1)
    (tmp_path / "stride.jsonl").write_text(text, encoding="utf-8")
    again = find_runs([books.STORED, tmp_path])
    assert (again["size"].suite, again["stride"].suite) == ("size", "stride")


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"nowhere does not exist"):
        find_runs([Path("nowhere")])


def test_ratios_come_from_one_run() -> None:
    """Every duel of the whole is one of a single run."""
    book = books.stored()
    own = {(c.run.run, d.ours.result.problem, round(d.ratio, 9)) for c in book.chapters for d in duels(c.shown)}
    assert duels(book.whole)
    for d in duels(book.whole):
        assert any((c.run.run, d.ours.result.problem, round(d.ratio, 9)) in own for c in book.chapters)
