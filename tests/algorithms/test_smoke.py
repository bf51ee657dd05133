"""The problems that compute-sanitizer runs on a GPU: each method computes at least one of them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.algorithms.compiling import H200
from tests.gpu.smoke import taken

from convforge.algorithms import ON_DEVICE


@pytest.mark.parametrize("algorithm", [a for a in ON_DEVICE if a.backend == "cuda"], ids=lambda a: str(a.key))
def test_every_method_has_a_problem_for_the_sanitizer(algorithm: Any) -> None:
    assert taken(algorithm, H200)
