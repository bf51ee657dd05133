"""Studies: each has a question, the cases to measure, and rules that compute findings from the records."""

from __future__ import annotations

import difflib

from convforge.course.studies import (
    accuracy,
    block_size,
    breakdown,
    crossovers,
    gemm,
    memory,
    partition,
    size,
    stride,
    timer,
)
from convforge.course.studies.finding import Datum, Finding
from convforge.course.studies.study import Part, Study

# In reading order.
STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        size.STUDY, stride.STUDY, block_size.STUDY, crossovers.FILTER_SIZE, memory.STUDY, crossovers.CHANNELS,
        partition.STUDY, gemm.STUDY, breakdown.STUDY, accuracy.STUDY, timer.STUDY,
    )
}  # fmt: skip

__all__ = ["STUDIES", "Datum", "Finding", "Part", "Study", "find_study"]


def find_study(name: str) -> Study:
    """Return the study of this name. A ``ValueError`` for an unknown name suggests the most similar one.

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
