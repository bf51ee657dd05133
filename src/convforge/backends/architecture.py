"""Architectures of NVIDIA GPUs: sm_75, sm_90, and sm_90a, which has instructions that no other one has."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FORM = re.compile(r"sm_(\d+)([af]?)")


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture.

    Attributes
    ----------
    number : int
        10 times the major version plus the minor one, 90 for sm_90 and sm_90a. Machine code for an architecture without
        a feature runs on GPUs of the same major version whose minor version is not smaller.
    feature : {"", "a", "f"}
        "a": its machine code runs on this architecture alone, and may use instructions that later ones do not have;
        "f": on its family.

    Examples
    --------
    >>> Architecture.parse("sm_90a").number, str(Architecture(100, "a"))
    (90, 'sm_100a')
    """

    number: int
    feature: str = ""

    @classmethod
    def parse(cls, text: str) -> Architecture:
        """Read the text form.

        Raises
        ------
        ValueError
            It is none of NVIDIA's.
        """
        if (found := _FORM.fullmatch(text)) is None:
            raise ValueError(f"architecture {text!r} must read like sm_90 or sm_90a")
        return cls(int(found[1]), found[2])

    def __str__(self) -> str:
        return f"sm_{self.number}{self.feature}"
