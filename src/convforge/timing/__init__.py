"""Measurement: rings that exceed the cache, samples until the median is known, the machine's state and ceilings."""

from convforge.timing.ceilings import Ceilings, measure_ceilings, moved
from convforge.timing.copies import Copies
from convforge.timing.machine import device_slug, machine_table, repository, versions
from convforge.timing.ranking import Order, Ranking, order, rank
from convforge.timing.ring import Cycle, Ring, RingSize, Slot, ring_size
from convforge.timing.stopping import StoppingRule, median_uncertainty, spread
from convforge.timing.timer import Timing, interleave, measure

__all__ = [
    "Ceilings", "Copies", "Cycle", "Order", "Ranking", "Ring", "RingSize", "Slot", "StoppingRule", "Timing",
    "device_slug", "interleave", "machine_table", "measure", "measure_ceilings", "median_uncertainty", "moved", "order",
    "rank", "repository", "ring_size", "spread", "versions",
]  # fmt: skip
