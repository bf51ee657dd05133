"""Messages that tifffile logs while it reads a file: kept for our own report, not written to standard error."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

MOST = 3  # messages that are reported of a file


@dataclass(slots=True)
class Said:
    """Warnings and errors that tifffile has logged, without the objects that they name."""

    warnings: list[str] = field(default_factory=list)
    chain_faults: list[str] = field(default_factory=list)  # errors in the chain of pages, which lose pages

    @property
    def first(self) -> tuple[str, ...]:
        """The first few of the different warnings."""
        return tuple(list(dict.fromkeys(self.warnings))[:MOST])


@contextmanager
def listening() -> Iterator[Said]:
    """Collect what tifffile logs in this thread.

    While a handler is there, Python writes nothing to standard error by itself; handlers of the program still get all.
    """
    said, thread = Said(), threading.get_ident()

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == thread:
                text = record.getMessage()
                is_chain = record.levelno >= logging.ERROR and "TiffPages" in text
                found = said.chain_faults if is_chain else said.warnings
                found.append(" ".join(re.sub(r"<tifffile\.[^>]*>", "", text).split())[:200])

    logger, collector = logging.getLogger("tifffile"), Collector(logging.WARNING)
    logger.addHandler(collector)
    try:
        yield said
    finally:
        logger.removeHandler(collector)
