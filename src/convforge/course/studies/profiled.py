"""Makes each call once, for the profiler to watch: ``python -m convforge.course.studies.profiled JOB.json``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def work(job: Mapping[str, Any]) -> None:
    """Make the calls of a job."""
    from convforge.call.dispatch import runtime_of

    runtime = runtime_of(job["device"])
    for call in job["calls"]:
        _call(runtime, call)


def _call(runtime: Any, call: Mapping[str, Any]) -> None:
    from convforge.algorithms import find
    from convforge.peers import every_algorithm
    from convforge.problem import parse_problem
    from convforge.verify import make_inputs
    from convforge.verify.inputs import output_dtype
    from convforge.verify.plans import upload_inputs

    problem = parse_problem(call["problem"])
    method = find(call["operation"], runtime.facts.backend, call["method"], every_algorithm())
    config = next(c for c in method.configs(problem, runtime.facts) if str(c) == call["config"])
    plan = method.plan(problem, config, runtime)
    inputs = upload_inputs(runtime, make_inputs(problem))
    shape, dtype = problem.out_shape, output_dtype(problem)
    plan(plan.buffers(inputs.x, plan.prepare(inputs.w), inputs.operands, runtime.empty(shape, dtype)))
    runtime.synchronize()


if __name__ == "__main__":
    work(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
