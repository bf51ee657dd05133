"""The preference for implicit GEMM that both backends share."""

from __future__ import annotations

from convforge.algorithms.traits import Preference, Rank
from convforge.problem import Conv2dProblem


def shared_pixels(problem: Conv2dProblem, rank: Rank) -> Preference | None:
    """A preference of this rank where there are several outputs of several products."""
    if problem.k_per_group < 4 or problem.taps < 16:
        return None
    return Preference(
        rank, f"{problem.k_per_group} outputs of {problem.taps} products each share every pixel that is loaded"
    )
