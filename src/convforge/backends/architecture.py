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
        10 times the major version and the minor one: 90 of sm_90 and sm_90a. Machine code for a plain architecture runs
        on GPUs of the same major version and no smaller minor one.
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

    @property
    def major(self) -> int:
        """Of the compute capability."""
        return self.number // 10

    def has(self, feature: str) -> bool:
        """Whether code of an architecture such as "sm_90a" runs on a GPU of this one."""
        wanted = Architecture.parse(feature)
        if wanted.feature == "a":
            return self.number == wanted.number
        return self.major == wanted.major and self.number >= wanted.number

    def __str__(self) -> str:
        return f"sm_{self.number}{self.feature}"
