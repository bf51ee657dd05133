"""The architectures that kernels are compiled for, as sets of parameters of a test."""

from __future__ import annotations

import pytest
from tests.algorithms.compiled_problems import CARDS, OLD
from tests.algorithms.compiling import compiled
from tests.algorithms.nvrtc12 import compiled12

# What `make test` looks at: that which results are measured on, and the oldest, which another NVRTC compiles for.
FIRST = ("sm_61", "sm_90")


def _marks(architecture: str) -> list[pytest.MarkDecorator]:
    """What the tests of an architecture need, and when they run."""
    needs = [compiled, compiled12] if architecture in OLD else [compiled]
    return needs if architecture in FIRST else [*needs, pytest.mark.thorough]


ARCHITECTURES = [pytest.param(name, marks=_marks(name)) for name in CARDS]
