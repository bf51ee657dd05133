"""`convforge filter`, and the same random numbers for each test."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.cli.commands import Ran
from tests.cli.filter.images import RANDOM


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    """Begin each test with the same random numbers, whichever tests ran before it."""
    RANDOM.bit_generator.state = np.random.default_rng(12).bit_generator.state


@pytest.fixture
def run(run: Callable[..., Ran]) -> Callable[..., Ran]:
    """Run `convforge filter WORDS...` in this process."""
    return lambda *words: run("filter", *words)
