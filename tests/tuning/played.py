"""Devices and methods that are made up, for tests of choices: an H200 whose kernels are never compiled, fake times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from tests.algorithms.compiling import H200, Compiling
from tests.benchmark.fakes import Honest

from convforge.algorithms import AnyAlgorithm
from convforge.algorithms.contract import Config
from convforge.backends.cpu.runtime import cpu_runtime
from convforge.backends.cuda.compiler import Compiled
from convforge.backends.facts import DeviceFacts
from convforge.backends.kernel import KernelSource
from convforge.timing.timer import Timing
from convforge.tuning.choices import Bucket, SearchResult, Tried
from convforge.tuning.search import Candidate, Trial

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


class PlayedGpu(Compiling):
    """A GPU for which plans can be made, though nothing compiles and nothing runs."""

    def __init__(self, facts: DeviceFacts = H200, capturing: bool = False) -> None:
        super().__init__(facts.architecture)
        self.facts = facts
        self.capturing = capturing

    def compile(self, kernel: KernelSource) -> Compiled:
        self.kernels[kernel.name] = Compiled(kernel.name, self.facts.architecture, b"", 40, 0, 0, 0, 0)
        return self.kernels[kernel.name]

    def is_capturing(self, stream: Any = None) -> bool:
        return self.capturing

    def release(self) -> None:
        pass

    def synchronize(self, stream: Any = None) -> None:
        pass


class Table(Trial):
    """A trial that reads the times of (algorithm, config) from a table; what is not in it takes `otherwise` seconds."""

    def __init__(
        self,
        times: Mapping[tuple[str, str] | str, float | str] | None = None,
        *,
        otherwise: float = 1.0,
        spread: float = 0.0,
        workspaces: Mapping[str, int] | None = None,
    ) -> None:
        self.times = times or {}
        self.otherwise, self.spread = otherwise, spread
        self.workspaces = workspaces or {}
        self.timed: list[Candidate] = []
        self.ready: list[list[Candidate]] = []
        self.finals: list[list[str]] = []

    def make_ready(self, candidates: Sequence[Candidate]) -> None:
        self.ready.append(list(candidates))

    def time(self, candidate: Candidate, budget_s: float) -> Tried:
        self.timed.append(candidate)
        found = self._of(candidate)
        about: dict[str, Any] = {
            "algorithm": candidate.algorithm.name, "config": str(candidate.config), "ours": candidate.algorithm.ours,
            "predicted_s": candidate.predicted_s, "workspace_bytes": self.workspaces.get(candidate.algorithm.name, 0),
        }  # fmt: skip
        if isinstance(found, str):
            return Tried(**about, fault=found, wrong=True)
        return Tried(**about, seconds=found, spread=self.spread)

    def final(self, candidates: Sequence[Candidate], budget_s: float) -> list[Timing | str]:
        self.finals.append([candidate.algorithm.name for candidate in candidates])
        return [self._timing(self._of(candidate)) for candidate in candidates]

    def _of(self, candidate: Candidate) -> float | str:
        name = candidate.algorithm.name
        return self.times.get((name, str(candidate.config)), self.times.get(name, self.otherwise))

    def _timing(self, seconds: float | str) -> Timing | str:
        if isinstance(seconds, str):
            return seconds
        return Timing(tuple(seconds * (1 + self.spread * step) for step in (-2, -1, 0, 1, 2)))


class Wrong(Honest):
    """A product with one wrong border: its last row is that of the row before."""

    name: ClassVar[str] = "wrong"

    def compute(self, buffers: Any, stream: Any) -> None:
        super().compute(buffers, stream)
        buffers["c"][-1] = buffers["c"][-2]


class Seamed(Honest):
    """A product that is wrong only where two tiles of 16 rows meet."""

    name: ClassVar[str] = "seamed"

    def compute(self, buffers: Any, stream: Any) -> None:
        super().compute(buffers, stream)
        buffers["c"][16::16] += np.float32(1)


def candidates(*methods: AnyAlgorithm, problem: Any) -> list[list[Candidate]]:
    """Candidates of made-up methods, in this order."""
    facts = cpu_runtime().facts
    return [[Candidate(a, config, 1e-3, i == 0) for i, config in enumerate(a.configs(problem, facts))] for a in methods]


def single(algorithm: AnyAlgorithm) -> list[Candidate]:
    """One candidate of a method that is never planned."""
    return [Candidate(algorithm, Config(), 1e-3, True)]


def entry(bucket: Bucket, environment: Mapping[str, str], *tried: Tried, level: str = "auto") -> SearchResult:
    """Result of a made-up search."""
    return SearchResult(bucket, dict(environment), level, bucket.key, tried, 0.1)


def fastest(algorithm: str, config: str = "", seconds: float = 1e-3, **more: Any) -> Tried:
    """A candidate with a time."""
    return Tried(algorithm, config, more.pop("ours", True), 1e-3, seconds=seconds, **{"workspace_bytes": 0, **more})
