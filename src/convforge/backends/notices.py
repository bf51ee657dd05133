"""Notices to users: log records instead of warnings, because programs may turn warnings into errors."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

LOGGER = logging.getLogger("convforge")

# Seconds; longer compilations get a notice.
PATIENCE_S = 1.0

_quiet = False


def quiet() -> None:
    """Write no notices of compilations to the terminal; the caller shows progress itself."""
    global _quiet
    _quiet = True


@cache
def say_once(text: str) -> None:
    """Log a warning once; Python shows it on standard error unless the program configures logging."""
    LOGGER.warning(text)


@contextmanager
def compiling(what: str, kept_in: object) -> Iterator[None]:
    """Write a notice if the block, which compiles `what` into the cache folder `kept_in`, takes over a second.

    It goes to standard error if that is a terminal, else to the log.
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
