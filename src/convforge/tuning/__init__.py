"""Choice of a method: by rule, or by measuring the best few once and storing the result."""

from __future__ import annotations

import os

from convforge.tuning.choices import CHOICES, SearchResult, key_of
from convforge.tuning.heuristic import Choice, choose
from convforge.tuning.tuner import LEVELS, check_method, compile_for, decide, may_measure, remembered, tune, with_peers

__all__ = [
    "CHOICES", "LEVELS", "Choice", "SearchResult", "check_method", "choose", "compile_for", "decide", "key_of", "load",
    "may_measure", "remembered", "tune", "with_peers",
]  # fmt: skip


def load(path: str | os.PathLike[str]) -> int:
    """Load the choices of a file that ``convforge tune`` wrote; return their number, including those of other devices.

    Raises ``OSError`` if the file cannot be read, and ``ValueError`` with the reason if it has no valid choices.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from convforge.tuning.choices import write
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "tuned.json")
    ...     _ = write(path, [])
    ...     load(path)
    0
    """
    return CHOICES.load(path)
