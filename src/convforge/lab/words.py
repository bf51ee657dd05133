"""The lab's own words: its title, each chapter's answer, and the figures behind a finding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from convforge.lab import charts
from convforge.lab.book import Book, Chapter
from convforge.language import gettext
from convforge.problem.types import PRECISIONS
from convforge.report import numbers, tables
from convforge.report.machine import machine_name
from convforge.report.records import NARROW, Entry
from convforge.report.summary import cautions, where
from convforge.report.table import Table
from convforge.studies import Datum, Finding
from convforge.studies.words import clock_name

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


def stale_words(listed: Sequence[Entry]) -> str:
    """That sources have changed since some of the times that a table lists were taken; empty where none has."""
    stale = sum(entry.stale for entry in listed)
    words = gettext("{n} of {of} times are of sources that have changed since; measure again to be sure.")
    return words.format(n=stale, of=len(listed)) if stale else ""


def caution_words(book: Book) -> list[str]:
    """What a reader must know before trusting the numbers, and which times are counted there."""
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
    """Who comes how near to the roof on the case of the headline; empty where there is none, or no roof."""
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
    said = words.format(
        case=first.result.case, where=where(whole, first), roof=numbers.three(limit), bound=bound, n=len(found),
        first=first.label, share=numbers.percent((first.gflops or 0.0) / limit),
        last=last.label, least=numbers.percent((last.gflops or 0.0) / limit),
    )  # fmt: skip
    narrow = dict.fromkeys(e.result.algorithm for e in whole.best if e.result.precision in NARROW)
    if narrow:
        left = gettext("Left out, as their factors are narrower than float32: {methods}.")
        said = " ".join([said, left.format(methods=gettext(", ").join(narrow))])
    return said


def glossary(book: Book) -> list[tuple[str, str]]:
    """Names, units and words of the page that it uses without saying what they mean."""
    return [*_names(book), *_words()]


def _names(book: Book) -> list[tuple[str, str]]:
    """How names of cases and problems are read, and what configs choose: of what the book holds."""
    every = [result for chapter in book.chapters for result in chapter.run.results]
    kinds = {result.case.partition("_")[0] for result in every}
    keys = {pair.partition("=")[0] for result in every for pair in result.config.split(",")}
    return [
        (
            "rgb_to_1_2048_s1",
            gettext("a case: an RGB picture of 2048 pixels a side to 1 channel, stride 1; other names are made alike"),
        ),
        *(named for kind, named in _cases().items() if kind in kinds),
        ("square_4096", gettext("a case: a product of two matrices, all their sides 4096")),
        (
            "n1c3h64w48_k2r3s3_st1_p1_f32_nchw",
            gettext(
                "a problem written out: a batch of 1, 3 channels, 64 rows and 48 columns; 2 filters of 3x3; stride 1, "
                "padding 1, float32, the layout NCHW"
            ),
        ),
        (
            "block_x=32,block_y=4",
            gettext("a config: what of a method can be chosen; here a block of 32 columns and 4 rows of threads"),
        ),
        *((name, words) for name, words in _choices() if keys.intersection(name.split(", "))),
    ]


def _cases() -> dict[str, tuple[str, str]]:
    """First word of a case's name -> such a name, and how it is read."""
    return {
        "blur": ("blur_512_7x7", gettext("a case: a picture of 512 pixels a side by Gaussian filters of 7x7")),
        "full": ("full_512_7x7", gettext("a case: the same size by a filter of full rank, 7x7")),
        "c3": ("c3_2048_5x5", gettext("a case: 3 channels, 2048 pixels a side, a filter of 5x5")),
        "channels": ("channels_64", gettext("a case: 64 channels, and as many filters")),
        "float16": ("float16_c256", gettext("a case: of type float16, 256 channels")),
        "resnet50": (
            "resnet50_res3_3x3_s2_nchw",
            gettext("a case: a layer of a network, its stage, filter, stride (where it is not 1) and layout"),
        ),
    }


def _choices() -> list[tuple[str, str]]:
    """The commonest keys of configs."""
    return [
        ("resident", gettext("in a config: threads that a multiprocessor shall hold; more leave each fewer registers")),
        ("out_p, out_q, out_k", gettext("in a config: rows, columns and channels of outputs that a thread computes")),
        (
            "tile_p, tile_q, tile_c, tile_k",
            gettext("in a config: rows, columns, input and output channels that are worked on at once"),
        ),
        (
            "block_m, block_n, block_k",
            gettext("in a config: rows and columns of the product that are computed together, and terms of a step"),
        ),
        ("thread_m, thread_n", gettext("in a config: rows and columns of the product that a thread computes")),
        ("stages", gettext("in a config: tiles that are in shared memory, or on their way there, at once")),
        ("plan", gettext("in a config: a plan of cuDNN's, by its number")),
    ]


def _words() -> list[tuple[str, str]]:
    return [
        (gettext("strict"), gettext(PRECISIONS["strict"])),
        (
            gettext("nominal"),
            gettext("a rate that counts the direct method's operations for a method that does others"),
        ),
        (
            gettext("full rank"),
            gettext("of a filter: it takes as many products of a column and a row to make it as it has rows"),
        ),
        (
            gettext("cold, hot"),
            gettext("cold: calls go round more arrays than the last-level cache holds; hot: they fit, and stay in it"),
        ),
        (
            gettext("Kendall's tau"),
            gettext("how far two orders agree: 1 where they are the same, -1 where one is the other turned round"),
        ),
        (gettext("peer"), gettext("a method of a library that is not ours, called by the same rules")),
        (
            gettext("spread"),
            gettext("half the distance between the quartiles of the samples over their median, written ±"),
        ),
        (
            "GFLOP/s",
            gettext("1e9 floating-point operations a second; a multiplication and an addition are two of them"),
        ),
        ("FMA", gettext("fused multiply-add; its peak is how many FLOP/s a kernel of nothing else reaches here")),
        (gettext("roof"), gettext("the lower of the FMA peak, and copy bandwidth times FLOPs a byte")),
        (gettext("occupancy"), gettext("threads that a multiprocessor holds at once, over the most that it can hold")),
        (gettext("waves of blocks"), gettext("how many times the blocks of a launch fill all multiprocessors")),
        ("GEMM", gettext("general matrix product, C = A B; A has M rows, B has N columns, sums have K terms")),
        ("RMS", gettext("root of the mean of the squares; of errors over that of the true values")),
        (
            gettext("host to host"),
            gettext("from arrays in the host's memory to such an array: both copies and the call"),
        ),
    ]


def figures(finding: Finding) -> Iterator[Figure]:
    """The figures behind a finding."""
    for datum in finding.data:
        where = " ".join(word for word in (datum.case, datum.method, clock_name(datum.config)) if word)
        spread = "" if datum.spread is None else f"±{numbers.percent(datum.spread)}"
        yield Figure(where or gettext("this machine"), _name_of(datum.what), value_of(datum), spread)


def study_name(name: str) -> str:
    """What a study is about, in a word or two: a link of the contents."""
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


def _name_of(what: str) -> str:
    """What a figure is, in words; one that this version does not know by the name in the records."""
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
        "l2_bytes": gettext("bytes through L2"),
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
