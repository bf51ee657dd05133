"""Architectures of NVIDIA GPUs: sm_75, sm_90, and sm_90a, whose extra instructions no other architecture has."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FORM = re.compile(r"sm_(\d+)([af]?)")


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture.

    Examples
    --------
    >>> Architecture.parse("sm_90a").number, str(Architecture(100, "a"))
    (90, 'sm_100a')
    """

    number: int
    feature: str = ""

    @classmethod
    def parse(cls, text: str) -> Architecture:
        """Read the text form; ``ValueError`` for another text."""
        if (found := _FORM.fullmatch(text)) is None:
            raise ValueError(f"architecture {text!r} must read like sm_90 or sm_90a")
        return cls(int(found[1]), found[2])

    def __str__(self) -> str:
        return f"sm_{self.number}{self.feature}"
