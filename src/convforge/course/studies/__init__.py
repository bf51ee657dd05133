"""Studies: a question each, what is measured for it, and findings computed from the records."""

from __future__ import annotations

import difflib

from convforge.course.studies import (
    accuracy,
    block_size,
    breakdown,
    channels,
    filter_size,
    gemm,
    memory,
    partition,
    size,
    stride,
    timer,
)
from convforge.course.studies.finding import Datum, Finding
from convforge.course.studies.study import Part, Study

# In the order in which they are read.
STUDIES: dict[str, Study] = {
    room.STUDY.name: room.STUDY
    for room in (size, stride, block_size, filter_size, memory, channels, partition, gemm, breakdown, accuracy, timer)
}

__all__ = ["STUDIES", "Datum", "Finding", "Part", "Study", "find_study"]


def find_study(name: str) -> Study:
    """The study of this name.

    Raises
    ------
    ValueError
        There is none; the text names the nearest.

    Examples
    --------
    >>> find_study("size").name
    'size'
    """
    if name in STUDIES:
        return STUDIES[name]
    near = difflib.get_close_matches(name, STUDIES, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise ValueError(f"there is no study {name!r}{hint} There are: {', '.join(STUDIES)}")
