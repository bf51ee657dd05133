"""Hardware counters of single GPU launches, read with NVIDIA's profiler ``ncu`` if it is installed.

The profiler runs a process that makes each call once (:func:`make_calls`), and empties the caches before every launch.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from convforge.benchmark.records import Counters
from convforge.errors import Reason

# Field of Counters -> metrics of the profiler, which are added.
METRICS: Mapping[str, tuple[str, ...]] = {
    "dram_bytes": ("dram__bytes_read.sum", "dram__bytes_write.sum"),
    "l1_bytes": ("l1tex__t_bytes.sum",),
    "l1_hit": ("l1tex__t_sector_hit_rate.pct",),
    "l2_hit": ("lts__t_sector_hit_rate.pct",),
}
# Install paths of the CUDA toolkit and of the profiler's own installer.
PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu", "/usr/local/NVIDIA-Nsight-Compute*/ncu")
TIMEOUT_S = 120.0
# The program that the profiler runs.
PROGRAM = "import sys; from convforge.course.studies.counters import make_calls; make_calls(sys.argv[1])"


class NoCounters(RuntimeError):
    """Hardware counters are not available; `reason` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class Call(NamedTuple):
    """One call to profile: method, config and problem, each in its text form."""

    case: str
    operation: str
    method: str
    problem: str
    config: str
    kernels: tuple[str, ...]


def find_profiler() -> str:
    """Return the path of the profiler; raises :class:`NoCounters` if there is none."""
    if named := shutil.which("ncu"):
        return named
    found = [str(path) for place in PLACES for path in sorted(Path("/").glob(place.removeprefix("/")), reverse=True)]
    if not found:
        raise NoCounters(Reason("NVIDIA's profiler ncu is not installed"))
    return found[0]


def count(calls: Sequence[Call], device: str) -> list[Counters]:
    """Count the calls on a device (for example "cuda:1"); returns one entry per launch, in the order of the calls.

    Raises :class:`NoCounters` if there is no profiler, it may not read the counters, it took too long, or the launches
    differ from those expected.
    """
    program = find_profiler()
    wanted = [(call, kernel) for call in calls for kernel in call.kernels]
    if not wanted:
        return []
    names = "|".join(dict.fromkeys(kernel for _, kernel in wanted))
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.json"
        job.write_text(json.dumps({"device": device, "calls": [call._asdict() for call in calls]}), encoding="utf-8")
        command = [
            program, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
            "--metrics", ",".join(metric for metrics in METRICS.values() for metric in metrics),
            "--kernel-name", f"regex:^({names})$", sys.executable, "-c", PROGRAM, str(job),
        ]  # fmt: skip
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment)
        except subprocess.TimeoutExpired:
            raise NoCounters(Reason("ncu did not end within {limit}", limit=f"{TIMEOUT_S:.0f} s")) from None
        except OSError as fault:
            raise NoCounters(Reason("ncu cannot be run: {fault}", fault=str(fault))) from None
    if ran.returncode:
        # The last line that the profiler marks as an error, or otherwise the last line.
        lines = [line.strip() for line in (ran.stdout + ran.stderr).splitlines() if line.strip()] or ["no word"]
        said = next((line for line in reversed(lines) if line.startswith("==ERROR==")), lines[-1])
        raise NoCounters(Reason("ncu ended with {code}: {fault}", code=ran.returncode, fault=said))
    launches = list(_launches(ran.stdout.splitlines()))
    if [name for name, _ in launches] != [kernel for _, kernel in wanted]:
        seen, asked = len(launches), len(wanted)
        raise NoCounters(
            Reason("ncu saw {seen} launches where {asked} were asked for, or others", seen=seen, asked=asked)
        )
    return [
        Counters(call.case, call.method, call.config, kernel, **values)
        for (call, kernel), (_, values) in zip(wanted, launches, strict=True)
    ]


def _launches(lines: Iterable[str]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield kernel name and counters of each launch in the profiler's table; a row without an id holds units."""
    table = iter(lines)
    head = next((line for line in table if line.startswith('"ID"')), None)
    if head is None:
        return
    for row in csv.DictReader([head, *table]):
        if row["ID"]:
            yield row["Kernel Name"].partition("(")[0], {name: _value(row, name) for name in METRICS}


def _value(row: Mapping[str, str], name: str) -> float:
    try:
        total = sum(float(row[metric].replace(",", "")) for metric in METRICS[name])
    except (KeyError, ValueError):
        raise NoCounters(Reason("ncu has no {metrics} on this GPU", metrics=" or ".join(METRICS[name]))) from None
    return total / 100 if name.endswith("_hit") else total


def make_calls(job: str) -> None:
    """Make each call of a job (path of a JSON file) once; this runs inside the profiled process."""
    from convforge.algorithms import find
    from convforge.call.dispatch import runtime_of
    from convforge.peers import every_algorithm
    from convforge.problem import parse_problem
    from convforge.verify import make_inputs
    from convforge.verify.inputs import output_dtype
    from convforge.verify.plans import upload_inputs

    wanted = json.loads(Path(job).read_text(encoding="utf-8"))
    runtime = runtime_of(wanted["device"])
    for call in (Call(**call) for call in wanted["calls"]):
        problem = parse_problem(call.problem)
        method = find(call.operation, runtime.facts.backend, call.method, every_algorithm())
        config = next(c for c in method.configs(problem, runtime.facts) if str(c) == call.config)
        plan = method.plan(problem, config, runtime)
        inputs = upload_inputs(runtime, make_inputs(problem))
        out = runtime.empty(problem.out_shape, output_dtype(problem))
        plan(plan.buffers(inputs.x, plan.prepare(inputs.w), inputs.operands, out))
        runtime.synchronize()
