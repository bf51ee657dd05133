"""Numbers as pages print them: the formats of the bench, and shares as the page's language writes them."""

from __future__ import annotations

from convforge.benchmark import formats
from convforge.benchmark.formats import MISSING, byte_count, fraction, ratio, seconds, three
from convforge.benchmark.formats import error as tiny
from convforge.course.language import gettext

__all__ = ["MISSING", "byte_count", "fraction", "percent", "ratio", "seconds", "three", "tiny"]


def percent(value: float) -> str:
    """A share of one."""
    return gettext("{n} %").format(n=formats.percent(value).removesuffix(" %"))
