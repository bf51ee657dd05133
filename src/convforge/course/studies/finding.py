"""A finding as data: its rule, its form (the outcome), the values for its sentence, and the figures behind it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from convforge.course.studies import words
from convforge.timing.timer import Timing


@dataclass(frozen=True, slots=True)
class Datum:
    """One figure of a record that supports a finding."""

    case: str
    method: str
    config: str
    what: str  # "time", "transfer_time", "occupancy", "bound_ratio" or another figure
    value: float  # times in seconds, shares as fractions
    spread: float | None = None  # half the interquartile range over the median; None without timing or with few samples

    @classmethod
    def of(cls, case: str, method: str, config: str, timing: Timing, what: str = "time") -> Datum:
        """Return the median of a timing as a figure."""
        return cls(case, method, config, what, timing.median_s, timing.spread if len(timing.samples) > 2 else None)


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of a rule on the records of a run.

    `values` holds the values of its sentence and details: numbers in SI units, names, plain lists and tables of them.
    The entry "unsure" lists the places that were too noisy to rank; the finding makes no other statement about them.
    """

    rule: str
    form: str  # the outcome as ``family/outcome``, the key of its sentence and details in studies.toml
    values: Mapping[str, Any] = field(default_factory=dict)
    data: tuple[Datum, ...] = ()  # the figures that support it
    supported: bool = True  # False if the data supports no conclusion; the sentence then gives the reason

    @property
    def sentence(self) -> str:
        """Return the finding as one sentence in the current language."""
        return words.say(words.template(self.form), self.values)

    @property
    def details(self) -> list[str]:
        """Return the figures that the sentence does not show, one line each, in the current language."""
        return words.details(self.form, self.values)

    def to_table(self) -> dict[str, Any]:
        """Return the finding as a dict for JSON, with its sentence and details."""
        said = {"values": dict(self.values), "sentence": self.sentence, "details": self.details}
        return dataclasses.asdict(self) | said


def undecided(rule: str, form: str, data: tuple[Datum, ...] = (), **values: Any) -> Finding:
    """Return a finding without a conclusion."""
    return Finding(rule, form, values, data, supported=False)
