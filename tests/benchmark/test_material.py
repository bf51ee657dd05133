"""Data that the methods of a case share: the source of the reference result, and the forecast of its time."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.algorithms.compiled_problems import H200
from tests.benchmark.fakes import cases

from convforge import verify
from convforge.backends.cpu.runtime import CpuRuntime, cpu_runtime
from convforge.benchmark.material import Material, truth_runtime
from convforge.benchmark.runner import Runner, Settings


class OnGpu(CpuRuntime):
    """The CPU, which says that it is a GPU."""

    def __init__(self) -> None:
        super().__init__(dataclasses.replace(cpu_runtime().facts, backend="cuda"))


def test_a_gpus_runtime_computes_its_truths_and_no_others_does(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def judge(problem: Any, inputs: Any, runtime: Any = None) -> Any:
        given.append(runtime)
        return verify.Judge(problem, inputs)

    monkeypatch.setattr("convforge.benchmark.material.Judge", judge)
    for runtime, wanted in ((gpu := OnGpu(), gpu), (cpu_runtime(), None)):
        given.clear()
        Material(cases(8)[0], runtime)
        assert given == [wanted, wanted]  # two sets of inputs
    emulated: Any = type("Emulated", (), {"facts": dataclasses.replace(H200, backend="emulator")})()
    assert truth_runtime(emulated) is None


def test_the_rate_of_the_hosts_truths_says_nothing_about_a_gpus() -> None:
    small, large = cases(64, 4096)
    on_host, on_gpu = (Runner([], [], runtime, Settings(), None) for runtime in (cpu_runtime(), OnGpu()))  # type: ignore[arg-type]
    keys = {runner: [runner._truth_key(case) for case in (small, large)] for runner in (on_host, on_gpu)}
    assert len(set(keys[on_host])) == 1
    assert len(set(keys[on_gpu])) == 2
    assert keys[on_gpu][0] == keys[on_host][0]
