"""Tables published by others, as runs: the same rules read them, and a report can show them next to ours.

A published figure is one sample without a spread, measured with the author's clock; each table says how, if known.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from convforge.benchmark.records import Result, Run
from convforge.course.studies.finding import Finding
from convforge.course.studies.study import Study
from convforge.problem import parse_problem
from convforge.timing.ceilings import Ceilings
from convforge.timing.timer import Timing

# Rules about the fastest of all methods. They depend on every figure, not only on those of the fastest.
OF_ALL = frozenset(
    {"ahead", "winner-by-size", "winner-by-stride", "call-floor", "growth", "gpu-worth-it", "stride-saves", "filling"}
)


@dataclass(frozen=True, slots=True)
class Doubt:
    """A known or possible fault in figures, in English, and the methods with these figures."""

    words: str
    methods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Published:
    """A published table; `about` describes in English the measurement and the card."""

    name: str
    about: str
    doubts: tuple[Doubt, ...]
    run: Run

    def findings(self, study: Study) -> list[Finding]:
        """Return the findings of a study's rules; a finding that uses a doubtful figure is marked as not supported."""
        doubted = {method for doubt in self.doubts for method in doubt.methods}
        every = {r.algorithm for r in self.run.results}

        def sound(finding: Finding) -> bool:
            return doubted.isdisjoint(every if finding.rule in OF_ALL else (datum.method for datum in finding.data))

        return [replace(f, supported=f.supported and sound(f)) for f in study.findings(self.run)]


def _run(name: str, device: str, peak: float | None = None) -> Run:
    """Read one table of published.csv as a run; values of table D are GFLOP/s, all others milliseconds."""
    found = []
    for row in csv.DictReader(resources.files(__package__).joinpath("published.csv").read_text("utf-8").splitlines()):
        if row["table"] == name:
            problem, value, method = parse_problem(row["problem"]), float(row["value"]), row["method"]
            seconds = problem.flops / value / 1e9 if name == "D" else value / 1e3
            found.append(Result(
                case=row["case"], problem=row["problem"], operation=problem.operation, algorithm=method,
                backend=row["backend"], ours=not method.startswith("cu"), precision="strict", config=row["config"],
                status="ok", time=Timing((seconds,), few=True), flops=problem.flops, least_bytes=problem.least_bytes,
            ))  # fmt: skip
    # No table was published with a copy bandwidth: it is set to zero, and no rule divides by it.
    ceilings = () if peak is None else (("before", Ceilings(0.0, peak)),)
    return Run(
        run=f"published-{name}", started="", suite=f"published-{name}", device=device,
        machine={"facts": {"backend": "cuda", "name": device}}, versions={}, commit=None, dirty=False, settings={},
        path=Path(f"published-{name}"), results=tuple(found), ceilings=ceilings, complete=True,
    )  # fmt: skip


TABLES = {
    "A": Published(
        "A", "RGB image to one channel, 3x3, float32, ms; the GPU is not named",
        (Doubt("direct and im2col ran without padding, cuDNN with a padding of 1 and a flipped filter",
               ("cudnn", "cudnn_second_run")),
         Doubt("these times, with the filter in constant memory, are not those of their own raw log: there im2col "
               "takes about 40 ms from 256 pixels a side on, and cuDNN 557 ms once and then 4 us, which is what a "
               "host's clock shows that is read without waiting for the kernel",
               ("direct_constant", "im2col_constant", "cudnn_second_run"))),
        _run("A", "a GPU that is not named"),
    ),
    "B": Published(
        "B", "float32 matrix product on an RTX 4090, ms at the best block size of each",
        (Doubt("cuBLAS printed a matrix that differs from that of the other kernels, so its time may be that of "
               "another product", ("cublas",)),),
        _run("B", "RTX 4090", 82.6e12),
    ),
    "C": Published(
        "C", "RGB, 3x3, on an RTX 4090, ms by stride",
        (Doubt("the host's work is inside, im2col was expanded on the CPU, and cuDNN's time holds the creation of its "
               "handle", ("direct_naive", "im2col", "cudnn")),),
        _run("C", "RTX 4090"),
    ),
    "D": Published(
        "D", "RGB to RGB, 3x3, on a GTX 1050, GFLOP/s by stride",
        (Doubt("cuDNN's search for an algorithm is inside its time", ("cudnn",)),),
        _run("D", "GTX 1050"),
    ),
}  # fmt: skip
