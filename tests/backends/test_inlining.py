"""Parts of CPU kernels: copied into each place that calls them, and read once however many there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba.core.inline_closurecall import InlineWorker

from convforge.backends.cpu import inlining
from convforge.backends.cpu.jit import inlined, jit


@inlined
def clamped(value: Any, least: Any) -> Any:
    """One of two values, by a branch, so that the part has blocks of its own."""
    if value < least:
        return least
    return value


@inlined
def added(a: Any, b: Any, least: Any) -> Any:
    """A part that calls another twice, with a variable of the name that its caller has."""
    total = clamped(a, least)
    for value in b:
        total += clamped(value, least)
    return total


@jit
def kernel(a: Any, b: Any) -> Any:
    """Both parts, several times, with other values and other types."""
    total = added(b[0], a, -1) - added(a[0], b, 0)
    return clamped(total, 0), added(1, b, 2), total


def by_python(a: Any, b: Any) -> Any:
    """The same without a compiler."""

    def plus(first: Any, rest: Any, least: Any) -> Any:
        return max(first, least) + sum(max(value, least) for value in rest)

    total = plus(b[0], a, -1) - plus(a[0], b, 0)
    return max(total, 0), plus(1, b, 2), total


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtypes", [(np.int32, np.float64), (np.float64, np.int32), (np.float32, np.float32)])
def test_a_part_is_read_once_and_right_everywhere(dtypes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = InlineWorker.run_untyped_passes
    monkeypatch.setattr(
        InlineWorker, "run_untyped_passes", lambda self, f, ssa=False: read.append(f.__name__) or real(self, f, ssa)
    )
    monkeypatch.setattr(inlining, "_read", {})
    kernel.recompile()
    a, b = np.array([-3, 2, 7], dtypes[0]), np.array([5, -4, 1, 0], dtypes[1])
    assert kernel(a, b) == by_python(a.tolist(), b.tolist())
    kernel.recompile()
    assert kernel(a[::2], b) == by_python(a[::2].tolist(), b.tolist())
    assert sorted(read) == ["added", "clamped"]
