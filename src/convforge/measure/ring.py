"""Rings: so many copies of inputs, weights and outputs that a call finds none of them in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from convforge.backends.facts import DeviceFacts
from convforge.problem import Conv2dProblem, ElementwiseProblem, GemmProblem, Problem

# A ring must be twice the last-level cache before it counts as cold: caches do not evict strictly the oldest line.
COLD_FACTOR = 2
RING_LIMIT_BYTES = 512 << 20
MOST_SLOTS = 256


@dataclass(frozen=True, slots=True)
class RingSize:
    """Slots of a ring, and whether their bytes exceed the cache by enough."""

    slots: int
    cold: bool


@dataclass(slots=True)
class Slot:
    """The buffers of one call.

    Attributes
    ----------
    x, w, out : array
        Copies that no other slot shares.
    operands : contract.Operands
    kind : int
        Which of the sets of inputs it holds: neighbours differ, so that a stale result cannot pass for a fresh one.
    """

    x: Any
    w: Any
    out: Any
    operands: Any
    kind: int


def last_level_cache(facts: DeviceFacts) -> int:
    """Bytes of the largest cache that a device has."""
    return max(facts.l1_bytes, facts.l2_bytes, facts.l3_bytes)


def ring_size(slot_bytes: int, facts: DeviceFacts, limit_bytes: int = RING_LIMIT_BYTES) -> RingSize:
    """How many slots of `slot_bytes` bytes to cycle through.

    At least two where the limit allows (one otherwise), at most :data:`MOST_SLOTS`, and no more than make it cold.

    Examples
    --------
    >>> from convforge.backends.cpu.facts import cpu_facts
    >>> import dataclasses
    >>> facts = dataclasses.replace(cpu_facts(), l1_bytes=0, l2_bytes=0, l3_bytes=32 << 20)
    >>> ring_size(1 << 20, facts), ring_size(1 << 10, facts), ring_size(1 << 30, facts)
    (RingSize(slots=64, cold=True), RingSize(slots=256, cold=False), RingSize(slots=1, cold=True))
    """
    wanted = COLD_FACTOR * last_level_cache(facts)
    slot_bytes = max(slot_bytes, 1)
    slots = min(max(-(-wanted // slot_bytes), 2), MOST_SLOTS, max(limit_bytes // slot_bytes, 1))
    return RingSize(slots, slots * slot_bytes >= wanted)


def empty_output(problem: Problem) -> Any:
    """An array for the problem's output, not yet written."""
    if isinstance(problem, Conv2dProblem):
        return np.empty(problem.out_shape, problem.out_dtype)
    if isinstance(problem, GemmProblem):
        return np.empty((problem.m, problem.n), problem.dtype)
    if isinstance(problem, ElementwiseProblem):
        return np.empty(problem.size, problem.dtype)
    return np.empty(problem.out_shape, problem.dtype)


def poison(out: Any) -> None:
    """Fill an output with what no method computes: NaN, or a pattern for integers."""
    if out.dtype.kind == "f":
        out.fill(np.nan)
    else:
        out.view(np.uint8).fill(0xA5)


class Ring:
    """Slots that calls take in turn.

    Parameters
    ----------
    problem : Problem
    sets : sequence of check.Inputs
        One or more sets of inputs; slot i holds a copy of set ``i % len(sets)``.
    facts : DeviceFacts
        Whose cache is to be exceeded.
    copy : callable
        Array -> a copy of it on the device.
    """

    def __init__(
        self,
        problem: Problem,
        sets: Sequence[Any],
        facts: DeviceFacts,
        *,
        copy: Callable[[Any], Any] = np.array,
        limit_bytes: int = RING_LIMIT_BYTES,
    ) -> None:
        outputs = empty_output(problem)
        self.slot_bytes = int(sum(a.nbytes for a in (sets[0].x, sets[0].w, outputs) if a is not None))
        self.size = ring_size(self.slot_bytes, facts, limit_bytes)
        self.slots: list[Slot] = []
        for i in range(self.size.slots):
            chosen = sets[i % len(sets)]
            w = None if chosen.w is None else copy(chosen.w)
            out = outputs if i == 0 else np.empty_like(outputs)
            self.slots.append(Slot(copy(chosen.x), w, copy(out), chosen.operands, i % len(sets)))

    def poison(self) -> None:
        """Poison every slot's output."""
        for slot in self.slots:
            poison(slot.out)


class Cycle:
    """A call that takes the next of `count` slots each time: what :func:`convforge.measure.measure` is given.

    Examples
    --------
    >>> seen = []
    >>> turn = Cycle(3, seen.append)
    >>> for _ in range(4): turn()
    >>> seen, turn.reached
    ([0, 1, 2, 0], 3)
    """

    __slots__ = ("_call", "_count", "_next", "calls")

    def __init__(self, count: int, call: Callable[[int], None]) -> None:
        self._count = count
        self._call = call
        self._next = 0
        self.calls = 0

    def __call__(self) -> None:
        at = self._next
        self._next = at + 1 if at + 1 < self._count else 0
        self.calls += 1
        self._call(at)

    @property
    def reached(self) -> int:
        """Slots that have been used at least once."""
        return min(self.calls, self._count)
