"""Rings: how many slots, whether cold, and that no two share memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from convforge.backends.cpu import CpuRuntime, cpu_facts, cpu_runtime
from convforge.problem import parse_problem
from convforge.timing.ring import MOST_SLOTS, Cycle, Ring, poison_of, ring_size
from convforge.verify import Inputs

FACTS = dataclasses.replace(cpu_facts(), l1_bytes=1 << 10, l2_bytes=1 << 12, l3_bytes=1 << 20)


@pytest.mark.parametrize(
    "slot_bytes, slots, cold",
    [(1 << 19, 4, True), (3 << 19, 2, True), (16, MOST_SLOTS, False), (1 << 30, 1, True), (0, MOST_SLOTS, False)],
)
def test_size(slot_bytes: int, slots: int, cold: bool) -> None:
    size = ring_size(slot_bytes, FACTS)
    assert (size.slots, size.cold) == (slots, cold)


def test_a_ring_that_may_not_grow_is_hot() -> None:
    size = ring_size(1 << 18, FACTS, limit_bytes=1 << 20)
    assert (size.slots, size.cold) == (4, False)


@pytest.mark.parametrize(
    "text", ["n1c2h8w9_k3r3s3_st1_p1_f32_nchw", "n1c2h8w9_k3r3s3_st1_p1_u8_nhwc", "m4n5k6_f64",
             "max_n1c2h8w9_r2s2_st2_p0_f32_nchw", "relu64_f16"]
)  # fmt: skip
def test_slots_are_copies_that_take_turns_and_outputs_can_be_poisoned(text: str) -> None:
    from convforge.verify import make_inputs, truth

    problem = parse_problem(text)
    sets = [make_inputs(problem, seed=seed) for seed in range(2)]
    ring = Ring(problem, sets, CpuRuntime(FACTS))
    arrays = [a for slot in ring.slots for a in (slot.x, slot.w, slot.out) if a is not None]
    addresses = [a.ctypes.data for a in arrays]
    assert len(set(addresses)) == len(addresses)
    for i, slot in enumerate(ring.slots[:5]):
        assert slot.kind == i % 2
        np.testing.assert_array_equal(slot.x, sets[i % 2].x)
        assert slot.out.shape == truth(problem, sets[0]).value.shape
    ring.poison()
    if ring.slots[0].out.dtype.kind == "f":
        assert all(np.isnan(slot.out).all() for slot in ring.slots)
    else:
        assert all((slot.out.view(np.uint8) == 0xA5).all() for slot in ring.slots)


def test_poison_overwrites_what_was_there() -> None:
    for dtype in ("int16", "uint8", "float16", "float64"):
        out = np.zeros(5, dtype)
        cpu_runtime().fill(out, poison_of(out.dtype))
        assert np.isnan(out).all() if out.dtype.kind == "f" else (out != 0).all()


def test_a_librarys_own_array_is_a_result_and_no_output_of_the_next_plans_call() -> None:
    """In a final two plans take turns on one ring, and PyTorch's array may lie as no other library takes it."""
    from convforge.verify import make_inputs

    ring = Ring(problem := parse_problem("n1c2h8w9_k3r3s3_st1_p1_f32_nhwc"), [make_inputs(problem)], CpuRuntime(FACTS))
    lent = np.zeros(problem.out_shape, np.float32)
    given: list[Any] = []

    class Plan:
        """One that lends its own array, or one that writes to what it is given."""

        def __init__(self, *, allocates: bool) -> None:
            self.allocates = allocates

        def lay(self, x: Any) -> Any:
            return x

        def lay_operands(self, operands: Any) -> Any:
            return operands

        def borrow(self, w: Any) -> Any:
            return w

        def buffers(self, x: Any, w: Any, operands: Any, out: Any, workspace: Any) -> Any:
            return out

        def __call__(self, out: Any) -> Any:
            given.append(out)
            return lent if self.allocates else out

    lends, writes = (ring.calls(Plan(allocates=allocates)) for allocates in (True, False))
    lends()
    assert given == [None]
    assert ring.slots[0].result is lent
    writes()
    assert given[1] is ring.slots[0].out is ring.slots[0].result
    assert given[1] is not lent
    lends()
    lends()
    ring.poison()
    assert all(slot.result is slot.out and np.isnan(slot.out).all() for slot in ring.slots)
    assert (lent == 0).all()


def test_inputs_without_weights_have_slots_without_weights() -> None:
    problem = parse_problem("relu64_f32")
    ring = Ring(problem, [Inputs(np.ones(64, np.float32), None, {})], CpuRuntime(FACTS))
    assert ring.slots[0].w is None


def test_a_cycle_knows_which_slots_it_reached() -> None:
    seen: list[int] = []
    cycle = Cycle(4, seen.append)
    cycle()
    cycle()
    assert cycle.reached == 2
    for _ in range(7):
        cycle()
    assert cycle.reached == 4
    assert seen == [0, 1, 2, 3, 0, 1, 2, 3, 0]
