"""The lab's own words: its title, each chapter's answer, findings with the figures behind them, the roofline's."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from convforge.course.lab import charts
from convforge.course.lab.book import Book, Chapter
from convforge.course.language import gettext
from convforge.course.report import numbers, tables
from convforge.course.report.headline import where
from convforge.course.report.machine import machine_name
from convforge.course.report.records import NARROW
from convforge.course.report.summary import cautions
from convforge.course.report.table import Table
from convforge.course.studies import Datum, Finding
from convforge.course.studies.words import clock_name

# Figures without a unit, and shares of one; all others that are no bytes or rates are seconds.
PLAIN = frozenset({"rms", "max", "bound_ratio", "waves"})
SHARES = frozenset({"occupancy", "l1_hit", "l2_hit"})


@dataclass(frozen=True, slots=True)
class Said:
    """A finding as pages show it: sentence, details, rule, and figures, each as where, what, value and spread."""

    sentence: str
    details: list[str]
    rule: str
    figures: list[tuple[str, str, str, str]]


def said(findings: Iterable[Finding]) -> list[Said]:
    """Findings in the language of this place."""
    return [Said(f.sentence, f.details, f.rule, [_figure(d) for d in f.data]) for f in findings]


def title_of(book: Book) -> str:
    """The title of a report that has none of its own."""
    return gettext("Convolution on {device}").format(device=machine_name(book.whole))


def answer(chapter: Chapter) -> str:
    """A chapter's answer in a sentence or two."""
    if not chapter.answers:
        return gettext("The records say nothing about this.")
    return " ".join(finding.sentence for finding in chapter.answers)


def stale_words(stale: Iterable[bool]) -> str:
    """A warning about the times of a table whose sources have changed since; empty where none has."""
    every = list(stale)
    words = gettext("{n} of {of} times are of sources that have changed since; measure again to be sure.")
    return words.format(n=sum(every), of=len(every)) if any(every) else ""


def caution_words(book: Book) -> list[str]:
    """Everything that a reader must know before trusting the numbers, and which times are counted there."""
    found = cautions(book.whole)
    if any(entry.stale or (entry.timing and entry.timing.noisy) for entry in book.whole.timed):
        found.append(
            gettext(
                "Counted here are the times that are compared: of each method the fastest on a case, each case from "
                "one study. A chapter counts every time that its table lists."
            )
        )
    return found


def roofline_tables(book: Book) -> tuple[Table, Table]:
    """The numbers behind the roofline: of all methods on one case, and of each where it comes nearest to the roof."""
    on_one = gettext("Under the roof: all methods on one case")
    nearest = gettext("Under the roof: each method on its own best case")
    return (
        tables.roofline_table(book.whole, charts.on_one_case(book), "roofline-one", on_one),
        tables.roofline_table(book.whole, charts.nearest_to_roof(book), caption=nearest),
    )


def roofline_words(book: Book) -> str:
    """Name the methods nearest to and farthest from the roof on the headline's case; empty where there is none."""
    found, whole = [e for e in charts.on_one_case(book) if not e.nominal], book.whole
    ceilings = whole.run.best_ceilings
    if not found or ceilings is None:
        return ""
    first, last, limit = found[0], found[-1], whole.roof(found[0]) or math.inf
    bound = gettext("the FMA peak") if 1e9 * limit >= ceilings.fma_flops_per_s else gettext("copy bandwidth")
    words = gettext(
        "On {case} ({where}) the roof is {roof} GFLOP/s, set by {bound}. Of {n} methods that do the direct method's "
        "operations {first} comes nearest, {share} of it; {last} comes least near, {least}."
    )
    if len(found) == 1:
        words = gettext(
            "On {case} ({where}) the roof is {roof} GFLOP/s, set by {bound}; {first} reaches {share} of it."
        )
    text = words.format(
        case=first.result.case, where=where(whole, first), roof=numbers.three(limit), bound=bound, n=len(found),
        first=first.label, share=numbers.percent((first.gflops or 0.0) / limit),
        last=last.label, least=numbers.percent((last.gflops or 0.0) / limit),
    )  # fmt: skip
    narrow = dict.fromkeys(e.result.algorithm for e in whole.best if e.result.precision in NARROW)
    if narrow:
        left = gettext("Left out, as their factors are narrower than float32: {methods}.")
        text += " " + left.format(methods=gettext(", ").join(narrow))
    return text


def study_name(name: str) -> str:
    """The subject of a study in a word or two: a link of the contents."""
    known = {
        "size": gettext("Picture size"),
        "stride": gettext("Stride"),
        "block-size": gettext("Block shape"),
        "filter-size": gettext("Filter size"),
        "memory": gettext("Memory"),
        "channels": gettext("Channels"),
        "partition": gettext("Partition"),
        "gemm": gettext("Matrix product"),
        "breakdown": gettext("Steps of im2col"),
        "accuracy": gettext("Accuracy"),
        "timer": gettext("Mistakes of timing"),
    }
    return known.get(name, name)


def _figure(datum: Datum) -> tuple[str, str, str, str]:
    """A figure's result, name, value, and half the distance of its quartiles."""
    where = " ".join(word for word in (datum.case, datum.method, clock_name(datum.config)) if word)
    spread = "" if datum.spread is None else f"±{numbers.percent(datum.spread)}"
    return where or gettext("this machine"), _name_of(datum.what), value_of(datum), spread


def _name_of(what: str) -> str:
    """The name of a figure in words; one that this version does not know has the name of the record."""
    known = {
        "time": gettext("time"),
        "published_time": gettext("published time"),
        "transfer_time": gettext("host to host"),
        "expansion": gettext("expansion"),
        "product": gettext("product"),
        "occupancy": gettext("occupancy"),
        "waves": gettext("waves of blocks"),
        "first_call_s": gettext("first call"),
        "copy_bytes_per_s": gettext("copy bandwidth"),
        "fma_flops_per_s": gettext("FMA peak"),
        "rms": gettext("RMS error"),
        "max": gettext("largest error"),
        "bound_ratio": gettext("share of the bound"),
        "l1_hit": gettext("L1 hit rate"),
        "l2_hit": gettext("L2 hit rate"),
        "l1_bytes": gettext("bytes asked of L1"),
        "dram_bytes": gettext("bytes to and from memory"),
    }
    return known.get(what) or what.replace("_", " ")


def value_of(datum: Datum) -> str:
    """A figure with its unit.

    Examples
    --------
    >>> value_of(Datum("c", "m", "", "time", 2.5e-6)), value_of(Datum("c", "m", "", "occupancy", 0.5))
    ('2.50 us', '50 %')
    >>> value_of(Datum("", "", "", "fma_flops_per_s", 6e13)), value_of(Datum("c", "m", "", "rms", 3e-8))
    ('60000 GFLOP/s', '3.0e-08')
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
