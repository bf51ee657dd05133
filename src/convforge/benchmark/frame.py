"""The results of a run as a pandas data frame, from which tables select, group and pivot rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from convforge.benchmark.formats import milliseconds, natural, percent
from convforge.benchmark.records import Result, Run
from convforge.benchmark.suites import fits
from convforge.benchmark.table import Cell
from convforge.problem import Problem, parse_problem
from convforge.timing.ranking import rank
from convforge.timing.timer import Timing

if TYPE_CHECKING:
    from pandas import DataFrame

# Fields of a result that are columns under the same name.
_FIELDS = ("case", "problem", "operation", "algorithm", "config", "backend", "ours", "precision", "status")
_NUMBERS = ("seconds", "prepared_s", "of_copy", "rms")
_TYPES = {"ours": bool, **dict.fromkeys(_NUMBERS, float)}


def frame(run: Run, results: Iterable[Result] | None = None) -> DataFrame:
    """Results of a run as a data frame, one row each; by default all results.

    Columns: the identifying fields of :class:`Result`; ``result``, the object; ``timing``, the timing that counts, and
    its median ``seconds``; ``prepared_s``; ``of_copy``, the fraction of the copy kernel's bandwidth; ``rms``, the RMS
    error; ``reason`` as text.
    """
    rows = []
    for r in run.results if results is None else results:
        timing, error = run.timing(r), r.error if r.status == "ok" else None
        rows.append([
            *(getattr(r, name) for name in _FIELDS), r, timing, _median(timing), _median(r.prepared_time),
            run.of_copy(r, timing), error and error.rms, str(r.reason or ""),
        ])  # fmt: skip
    return data_frame(rows, [*_FIELDS, "result", "timing", *_NUMBERS, "reason"]).astype(_TYPES)


def data_frame(
    rows: Iterable[Any], columns: Iterable[str], index: Iterable[str] | None = None, *, as_given: bool = False
) -> DataFrame:
    """Make a data frame of rows. `as_given` keeps integers in a column that also has None.

    Only this function imports pandas, which is optional; the message of ``ImportError`` tells how to install it.
    """
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("tables of results need pandas: pip install 'convforge[lab]'") from None
    labels, kind = None if index is None else list(index), object if as_given else None
    return pd.DataFrame(list(rows), columns=list(columns), index=labels, dtype=kind)


def _median(timing: Timing | None) -> float | None:
    return None if timing is None else timing.median_s


def select(
    run: Run,
    methods: Sequence[str] = (),
    cases: Sequence[str] = (),
    sizes: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> list[Result]:
    """Select results by patterns of names, and by numbers as in :func:`suites.select`; an empty selection takes all."""
    return [
        r
        for r in run.results
        if matches(r.algorithm, methods or "*")
        and matches(r.case, cases or "*")
        and fits(parse_problem(r.problem), sizes, strides)
    ]


def matches(name: str, patterns: Iterable[str]) -> bool:
    """True if a name matches one of the shell patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def with_configs(results: Iterable[Result]) -> set[str]:
    """Names of methods that have several configs in one case."""
    count = Counter((r.case, r.algorithm) for r in results)
    return {algorithm for (_, algorithm), n in count.items() if n > 1}


def stride_of(problem: Problem) -> str:
    """Format a problem's stride: "2", or "2x1"; empty if the operation has none."""
    return "x".join(str(step) for step in dict.fromkeys(problem.stride))


def labeller(results: Iterable[Result]) -> Callable[[Result], str]:
    """Return a function that labels a result: method, config if a case has several, and any narrower precision."""
    several = with_configs(results)

    def label(r: Result) -> str:
        name = r.label if r.algorithm in several else r.algorithm
        return name if r.allowed else f"{name} ({r.precision})"

    return label


def each(rows: DataFrame) -> Iterator[Any]:
    """Yield the rows as named tuples, with the field ``Index``."""
    return iter(rows.itertuples())


def by_method(rows: DataFrame) -> list[DataFrame]:
    """Split rows into one frame per case and method, cases in natural order."""
    groups = (group for _, group in rows.groupby(["case", "algorithm"], sort=False))
    return sorted(groups, key=lambda group: natural(group.case.iloc[0]))


def leader(rows: DataFrame) -> Any:
    """Index of the fastest row; None if no row has a time, or all are too noisy to rank."""
    timed = rows.timing.dropna()
    return next((i for i, _ in rank(timed.items(), lambda pair: pair[1]).leaders), None)


def marked_ms(timing: Timing, *, stale: bool = False) -> str:
    """Format a timing in milliseconds, with "~" if it is noisy and "*" if the sources have changed since."""
    return f"{'~' * timing.noisy}{'*' * stale}{milliseconds(timing.median_s)}"


def time_cell(run: Run, row: Any, share: float | None = None, *, best: bool = False) -> Cell:
    """Table cell with ms, and a fraction in parentheses if it is known; or the status of a row without a time."""
    if row.timing is None:
        return Cell(row.status)
    shown = "" if share is None or math.isnan(share) else f" ({percent(share)})"
    return Cell(marked_ms(row.timing, stale=run.is_stale(row.result)) + shown, look="best" if best else "")
