"""Ranges of a model's values over sample batches, and the scale and zero point of a range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from convforge.integrations.torch_quantized import LEAST_SCALE
from convforge.problem.types import limits

# Most values of a batch that a percentile is taken of: torch.quantile sorts them.
_SORTED = 1 << 20


class Numbers(NamedTuple):
    """Scale, zero point and type of an activation."""

    scale: float
    zero_point: int
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}, scale {self.scale:.4g}, zero point {self.zero_point}"


@dataclass
class Observer:
    """The range of a value: the least and largest of all batches."""

    low: float = 0.0
    high: float = 0.0
    batches: int = 0

    def see(self, values: Any) -> None:
        """Take the values of a batch into the range."""
        if not values.numel():
            return
        low, high = self.range_of(values.detach())
        self.low, self.high = (low, high) if not self.batches else self.joined(low, high)
        self.batches += 1

    def range_of(self, values: Any) -> tuple[float, float]:
        low, high = values.aminmax()
        return float(low), float(high)

    def joined(self, low: float, high: float) -> tuple[float, float]:
        # In this order a NaN stays.
        return (low if not low >= self.low else self.low), (high if not high <= self.high else self.high)


@dataclass
class Moving(Observer):
    """A moving average of the least and the largest value of each batch."""

    rate: float = 0.1

    def joined(self, low: float, high: float) -> tuple[float, float]:
        return self.low + self.rate * (low - self.low), self.high + self.rate * (high - self.high)


@dataclass
class Percentile(Observer):
    """The mean over the batches of the range that has this percentage of the values, cut at both ends alike."""

    percent: float = 99.99

    def range_of(self, values: Any) -> tuple[float, float]:
        flat = values.to(torch.float32).flatten()
        flat = flat[:: -(-len(flat) // _SORTED)]
        cut = (100 - self.percent) / 200
        low, high = flat.quantile(torch.tensor([cut, 1 - cut], dtype=flat.dtype, device=flat.device)).tolist()
        return low, high

    def joined(self, low: float, high: float) -> tuple[float, float]:
        n = self.batches
        return (n * self.low + low) / (n + 1), (n * self.high + high) / (n + 1)


def observer_maker(observer: Any) -> Callable[[], Observer]:
    """Return the function that makes an observer from its name, or its name and its parameter.

    Raises ``ValueError`` for another name, or a parameter outside of its range.
    """
    name, *parameter = observer if isinstance(observer, tuple) else (observer,)
    if name == "minmax" and not parameter:
        return Observer
    if name in ("moving", "percentile") and len(parameter) <= 1:
        least, most = (0, 1) if name == "moving" else (50, 100)
        if any(not least < one <= most for one in parameter):
            raise ValueError(f"observer={observer!r}: the number must be above {least}, and at most {most}")
        return lambda: (Moving if name == "moving" else Percentile)(0.0, 0.0, 0, *parameter)
    raise ValueError(f"observer={observer!r} must be 'minmax', ('moving', rate) or ('percentile', percent)")


def numbers_of(low: float, high: float, dtype: str, symmetric: bool) -> Numbers:
    """Return scale and zero point for the range from `low` to `high`, widened to contain 0.

    Without negative values the zero point is the least value of the type; with them the value nearest to where 0 falls.
    If `symmetric`, it is always 0, in int8 where there are negative values.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    if symmetric and (low < 0 or dtype == "int8"):
        return Numbers(_float32(max(-low, high) / 127), 0, "int8")
    least, largest = limits(dtype)
    scale = _float32((high - low) / (largest - least))
    return Numbers(scale, min(max(round(least - low / scale), least), largest), dtype)


def _float32(scale: float) -> float:
    """Return a scale in float32; 1 for a range without extent."""
    return float(torch.tensor(scale, dtype=torch.float32)) if scale >= LEAST_SCALE else 1.0
