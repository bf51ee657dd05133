"""A finding as data: its rule, its form (the outcome), the values of its sentence, and the figures that it rests on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from convforge.course.studies import words
from convforge.timing.timer import Timing


@dataclass(frozen=True, slots=True)
class Datum:
    """One figure of a record that a finding rests on."""

    case: str
    method: str
    config: str
    what: str  # "time", "transfer_time", "occupancy", "bound_ratio" or another figure
    value: float  # times in seconds, shares as fractions
    spread: float | None = None  # half the interquartile range over the median; None: too few samples or no timing

    @classmethod
    def of(cls, case: str, method: str, config: str, timing: Timing, what: str = "time") -> Datum:
        """A timing's median."""
        return cls(case, method, config, what, timing.median_s, timing.spread if len(timing.samples) > 2 else None)


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of a rule on the records of a run.

    Values are those of its sentence and details: numbers in SI units, names, and plain lists and tables of them. Under
    "unsure" are the places that were too noisy to rank, of which the finding says nothing else.
    """

    rule: str
    form: str  # the outcome, as ``family/outcome``: the key of its sentence and details in studies.toml
    values: Mapping[str, Any] = field(default_factory=dict)
    data: tuple[Datum, ...] = ()  # the figures that it rests on
    supported: bool = True  # False where the data supports no conclusion; the sentence then says why

    @property
    def sentence(self) -> str:
        """The finding in one sentence, in the language of this place."""
        return words.say(words.template(self.form), self.values)

    @property
    def details(self) -> list[str]:
        """The figures that the sentence does not show, a line each, in the language of this place."""
        return words.details(self.form, self.values)

    def to_table(self) -> dict[str, Any]:
        """The finding as JSON holds it, with its sentence and details."""
        said = {"values": dict(self.values), "sentence": self.sentence, "details": self.details}
        return dataclasses.asdict(self) | said


def undecided(rule: str, form: str, data: tuple[Datum, ...] = (), **values: Any) -> Finding:
    """A finding without a conclusion."""
    return Finding(rule, form, values, data, supported=False)
