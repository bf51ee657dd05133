"""Texts of the lab: title, answers, findings with their figures, the roofline, and the glossary."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

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
from convforge.problem.types import PRECISIONS


class FindingText(NamedTuple):
    """A finding for a page; each figure is a tuple of place, name, value and spread."""

    sentence: str
    details: list[str]
    rule: str
    figures: list[tuple[str, str, str, str]]


def finding_texts(findings: Iterable[Finding]) -> list[FindingText]:
    """Return findings in the current language."""
    return [FindingText(f.sentence, f.details, f.rule, [_figure(datum) for datum in f.data]) for f in findings]


def title_of(book: Book) -> str:
    """Return the default title of a report."""
    return gettext("Convolution on {device}").format(device=machine_name(book.whole))


def answer(chapter: Chapter) -> str:
    """Return a chapter's answer in one or two sentences."""
    if not chapter.answers:
        return gettext("The records say nothing about this.")
    return " ".join(finding.sentence for finding in chapter.answers)


def stale_words(stale: Iterable[bool]) -> str:
    """Return a warning if sources of a table's times have changed since; otherwise an empty text."""
    every = list(stale)
    words = gettext("{n} of {of} times are of sources that have changed since; measure again to be sure.")
    return words.format(n=sum(every), of=len(every)) if any(every) else ""


def cautions_of(book: Book) -> list[str]:
    """Return sentences on all known doubts about the numbers, and on the selection of counted times."""
    counted = gettext(
        "Counted here are the times that are compared: of each method the fastest on a case, each case from "
        "one study. A chapter counts every time that its table lists."
    )
    doubtful = any(entry.stale or (entry.timing and entry.timing.noisy) for entry in book.whole.timed)
    return [*cautions(book.whole), *([counted] if doubtful else [])]


def roofline_tables(book: Book) -> tuple[Table, Table]:
    """Return the tables behind the roofline: all methods on one case, and each at its highest share of the roof."""
    on_one = gettext("Under the roof: all methods on one case")
    nearest = gettext("Under the roof: each method on its own best case")
    return (
        tables.roofline_table(book.whole, charts.on_one_case(book), "roofline-one", on_one),
        tables.roofline_table(book.whole, charts.nearest_to_roof(book), caption=nearest),
    )


def roofline_words(book: Book) -> str:
    """Name the methods closest to and farthest from the roof on the headline's case; empty without a roof."""
    found, whole = [e for e in charts.on_one_case(book) if not e.nominal], book.whole
    ceilings = whole.run.best_ceilings
    if not found or ceilings is None:
        return ""
    first, last, limit = found[0], found[-1], whole.roof(found[0]) or math.inf
    bound = gettext("the FMA peak") if 1e9 * limit >= ceilings.fma_flops_per_s else gettext("copy bandwidth")
    alone = gettext("On {case} ({where}) the roof is {roof} GFLOP/s, set by {bound}; {first} reaches {share} of it.")
    several = gettext(
        "On {case} ({where}) the roof is {roof} GFLOP/s, set by {bound}. Of {n} methods that do the direct method's "
        "operations {first} comes nearest, {share} of it; {last} comes least near, {least}."
    )
    words = alone if len(found) == 1 else several
    text = words.format(
        case=first.result.case, where=where(whole, first), roof=numbers.three(limit), bound=bound, n=len(found),
        first=first.label, share=numbers.percent((first.gflops or 0.0) / limit),
        last=last.label, least=numbers.percent((last.gflops or 0.0) / limit),
    )  # fmt: skip
    if narrow := dict.fromkeys(e.result.algorithm for e in whole.best if e.result.precision in NARROW):
        left = gettext("Left out, as their factors are narrower than float32: {methods}.")
        text += " " + left.format(methods=gettext(", ").join(narrow))
    return text


def study_name(name: str) -> str:
    """Return the subject of a study in a word or two, for a link in the contents."""
    known = {
        "size": gettext("Image size"),
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
    """Place, name, value and spread (half the interquartile range over the median) of a figure."""
    seconds = numbers.seconds
    known: dict[str, tuple[str, Callable[[float], str]]] = {
        "time": (gettext("time"), seconds),
        "published_time": (gettext("published time"), seconds),
        "transfer_time": (gettext("with copies"), seconds),
        "expansion": (gettext("expansion"), seconds),
        "product": (gettext("product"), seconds),
        "occupancy": (gettext("occupancy"), numbers.percent),
        "waves": (gettext("waves of blocks"), numbers.fraction),
        "first_call_s": (gettext("first call"), seconds),
        "copy_bytes_per_s": (gettext("copy bandwidth"), lambda value: f"{numbers.three(value / 1e9)} GB/s"),
        "fma_flops_per_s": (gettext("FMA peak"), lambda value: f"{numbers.three(value / 1e9)} GFLOP/s"),
        "rms": (gettext("RMS error"), numbers.fraction),
        "max": (gettext("largest error"), numbers.fraction),
        "bound_ratio": (gettext("share of the bound"), numbers.fraction),
        "l1_hit": (gettext("L1 hit rate"), numbers.percent),
        "l2_hit": (gettext("L2 hit rate"), numbers.percent),
        "l1_bytes": (gettext("bytes asked of L1"), numbers.byte_count),
        "dram_bytes": (gettext("bytes to and from memory"), numbers.byte_count),
    }
    # Other figures are steps of a call, named after their kernels.
    name, write = known.get(datum.what, (datum.what.replace("_", " "), seconds))
    where = " ".join(word for word in (datum.case, datum.method, clock_name(datum.config)) if word)
    spread = "" if datum.spread is None else f"±{numbers.percent(datum.spread)}"
    return where or gettext("this machine"), name, write(datum.value), spread


def glossary(book: Book) -> list[tuple[str, str]]:
    """Explain the names of cases, problems and configs in a book, then the terms used on its page."""
    cases = [
        ("rgb_to_1_2048_s1",
         gettext("a case: an RGB image of 2048 pixels a side to 1 channel, stride 1; other names are made alike")),
        ("blur_512_7x7", gettext("a case: an image of 512 pixels a side by Gaussian filters of 7x7")),
        ("full_512_7x7", gettext("a case: the same size by a filter of full rank, 7x7")),
        ("c3_2048_5x5", gettext("a case: 3 channels, 2048 pixels a side, a filter of 5x5")),
        ("channels_64", gettext("a case: 64 channels, and as many filters")),
        ("float16_c256", gettext("a case: of type float16, 256 channels")),
        ("resnet50_res3_3x3_s2_nchw",
         gettext("a case: a layer of a network, its stage, filter, stride (where it is not 1) and layout")),
        ("square_4096", gettext("a case: a product of two matrices, all their sides 4096")),
    ]  # fmt: skip
    forms = [
        ("n1c3h64w48_k2r3s3_st1_p1_f32_nchw",
         gettext("a problem written out: a batch of 1, 3 channels, 64 rows and 48 columns; 2 filters of 3x3; stride 1, "
                 "padding 1, float32, the layout NCHW")),
        ("block_x=32,block_y=4",
         gettext("a config: what of a method can be chosen; here a block of 32 columns and 4 rows of threads")),
    ]  # fmt: skip
    choices = [
        ("resident", gettext("in a config: threads that an SM shall hold; more leave each fewer registers")),
        ("out_p, out_q, out_k", gettext("in a config: rows, columns and channels of outputs that a thread computes")),
        ("tile_p, tile_q, tile_c, tile_k",
         gettext("in a config: rows, columns, input and output channels that are worked on at once")),
        ("block_m, block_n, block_k",
         gettext("in a config: rows and columns of the product that are computed together, and terms of a step")),
        ("thread_m, thread_n", gettext("in a config: rows and columns of the product that a thread computes")),
        ("stages", gettext("in a config: tiles that are in shared memory, or on their way there, at once")),
        ("plan", gettext("in a config: a plan of cuDNN's, by its number")),
    ]  # fmt: skip
    terms = [
        (gettext("strict"), gettext(PRECISIONS["strict"])),
        (gettext("nominal"),
         gettext("a rate that counts the direct method's operations for a method that does others")),
        (gettext("full rank"),
         gettext("of a filter: it takes as many products of a column and a row to make it as it has rows")),
        (gettext("cold, hot"),
         gettext("cold: calls go round more arrays than the last-level cache holds; hot: they fit, and stay in it")),
        (gettext("Kendall's tau"),
         gettext("how far two orders agree: 1 where they are the same, -1 where one is the other turned round")),
        (gettext("peer"), gettext("a method of a library that is not ours, called by the same rules")),
        (gettext("spread"),
         gettext("half the distance between the quartiles of the samples over their median, written ±")),
        (gettext("level, a tie"), gettext("medians within 5 % of each other, and closer than the spreads of the two")),
        (gettext("too noisy to rank"),
         gettext("spreads so wide that the order cannot be told: neither a tie nor a winner")),
        ("GFLOP/s",
         gettext("1e9 floating-point operations a second; a multiplication and an addition are two of them")),
        ("FMA", gettext("fused multiply-add; its peak is how many FLOP/s a kernel of nothing else reaches here")),
        (gettext("roof"), gettext("the lower of the FMA peak, and copy bandwidth times FLOPs a byte")),
        ("SM", gettext("streaming multiprocessor, the unit of a GPU that runs blocks of threads")),
        (gettext("occupancy"), gettext("threads that an SM holds at once, over the most that it can hold")),
        (gettext("waves of blocks"), gettext("how many times the blocks of a launch fill all SMs")),
        ("GEMM", gettext("general matrix product, C = A B; A has M rows, B has N columns, sums have K terms")),
        ("RMS", gettext("root of the mean of the squares; of errors over that of the true values")),
        (gettext("with copies"), gettext("time of a call on host arrays: both copies and the GPU's work")),
    ]  # fmt: skip
    every = [result for chapter in book.chapters for result in chapter.run.results]
    kinds = {"rgb", "square", *(result.case.partition("_")[0] for result in every)}
    keys = {pair.partition("=")[0] for result in every for pair in result.config.split(",")}
    return [
        *(pair for pair in cases if pair[0].partition("_")[0] in kinds),
        *forms,
        *(pair for pair in choices if keys.intersection(pair[0].split(", "))),
        *terms,
    ]
