"""The arguments of a GPU's launch, as the driver is handed them; it stands in for itself where there is none."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
from tests.algorithms.compiling import compiled as nvrtc

from convforge.backends.runtime import LaunchInfo
from convforge.course.grader.source import NAMES, Arguments
from convforge.course.grader.worker import launcher


def stand_in(monkeypatch: pytest.MonkeyPatch, status: str) -> list[tuple[Any, ...]]:
    """A driver that notes launches, with the values that their parameters point to."""
    from cuda.bindings import driver

    seen: list[tuple[Any, ...]] = []

    def launch(handle: int, *words: Any) -> tuple[Any]:
        *shape, shared, stream, parameters, extra = words
        kinds = [ctypes.c_void_p] * 3 + [ctypes.c_int] * len(NAMES)
        places = (ctypes.c_void_p * len(kinds)).from_address(parameters)
        values = [kind.from_address(place or 0).value for kind, place in zip(kinds, places, strict=True)]
        seen.append((handle, tuple(shape), shared, stream, extra, values))
        return (getattr(driver.CUresult, status),)

    monkeypatch.setattr(driver, "cuLaunchKernel", launch)
    return seen


RUNTIME = SimpleNamespace(facts=SimpleNamespace(backend="cuda"), stream_handle=lambda stream: 7)
KERNEL = SimpleNamespace(handle=5, allow_shared=lambda nbytes: None)


@nvrtc
def test_every_argument_arrives_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = stand_in(monkeypatch, "CUDA_SUCCESS")
    values = [1 << 40, 2 << 40, 3 << 40, *range(10, 10 + len(NAMES))]
    launcher(RUNTIME, KERNEL, LaunchInfo("conv2d", (4, 2), (32,), 96), Arguments(*values))()
    assert seen == [(5, (4, 2, 1, 32, 1, 1), 96, 7, 0, values)]


@nvrtc
def test_a_launch_that_the_driver_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from convforge.backends.cuda.driver import CudaError

    stand_in(monkeypatch, "CUDA_ERROR_INVALID_VALUE")
    run = launcher(RUNTIME, KERNEL, LaunchInfo("conv2d", (1,), (2048,)), Arguments(*range(16)))
    with pytest.raises(CudaError, match=r"refuses the launch \(grid \(1,\), block \(2048,\).*INVALID_VALUE"):
        run()
