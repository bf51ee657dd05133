"""The catalogues: every message of the sources is there, translated, with the fields that it has in English."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest
from tests.course.language.english import english
from tests.course.language.messages import (
    catalogue_path,
    fields,
    messages,
    reason_calls,
    sentences,
    translated,
    updated,
)
from tests.course.studies.stored import stored_runs

from convforge.course.language import LANGUAGES, gettext, in_language, language, ngettext
from convforge.course.studies import STUDIES, words
from convforge.course.studies.published import TABLES
from convforge.course.studies.words import Formatter
from convforge.errors import QUOTED, Reason

CODES = [code for code in LANGUAGES if code != "en"]
STORED = [*stored_runs(), *(table.run for table in TABLES.values())]


def first(text: Any) -> str:
    return text if isinstance(text, str) else text[0]


@pytest.fixture(params=CODES)
def pairs(request: pytest.FixtureRequest) -> list[tuple[str, str]]:
    """Messages of a catalogue in English and in its language."""
    return [(first(message.id), first(message.string)) for message in translated(request.param)]


@pytest.mark.parametrize("code", CODES)
def test_a_catalogue_holds_every_message_of_the_sources_and_no_other(code: str) -> None:
    wanted = {first(message.id) for message in messages() if message.id}
    there = {first(message.id) for message in translated(code)}
    assert (wanted - there, there - wanted) == (set(), set()), "make words, then translate what is empty"
    assert catalogue_path(code).read_text(encoding="utf-8") == updated(code), "make words"


def test_every_message_is_translated(pairs: list[tuple[str, str]]) -> None:
    assert [english for english, said in pairs if not said.strip()] == []


def test_a_message_has_the_fields_that_it_has_in_english(pairs: list[tuple[str, str]]) -> None:
    """Names and specs of fields, and Jinja's; a text of a template can take its values."""
    for text, said in pairs:
        assert set(fields(text)) == set(fields(said)), text
        named = re.findall(r"%\((\w+)\)s", text)
        assert sorted(set(named)) == sorted(set(re.findall(r"%\((\w+)\)s", said))), text
        assert ("%%" in text) is ("%%" in said), text
        if named or "%%" in text:
            assert said % dict.fromkeys(named, "x")


def test_sentences_are_among_the_messages() -> None:
    wanted = {first(message.id) for message in messages() if message.id}
    assert {text for _, text in sentences()} <= wanted
    assert len(wanted) > 500


def test_chinese_has_no_english_words_but_names() -> None:
    for message in translated("zh"):
        assert english(first(message.string)) == set(), first(message.id)


def test_chinese_punctuation_has_full_width() -> None:
    for message in translated("zh"):
        said = first(message.string)
        assert not re.search(r"[\u4e00-\u9fff][,;:?!()]|[,;:?!(][\u4e00-\u9fff]", said), said
        assert not re.search(r"(?<=[\u4e00-\u9fff]) (?=[\u4e00-\u9fff])|[\d}] %(?!\()", said), said


def test_a_text_that_a_catalogue_lacks_stays_english() -> None:
    with in_language("zh"):
        assert gettext("no such text") == "no such text"
        assert ngettext("{n} such thing", "{n} such things", 2) == "{n} such things"
        assert ngettext("{n} case", "{n} cases", 1) == ngettext("{n} case", "{n} cases", 2) == "{n} 个算例"
    assert language() == "en"
    assert gettext("method") == "method"
    with pytest.raises(ValueError, match="language='fr' is unknown; choose one of en, zh"), in_language("fr"):
        pass


# Reasons: what methods refuse, and what runs store.


def test_a_call_of_reason_gives_the_values_that_its_form_names() -> None:
    """The form is a text as it stands, so that it is found; it has no specs, as a stored number may be a text."""
    for path, call in reason_calls():
        if path == "benchmark/reasons.py":  # reads what was stored
            continue
        assert isinstance(call.args[0], ast.Constant), f"{path}:{call.lineno}: the form must be a literal"
        names = {name for name, _ in fields(call.args[0].value)}
        given = {keyword.arg for keyword in call.keywords}
        assert names == given or (None in given and given - {None} <= names), f"{path}:{call.lineno}"
        assert {spec for _, spec in fields(call.args[0].value)} <= {""}, f"{path}:{call.lineno}"


def test_a_reason_is_said_with_its_values_and_its_parts() -> None:
    call = Reason("a call takes {time}", time="570 us")
    row = Reason("its row would take about {time}", time="61 ms")
    both = Reason.joined([Reason.quoted("{IMPLICIT_GEMM}"), call, Reason("{first}, {rest}", first=row, rest=row)])
    assert Reason.joined([]) is None
    assert Reason.joined([call]) == call
    assert str(both) == (
        "{IMPLICIT_GEMM}; a call takes 570 us; its row would take about 61 ms, its row would take about 61 ms"
    )
    assert both is not None
    with in_language("zh"):
        said = both.render(gettext)
    assert english(said, {"{IMPLICIT_GEMM}"}) == set(), said
    assert [said.count(part) for part in ("{IMPLICIT_GEMM}；", "570 us；", "61 ms，", "61 ms")] == [1, 1, 1, 2]
    assert len({both, Reason.joined([Reason.quoted("{IMPLICIT_GEMM}"), call]), call, row}) == 4


def test_what_the_stored_runs_say_is_said_in_every_language() -> None:
    """Reasons and notes in benchmarks/results, of rows of every status that is there.

    But for what another library's exception says, and the names of cuDNN's old algorithms.
    """
    every = [r for one in STORED for r in one.results]
    assert {r.status for r in every} >= {"ok", "refused", "skipped", "error"}
    said = {r.reason for r in every if r.reason and (r.ours or r.status != "error")}
    said |= {r.note for r in every if r.note and not (r.algorithm.startswith("cudnn_legacy") and r.note.form == QUOTED)}
    assert len(said) > 400
    with in_language("zh"):
        assert {str(reason) for reason in said if reason.render(gettext) == str(reason)} == set()


# Findings.


ORDERS = {"faster", "slower", "level", "neither", "mixed", "least", "least_case", "most", "most_case"}
ORDERS |= {"methods", "first", "last"}


def names_in(value: Any) -> set[str]:
    """All names in a value: its strings, but for the words that say where something is faster."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, dict):
        return {name for key, part in value.items() for name in names_in(part) | (names_in(key) - ORDERS)}
    return {name for part in value for name in names_in(part)} if isinstance(value, list | tuple | set) else set()


# Values that are words and not names.
WORDS = ("workload", "apart", "example", "words", "reason", "way", "place", "filters", "partition", "best_part", "axis",
         "before", "after", "family")  # fmt: skip


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", STUDIES)
def test_findings_of_the_stored_runs_are_chinese(name: str) -> None:
    study = STUDIES[name]
    seen = 0
    for one in STORED:
        for finding in study.findings(one):
            with in_language("zh"):
                said, below = finding.sentence, finding.details
            names = names_in([value for key, value in finding.values.items() if key not in WORDS])
            for text in (said, *below):
                assert english(text, names) == set(), text
                assert not re.search(r"[{}]|\bNone\b|\bnan\b|  ", text), text
            assert said.endswith("。"), said
            assert said != finding.sentence
            assert len(below) == len(finding.details)
            seen += 1
    assert seen


def test_the_formatter_knows_every_spec_of_every_sentence() -> None:
    specs = {spec.partition(" ")[0] for _, text in sentences() for _, spec in fields(text)}
    known = set(words.SPECS)
    assert {spec for spec in specs if spec and not re.fullmatch(r"\.\d[fg]", spec)} <= known


def test_values_in_chinese() -> None:
    span = {"least": 1.5, "least_case": "a", "most": 120.0, "most_case": "b"}
    load = {"n": 8, "images": "64x64", "c": 3, "k": 1, "groups": 1, "filter": "3x3", "stride": 2, "layout": "NHWC"}
    stretches = [{"methods": ["f", "g"], "first": 32, "last": 64, "level": [64]},
                 {"methods": ["h"], "first": 128, "last": 128, "level": []}]  # fmt: skip
    values: dict[str, Any] = {
        "span": span, "load": load, "stretches": stretches, "axis": "filter", "who": {1: ["a", "b"], 2: ["c"]},
        "many": list("abcdefgh"), "ratios": {"row": 1.5, 7: 2.0}, "apart": {"stride": 2}, "same": {}, "n": 1, "m": 2,
    }  # fmt: skip
    texts = {
        "{span:span}": "1.50 倍（a）到 120 倍（b）",
        "{load:workload}": "批量 8，64x64 像素，3 个输入通道、1 个输出通道，3x3 卷积核，步长 2，NHWC",
        "{stretches:stretches}": "32-64：f/g；128：h",
        "{axis:axis}": "卷积核尺寸",
        "{who:groups}": "1：a 和 b；2：c",
        "{many:names}上": "a、b、c、d、e 以及另外 3 个上",
        "{ratios:ratios}": "行：1.50 倍和 7：2.00 倍",
        "最快{apart:apart}{same:apart}。": "最快（步长 2）。",
        "在{n:each case}上": "在 1 个算例上",
        "在{m:each case}上": "在全部 2 个算例上",
    }
    with in_language("zh"):
        assert {text: Formatter().format(text, **values) for text in texts} == texts
    assert Formatter().format("{who:groups}, {load:workload}{apart:apart}", **values) == (
        "1: a and b; 2: c, batch 8, 64x64 pixels, 3 input, 1 output channels, 3x3 filter, stride 2, NHWC (stride 2)"
    )
    with pytest.raises(ValueError, match="empty list"):
        Formatter().format("{x:names}", x=[])
