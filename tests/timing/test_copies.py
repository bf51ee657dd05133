"""Copies that times are held against: of the right bytes, over a ring like a problem's, and copies indeed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.backends.emulated import needs_emulator

from convforge.backends.cpu import CpuRuntime, cpu_runtime
from convforge.problem import parse_problem
from convforge.timing.copies import Copies, copying
from convforge.timing.ring import MOST_SLOTS, Ring
from convforge.timing.stopping import StoppingRule

SMALL_CACHE = dataclasses.replace(cpu_runtime().facts, l1_bytes=1 << 10, l2_bytes=1 << 12, l3_bytes=1 << 16)
RULE = StoppingRule(samples=5, sample_s=0.0)


class Counting(CpuRuntime):
    """Counts launches and the floats that they were given; a second takes as many as the test says."""

    def __init__(self) -> None:
        super().__init__(SMALL_CACHE)
        self.sizes: list[int] = []
        self.allocated: list[int] = []

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        self.allocated.append(int(np.prod(shape)))
        return super().empty(shape, dtype)

    def launch(self, kernel: Any, info: Any, args: Any, stream: Any = None) -> None:
        self.sizes.append(args[0].size)
        super().launch(kernel, info, args, stream)

    def time(self, run: Callable[[], None], repeats: int) -> float:
        for _ in range(repeats):
            run()
        return 0.25 * repeats


@pytest.mark.parametrize(
    "nbytes, moved", [(0, 32), (1, 32), (32, 32), (33, 64), (100_000, 100_000), (1 << 20, 1 << 20)]
)
def test_half_is_read_and_half_is_written(nbytes: int, moved: int) -> None:
    runtime = Counting()
    copies = Copies(runtime)
    found, timing = copies.time(nbytes, RULE)
    assert found == moved
    assert timing.samples == (0.25,) * 5
    assert set(runtime.sizes[-5:]) == {moved // 8}, "floats of a call"


@pytest.mark.parametrize(
    "text",
    ["n1c3h64w64_k3r3s3_p1_f32_nchw", "n1c3h8w8_k3r3s3_p1_f32_nchw", "n4c3h64w64_k3r3s3_p1_f32_nchw",
     "n1c3h101w67_k3r5s5_p2_g3_u8-f32-u8-f32_nhwc"],
)  # fmt: skip
def test_the_ring_is_as_cold_as_the_problems_own(text: str) -> None:
    from convforge.verify import make_inputs

    problem: Any = parse_problem(text)
    runtime = Counting()
    own = Ring(problem, [make_inputs(problem)], runtime)
    _, timing = Copies(runtime).time(problem.least_bytes, RULE)
    assert timing.cold == own.size.cold
    assert abs(timing.ring - own.size.slots) <= 1, "its bytes are rounded up"


def test_a_tiny_copy_is_hot_and_cycles_through_every_slot() -> None:
    _, timing = Copies(Counting()).time(32, RULE)
    assert (timing.ring, timing.cold) == (MOST_SLOTS, False)


def test_small_rings_share_their_memory_and_large_ones_give_theirs_back() -> None:
    runtime = Counting()
    copies = Copies(runtime)
    for nbytes in (1 << 10, 1 << 12, 1 << 14):
        copies.time(nbytes, RULE)
    assert len(runtime.allocated) == 2, "one source, one target"
    copies.time(1 << 20, RULE)
    copies.time(1 << 20, RULE)
    assert len(runtime.allocated) == 6


def test_what_does_not_copy_is_found() -> None:
    class Lazy(Counting):
        def launch(self, kernel: Any, info: Any, args: Any, stream: Any = None) -> None:
            source, target, block = args
            short = slice(None, -1 if self.sizes else None)  # but for the first, which makes what is copied
            super().launch(kernel, info, (source[short], target[short], block), stream)

    with pytest.raises(RuntimeError, match="the copy kernel did not copy"):
        Copies(Lazy()).time(1 << 16, RULE)


def test_random_numbers_are_copied() -> None:
    copies = Copies(Counting())
    copies.time(1 << 14, RULE)
    assert copies._kept is not None
    sources, targets = copies._kept
    assert np.array_equal(sources[: 1 << 10], targets[: 1 << 10])
    assert abs(float(sources.mean())) < 0.1
    assert 0.9 < float(sources.std()) < 1.1


@needs_emulator
@pytest.mark.parametrize("floats", [4, 1020, 4096])
def test_the_gpus_kernel_on_the_emulator(floats: int) -> None:
    from convforge.backends.emulator import EmulatorRuntime

    runtime = EmulatorRuntime()
    source, target = np.arange(floats, dtype=np.float32), np.full(floats + 4, -1, np.float32)
    copying(runtime, source, target[:floats])()
    assert np.array_equal(target[:floats], source)
    assert (target[floats:] == -1).all()
    runtime = EmulatorRuntime()
    runtime.facts = dataclasses.replace(runtime.facts, l1_bytes=0, l2_bytes=1 << 14, l3_bytes=0)
    moved, timing = Copies(runtime).time(8 * floats, StoppingRule(samples=3, sample_s=0.0))
    assert moved == 8 * floats
    assert timing.median_s > 0
