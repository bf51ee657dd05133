"""The catalogues: every message of the sources is there, translated, with the fields that it has in English."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.language.english import english
from tests.language.messages import catalogue_path, fields, messages, sentences, translated, updated

from convforge.bench.store import load_runs
from convforge.language import LANGUAGES, gettext, in_language, language, ngettext
from convforge.language.stored import PHRASES, stored
from convforge.studies import STUDIES
from convforge.studies.published import TABLES
from convforge.studies.words import Chinese, English

CODES = [code for code in LANGUAGES if code != "en"]
ROOT = Path(__file__).parents[2]
STORED = [*load_runs(ROOT / "benchmarks" / "results"), *(table.run for table in TABLES.values())]


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


# What runs store in English.


def test_stored_texts_are_said_with_their_numbers_and_unknown_ones_stay() -> None:
    texts = {
        "the filter is 5x7, not 1x1": ("5x7", "1x1"),
        "copy bandwidth moved by -11 % (10.0 to 8.9 GB/s); the FMA peak moved by -30 % (100.0 to 70.0 GFLOP/s)": (
            "-11", "10.0", "8.9", "-30", "70.0",
        ),
        "weights packed by oneDNN; weights per call: 3 of 15 samples, the budget ended": ("oneDNN", "3", "15"),
        "a call would take about 1.3 s (93 ms for n1c3h64w64_k1r3s3_p1_f32_nchw); too dear for what is left of 60 s": (
            "1.3 s", "93 ms", "n1c3h64w64_k1r3s3_p1_f32_nchw", "60 s",
        ),
        "a call takes 0.57 s: too dear for what the budget has left": ("0.57 s",),
        "a call takes 570 us; its row would take about 61 ms, with what is cheaper and still to come 3.2 s; "
        "2.9 s of 70 s are left, 20 % of them in reserve": ("570 us", "61 ms", "3.2 s", "2.9 s", "70 s", "20"),
        "IMPLICIT_GEMM; prepared: 14 of 15 samples, the budget ended": ("IMPLICIT_GEMM", "14", "15"),
        "the truth would take about 420 ms (105 ms for m9n9k9_f32); its case has 200 ms; 3 s of 70 s are left": (
            "420 ms", "105 ms", "m9n9k9_f32", "200 ms", "3 s", "70 s",
        ),
    }  # fmt: skip
    for text, parts in texts.items():
        assert stored(text) == text
        with in_language("zh"):
            said = stored(text)
        assert english(said) == set(), said
        assert all(part in said for part in parts), said
    with in_language("zh"):
        assert (
            stored("the moon was full; rank 1, factor error 2e-08") == "the moon was full; rank 1, factor error 2e-08"
        )


def test_what_the_stored_runs_say_is_known() -> None:
    """Reasons and notes in benchmarks/results have words in every language.

    But for what another library's exception says, and the names of cuDNN's old algorithms.
    """
    every = [r for one in STORED for r in one.results]
    said = {r.reason for r in every if r.reason and (r.ours or r.status != "error")}
    said |= {r.note for r in every if r.note and not (r.algorithm.startswith("cudnn_legacy") and r.note.isupper())}
    with in_language("zh"):
        assert {text for text in said if stored(text) == text} == set()


def test_phrases_are_told_apart() -> None:
    """A phrase with its own names in its fields is said as itself."""
    for phrase in PHRASES:
        names = {name: f"9{name}" for name, _ in fields(phrase)}
        with in_language("zh"):
            assert stored(phrase.format(**names)) == gettext(phrase).format(**names)


# Findings.


ORDERS = {"faster", "slower", "level", "neither"}


def names_in(value: Any) -> set[str]:
    """All names in a value: its strings, but for the words that say where something is faster."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, dict):
        return {name for key, part in value.items() for name in names_in(part) | (names_in(key) - ORDERS)}
    return {name for part in value for name in names_in(part)} if isinstance(value, list | tuple | set) else set()


# Specs of fields whose values are words and not names.
WORDS = ("word", "axis", "moved", "workload")


@pytest.mark.parametrize("name", STUDIES)
def test_findings_of_the_stored_runs_are_chinese(name: str) -> None:
    study = STUDIES[name]
    seen = 0
    for one in STORED:
        for finding in study.findings(one):
            with in_language("zh"):
                said = study.sentence(finding)
            plain = {field for field, spec in fields(study.sentences[finding.form]) if spec not in WORDS}
            plain |= {"unsure"} & set(finding.values)  # which every sentence may end with
            assert english(said, names_in([finding.values[field] for field in plain])) == set(), said
            assert said.endswith("。"), said
            assert not re.search(r"[{}]|\bNone\b|\bnan\b|  ", said), said
            assert said != study.sentence(finding)
            seen += 1
    assert seen


def test_both_formatters_know_every_spec_of_every_sentence() -> None:
    specs = {spec.partition(" ")[0] for _, text in sentences() for _, spec in fields(text)}
    known = {name.removeprefix("say_") for name in dir(Chinese) if name.startswith("say_")}
    assert {spec for spec in specs if spec and not re.fullmatch(r"\.\d[fg]", spec)} <= known


def test_values_in_chinese() -> None:
    span = {"least": 1.5, "least_case": "a", "most": 120.0, "most_case": "b"}
    load = {"n": 8, "pictures": "64x64", "c": 3, "k": 1, "groups": 1, "filter": "3x3", "stride": 2, "layout": "NHWC"}
    stretches = [{"methods": ["f", "g"], "first": 32, "last": 64, "level": [64]},
                 {"methods": ["h"], "first": 128, "last": 128, "level": []}]  # fmt: skip
    values: dict[str, Any] = {
        "span": span, "load": load, "stretches": stretches, "axis": "filter", "who": {1: ["a", "b"], 2: ["c"]},
        "many": list("abcdefgh"), "split": {"faster": ["a"], "slower": [], "level": ["b", "c"]}, "n": 1,
    }  # fmt: skip
    texts = {
        "{span:span}": "1.50 倍（a）到 120 倍（b）",
        "{load:workload}": "批量 8，64x64 像素，3 通道到 1 通道，3x3 卷积核，步长 2，NHWC",
        "{stretches:stretches}": "在 32 到 64 处为 f 或 g（在 64 处与其他方法持平）；在 128 处为 h",
        "{axis:axis}": "卷积核边长",
        "{who:by_stride}": "a/b（步长 1）和 c（步长 2）",
        "{many:names}上": "a、b、c、d、e 等 8 个上",
        "{split:split}": "在 a 上更快；在 b 和 c 上持平",
        "在{n:all case}上": "在这 1 个算例上",
    }
    with in_language("zh"):
        assert {text: Chinese().format(text, **values) for text in texts} == texts
    assert English().format("{who:by_stride}, {load:workload}", **values) == (
        "a/b (stride 1) and c (stride 2), batch 8, 64x64 pixels, 3 channels to 1, 3x3 filter, stride 2, NHWC"
    )
    with pytest.raises(ValueError, match="empty list"):
        Chinese().format("{x:names}", x=[])
