"""Copies that times are held against, on a GPU: out of memory below the ceiling, out of the cache maybe above."""

from __future__ import annotations

import pytest
from tests.gpu.present import gpu, need_gpu

from convforge.timing.ceilings import copy_bandwidth
from convforge.timing.copies import Copies
from convforge.timing.ring import last_level_cache
from convforge.timing.stopping import StoppingRule

need_gpu()

RULE = StoppingRule(samples=5, patience_s=0.1, budget_s=2.0)


def test_a_cold_copy_reaches_the_ceiling_from_below_and_a_small_one_takes_less_time() -> None:
    runtime = gpu()
    copies, ceiling = Copies(runtime), copy_bandwidth(runtime)
    large, cold = copies.time(8 * last_level_cache(runtime.facts), RULE)
    assert cold.cold
    assert 0.5 * ceiling < large / cold.median_s < 1.1 * ceiling
    small, hot = copies.time(1 << 16, RULE)
    assert small == 1 << 16
    assert not hot.cold
    assert hot.median_s < cold.median_s


@pytest.mark.parametrize("nbytes", [1, 32, 33, 4096, (1 << 22) + 17])
def test_any_number_of_bytes_is_copied(nbytes: int) -> None:
    moved, timing = Copies(gpu()).time(nbytes, RULE)
    assert 0 <= moved - nbytes < 32
    assert timing.median_s > 0
