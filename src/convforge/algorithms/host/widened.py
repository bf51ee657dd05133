"""16-bit floats on the CPU: a method computes in float32 on copies of the arrays, and its results are rounded once.

Numba has no bfloat16, and BLAS no 16-bit floats. float32 holds both exactly, and is the type of their sums.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from convforge.algorithms.contract import Algorithm, Config, Plan
from convforge.algorithms.host.epilogue import values_dtype
from convforge.algorithms.host.workspace import Part, carve, nbytes
from convforge.algorithms.steps import Buffers, Call, Child, PreparedFilter
from convforge.backends.cpu.runtime import block_of_items
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import to_float

A = TypeVar("A", bound=type[Algorithm[Any, Any]])

NARROW = "bfloat16"
SIXTEEN_BITS = (NARROW, "float16")


def takes_bfloat16(method: A) -> A:
    """Decorate a CPU method so that it supports bfloat16, computed in float32."""
    return _taking(method, (NARROW,))


def takes_16_bits(method: A) -> A:
    """Decorate a CPU method so that it supports bfloat16 and float16, computed in float32."""
    return _taking(method, SIXTEEN_BITS)


def _taking(method: A, narrow: tuple[str, ...]) -> A:
    refuses, configs, plan = method.refuses, method.configs, method.plan

    def refuses_widened(self: Any, problem: Any, facts: DeviceFacts) -> Reason | None:
        return refuses(self, widened(problem, narrow), facts)

    def configs_widened(self: Any, problem: Any, facts: DeviceFacts) -> Sequence[Any]:
        return configs(self, widened(problem, narrow), facts)

    def plan_widened(self: Any, problem: Any, config: Any, runtime: Runtime) -> Plan:
        wide = widened(problem, narrow)
        made = plan(self, wide, config, runtime)
        return made if wide is problem else _around(made, problem, config)

    changed = (refuses_widened, configs_widened, plan_widened)
    for own, wider in zip((refuses, configs, plan), changed, strict=True):
        wider.__doc__ = own.__doc__
        setattr(method, own.__name__, wider)
    return method


def widened(problem: Any, narrow: tuple[str, ...] = (NARROW,)) -> Any:
    """Copy of a problem with float32 in place of the types `narrow`; a narrow output gets the epilogue's type.

    Examples
    --------
    >>> from convforge.problem import parse_problem
    >>> str(widened(parse_problem("n1c1h4w4_k1r3s3_bf16_nchw")))
    'n1c1h4w4_k1r3s3_st1_p0_f32_nchw'
    """
    changes = {field.name: "float32" for field in dataclasses.fields(problem) if getattr(problem, field.name) in narrow}
    if "out_dtype" in changes and isinstance(problem, Conv2dProblem):
        changes["out_dtype"] = values_dtype(problem).name
    return dataclasses.replace(problem, **changes) if changes else problem


def _around(plan: Plan, problem: Any, config: Config) -> Plan:
    """Wrap the float32 plan in conversions, as a plan for the problem in a narrow type."""
    own = {operand.name: operand for operand in (*problem.operands, *problem.results)}
    wide = {operand.name: operand for operand in (*plan.problem.operands, *plan.problem.results)}
    copied = [name for name in own if own[name].dtype != wide[name].dtype and name != plan.weights]
    parts: list[Part] = [(wide[name].shape, wide[name].dtype) for name in copied]
    room = nbytes(parts)

    def copies(buffers: Buffers) -> dict[str, Any]:
        return dict(zip(copied, carve(buffers.get("workspace"), parts), strict=True))

    def inner(buffers: Buffers) -> Iterator[Buffers]:
        rest = {} if plan.workspace_bytes == 0 else {"workspace": buffers["workspace"][room:]}
        yield {**buffers, **copies(buffers), **rest}

    def widen(w: Any) -> Any:
        return np.asarray(w, wide[plan.weights].dtype) if plan.weights else w

    def prepare(w: Any, stream: Any = None) -> PreparedFilter:
        return plan.prepare(widen(w), stream)

    def borrow(w: Any, stream: Any = None) -> PreparedFilter:
        return plan.borrow(widen(w), stream)

    runtime = plan.runtime
    kernel = runtime.compile(_convert)

    def conversion(name: str, role: str) -> Call:
        items = wide[name].size
        info = LaunchInfo(f"{role}_{name}", (items,), (block_of_items(items, items, runtime.facts),))

        def run(buffers: Buffers, stream: Any) -> None:
            there, copy = buffers[name], copies(buffers)[name]
            source, target = (there, copy) if role == "widen" else (copy, there)
            if source.flags.c_contiguous and target.flags.c_contiguous:
                runtime.launch(kernel, info, (source.reshape(-1), target.reshape(-1)), stream)
            else:
                _convert(source, target, 0, len(source))

        return Call(info, run)

    before = [conversion(name, "widen") for name in copied if name != plan.result]
    after = [conversion(name, "narrow") for name in copied if name == plan.result]
    return Plan(
        plan.algorithm, problem, config, runtime, steps=[*before, Child(plan, inner), *after], prepare=prepare,
        borrow=borrow, workspace_bytes=room + plan.workspace_bytes,
    )  # fmt: skip


def _convert(source: Any, target: Any, begin: int, end: int) -> None:
    """Cast source to target. Work item = one element of flat arrays, or one index of the first axis."""
    if target.dtype.itemsize < source.dtype.itemsize:
        target[begin:end] = to_float(source[begin:end], target.dtype)
    else:
        target[begin:end] = source[begin:end]
