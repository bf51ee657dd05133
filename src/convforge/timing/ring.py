"""Rings: so many copies of inputs, weights and outputs that a call finds none of them in the cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime, upload_weights
from convforge.problem import Problem
from convforge.problem.types import is_integer

# A ring must be twice the last-level cache before it counts as cold: caches do not evict strictly the oldest line.
COLD_FACTOR = 2
RING_LIMIT_BYTES = 512 << 20  # of a CPU's memory; of a GPU's, this share, so that its largest pictures get two slots
GPU_MEMORY_SHARE = 16
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
    result : array
        What the last call gave back: `out`, or a library's own array, which no other call may be given to write to.
    operands : dict of str to array
        Those of the epilogue.
    kind : int
        Which of the sets of inputs it holds: neighbours differ, so that a stale result cannot pass for a fresh one.
    """

    x: Any
    w: Any
    out: Any
    result: Any
    operands: dict[str, Any]
    kind: int


def last_level_cache(facts: DeviceFacts) -> int:
    """Bytes of the largest cache that a device has."""
    return max(facts.l1_bytes, facts.l2_bytes, facts.l3_bytes)


def ring_size(slot_bytes: int, facts: DeviceFacts, limit_bytes: int = RING_LIMIT_BYTES) -> RingSize:
    """Number of slots of `slot_bytes` bytes in the ring.

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


def poison_of(dtype: np.dtype[Any]) -> int:
    """A byte that makes of every element what no method computes: a NaN, or a pattern for integers."""
    return 0xA5 if is_integer(dtype.name) else 0xFF


def ring_limit(facts: DeviceFacts) -> int:
    """Bytes that a ring may take."""
    return (
        RING_LIMIT_BYTES if facts.backend != "cuda" else max(facts.memory_bytes // GPU_MEMORY_SHARE, RING_LIMIT_BYTES)
    )


class Ring:
    """Slots that calls take in turn.

    Parameters
    ----------
    problem : Problem
    sets : sequence of check.Inputs
        One or more sets of inputs; slot i holds a copy of set ``i % len(sets)``.
    runtime : Runtime
        Of the device whose cache is to be exceeded.
    """

    def __init__(
        self,
        problem: Problem,
        sets: Sequence[Any],
        runtime: Runtime,
        *,
        limit_bytes: int | None = None,
    ) -> None:
        shape, dtype = problem.out_shape, np.dtype(problem.out_dtype)
        self.runtime = runtime
        out_bytes = math.prod(shape) * dtype.itemsize
        self.slot_bytes = int(sum(a.nbytes for a in (sets[0].x, sets[0].w) if a is not None)) + out_bytes
        self.size = ring_size(self.slot_bytes, runtime.facts, limit_bytes or ring_limit(runtime.facts))
        self.slots: list[Slot] = []
        operands = [{name: runtime.upload(array) for name, array in chosen.operands.items()} for chosen in sets]
        layout = problem.weights.layout if problem.weights else ""
        for i in range(self.size.slots):
            chosen = sets[i % len(sets)]
            w = None if chosen.w is None else upload_weights(runtime, chosen.w, layout)
            out = runtime.empty(shape, dtype)
            self.slots.append(Slot(runtime.upload(chosen.x), w, out, out, operands[i % len(sets)], i % len(sets)))

    def calls(self, plan: Any, workspace: Any = None) -> Cycle:
        """Calls of a plan that prepare the weights themselves, as ``conv2d`` does, on the next slot each time.

        Where the result is the library's own array, copying it into ours would be no part of its time.
        """
        slots, laid = self.slots, self.laid(plan)

        def call(i: int) -> None:
            slot = slots[i]
            out = None if plan.allocates else slot.out
            slot.result = plan(plan.buffers(laid[i], plan.borrow(slot.w), slot.operands, out, workspace))

        return Cycle(len(slots), call)

    def laid(self, plan: Any) -> list[Any]:
        """Each slot's input as the plan would have it lie."""
        return [plan.lay(slot.x) for slot in self.slots]

    def poison(self) -> None:
        """Poison every slot's output, which is its result until the next call; a library's own array is let go."""
        for slot in self.slots:
            slot.result = slot.out
            self.runtime.fill(slot.out, poison_of(slot.out.dtype))


class Cycle:
    """A call that takes the next of `count` slots each time: what :func:`convforge.timing.measure` is given.

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
