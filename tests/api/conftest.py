"""The same random numbers for each test, and PyTorch where it is installed."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import numpy as np
import pytest
from tests.api.definition import RANDOM


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    """Begin each test with the same random numbers, whichever tests ran before it."""
    RANDOM.bit_generator.state = np.random.default_rng(24).bit_generator.state


@pytest.fixture(scope="session")
def torch() -> Any:
    """PyTorch; its absence is a skip at home and a failure in continuous integration."""
    if importlib.util.find_spec("torch") is None:
        if os.environ.get("CI"):
            pytest.fail("continuous integration installs torch, and it is not here")
        pytest.skip("torch is not installed")
    import torch

    return torch
