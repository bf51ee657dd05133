"""Architectures of NVIDIA GPUs: sm_75, sm_90, and sm_90a, whose extra instructions no other architecture has."""

from __future__ import annotations

import re
from typing import NamedTuple


class Architecture(NamedTuple):
    """One architecture: number 90 and feature "a" of sm_90a."""

    number: int
    feature: str = ""

    @classmethod
    def parse(cls, text: str) -> Architecture:
        """Read the text form; ``ValueError`` for another text."""
        if (found := re.fullmatch(r"sm_(\d+)([af]?)", text)) is None:
            raise ValueError(f"architecture {text!r} must read like sm_90 or sm_90a")
        return cls(int(found[1]), found[2])

    def __str__(self) -> str:
        return f"sm_{self.number}{self.feature}"
