"""Values as people write them on a command line."""

from __future__ import annotations

import re

_UNITS = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def parse_bytes(text: str) -> int:
    """A number of bytes: 4096, 64MB, 1.5 GiB.

    Raises
    ------
    ValueError
        The text is no size.

    Examples
    --------
    >>> parse_bytes("64MB"), parse_bytes("1.5GiB"), parse_bytes("0")
    (64000000, 1610612736, 0)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?)?b?\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is no size; write bytes, as in 4096, 64MB or 1.5GiB")
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])
