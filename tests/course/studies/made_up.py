"""Made-up records of studies: results whose times the test chooses, and what the findings say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.algorithms.compiling import H200
from tests.benchmark import fakes

from convforge.benchmark.records import Error, Result, Run, StepTime
from convforge.course.studies import Finding, find_study
from convforge.timing.ceilings import Ceilings
from convforge.timing.timer import Timing

# Samples around a time: still ones have a spread of 1 %, loud ones of 50 %.
STILL = (0.99, 0.99, 1.0, 1.01, 1.01)
CALM = (0.96, 0.97, 1.0, 1.03, 1.04)  # two of these are level where their medians are within 5 %
LOUD = (0.4, 0.5, 1.0, 1.5, 1.6)


def timing(seconds: float, shape: Sequence[float] = STILL, **more: Any) -> Timing:
    """A timing with a median of `seconds`."""
    return Timing(tuple(seconds * factor for factor in shape), **({"ring": 4, "cold": True} | more))


def rgb(size: int, stride: int = 1) -> str:
    """The text form of an RGB image to one channel, 3x3."""
    return f"n1c3h{size}w{size}_k1r3s3_st{stride}_p1_f32_nchw"


def result(
    method: str, seconds: float | None, problem: str, *, case: str = "", backend: str = "cuda",
    shape: Sequence[float] = STILL, **more: Any,
) -> Result:  # fmt: skip
    """A result that took `seconds`; None: it was skipped."""
    made = fakes.result(case or problem, method, None, problem=problem, backend=backend,
                        status="ok" if seconds is not None else "skipped", **more)  # fmt: skip
    return made if seconds is None else replace(made, time=timing(seconds, shape))


def run(*results: Result, backend: str = "cuda", **more: Any) -> Run:
    """A run of a card with 4 SMs, whose copy reaches 1 TB/s and whose FMA peak is 10 TFLOP/s."""
    threads = 2048 if backend == "cuda" else 0
    facts = replace(H200, name="A Card", cores=4, backend=backend, threads=threads).to_table()
    ceilings = (("before", Ceilings(1e12, 1e13)), ("after", Ceilings(1e12, 1e13)))
    return fakes.run(*results, **({"machine": {"facts": facts}, "ceilings": ceilings} | more))


def launch(block: Sequence[int], grid: Sequence[int], occupancy: float) -> tuple[dict[str, Any], ...]:
    """The launch of a kernel."""
    return ({"kernel": "k", "grid": list(grid), "block": list(block), "occupancy": occupancy},)


def steps(**seconds: float) -> tuple[StepTime, ...]:
    """Steps by name, each moving a megabyte."""
    return tuple(StepTime(name, timing(s), 1, 10**6) for name, s in seconds.items())


def found(study: str, made: Run, rule: str) -> list[Finding]:
    """The findings of a rule; each sentence and detail can be rendered, and each supported finding has figures."""
    known = find_study(study)
    every = known.findings(made)
    for finding in every:
        text = finding.sentence
        assert text.endswith("."), text
        assert not any("{" in line for line in (text, *finding.details))
        assert finding.data or not finding.supported, f"{finding.rule} rests on nothing"
    return [finding for finding in every if finding.rule == rule]


def one(study: str, made: Run, rule: str) -> Finding:
    """The only finding of a rule."""
    (finding,) = found(study, made, rule)
    return finding


def error(rms: float, ratio: float = 0.5) -> Error:
    """An error."""
    return Error(rms, 10 * rms, ratio)


def table(method_times: Mapping[str, Mapping[int, float | None]], **more: Any) -> list[Result]:
    """Method -> size -> seconds, as results of RGB images."""
    return [
        result(method, seconds, rgb(size), case=f"rgb_{size}", **more)
        for method, times in method_times.items()
        for size, seconds in times.items()
    ]
