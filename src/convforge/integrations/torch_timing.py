"""Timing of calls of PyTorch against each other: in turns, several rounds, and no verdict within the spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

# Rounds in which all rivals are timed, one after the other, and the seconds that a rival gets in a round.
ROUNDS = 7
ROUND_S = 0.004


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds of a call.

    Attributes
    ----------
    median_s : float
    low_s, high_s : float
        Quartiles over the rounds.
    """

    median_s: float
    low_s: float
    high_s: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Time:
        """Median and quartiles of the rounds."""
        low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(statistics.median(seconds), low, high)

    def beats(self, other: Time) -> bool:
        """Tell if this is faster by more than the spread of both."""
        return self.high_s < other.low_s

    def __str__(self) -> str:
        scale, unit = next(
            (k, u) for k, u in ((1, "s"), (1e3, "ms"), (1e6, "us")) if self.median_s * k >= 1 or k == 1e6
        )
        spread = (self.high_s - self.low_s) / self.median_s if self.median_s else 0.0
        return f"{self.median_s * scale:.3g} {unit} (spread {100 * spread:.0f} %)"


def compared(calls: Sequence[Callable[[], Any]], device: Any) -> list[Time]:
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
    return [Time.of(seconds) for seconds in found]


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
