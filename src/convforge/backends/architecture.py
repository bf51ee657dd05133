"""Architectures of NVIDIA GPUs, such as sm_90, and sm_90a with instructions that only this architecture has."""

from __future__ import annotations

import re
from typing import NamedTuple


class Architecture(NamedTuple):
    """One architecture: sm_90a has the number 90 and the feature "a"."""

    number: int
    feature: str = ""

    @classmethod
    def parse(cls, text: str) -> Architecture:
        """Read the text form; ``ValueError`` for any other text."""
        if (found := re.fullmatch(r"sm_(\d+)([af]?)", text)) is None:
            raise ValueError(f"architecture {text!r} must read like sm_90 or sm_90a")
        return cls(int(found[1]), found[2])

    def __str__(self) -> str:
        return f"sm_{self.number}{self.feature}"
