"""Rule that ends sampling: by robust statistics the median is certain enough, or the time is used up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Decision = Literal["more", "narrow", "noisy", "budget"]

# Standard error of the median of n normal samples: sqrt(pi / 2) * sigma / sqrt(n), with sigma = IQR / 1.349
# (Kendall and Stuart, The Advanced Theory of Statistics, vol. 1, ch. 10).
_MEDIAN_ERROR = math.sqrt(math.pi / 2) / 1.349


def spread(samples: Sequence[float]) -> float:
    """Half the interquartile range, divided by the median."""
    low, middle, high = np.percentile(samples, [25, 50, 75])
    return float((high - low) / 2 / middle) if middle > 0 else 0.0


def median_uncertainty(samples: Sequence[float]) -> float:
    """Estimated standard error of the median, divided by the median."""
    return _MEDIAN_ERROR * 2 * spread(samples) / math.sqrt(len(samples))


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """Limits that decide when sampling stops."""

    sample_s: float = 200e-6  # least duration of a sample in seconds; faster calls are batched
    samples: int = 15  # least number of samples, unless `budget_s` ends first
    fewest: int = 3  # least number of samples, even beyond the budget
    narrow: float = 0.01  # stop when the median's relative standard error is at most this
    patience_s: float = 1.0  # after this long, with enough samples, stop and call the result noisy
    budget_s: float = 30.0  # after this long stop even with too few samples

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.samples:
            raise ValueError(f"fewest={self.fewest} must lie between 1 and samples={self.samples}")
        for name in ("sample_s", "narrow", "patience_s", "budget_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")

    def decide(self, samples: Sequence[float], elapsed_s: float) -> Decision:
        """Decide after `elapsed_s` seconds: "more" samples, or the reason to stop ("budget": with too few samples)."""
        if len(samples) < self.fewest:
            return "more"
        if len(samples) < self.samples:
            return "budget" if elapsed_s >= self.budget_s else "more"
        if median_uncertainty(samples) <= self.narrow:
            return "narrow"
        return "noisy" if elapsed_s >= min(self.patience_s, self.budget_s) else "more"
