"""Exceptions of convforge, and their reasons as data.

A bad argument raises ``ValueError`` or ``TypeError``; the text names the value, the rule and what to do. A valid
problem that no method can compute raises :class:`UnsupportedProblem`, with every algorithm's reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, init=False)
class Reason:
    """A sentence as data: a format string and its values.

    ``str(reason)`` is the English sentence. The form is the key of its translations, as in gettext.

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

    form: str  # English text for :meth:`str.format`, with a name in braces for each value
    values: tuple[tuple[str, Value], ...]  # name and value of each

    def __init__(self, form: str, /, **values: Value) -> None:
        object.__setattr__(self, "form", form)
        object.__setattr__(self, "values", tuple(values.items()))

    @classmethod
    def quoted(cls, text: str) -> Reason:
        """Quote a text without translation, such as a message of another library."""
        return cls(QUOTED, text=text)

    @classmethod
    def joined(cls, reasons: Iterable[Reason]) -> Reason | None:
        """Join several reasons by semicolons, in their order; None for none."""
        joined: Reason | None = None
        for reason in reversed(list(reasons)):
            joined = reason if joined is None else cls(JOINED, first=reason, rest=joined)
        return joined

    def render(self, translated: Callable[[str], str]) -> str:
        """The sentence in a language, by a function such as :func:`convforge.course.language.gettext`."""
        parts = {name: v.render(translated) if isinstance(v, Reason) else v for name, v in self.values}
        return translated(self.form).format(**parts)

    def __str__(self) -> str:
        return self.render(str)


Value = str | int | float | Reason
QUOTED = "{text}"
JOINED = "{first}; {rest}"


class UnsupportedProblem(ValueError):
    """No algorithm, or not the named one, can compute a valid problem, whose text form is `problem`."""

    def __init__(self, problem: str, reasons: Mapping[str, Reason]) -> None:
        super().__init__(problem, reasons)
        self.problem = problem
        self._reasons = dict(reasons)

    @property
    def reasons(self) -> dict[str, str]:
        """Each algorithm's reason, in English."""
        return {name: str(reason) for name, reason in self._reasons.items()}

    def reason_of(self, name: str) -> Reason:
        """An algorithm's reason; the whole text if it has none."""
        return self._reasons.get(name) or Reason.quoted(str(self))

    def __str__(self) -> str:
        lines = "\n".join(f"  {name}: {reason}" for name, reason in self._reasons.items())
        return f"nothing that was allowed can compute {self.problem}:\n{lines}"


class WorkspaceTooSmall(ValueError):
    """A plan was called with less workspace than it needs."""
