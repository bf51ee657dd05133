"""Host side of max pooling."""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.algorithms.contract import Algorithm, Buffers, Call, Config, Plan
from convforge.algorithms.host.epilogue import epilogue_arguments
from convforge.algorithms.host.geometry import geometry
from convforge.algorithms.host.views import view
from convforge.algorithms.host.widened import takes_bfloat16
from convforge.algorithms.traits import FASTEST, Mark, Preference, Rank
from convforge.backends.cpu.runtime import block_of_items
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem, Pool2dProblem
from convforge.problem.types import is_integer


@takes_bfloat16
class MaxPoolRows(Algorithm[Pool2dProblem, Config]):
    """Computes a row of outputs at a time: the maximum over the window's rows, then over its columns."""

    name = "max_pool_rows"
    summary = "rows of outputs, down the window and then along it, vectorised, threads"
    operation = "max_pool2d"
    look = Mark("blue", "square")
    preference = Preference(Rank.FIRST, FASTEST)

    def plan(self, problem: Pool2dProblem, config: Config, runtime: Runtime) -> Plan:
        from convforge.algorithms.pool import cpu

        window = _as_convolution(problem)
        like = np.dtype(window.acc_dtype if not is_integer(problem.dtype) else "int64")
        least = -np.inf if like.kind == "f" else np.iinfo(like).min
        g = geometry(window)._replace(outside=like.type(least), zero=like.type(0))
        phases = min(problem.stride[1], problem.extent_w)
        count = (problem.q - 1) * problem.stride[1] + problem.extent_w
        sizes = (problem.c, phases, -(-count // problem.stride[1]), count)
        items = problem.n * problem.c * problem.p
        info = LaunchInfo("max_pool_rows", (items,), (block_of_items(items, problem.flops, runtime.facts),))
        kernel = runtime.compile(cpu.max_rows)
        end = epilogue_arguments(window, {})

        def run(buffers: Buffers, stream: Any) -> None:
            x, out = view(buffers["x"], problem.layout), view(buffers["out"], problem.layout)
            runtime.launch(kernel, info, (x, out, g, sizes, end, np.empty(0, like)), stream)

        return Plan(self, problem, config, runtime, steps=[Call(info, run)])


def _as_convolution(problem: Pool2dProblem) -> Conv2dProblem:
    """Return the depthwise convolution with the same inputs and outputs, to reuse its geometry and epilogue.

    With `ceil_mode` the last windows may extend beyond the padding; the padding is then larger.
    """
    top, bottom, left, right = problem.padding
    over_h = (problem.p - 1) * problem.stride[0] + problem.extent_h - problem.h - top
    over_w = (problem.q - 1) * problem.stride[1] + problem.extent_w - problem.w - left
    return Conv2dProblem(
        n=problem.n,
        c=problem.c,
        h=problem.h,
        w=problem.w,
        k=problem.c,
        r=problem.r,
        s=problem.s,
        stride=problem.stride,
        padding=(top, max(bottom, over_h), left, max(right, over_w)),
        dilation=problem.dilation,
        groups=problem.c,
        x_dtype=problem.dtype,
        w_dtype="float32" if is_integer(problem.dtype) else problem.dtype,
        out_dtype=problem.dtype,
        x_layout=problem.layout,
    )
