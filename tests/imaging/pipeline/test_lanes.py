"""Lanes: pixels through a device by pinned buffers, whose copies end only when the stream is waited for."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import convforge
from convforge.algorithms.contract import PreparedFilter
from convforge.backends.cpu import cpu_runtime
from convforge.backends.emulator import why_absent
from convforge.backends.emulator.runtime import emulator_runtime
from convforge.call.dispatch import PREPARED_KEPT, find_plan
from convforge.imaging.pipeline.lanes import (
    GRAIN,
    LANES,
    Clock,
    Convolver,
    DeviceLane,
    HostLane,
    HostRing,
    PreparedPlan,
    lanes_of,
)
from convforge.problem import Conv2dProblem, parse_problem

RANDOM = np.random.default_rng(21)
needs_emulator = pytest.mark.skipif(why_absent() is not None, reason=str(why_absent()))


class LateRuntime:
    """A device that does nothing before its stream is waited for, as a GPU may, and counts what is allocated."""

    def __init__(self) -> None:
        self.queues: dict[int, list[Callable[[], None]]] = {}
        self.pinned_bytes: list[int] = []
        self.device_bytes: list[int] = []
        self.ticks = 0.0

    @contextmanager
    def stream(self) -> Iterator[int]:
        number = len(self.queues)
        self.queues[number] = []
        yield number
        assert self.queues[number] == [], "the lane left work on its stream"

    def pinned(self, nbytes: int) -> Any:
        self.pinned_bytes.append(nbytes)
        return np.full(nbytes, 0xFF, np.uint8)

    def allocate(self, nbytes: int, stream: Any = None) -> Any:
        assert stream in self.queues, "memory of another stream"
        self.device_bytes.append(nbytes)
        return np.full(nbytes, 0xFF, np.uint8)

    def begin_copy(self, target: Any, source: Any, stream: int) -> None:
        self.queues[stream].append(lambda: np.copyto(target, source))

    def mark(self, stream: int) -> list[float]:
        mark: list[float] = []

        def pass_it() -> None:
            self.ticks += 1
            mark.append(self.ticks)

        self.queues[stream].append(pass_it)
        return mark

    def seconds(self, begin: list[float], end: list[float]) -> float:
        return end[0] - begin[0]

    def synchronize(self, stream: int) -> None:
        queue = self.queues[stream]
        while queue:
            queue.pop(0)()


class LatePlan:
    """Adds one to every pixel, late."""

    def __init__(self, runtime: LateRuntime, shape: tuple[int, ...], workspace_bytes: int = 0) -> None:
        self.problem = SimpleNamespace(x_shape=shape, out_shape=shape, out_dtype="int32")
        self.workspace_bytes = workspace_bytes
        self.runtime = runtime
        self.fails = False

    def buffers(self, x: Any, prepared: Any, operands: Any, out: Any, workspace: Any) -> dict[str, Any]:
        return {"x": x, "out": out, "workspace": workspace}

    def __call__(self, buffers: dict[str, Any], stream: int) -> None:
        if self.fails:
            raise RuntimeError("not launched")
        x, out, workspace = buffers["x"], buffers["out"], buffers["workspace"]
        assert (workspace is None) == (not self.workspace_bytes)
        assert workspace is None or workspace.nbytes == self.workspace_bytes
        self.runtime.queues[stream].append(lambda: np.add(x, 1, out=out))


def through(lane: Any, plan: LatePlan, x: Any, *more: LatePlan) -> tuple[Any, Clock]:
    clock, nothing = Clock(), PreparedFilter({}, 0)
    return lane([PreparedPlan(each, nothing) for each in (plan, *more)], x, clock), clock


def test_nothing_is_read_before_the_stream_has_passed_it() -> None:
    runtime: Any = LateRuntime()
    with runtime.stream() as stream:
        lane = DeviceLane(runtime, stream)
        results = []
        for turn in range(3):
            x = RANDOM.integers(0, 99, (1, 4 + turn, 5, 2)).astype(np.int32)
            out, clock = through(lane, LatePlan(runtime, x.shape, workspace_bytes=100 * turn), x)
            assert clock.seconds.keys() == {"upload", "filter", "download"}
            assert clock.seconds["filter"] == 1  # between the second and the third mark
            results.append((x + 1, out))
        for expected, out in results:  # none was overwritten by the next
            np.testing.assert_array_equal(out, expected)


def test_buffers_grow_to_the_largest_image_and_are_used_again() -> None:
    runtime: Any = LateRuntime()
    with runtime.stream() as stream:
        lane = DeviceLane(runtime, stream)
        for rows in (10, 90, 20, 90, 10):
            shape = (1, rows, 1000, 4)
            through(lane, LatePlan(runtime, shape), np.zeros(shape, np.int32))
    small, large = GRAIN, 2 * GRAIN
    assert runtime.pinned_bytes == [small, small, large, large]
    assert runtime.device_bytes == [small, small, large, large]


def test_each_stage_reads_the_result_of_the_one_before_on_the_device() -> None:
    runtime: Any = LateRuntime()
    with runtime.stream() as stream:
        lane = DeviceLane(runtime, stream)
        x = RANDOM.integers(0, 99, (1, 600, 800, 1)).astype(np.int32)
        lines = LatePlan(runtime, (1, 800, 600, 1), workspace_bytes=100)
        last = LatePlan(runtime, (1, 600, 800, 1), workspace_bytes=200)
        for _ in range(2):
            out, clock = through(lane, LatePlan(runtime, x.shape), x, lines, last)
            np.testing.assert_array_equal(out, x + 3)
            assert clock.seconds["filter"] == 1  # all stages
    assert len(runtime.pinned_bytes) == 2, "only the image and the last result are copied"
    assert len(runtime.device_bytes) == 5, "the image, three results and one workspace"


def test_the_cpu_keeps_its_buffer_between_stages() -> None:
    problem = parse_problem("n1c1h20w21_k1r1s1_f32_nhwc")
    assert isinstance(problem, Conv2dProblem)
    plan = find_plan(problem, "direct_naive", None, "cpu", None)
    double = PreparedPlan(plan, plan.prepare(np.full((1, 1, 1, 1), 2, np.float32)))
    lane, x = HostLane(), RANDOM.random((1, 20, 21, 1)).astype(np.float32)
    first = lane([double, double, double], x, Clock())
    np.testing.assert_array_equal(first, 8 * x)
    np.testing.assert_array_equal(lane([double, double], x, Clock()), 4 * x)
    np.testing.assert_array_equal(first, 8 * x)  # a result is never the lane's buffer


def test_a_launch_that_fails_leaves_nothing_on_the_stream() -> None:
    runtime: Any = LateRuntime()
    with runtime.stream() as stream:
        lane = DeviceLane(runtime, stream)
        x = np.ones((1, 4, 5, 2), np.int32)
        plan = LatePlan(runtime, x.shape)
        plan.fails = True
        with pytest.raises(RuntimeError, match="not launched"):
            through(lane, plan, x)
        assert runtime.queues[stream] == []
        plan.fails = False
        np.testing.assert_array_equal(through(lane, plan, x)[0], x + 1)


def test_an_image_with_gaps_goes_up_whole() -> None:
    runtime: Any = LateRuntime()
    wide = RANDOM.integers(0, 99, (1, 8, 10, 3)).astype(np.int32)
    x = wide[:, ::-2, ::3]
    with runtime.stream() as stream:
        np.testing.assert_array_equal(through(DeviceLane(runtime, stream), LatePlan(runtime, x.shape), x)[0], x + 1)


def result_on(runtime: Any, device: str, method: str) -> tuple[Any, Any, list[Any]]:
    """An image through every lane of a device, and by the plan alone on the CPU."""
    problem = parse_problem("n2c3h20w21_k3r3s3_st1_p1_g3_u8-i8-u8-i32_nhwc_reflect")
    assert isinstance(problem, Conv2dProblem)
    x = RANDOM.integers(0, 256, (2, 20, 21, 3), dtype=np.uint8)
    w = RANDOM.integers(-3, 4, problem.w_shape).astype(np.int8)
    plain = find_plan(problem, "direct_naive", None, "cpu", None)
    expected = np.empty(problem.out_shape, np.uint8)
    plain({"x": x, "w": plain.prepare(w), "out": expected})
    plan = find_plan(problem, method, None, device, None)
    prepared = plan.prepare(runtime.upload(w))
    outs = []
    for context in lanes_of(runtime):
        with context as lane:
            outs.append((lane([PreparedPlan(plan, prepared)], x, clock := Clock()), clock.seconds))
    return expected, x, outs


def test_the_cpu_has_one_lane_that_copies_nothing() -> None:
    expected, _, outs = result_on(cpu_runtime(), "cpu", "direct_naive")
    assert len(outs) == LANES["cpu"] == 1
    out, seconds = outs[0]
    np.testing.assert_array_equal(out, expected)
    assert seconds.keys() == {"filter"}
    with lanes_of(cpu_runtime())[0] as lane:
        assert isinstance(lane, HostLane)


@needs_emulator
@pytest.mark.parametrize("method", ["direct_constant", "direct_tiled"])
def test_every_lane_of_the_emulator_gives_the_same(method: str) -> None:
    expected, _, outs = result_on(emulator_runtime(), "emulator", method)
    assert len(outs) == LANES["emulator"] > 1
    for out, seconds in outs:
        np.testing.assert_array_equal(out, expected)
        assert seconds.keys() == {"upload", "filter", "download"}


def test_weights_of_few_sizes_are_kept() -> None:
    convolver, lane = Convolver(np.ones((3, 3)), Clock(), "cpu"), HostLane()
    for size in [*range(10, 10 + 3 * PREPARED_KEPT), 10]:
        image = RANDOM.integers(0, 99, (size, 12), dtype=np.uint8)
        sums = convolver(lane, image).sums
        np.testing.assert_array_equal(sums.reshape(size, 12), convforge.filter(image, np.ones((3, 3))))
        assert len(convolver._prepared) <= PREPARED_KEPT


def test_the_ring_lends_arrays_again_and_pins_each_once() -> None:
    locked: list[int] = []
    runtime: Any = SimpleNamespace(pin=lambda memory: locked.append(memory.nbytes))
    ring = HostRing(runtime, 5000)
    one, other = ring.take((10, 25), np.uint16), ring.take((5000,), np.uint8)
    assert not np.shares_memory(one, other)
    assert one.ctypes.data % mmap.PAGESIZE == other.ctypes.data % mmap.PAGESIZE == 0
    one[...], other[...] = 7, 9
    address = one.ctypes.data
    for array in (one, other, one):
        ring.pin(array)
    ring.give(one)
    ring.give(np.zeros(3))  # not its own
    again = ring.take((1000,), np.float32)
    assert again.ctypes.data == address
    ring.pin(again)
    assert locked == [5000, 5000]
    assert (other == 9).all()
