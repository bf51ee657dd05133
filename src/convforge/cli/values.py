"""Options shared by commands, their values, and the device that they name."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from convforge.backends.runtime import Runtime

Targets = Annotated[
    list[str], typer.Argument(metavar="SUITE|PROBLEM...", help="Suites by name, CSV files, or problems' text forms.")
]
Device = Annotated[str, typer.Option(help="Where to run.")]
WorkspaceLimit = Annotated[str, typer.Option(help="Most workspace that a method may use, such as 64MB.")]
Out = Annotated[Path, typer.Option(help="Folder; results go to OUT/results/DEVICE/.")]
Quick = Annotated[bool, typer.Option("--quick", help="The small form: few cases, few samples.")]

_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


def parse_bytes(text: str) -> int:
    """Parse a number of bytes, or raise ``ValueError``.

    Examples
    --------
    >>> parse_bytes("64MB"), parse_bytes("1.5GiB"), parse_bytes("0")
    (64000000, 1610612736, 0)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?)?b?\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is no size; write bytes, as in 4096, 64MB or 1.5GiB")
    return int(float(match[1]) * _BYTES[(match[2] or "").lower()])


def parse_seconds(text: str, option: str = "--budget") -> float:
    """Parse a time such as 60s, 5m or 500ms, or raise ``ValueError``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _SECONDS or float(match[1]) <= 0:
        raise ValueError(f"{option} {text!r} is not understood; write it like 60s, 5m or 500ms")
    return float(match[1]) * _SECONDS[match[2]]


def words_of(text: str) -> tuple[str, ...]:
    """Split a comma-separated list: "direct*, im2col," gives ('direct*', 'im2col')."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def one_of(word: str, known: Collection[str], option: str, near: str | None = None) -> str:
    """Return `word` if it is known; ``ValueError`` suggests `near`, by default the most similar known word."""
    if word in known:
        return word
    if near is None:
        near = next(iter(difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.5)), None)
    hint = f"; did you mean {near!r}?" if near else "."
    raise ValueError(f"{option} {word!r} is unknown{hint} Choose one of {', '.join(known)}")


def finite(value: float, option: str) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{option} {value} must be a finite number")
    return value


def timed_runtime(device: str) -> Runtime:
    """Return the runtime of a device. ``ValueError`` for the emulator, because its times are meaningless."""
    from convforge.call.dispatch import runtime_of

    runtime = runtime_of(device)
    if runtime.facts.backend == "emulator":
        raise ValueError("--device emulator: its times say nothing about a GPU; choose cpu, cuda, cuda:1, ...")
    return runtime
