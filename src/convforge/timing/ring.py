"""Rings: so many copies of inputs, weights and outputs that no call finds its own in the cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np

from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime, upload_weights
from convforge.problem import Problem
from convforge.problem.types import is_integer

# A cold ring has twice the bytes of the last-level cache, because caches do not evict strictly the oldest line.
COLD_FACTOR = 2
RING_LIMIT_BYTES = 512 << 20  # on CPUs; on GPUs 1 / GPU_MEMORY_SHARE of the memory, to give large images two slots
GPU_MEMORY_SHARE = 16
MOST_SLOTS = 256


class RingSize(NamedTuple):
    """Number of slots; `cold` if they have at least :data:`COLD_FACTOR` times the bytes of the cache."""

    slots: int
    cold: bool


@dataclass(slots=True)
class Slot:
    """The buffers of one call. Slots do not share x, w and out."""

    x: Any
    w: Any
    out: Any
    result: Any  # of the last call: `out`, or a library's own array
    operands: dict[str, Any]  # of the epilogue
    kind: int  # index of its set of inputs; neighbours differ, so that a stale result is noticed


def last_level_cache(facts: DeviceFacts) -> int:
    """Bytes of the largest cache of a device."""
    return max(facts.l1_bytes, facts.l2_bytes, facts.l3_bytes)


def ring_size(slot_bytes: int, facts: DeviceFacts, limit_bytes: int = RING_LIMIT_BYTES) -> RingSize:
    """Number of slots of `slot_bytes` bytes: enough for a cold ring, and at least two (one if the limit demands it)."""
    wanted = COLD_FACTOR * last_level_cache(facts)
    slot_bytes = max(slot_bytes, 1)
    slots = min(max(-(-wanted // slot_bytes), 2), MOST_SLOTS, max(limit_bytes // slot_bytes, 1))
    return RingSize(slots, slots * slot_bytes >= wanted)


def poison_of(dtype: np.dtype[Any]) -> int:
    """Return the byte that fills unwritten outputs: floats become NaN, integers an unlikely value."""
    return 0xA5 if is_integer(dtype.name) else 0xFF


def ring_limit(facts: DeviceFacts) -> int:
    """Upper limit of a ring's bytes."""
    share = facts.memory_bytes // GPU_MEMORY_SHARE if facts.backend == "cuda" else 0
    return max(share, RING_LIMIT_BYTES)


class Ring:
    """Slots that calls use in turn; slot i holds a copy of input set ``i % len(sets)``."""

    def __init__(
        self, problem: Problem, sets: Sequence[Any], runtime: Runtime, *, limit_bytes: int | None = None
    ) -> None:
        shape, dtype = problem.out_shape, np.dtype(problem.out_dtype)
        self.runtime, self._sets = runtime, len(sets)
        out_bytes = math.prod(shape) * dtype.itemsize
        self.slot_bytes = int(sum(a.nbytes for a in (sets[0].x, sets[0].w) if a is not None)) + out_bytes
        self.size = ring_size(self.slot_bytes, runtime.facts, limit_bytes or ring_limit(runtime.facts))
        self.slots: list[Slot] = []
        operands = [{name: runtime.upload(array) for name, array in chosen.operands.items()} for chosen in sets]
        self._further = tuple(result.name for result in problem.results[1:])  # results among the operands
        layout = problem.weights.layout if problem.weights else ""
        for kind in islice(cycle(range(len(sets))), self.size.slots):
            chosen, out = sets[kind], runtime.empty(shape, dtype)
            w = None if chosen.w is None else upload_weights(runtime, chosen.w, layout)
            self.slots.append(Slot(runtime.upload(chosen.x), w, out, out, operands[kind], kind))

    def calls(self, plan: Any, workspace: Any = None) -> Cycle:
        """Return a function that calls the plan on the next slot each time, and prepares weights like ``conv2d``."""
        slots, laid = self.slots, self.laid(plan)

        def call(i: int) -> None:
            slot, (x, operands) = slots[i], laid[i]
            out = None if plan.allocates else slot.out  # copying from a library's own array does not count as its time
            slot.result = plan(plan.buffers(x, plan.borrow(slot.w), operands, out, workspace))

        return Cycle(len(slots), call)

    def laid(self, plan: Any) -> list[tuple[Any, Any]]:
        """Return each slot's input in the plan's layout, and its operands in the plan's types."""
        operands = {slot.kind: plan.lay_operands(slot.operands) for slot in self.slots[: self._sets]}
        return [(plan.lay(slot.x), operands[slot.kind]) for slot in self.slots]

    def poison(self) -> None:
        """Fill every slot's output with poison, and make it the slot's result; so too further results."""
        for slot in self.slots:
            slot.result = slot.out
            self.runtime.fill(slot.out, poison_of(slot.out.dtype))
            for name in self._further:
                self.runtime.fill(slot.operands[name], poison_of(slot.operands[name].dtype))


class Cycle:
    """A function that uses the next of `count` slots at each call."""

    __slots__ = ("_call", "_count", "_next", "calls")

    def __init__(self, count: int, call: Callable[[int], None]) -> None:
        self._count, self._call, self._next, self.calls = count, call, 0, 0

    def __call__(self) -> None:
        at = self._next
        self._next = at + 1 if at + 1 < self._count else 0
        self.calls += 1
        self._call(at)

    @property
    def reached(self) -> int:
        """Number of slots used at least once."""
        return min(self.calls, self._count)
