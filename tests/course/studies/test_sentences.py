"""No sentence contradicts its own table: random times and spreads, and what verdicts and findings say of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.course.studies.made_up import found as found_of
from tests.course.studies.made_up import result, rgb, run

from convforge.benchmark.records import Result, Run
from convforge.benchmark.verdicts import judge
from convforge.course.language import in_language
from convforge.course.studies import Finding, find_study
from convforge.course.studies.words import MOST_NAMES
from convforge.timing.ranking import LEVEL, order
from convforge.timing.timer import Timing

# Study -> the rules that say who is faster.
RULES = {
    "size": ("winner-by-size", "ahead"),
    "stride": ("ahead", "im2col-against-direct", "gain-by-method", "winner-by-stride", "stride-saves"),
    "memory": ("shared-memory", "registers"),
}
METHODS = ("direct_naive", "direct_shared", "direct_tiled", "im2col", "torch_conv2d")
SPREADS = (0.0, 0.002, 0.01, 0.03, 0.08, 0.5, 1.6)
FACTORS = (0.2, 0.9, 0.97, 1.0, 1.02, 1.04, 1.1, 5.0)


def shape(spread: float) -> tuple[float, ...]:
    """Samples about 1 with that spread."""
    low = max(1 - spread, 0.0)
    return (low, low, 1.0, low + 2 * spread, low + 2 * spread)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Some methods on pictures of three sizes, with two strides, each about as fast as the others, more or less."""
    rows: list[Result] = []
    for stride in (1, 2):
        for size in (64, 128, 256):
            for method in METHODS:
                seconds = 1e-5 * (size / 64) ** 2 * draw(st.sampled_from(FACTORS))
                spread, peer = draw(st.sampled_from(SPREADS)), method.startswith("torch")
                rows.append(result(method, seconds, rgb(size, stride), case=f"p{size}_s{stride}", ours=not peer,
                                   shape=shape(spread)))  # fmt: skip
    return run(*rows)


def times_of(made: Run, case: str) -> dict[str, Timing]:
    """Method -> its timing on a case."""
    return {r.algorithm: r.time for r in made.results if r.case == case and r.time is not None}


def is_fastest(times: Mapping[str, Timing], method: str) -> bool:
    """True if the table shows that a method alone is the fastest."""
    return all(order(times[method], other) == "faster" for name, other in times.items() if name != method)


def is_level(times: Mapping[str, Timing], methods: Iterable[str]) -> bool:
    """True if the table shows that some methods are level, by their medians."""
    medians = [times[name].median_s for name in methods]
    return max(medians) <= (1 + LEVEL) * min(medians) * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(runs())
def test_a_verdict_in_words_follows_its_table(made: Run) -> None:
    for case in made.cases:
        times, verdict = times_of(made, case), judge(made, case)
        said, names = verdict.words(), [r.algorithm for r in verdict.fastest]
        unsure = [r.algorithm for r in verdict.unsure]
        assert not set(names) & set(unsure)
        for name in unsure:
            assert name in said.split("too noisy to rank: ")[1]
        if said.startswith("tie: "):
            assert is_level(times, names)
        if len(names) == 1:
            assert said.startswith(names[0])
            rivals = {name: t for name, t in times.items() if name not in unsure}
            # What one of the doubtful is known to beat is not the fastest, though level with the leader.
            able = {n: t for n, t in rivals.items() if not any(order(times[u], t) == "faster" for u in unsure)}
            assert is_fastest({**able, names[0]: times[names[0]]}, names[0])
        if " ahead of " in said:
            leader, rival = names[0], said.split(" ahead of ")[1].split(";")[0]
            assert order(times[leader], times[rival]) == "faster"
        if not names:
            assert said.startswith("too noisy to rank: ")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("study", ["stride", "size", "memory"])
@settings(max_examples=40, deadline=None)
@given(made=runs())
def test_findings_follow_their_tables(study: str, made: Run) -> None:
    known = find_study(study)
    for rule in RULES[study]:
        for finding in found_of(study, made, rule):
            below = "\n".join(finding.details)
            CHECKS.get(finding.form.partition("/")[0], lambda *_: None)(finding, made, known.own(made))
            for left_out in list(finding.values.get("unsure", ()))[: MOST_NAMES - 1]:
                assert str(left_out) in below, "what was left out is named"
            with in_language("zh"):
                assert not any("{" in text for text in (finding.sentence, *finding.details))


def _ahead(finding: Finding, made: Run, own: Run) -> None:
    values = finding.values
    if "method" not in values:
        return
    for case in values["cases"]:
        assert is_fastest(times_of(made, case), values["method"])
    for case in values["level"]:
        times = times_of(made, case)
        best = min(times, key=lambda name: times[name].median_s)
        assert is_level(times, (best, values["method"])) or order(times[values["method"]], times[best]) == "level"


def _pair(finding: Finding, made: Run, own: Run) -> None:
    for verdict, cases in finding.values.get("split", {}).items():
        for case in cases:
            times = times_of(made, case)
            fast, slow = times[finding.values["fast"]], times[finding.values["slow"]]
            assert order(fast, slow) == verdict
            assert verdict != "level" or is_level(times, (finding.values["fast"], finding.values["slow"]))


def _im2col(finding: Finding, made: Run, own: Run) -> None:
    named = {case.split(" ")[0] for case in finding.values["unsure"]}
    for case in made.cases:
        if not case.endswith(f"_s{finding.values['stride']}"):
            continue
        times = times_of(made, case)
        direct = min((t for name, t in times.items() if name.startswith("direct")), key=lambda t: t.median_s)
        verdict = order(times["im2col"], direct)
        assert (verdict == "unsure") == (case in named)
        if case in finding.values.get("won", ()):
            assert verdict == "faster"
        if case in finding.values.get("level", ()):
            assert times["im2col"].median_s == pytest.approx(direct.median_s, rel=LEVEL + 1e-9)


def _winners(finding: Finding, made: Run, own: Run) -> None:
    by_size = {int(case.split("_")[0][1:]): times_of(own, case) for case in own.cases}
    named = {int(place.split(" ")[0]) for place in finding.values["unsure"]}
    for part in finding.values.get("stretches", ()):
        for size, times in by_size.items():
            if not part["first"] <= size <= part["last"] or size in named:
                continue
            for method in part["methods"]:
                best = min(times.values(), key=lambda t: t.median_s)
                assert times[method] is best or order(best, times[method]) == "level"
                assert times[method].median_s <= (1 + LEVEL) * best.median_s * (1 + 1e-9)


def _waste(finding: Finding, made: Run, own: Run) -> None:
    before, after = times_of(made, "p256_s1"), times_of(made, "p256_s2")
    for method in finding.values.get("idle", ()):
        assert order(after[method], before[method]) in ("slower", "level")
    for method in finding.values["unsure"]:
        assert order(after[method], before[method]) == "unsure"


CHECKS: dict[str, Any] = {
    "ahead": _ahead, "pair": _pair, "im2col": _im2col, "winners": _winners, "waste": _waste,
}  # fmt: skip
