"""From a finding to a sentence: `str.format` with the field's units, lists and workloads as format specs.

A language is a table of sentences (a study's own, beside its rules) and a formatter (here), so that another language
renders the same findings.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from convforge.bench.cells import three
from convforge.studies.finding import Finding

# Names in one sentence; the rest are counted, and all stand in the finding's values.
MOST_NAMES = 6


class English(string.Formatter):
    """Formats a finding's values in English.

    Examples
    --------
    >>> English().format("{a:time}, {b:times}, {c:percent}, {d:names}, {n:count case}, {n:each case}",
    ...                  a=2.5e-6, b=1.5, c=0.25, d=["x", "y", "z"], n=2)
    '2.50 us, 1.50x, 25 %, x, y and z, 2 cases, each of 2 cases'
    """

    def format_field(self, value: Any, format_spec: str) -> str:
        """See the table of specs below."""
        name, _, rest = format_spec.partition(" ")
        if name == "count":
            return f"{value} {rest if value == 1 else _plural(rest)}"
        if name in ("each", "all"):
            return f"the one {rest}" if value == 1 else f"{name} of {value} {_plural(rest)}"
        if name in _SPECS:
            return _SPECS[name](value)
        return str(super().format_field(value, format_spec))


def render(finding: Finding, sentences: Mapping[str, str], formatter: string.Formatter | None = None) -> str:
    """The sentence of a finding.

    Raises
    ------
    KeyError
        The language lacks the finding's form, or the sentence asks for a value that the finding lacks.
    """
    return (formatter or English()).vformat(sentences[finding.form], (), finding.values)


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1 or unit == "us":
            return f"{three(seconds * factor)} {unit}"
    raise AssertionError("the last unit takes every time")


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 9.995 else f"{ratio:.0f}x" if ratio >= 99.5 else f"{ratio:.1f}x"


def _percent(share: float) -> str:
    percent = 100 * share
    if percent >= 99.5 and share < 1:
        return f"{min(percent, 99.9):.1f} %"
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.1f} %" if percent >= 0.1 else f"{percent:.1g} %"


def _rate(flops_per_s: float) -> str:
    return f"{three(flops_per_s / 1e12)} TFLOP/s" if flops_per_s >= 1e12 else f"{three(flops_per_s / 1e9)} GFLOP/s"


def _names(names: Sequence[object]) -> str:
    """A list; a sentence about an empty one is of the wrong form."""
    if not names:
        raise ValueError("a sentence names what an empty list holds: its finding should have another form")
    words = [str(name) for name in names]
    if len(words) > MOST_NAMES:
        words = [*words[: MOST_NAMES - 1], f"{len(words) - MOST_NAMES + 1} more"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _workload(load: Mapping[str, Any]) -> str:
    """What a series of cases has in common."""
    said = [f"batch {load['n']}"] if load.get("n", 1) != 1 else []
    if "pictures" in load:
        said.append(f"{load['pictures']} pixels")
    if "c" in load:
        said.append(f"{load['c']} {'channel' if load['c'] == 1 else 'channels'} to {load['k']}")
    elif "k" in load:
        said.append(f"{load['k']} output {'channel' if load['k'] == 1 else 'channels'}")
    if load.get("groups", 1) != 1:
        said.append(f"{load['groups']} groups")
    if "filter" in load:
        said.append(f"{load['filter']} filter")
    if "stride" in load:
        said.append(f"stride {load['stride']}")
    said += [load[name] for name in ("dtype", "layout", "weights") if name in load]
    return ", ".join(said)


def _stretches(stretches: Sequence[Mapping[str, Any]]) -> str:
    """Who is fastest along an axis, in its order."""
    said = []
    for part in stretches:
        first, last = part["first"], part["last"]
        where = f"{first}" if first == last else f"{first} to {last}"
        level = f" (level with others at {_names(part['level'])})" if part["level"] else ""
        said.append(f"{' or '.join(part['methods'])} at {where}{level}")
    return "; ".join(said)


def _span(span: Mapping[str, Any]) -> str:
    """The least and the most of ratios, each with its case."""
    low = f"{_times(span['least'])} ({span['least_case']})"
    return low if span["least_case"] == span["most_case"] else f"{low} to {_times(span['most'])} ({span['most_case']})"


def _shares(span: Mapping[str, Any]) -> str:
    """The least and the most of shares, each with its case."""
    low = f"{_percent(span['least'])} ({span['least_case']})"
    return (
        low if span["least_case"] == span["most_case"] else f"{low} to {_percent(span['most'])} ({span['most_case']})"
    )


def _split(split: Mapping[str, Sequence[str]]) -> str:
    """Where something is faster, slower and level."""
    return "; ".join(f"{order} on {_names(cases)}" for order, cases in split.items() if cases)


def _groups(groups: Mapping[str, Sequence[str]]) -> str:
    """Names, and the cases of each."""
    return "; ".join(f"{name} on {_names(cases)}" for name, cases in groups.items())


def _plural(noun: str) -> str:
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"


def _bytes_per_s(rate: float) -> str:
    return f"{three(rate / 1e9)} GB/s"


def _megabytes(nbytes: float) -> str:
    return f"{three(nbytes / 1e6)} MB"


_SPECS: dict[str, Callable[[Any], str]] = {
    "time": _time,
    "times": _times,
    "percent": _percent,
    "rate": _rate,
    "bytes_rate": _bytes_per_s,
    "megabytes": _megabytes,
    "names": _names,
    "workload": _workload,
    "stretches": _stretches,
    "span": _span,
    "shares": _shares,
    "split": _split,
    "groups": _groups,
    "axis": {
        "size": "side of the picture",
        "stride": "stride",
        "filter": "side of the filter",
        "channels": "number of channels",
        "inputs": "number of input channels",
    }.__getitem__,
    "tiny": lambda value: f"{value:.1e}",
}
