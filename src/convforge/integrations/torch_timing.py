"""Timing of calls of PyTorch against each other: in turns, several rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from convforge.timing import Timing

# Rounds in which all rivals are timed, one after the other, and the seconds that a rival gets in a round.
ROUNDS = 7
ROUND_S = 0.004


def told(taken: Timing) -> str:
    """The median and its spread in units that a person reads.

    Examples
    --------
    >>> told(Timing((0.4, 0.466, 0.5))), told(Timing((0.0009999,)))
    ('466 ms ± 5 %', '1 ms ± 0 %')
    """
    median = float(f"{taken.median_s:.3g}")
    scale, unit = next((k, u) for k, u in ((1, "s"), (1e3, "ms"), (1e6, "us")) if median * k >= 1 or k == 1e6)
    return f"{median * scale:.4g} {unit} ± {100 * taken.spread:.0f} %"


def compared(calls: Sequence[Callable[[], Any]], device: Any) -> list[Timing]:
    """Time calls in turns: each round times every one, and every other round in the opposite order."""
    with torch.no_grad():
        for call in calls:
            call()
        many = [max(1, min(1000, int(ROUND_S / max(_seconds(call, 1, device), 1e-9)))) for call in calls]
        found: list[list[float]] = [[] for _ in calls]
        for turn in range(ROUNDS):
            order = range(len(calls)) if turn % 2 == 0 else reversed(range(len(calls)))
            for at in order:
                found[at].append(_seconds(calls[at], many[at], device))
    return [Timing(tuple(seconds)) for seconds in found]


def _seconds(call: Callable[[], Any], many: int, device: Any) -> float:
    """Seconds of one of several calls, on a device that is idle before and after."""
    _wait(device)
    start = time.perf_counter()
    for _ in range(many):
        call()
    _wait(device)
    return (time.perf_counter() - start) / many


def _wait(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
