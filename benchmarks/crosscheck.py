"""Compare our timer with NVIDIA's NVBench (cuda-bench) on three GPU kernels: python benchmarks/crosscheck.py

The same plans with the same prepared weights, on the same ring of buffers, are timed four times: by us, by NVBench in
two ways, and by us again, so that a drift of the clocks shows.

- Ours: CUDA graphs of calls that use the slots of the ring in turn, so that a call's inputs are no longer in the L2.
- NVBench, batch: consecutive calls between two events, over the ring as in ours; the mean. This value must agree. It
includes the host's launch time if that is longer than the kernel.
- NVBench, cold: flush the L2, then time one call between two events, repeatedly; the median. Each call begins on an
idle GPU, so it includes the launch latency of about 3 us, which matters for a short kernel. It is stored as well.

The result goes to benchmarks/results/DEVICE/crosscheck-TIME.json. Exit code 1: a kernel differs by more than 5 %.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from convforge.benchmark.digests import digest
from convforge.benchmark.material import Material
from convforge.benchmark.store import begin_header, new_file
from convforge.benchmark.suites import Case
from convforge.call.dispatch import find_plan, runtime_of
from convforge.problem import parse_problem
from convforge.timing import measure
from convforge.timing.ring import Cycle
from convforge.timing.timer import Timing

KERNELS = (
    ("direct_naive", "n1c3h2048w2048_k1r3s3_st1_p1_f32_nchw"),
    ("direct_tiled", "n1c3h8192w8192_k1r3s3_st1_p1_f32_nchw"),
    ("gemm_vectorised", "m2048n2048k2048_f32"),
)
AGREE = 0.05
COLD, BATCH = "nv/cold/time/gpu/median", "nv/batch/time/gpu/mean"


@dataclass(slots=True)
class Subject:
    """A kernel: its plan, and calls over a ring of buffers on a given stream."""

    name: str
    problem: str
    plan: Any
    material: Material
    call: Callable[[int, Any], None]

    @classmethod
    def of(cls, name: str, text: str, device: str) -> Subject:
        """Plan, prepare and check; ``RuntimeError`` for a wrong result."""
        problem = parse_problem(text)
        plan = find_plan(problem, name, None, device, None)
        material = Material(Case(text, problem), plan.runtime)
        slots = material.ring.slots
        workspace = plan.runtime.allocate(plan.workspace_bytes) if plan.workspace_bytes else None
        prepared = [plan.prepare(slot.w) for slot in slots]
        plan.runtime.synchronize()

        def call(i: int, stream: Any = None) -> None:
            plan(plan.buffers(slots[i].x, prepared[i], slots[i].operands, slots[i].out, workspace), stream)

        material.ring.poison()
        for i in range(len(slots)):
            call(i)
        plan.runtime.synchronize()
        verdict = material.verify(plan.algorithm.precision, len(slots), {})
        if verdict is not None and not verdict.ok:
            raise RuntimeError(verdict.message)
        return cls(name, text, plan, material, call)

    def ours(self) -> Timing:
        """Time a call with our timer."""
        size = self.material.ring.size
        timing = measure(Cycle(size.slots, lambda i: self.call(i, None)), self.plan.runtime)
        return dataclasses.replace(timing, ring=size.slots, cold=size.cold)


def by_nvbench(subjects: Sequence[Subject]) -> dict[str, dict[str, float]]:
    """Name -> tag -> value for all of NVBench's figures; times in seconds."""
    import cuda.bench as nvbench

    for subject in subjects:

        def run(state: Any, subject: Subject = subject) -> None:
            slots, turn = subject.material.ring.size.slots, [0]

            def launch(launch: Any) -> None:
                subject.call(turn[0], launch.get_stream())
                turn[0] = (turn[0] + 1) % slots

            state.exec(launch, batched=True)

        nvbench.register(run).set_name(subject.name)
    with tempfile.TemporaryDirectory(prefix="convforge-") as folder:
        path = Path(folder) / "nvbench.json"
        nvbench.run_all_benchmarks([sys.argv[0], "--devices", "0", "--json", str(path)])
        return figures(json.loads(path.read_text(encoding="utf-8")))


def figures(root: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Benchmark -> tag -> value of NVBench's JSON; empty for skipped benchmarks."""
    found: dict[str, dict[str, float]] = {}
    for benchmark in root["benchmarks"]:
        for state in benchmark["states"]:
            if state.get("is_skipped"):
                continue
            for summary in state.get("summaries") or ():
                for entry in summary.get("data") or ():
                    number = entry.get("type") in ("float64", "int64") and entry.get("value") is not None
                    if number and entry.get("name") == "value":
                        found.setdefault(benchmark["name"], {})[summary["tag"]] = float(entry["value"])
    return found


def compare(before: Timing, after: Timing, theirs: Mapping[str, float]) -> dict[str, Any]:
    """Our time, NVBench's, and their relative differences, positive if ours is longer.

    ``ValueError`` if NVBench has no time.
    """
    if missing := [tag for tag in (COLD, BATCH) if tag not in theirs]:
        raise ValueError(f"NVBench gave no {missing[0]}; it gave {', '.join(sorted(theirs)) or 'nothing'}")
    ours = (before.median_s + after.median_s) / 2
    return {
        "ours_s": ours,
        "drift": after.median_s / before.median_s - 1,
        "nvbench_cold_s": theirs[COLD],
        "nvbench_batch_s": theirs[BATCH],
        "difference_cold": ours / theirs[COLD] - 1,
        "difference_batch": ours / theirs[BATCH] - 1,
        "agrees": abs(ours / theirs[BATCH] - 1) <= AGREE,
    }


def main(
    out: Annotated[Path, typer.Option(help="The result goes to OUT/DEVICE/.")] = Path(__file__).parent / "results",
) -> None:
    """Time three kernels by our timer and by NVBench's."""
    runtime = runtime_of("cuda")
    subjects = [Subject.of(name, text, "cuda") for name, text in KERNELS]
    before = [subject.ours() for subject in subjects]
    theirs = by_nvbench(subjects)
    after = [subject.ours() for subject in subjects]
    rows = []
    for subject, first, second in zip(subjects, before, after, strict=True):
        found, plan = compare(first, second, theirs.get(subject.name, {})), subject.plan
        rows.append(
            {"algorithm": subject.name, "problem": subject.problem, "config": str(plan.config),
             "digest": digest(plan.algorithm, plan.problem, plan.config, runtime.facts), **found,
             "ours": [first.to_table(), second.to_table()],
             "nvbench": theirs.get(subject.name, {})}
        )  # fmt: skip
        typer.echo(
            f"{subject.name:16} ours {1e6 * found['ours_s']:9.2f} us (drift {found['drift']:+.1%}), NVBench batch "
            f"{1e6 * found['nvbench_batch_s']:9.2f} us ({found['difference_batch']:+.1%}), cold "
            f"{1e6 * found['nvbench_cold_s']:9.2f} us ({found['difference_cold']:+.1%})"
        )
    header = begin_header("crosscheck", runtime.facts, {"agree_within": AGREE})
    header["versions"]["cuda-bench"] = importlib.metadata.version("cuda-bench")
    path = new_file(out / header["device"], header["run"], ".json")
    path.write_text(json.dumps({"kind": "crosscheck", **header, "kernels": rows}, indent=1) + "\n", encoding="utf-8")
    typer.echo(f"stored in {path}")
    if apart := [row["algorithm"] for row in rows if not row["agrees"]]:
        typer.echo(f"more than {AGREE:.0%} apart: {', '.join(apart)}", err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
