"""Exceptions of convforge, and the reasons in them as data.

A bad argument raises ``ValueError`` or ``TypeError``; the text names the value, the rule and what to do. A valid
problem that no method can compute raises :class:`UnsupportedProblem`, with every algorithm's reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, init=False)
class Reason:
    """A sentence stored as a format string and its values, so that it can be translated.

    ``str(reason)`` is the English sentence. The format string is the key of its translations, as in gettext.

    Examples
    --------
    >>> reason = Reason("the filter is {own}, not {wanted}", own="5x5", wanted="1x1")
    >>> print(reason)
    the filter is 5x5, not 1x1
    >>> from convforge.course.language import gettext, in_language
    >>> with in_language("zh"):
    ...     print(reason.render(gettext))
    卷积核为 5x5，不是 1x1
    """

    form: str  # English format string for :meth:`str.format`, with named fields
    values: tuple[tuple[str, Value], ...]  # name and value of each field

    def __init__(self, form: str, /, **values: Value) -> None:
        object.__setattr__(self, "form", form)
        object.__setattr__(self, "values", tuple(values.items()))

    @classmethod
    def quoted(cls, text: str) -> Reason:
        """Make a reason from a text that is not translated, such as a message of another library."""
        return cls(QUOTED, text=text)

    @classmethod
    def joined(cls, reasons: Iterable[Reason]) -> Reason | None:
        """Join reasons with semicolons, in their order; return None if there are none."""
        joined: Reason | None = None
        for reason in reversed(list(reasons)):
            joined = reason if joined is None else cls(JOINED, first=reason, rest=joined)
        return joined

    def render(self, translated: Callable[[str], str]) -> str:
        """Return the sentence in another language; `translated` is a function such as gettext."""
        parts = {name: v.render(translated) if isinstance(v, Reason) else v for name, v in self.values}
        return translated(self.form).format(**parts)

    def __str__(self) -> str:
        return self.render(str)


Value = str | int | float | Reason
QUOTED = "{text}"
JOINED = "{first}; {rest}"


class UnsupportedProblem(ValueError):
    """No algorithm, or not the named one, can compute a valid problem; `problem` is its text form."""

    def __init__(self, problem: str, reasons: Mapping[str, Reason]) -> None:
        super().__init__(problem, reasons)
        self.problem = problem
        self._reasons = dict(reasons)

    @property
    def reasons(self) -> dict[str, str]:
        """Reason of each algorithm, in English, by its name."""
        return {name: str(reason) for name, reason in self._reasons.items()}

    def reason_of(self, name: str) -> Reason:
        """Return the reason of an algorithm; the text of the whole error if it has none."""
        return self._reasons.get(name) or Reason.quoted(str(self))

    def __str__(self) -> str:
        lines = "\n".join(f"  {name}: {reason}" for name, reason in self._reasons.items())
        return f"nothing that was allowed can compute {self.problem}:\n{lines}"


class WorkspaceTooSmall(ValueError):
    """The workspace passed to a plan is smaller than the plan needs."""
