"""A pipeline's needs of every runtime: streams, pinned memory, copies in the order of a stream, marks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convforge.backends.cpu import cpu_runtime
from convforge.backends.emulator import why_absent
from convforge.backends.emulator.runtime import emulator_runtime


@pytest.fixture(params=["cpu", "emulator"])
def runtime(request: pytest.FixtureRequest) -> Any:
    """Every runtime that needs no GPU."""
    if request.param == "cpu":
        return cpu_runtime()
    if (reason := why_absent()) is not None:
        pytest.skip(reason)
    return emulator_runtime()


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 100_001])
def test_pinned_memory_is_aligned_and_all_of_it_can_be_written(runtime: Any, nbytes: int) -> None:
    memory = runtime.pinned(nbytes)
    assert (memory.dtype, memory.shape) == (np.uint8, (nbytes,))
    assert not nbytes or memory.ctypes.data % 64 == 0
    memory[...] = 7
    assert int(memory.sum()) == 7 * nbytes


def test_there_and_back(runtime: Any) -> None:
    pixels = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    source, target = (runtime.pinned(pixels.nbytes).view(np.float32).reshape(pixels.shape) for _ in range(2))
    source[...] = pixels
    with runtime.stream() as stream:
        there = runtime.allocate(pixels.nbytes, stream).view(np.float32).reshape(pixels.shape)
        marks = [runtime.mark(stream)]
        runtime.begin_copy(there, source, stream)
        marks.append(runtime.mark(stream))
        runtime.begin_copy(target, there, stream)
        runtime.synchronize(stream)
    np.testing.assert_array_equal(target, pixels)
    assert not np.may_share_memory(target, source)
    assert runtime.seconds(*marks) >= 0


def test_streams_of_a_device_are_told_apart() -> None:
    if (reason := why_absent()) is not None:
        pytest.skip(reason)
    runtime = emulator_runtime()
    with runtime.stream() as one, runtime.stream() as other:
        assert runtime.stream_handle(one) != runtime.stream_handle(other)
        assert 0 not in (one, other), "that is the runtime's own"
