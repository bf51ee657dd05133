"""ReLU over any number of elements, by NumPy on all cores."""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.algorithms.contract import Algorithm, Buffers, Call, Config, Plan
from convforge.algorithms.traits import FASTEST, Mark, Preference, Rank
from convforge.backends.cpu.runtime import block_of_items
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import ElementwiseProblem


def _relu(x: Any, out: Any, begin: int, end: int) -> None:
    """Work item = one element of the flat arrays. NaN stays NaN."""
    np.maximum(x[begin:end], x.dtype.type(0), out=out[begin:end])


class Relu(Algorithm[ElementwiseProblem, Config]):
    """max(x, 0); x and out are flat arrays."""

    name = "relu"
    summary = "NumPy's maximum, in blocks, threads"
    operation = "relu"
    look = Mark("blue", "cross")
    preference = Preference(Rank.FIRST, FASTEST)

    def plan(self, problem: ElementwiseProblem, config: Config, runtime: Runtime) -> Plan:
        info = LaunchInfo("relu", (problem.size,), (block_of_items(problem.size, problem.flops, runtime.facts),))
        kernel = runtime.compile(_relu)

        def run(buffers: Buffers, stream: Any) -> None:
            runtime.launch(kernel, info, (buffers["x"], buffers["out"]), stream)

        return Plan(self, problem, config, runtime, steps=[Call(info, run)])

    def versions(self) -> dict[str, str]:
        return {"numpy": np.__version__}
