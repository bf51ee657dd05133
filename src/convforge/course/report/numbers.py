"""Number formats of pages: those of the benchmark, and percentages in the style of the page's language."""

from __future__ import annotations

from convforge.benchmark import formats
from convforge.benchmark.formats import MISSING, byte_count, fraction, ratio, seconds, three
from convforge.benchmark.formats import error as tiny
from convforge.course.language import gettext

__all__ = ["MISSING", "byte_count", "fraction", "percent", "ratio", "seconds", "three", "tiny"]


def percent(value: float) -> str:
    """Format a fraction of one as a percentage."""
    return gettext("{n} %").format(n=formats.percent(value).removesuffix(" %"))
