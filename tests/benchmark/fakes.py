"""Made-up methods of the matrix product, honest and otherwise, and made-up results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from convforge.algorithms.contract import Algorithm, Buffers, Call, Config, Plan, PreparedFilter
from convforge.backends.cpu.runtime import cpu_runtime
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.benchmark.reasons import from_data
from convforge.benchmark.records import Error, Result, Run
from convforge.benchmark.runner import Runner, Settings, begin
from convforge.benchmark.store import Store
from convforge.benchmark.suites import Case
from convforge.errors import Reason, UnsupportedProblem
from convforge.problem import GemmProblem, parse_problem
from convforge.timing.ceilings import Ceilings
from convforge.timing.timer import Timing


@dataclass(frozen=True, slots=True)
class Tile(Config):
    """A config with one number."""

    tile: int = 8


class Honest(Algorithm[GemmProblem, Tile]):
    """The matrix product by NumPy."""

    name: ClassVar[str] = "honest"
    summary: ClassVar[str] = "right"
    operation: ClassVar[str] = "gemm"
    workspace: ClassVar[int] = 0

    def refuses(self, problem: GemmProblem, facts: DeviceFacts) -> Reason | None:
        return None

    def configs(self, problem: GemmProblem, facts: DeviceFacts) -> Sequence[Tile]:
        return [Tile(8), Tile(16)]

    def plan(self, problem: GemmProblem, config: Tile, runtime: Runtime) -> Plan:
        info = LaunchInfo(self.name, (1,), (1,))
        return Plan(self, problem, config, runtime, steps=[Call(info, self.compute)], prepare=self.prepare,
                    workspace_bytes=self.workspace)  # fmt: skip

    def prepare(self, w: Any, stream: Any = None) -> PreparedFilter:
        return PreparedFilter({"w": np.array(w)}, w.nbytes, Reason("as it is"))

    def compute(self, buffers: Buffers, stream: Any) -> None:
        np.matmul(buffers["a"], buffers["b"].tensors["w"], out=buffers["c"])


class Choosy(Honest):
    """Its third config is the fastest, the second cannot be planned, the fourth raises when it is called."""

    name = "choosy"
    pauses: ClassVar[dict[int, float]] = {8: 2e-3, 32: 0.0, 64: 0.0}

    def configs(self, problem: GemmProblem, facts: DeviceFacts) -> Sequence[Tile]:
        return [Tile(8), Tile(16), Tile(32), Tile(64)]

    def plan(self, problem: GemmProblem, config: Tile, runtime: Runtime) -> Plan:
        if config.tile not in self.pauses:
            raise UnsupportedProblem(str(problem), {self.name: Reason("it would rather not")})

        def compute(buffers: Buffers, stream: Any) -> None:
            if config.tile == 64:
                raise ArithmeticError("it broke")
            time.sleep(self.pauses[config.tile])
            self.compute(buffers, stream)

        info = LaunchInfo(self.name, (1,), (1,))
        return Plan(self, problem, config, runtime, steps=[Call(info, compute)], prepare=self.prepare)


class Rival(Honest):
    """The same, of another library."""

    name = "rival"
    ours = False


class Silent(Honest):
    """Writes nothing."""

    name = "silent"

    def compute(self, buffers: Buffers, stream: Any) -> None:
        pass


class Stale(Honest):
    """Answers every question after the third as it answered the third."""

    name = "stale"

    def __init__(self) -> None:
        self.calls = 0
        self.kept: Any = None

    def compute(self, buffers: Buffers, stream: Any) -> None:
        self.calls += 1
        if self.calls <= 3:
            super().compute(buffers, stream)
            self.kept = np.array(buffers["c"])
        else:
            buffers["c"][...] = self.kept


class Tired(Honest):
    """Right while it is checked, wrong while it is timed."""

    name = "tired"

    def __init__(self) -> None:
        self.calls = 0

    def compute(self, buffers: Buffers, stream: Any) -> None:
        self.calls += 1
        super().compute(buffers, stream)
        if self.calls > 6:
            buffers["c"][0, 0] += 1


class Broken(Honest):
    """Raises."""

    name = "broken"

    def compute(self, buffers: Buffers, stream: Any) -> None:
        raise ArithmeticError("it broke")


class Picky(Honest):
    """Refuses."""

    name = "picky"

    def refuses(self, problem: GemmProblem, facts: DeviceFacts) -> Reason | None:
        return Reason("it would rather not")


class Hungry(Honest):
    """Needs a kilobyte of workspace for every unit of tile."""

    name = "hungry"

    def configs(self, problem: GemmProblem, facts: DeviceFacts) -> Sequence[Tile]:
        return [Tile(16), Tile(4)]

    def plan(self, problem: GemmProblem, config: Tile, runtime: Runtime) -> Plan:
        info = LaunchInfo(self.name, (1,), (1,))
        return Plan(self, problem, config, runtime, steps=[Call(info, self.compute)], prepare=self.prepare,
                    workspace_bytes=1024 * config.tile)  # fmt: skip


class Interrupting(Honest):
    """The user presses Ctrl-C at the n-th plan."""

    name = "interrupting"

    def __init__(self, at: int) -> None:
        self.left = at

    def plan(self, problem: GemmProblem, config: Tile, runtime: Runtime) -> Plan:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return super().plan(problem, config, runtime)


def cases(*sizes: int) -> list[Case]:
    """Square matrix products."""
    return [Case(f"square_{n}", parse_problem(f"m{n}n{n}k{n}_f32")) for n in sizes]


def still(runtime: Runtime) -> Ceilings:
    """Ceilings that never move."""
    return Ceilings(20e9, 100e9)


def uncopied(runtime: Runtime) -> None:
    """No copies are timed."""


def run_bench(
    folder: Path,
    wanted: Sequence[Case],
    methods: Sequence[Algorithm[Any, Any]],
    settings: Settings | None = None,
    *,
    path: Path | None = None,
    ceilings: Callable[[Runtime], Ceilings] = still,
    **more: Any,
) -> Run:
    """Run a bench into a new file of `folder`, or go on with `path`."""
    settings = settings or Settings(quick=True)
    runtime, copies = more.pop("runtime", cpu_runtime()), more.pop("copies", uncopied)
    with Store.resume(path) if path else begin(folder, "made-up", runtime, settings) as store:
        return Runner(wanted, methods, runtime, settings, store, ceilings=ceilings, copies=copies, **more).run()


def result(
    case: str = "square_8",
    algorithm: str = "honest",
    samples: Sequence[float] | None = (1e-3, 1e-3, 1e-3),
    *,
    problem: str = "m8n8k8_f32",
    ours: bool = True,
    status: Any = "ok",
    **more: Any,
) -> Result:
    """A made-up result."""
    parsed = parse_problem(problem)
    fields: dict[str, Any] = {
        "operation": parsed.operation,
        "backend": "cpu",
        "precision": "strict",
        "config": "",
        "flops": parsed.flops,
        "least_bytes": parsed.least_bytes,
        "time": None if samples is None or status != "ok" else Timing(tuple(samples), ring=4, cold=True),
        "error": Error(1e-7, 1e-6, 0.5) if status == "ok" else None,
        "digest": "0" * 64,
    } | more
    for name in ("reason", "note"):
        if not isinstance(fields.get(name), Reason):
            fields[name] = from_data(fields.get(name))
    return Result(case=case, problem=problem, algorithm=algorithm, ours=ours, status=status, **fields)


def run(*results: Result, **more: Any) -> Run:
    """A made-up run."""
    fields: dict[str, Any] = {
        "run": "made-up-1",
        "started": "2026-01-02T03:04:05+00:00",
        "suite": "made-up",
        "device": "test-2c",
        "machine": {"facts": {"name": "A Test", "cores": 2}},
        "versions": {},
        "commit": "0123456789abcdef",
        "dirty": False,
        "settings": {},
        "path": Path("made-up-1.jsonl"),
        "results": results,
        "complete": True,
    } | more
    return Run(**fields)
