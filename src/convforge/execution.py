"""From a problem to its result: find a plan, prepare the weights, run it. Shared by everything that users call."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms import AnyAlgorithm, find, refusal
from convforge.algorithms.contract import Config, Operands, Plan, PreparedFilter
from convforge.arguments import check_word, whole_number
from convforge.backends.runtime import Runtime
from convforge.errors import UnsupportedProblem
from convforge.problem import Conv2dProblem, Problem
from convforge.tuning import choose
from convforge.tuning.heuristic import fit

# Plans are small; weights are not in them. This many shapes stay planned.
PLANS_KEPT = 512
# Prepared weights of one Filter: this many kinds of picture stay prepared.
PREPARED_KEPT = 16


def runtime_of(device: str | None) -> Runtime:
    """The runtime of a device: None and "cpu" are the CPU, "cuda" the first GPU, "cuda:1" the second.

    Raises
    ------
    ValueError
        There is no such device.
    RuntimeError
        The device cannot be used here; the text says why, and what would mend it.
    """
    if device in (None, "cpu"):
        from convforge.backends.cpu import cpu_runtime

        return cpu_runtime()
    if device == "emulator":
        from convforge.backends.emulator.runtime import emulator_runtime

        return emulator_runtime()
    kind, _, number = str(device).partition(":")
    if kind != "cuda" or not (number or "0").isdecimal():
        raise ValueError(f"device={device!r} is unknown; choose 'cpu', 'cuda', 'cuda:1', ... or 'emulator'")
    from convforge.backends.cuda.runtime import cuda_runtime

    return cuda_runtime(int(number or 0))


def find_plan(
    problem: Problem,
    algorithm: str,
    config: Config | Mapping[str, Any] | str | None,
    device: str | None,
    workspace_limit: int | None,
) -> Plan:
    """The plan of the algorithm that was asked for, or of the one that is chosen by rule.

    Raises
    ------
    ValueError
        Unknown algorithm (with the nearest name), unknown config field, or a config without an algorithm.
    UnsupportedProblem
        The algorithm refuses, or nothing fits the workspace limit.
    """
    for name, word in (("algorithm", algorithm), ("device", "cpu" if device is None else device)):
        check_word(word, name)
    if config is not None and not isinstance(config, Config | Mapping | str):
        raise TypeError(f"config={config!r} must be a Config, a mapping, or text such as 'tile_p=8'")
    if workspace_limit is not None and whole_number(workspace_limit, "workspace_limit") < 0:
        raise ValueError(f"workspace_limit={workspace_limit} bytes must not be negative")
    if isinstance(config, Mapping):
        config = ",".join(f"{name}={value}" for name, value in config.items())
    return _find_plan(problem, algorithm, config, device, workspace_limit)


@lru_cache(maxsize=PLANS_KEPT)
def _find_plan(
    problem: Problem, algorithm: str, config: Config | str | None, device: str | None, workspace_limit: int | None
) -> Plan:
    runtime = runtime_of(device)
    if algorithm == "auto":
        if config is not None:
            raise ValueError(f"config={config!s} goes with an algorithm asked for by name; algorithm is 'auto'")
        return choose(problem, runtime, workspace_limit).plan
    method = find(problem.operation, runtime.facts.backend, algorithm)
    if isinstance(problem, Conv2dProblem) and method.precision != "strict":
        problem = problem.replace(precision=method.precision)  # asked for by name, so its arithmetic is too
    reason = refusal(method, problem, runtime.facts)
    if reason is not None:
        raise UnsupportedProblem(str(problem), {method.name: reason})
    if config is None:
        fitting = fit(method, problem, runtime, workspace_limit)
        if isinstance(fitting, str):
            raise UnsupportedProblem(str(problem), {method.name: fitting})
        return fitting
    plan = method.plan(problem, make_config(method, problem, runtime, config), runtime)
    if workspace_limit is not None and plan.workspace_bytes > workspace_limit:
        reason = (
            f"with {plan.config} it needs a workspace of {plan.workspace_bytes} bytes; the limit is {workspace_limit}"
        )
        raise UnsupportedProblem(str(problem), {method.name: reason})
    return plan


def make_config(method: AnyAlgorithm, problem: Any, runtime: Runtime, config: Config | str) -> Config:
    """A config from its text, ``field=value`` joined by commas; what is not named keeps the default's value.

    Raises
    ------
    ValueError
        A field is unknown (with the nearest), or a value has the wrong type.
    """
    default: Config = method.configs(problem, runtime.facts)[0]
    if isinstance(config, Config):
        if type(config) is not type(default):
            raise ValueError(f"{method.name} takes a {type(default).__name__}; got a {type(config).__name__}")
        for f in dataclasses.fields(config):
            value = getattr(config, f.name)
            if isinstance(getattr(default, f.name), int) and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{f.name}={value!r} must be a whole number of at least 1")
        return config
    fields = {f.name: getattr(default, f.name) for f in dataclasses.fields(default)}
    changes: dict[str, Any] = {}
    for part in filter(None, config.replace(" ", "").split(",")):
        name, _, text = part.partition("=")
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ValueError(f"{method.name} has no config field {name!r}{hint} It has: {', '.join(fields) or 'none'}")
        changes[name] = _value(name, text, fields[name])
    return dataclasses.replace(default, **changes)


def _value(name: str, text: str, default: Any) -> Any:
    """A config field's value from its text, in the type of its default; numbers of a tile are at least 1."""
    if not isinstance(default, int) or isinstance(default, bool):
        return type(default)(text)
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ValueError(f"{name}={text!r} must be a whole number of at least 1")
    return int(text)


def prepared_plan(plan: Plan, w: NDArray[Any], kept: dict[Any, PreparedFilter]) -> PreparedFilter:
    """The weights prepared for a plan, taken from `kept` where they are, in which at most a few stay."""
    key = (plan.algorithm.key, plan.problem, plan.config)
    prepared = kept.get(key)
    if prepared is None:
        prepared = plan.prepare(w if plan.runtime.facts.backend == "cpu" else plan.runtime.upload(w))
        while len(kept) >= PREPARED_KEPT:
            kept.pop(next(iter(kept)), None)
        kept[key] = prepared
    return prepared


def execute(
    plan: Plan,
    x: NDArray[Any],
    w: NDArray[Any] | None,
    operands: Operands,
    whole: NDArray[Any],
    overlaps: bool,
    target: NDArray[Any],
    prepared: PreparedFilter | None = None,
) -> NDArray[Any]:
    """Run a plan into `whole`, which is `target` with its batch axis; through a buffer where it overlaps an input."""
    if plan.runtime.facts.backend != "cpu":
        _execute_there(plan, x, w, operands, whole, prepared)
        return target
    if prepared is None:
        prepared = plan.borrow(w)
    if overlaps:
        buffer = np.empty(whole.shape, whole.dtype)
        plan(x, prepared, operands, buffer)
        whole[...] = buffer
    else:
        plan(x, prepared, operands, whole)
    return target


def _execute_there(
    plan: Plan,
    x: NDArray[Any],
    w: NDArray[Any] | None,
    operands: Operands,
    whole: NDArray[Any],
    prepared: PreparedFilter | None,
) -> None:
    """Upload, run, download: host arrays on a device. Its kernels take contiguous operands of one type."""
    runtime, problem = plan.runtime, plan.problem

    def cast(operand: Any) -> Any:
        return None if operand is None else np.ascontiguousarray(operand, problem.operand_dtype)

    if prepared is None:
        prepared = plan.borrow(None if w is None else runtime.upload(w))
    out = runtime.empty(whole.shape, whole.dtype)
    own = Operands(cast(operands.scale), cast(operands.bias), operands.residual)
    plan(runtime.upload(x), prepared, own.on(runtime), out)
    whole[...] = runtime.download(out)
