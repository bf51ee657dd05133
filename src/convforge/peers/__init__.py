"""Other libraries under the same contract as our methods, marked not ours: what we measure ourselves against."""

from __future__ import annotations

from typing import Any

from convforge.algorithms.contract import Algorithm

PEERS: tuple[Algorithm[Any, Any], ...] = ()
