"""Measuring: rings that exceed the cache, samples until the median is narrow, the machine's state and its ceilings."""

from convforge.measure.ceilings import Ceilings, measure_ceilings, moved
from convforge.measure.copies import Copies
from convforge.measure.machine import device_slug, machine_table, repository, versions
from convforge.measure.ranking import Order, Ranking, order, rank
from convforge.measure.ring import Cycle, Ring, RingSize, Slot, output_form, ring_size
from convforge.measure.stopping import StoppingRule, median_uncertainty, spread
from convforge.measure.timer import Timing, interleave, measure

__all__ = [
    "Ceilings",
    "Copies",
    "Cycle",
    "Order",
    "Ranking",
    "Ring",
    "RingSize",
    "Slot",
    "StoppingRule",
    "Timing",
    "device_slug",
    "interleave",
    "machine_table",
    "measure",
    "measure_ceilings",
    "median_uncertainty",
    "moved",
    "order",
    "output_form",
    "rank",
    "repository",
    "ring_size",
    "spread",
    "versions",
]
