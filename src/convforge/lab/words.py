"""The lab's own words: its title, each chapter's answer, and the figures behind a finding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from convforge.lab.book import Book, Chapter
from convforge.language import gettext
from convforge.report import numbers
from convforge.report.machine import machine_name
from convforge.studies import Datum, Finding

# Figures without a unit, and shares of one; all that are neither these nor bytes nor rates are seconds.
PLAIN = frozenset({"rms", "max", "bound_ratio", "waves"})
SHARES = frozenset({"occupancy", "l1_hit", "l2_hit"})


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure that a finding rests on, as it is read: where, what, how much, and half its quartiles' distance."""

    where: str
    what: str
    value: str
    spread: str


def title_of(book: Book) -> str:
    """What a report is called that has no title of its own."""
    return gettext("Convolution on {device}").format(device=machine_name(book.whole))


def answer(chapter: Chapter) -> str:
    """A chapter's answer in a sentence or two."""
    if not chapter.answers:
        return gettext("The records say nothing about this.")
    return " ".join(chapter.study.sentence(finding) for finding in chapter.answers)


def stale_words(chapter: Chapter) -> str:
    """That sources have changed since a chapter's times were taken; empty where none has."""
    if not chapter.stale:
        return ""
    return gettext("{n} of {of} times are of sources that have changed since; measure again to be sure.").format(
        n=chapter.stale, of=len(chapter.shown.timed)
    )


def figures(finding: Finding) -> Iterator[Figure]:
    """The figures behind a finding."""
    for datum in finding.data:
        where = " ".join(word for word in (datum.case, datum.method, datum.config) if word)
        spread = "" if datum.spread is None else f"±{numbers.percent(datum.spread)}"
        yield Figure(where or gettext("this machine"), _name_of(datum.what), value_of(datum), spread)


def _name_of(what: str) -> str:
    """What a figure is, in words; one that this version does not know by the name in the records."""
    known = {
        "time": gettext("time"),
        "occupancy": gettext("occupancy"),
        "first_call_s": gettext("first call"),
        "copy_bytes_per_s": gettext("copy bandwidth"),
        "fma_flops_per_s": gettext("FMA peak"),
    }
    return known.get(what) or what.replace("_", " ")


def value_of(datum: Datum) -> str:
    """A figure with its unit.

    Examples
    --------
    >>> value_of(Datum("c", "m", "", "time", 2.5e-6)), value_of(Datum("c", "m", "", "occupancy", 0.5))
    ('2.50 µs', '50 %')
    >>> value_of(Datum("", "", "", "fma_flops_per_s", 6e13)), value_of(Datum("c", "m", "", "rms", 3e-8))
    ('60000 GFLOP/s', '3.0e-8')
    """
    if datum.what.endswith("flops_per_s"):
        return f"{numbers.three(datum.value / 1e9)} GFLOP/s"
    if datum.what.endswith("bytes_per_s"):
        return f"{numbers.three(datum.value / 1e9)} GB/s"
    if datum.what.endswith("_bytes"):
        return numbers.byte_count(datum.value)
    if datum.what in SHARES:
        return numbers.percent(datum.value)
    return numbers.fraction(datum.value) if datum.what in PLAIN else numbers.seconds(datum.value)
