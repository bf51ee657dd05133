"""Lines that users see of what goes on: that a kernel is being compiled, that a cache cannot be used.

They are records of the logger "convforge", never warnings: programs turn those into errors, and nothing here is one.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

LOGGER = logging.getLogger("convforge")

# Compiling is not mentioned before it has taken this long.
PATIENCE_S = 1.0

_quiet = False


def quiet() -> None:
    """Say nothing of compiling on this process's terminal: whoever calls this shows its progress."""
    global _quiet
    _quiet = True


@cache
def say_once(text: str) -> None:
    """Log a warning; Python shows it on standard error where the program has not set up its logging."""
    LOGGER.warning(text)


@contextmanager
def compiling(what: str, kept_in: object) -> Iterator[None]:
    """Say that something is being compiled once that has taken a second: on a terminal, else as a log record.

    Parameters
    ----------
    what : str
    kept_in : path or None
        Where the result is kept for the next time, if it is.
    """
    kept = "not kept: no cache can be used" if kept_in is None else f"kept in {kept_in} for the next time"
    timer = threading.Timer(PATIENCE_S, _say, [f"compiling {what}; {kept}"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(text: str) -> None:
    if not _quiet and sys.stderr is not None and sys.stderr.isatty():
        print(f"convforge: {text}", file=sys.stderr, flush=True)
    else:
        LOGGER.info(text)
