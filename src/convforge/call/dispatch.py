"""Common path of all user functions: find a plan for a problem, prepare the weights, run the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import numpy as np

from convforge.algorithms import find, import_libraries, make_config, refusal
from convforge.algorithms.contract import Buffers, Config, Plan, PreparedFilter
from convforge.backends.cuda.arrays import address
from convforge.backends.forks import no_fork
from convforge.backends.runtime import CallerStream, Runtime
from convforge.call.arguments import check_word, whole_number
from convforge.call.arrays import Home
from convforge.call.cache import ALIGNMENT, HostReady, Ready, ready_for
from convforge.errors import Reason, UnsupportedProblem
from convforge.peers import every_algorithm
from convforge.problem import Problem
from convforge.tuning import CHOICES, LEVELS, Choice, decide, key_of, may_measure, with_peers
from convforge.tuning import tune as measure_bucket
from convforge.tuning.heuristic import fit

# Maximum number of plans in memory; plans hold no weights.
PLANS_KEPT = 512
# Maximum number of prepared weights in one Filter, one per shape and dtype of images.
PREPARED_KEPT = 16


def runtime_of(device: str | None) -> Runtime:
    """Return the runtime of a device: None and "cpu" are the CPU, "cuda" the first GPU, "cuda:1" the second.

    Raises ``ValueError`` for an unknown device, ``RuntimeError`` with the reason and the solution for an unusable one.
    """
    if device in (None, "cpu"):
        from convforge.backends.cpu import cpu_runtime

        return cpu_runtime()
    if device == "emulator":
        from convforge.backends.emulator.runtime import emulator_runtime

        return emulator_runtime()
    number = _gpu_number(device)
    from convforge.backends.cuda.runtime import cuda_runtime

    return cuda_runtime(number)


def _gpu_number(device: object) -> int:
    """Return the number of the GPU that "cuda" or "cuda:1" names; ``ValueError`` for another name."""
    kind, _, number = str(device).partition(":")
    if kind != "cuda" or not (number or "0").isdecimal():
        raise ValueError(f"device={device!r} is unknown; choose 'cpu', 'cuda', 'cuda:1', ... or 'emulator'")
    return int(number or 0)


def devices_of(device: str | None) -> tuple[str, ...]:
    """Return the devices that work on one large image: "cuda" stands for all GPUs, "cuda:0,cuda:2" for some of them.

    Raises ``ValueError`` for an unknown device, for a GPU that is named twice, and for several devices that are not all
    GPUs; ``RuntimeError`` with the reason and the solution for a device that cannot be used.

    Examples
    --------
    >>> devices_of(None)
    ('cpu',)
    >>> devices_of("cuda:1,cuda:1")
    Traceback (most recent call last):
    ValueError: device='cuda:1,cuda:1' names cuda:1 twice; name each GPU once
    """
    words = [word.strip() for word in (device or "cpu").split(",")]
    numbers = [None if word in ("cpu", "emulator") else _gpu_number(word) for word in words]
    if words == ["cuda"]:
        from convforge.backends.cuda.facts import gpu_count

        runtime_of("cuda")
        return tuple(f"cuda:{number}" for number in range(gpu_count()))
    if len(words) > 1:
        if other := next((word for word in words if not word.startswith("cuda:")), None):
            hint = "write it alone for all GPUs" if other == "cuda" else f"{other} works alone"
            raise ValueError(f"device={device!r} names {other} with others; name GPUs as in 'cuda:0,cuda:1', or {hint}")
        words = [f"cuda:{number}" for number in numbers]
        if twice := next((word for at, word in enumerate(words) if word in words[:at]), None):
            raise ValueError(f"device={device!r} names {twice} twice; name each GPU once")
    for word in words:
        runtime_of(word)
    return tuple(words)


def find_plan(
    problem: Problem,
    algorithm: str = "auto",
    config: Config | Mapping[str, Any] | str | None = None,
    device: str | None = None,
    workspace_limit: int | None = None,
    *,
    tune: bool | None = None,
    deterministic: bool = False,
    stream: Any = None,
) -> Plan:
    """Return the plan of the named algorithm, or of one chosen by measurement or by rule.

    Arguments and errors are those of :func:`convforge.conv2d`. While `stream` is captured, nothing is measured.
    """
    if type(algorithm) is not str:
        check_word(algorithm, "algorithm")
    if device is not None and type(device) is not str:
        check_word(device, "device")
    if config is not None and not isinstance(config, Config | Mapping | str):
        raise TypeError(f"config={config!r} must be a Config, a mapping, or text such as 'tile_p=8'")
    if workspace_limit is not None and whole_number(workspace_limit, "workspace_limit") < 0:
        raise ValueError(f"workspace_limit={workspace_limit} bytes must not be negative")
    if tune is not None and not isinstance(tune, bool):
        raise TypeError(f"tune={tune!r} must be True, False or None")
    if not isinstance(deterministic, bool):
        raise TypeError(f"deterministic={deterministic!r} must be True or False")
    if isinstance(config, Mapping):
        config = ",".join(f"{name}={value}" for name, value in config.items())
    if deterministic and algorithm in LEVELS:
        algorithm = "heuristic"
    wanted = (problem, algorithm, config, device, workspace_limit)
    choice = _find_plan(*wanted, CHOICES.generation(key_of(problem)))
    if choice.untuned and may_measure(tune, algorithm, choice.plan.runtime, stream):
        choice.plan.runtime.synchronize(stream)  # the caller's earlier work would slow the measurement down
        with np.errstate(all="ignore"):
            measure_bucket(problem, choice.plan.runtime, algorithm, workspace_limit, peers=with_peers())
        choice = _find_plan(*wanted, CHOICES.generation(key_of(problem)))
    return choice.plan


@lru_cache(maxsize=PLANS_KEPT)
def _find_plan(
    problem: Problem,
    algorithm: str,
    config: Config | str | None,
    device: str | None,
    workspace_limit: int | None,
    generation: int,
) -> Choice:
    """Find a plan; `generation` is part of the cache's key, and a measurement of similar problems increases it."""
    with no_fork(), np.errstate(all="ignore"):  # planning imports modules
        return _planned(problem, algorithm, config, runtime_of(device), workspace_limit)


def _planned(
    problem: Problem, algorithm: str, config: Config | str | None, runtime: Runtime, workspace_limit: int | None
) -> Choice:
    if algorithm in LEVELS:
        if config is not None:
            raise ValueError(f"config={config!s} goes with an algorithm asked for by name; algorithm is {algorithm!r}")
        return decide(problem, runtime, algorithm, workspace_limit, peers=with_peers())
    method = find(problem.operation, runtime.facts.backend, algorithm, every_algorithm())
    if method.precision != "strict":
        problem = problem.allowing(method.precision)  # the user who names a method allows its arithmetic
    reason = refusal(method, problem, runtime.facts)
    if reason is not None:
        raise UnsupportedProblem(str(problem), {method.name: reason})
    import_libraries(method)
    if config is None:
        fitting = fit(method, problem, runtime, workspace_limit)
        if isinstance(fitting, Reason):
            raise UnsupportedProblem(str(problem), {method.name: fitting})
        return Choice(method, fitting.config, fitting, "asked for by name")
    plan = method.plan(problem, make_config(method, problem, runtime.facts, config), runtime)
    if workspace_limit is not None and plan.workspace_bytes > workspace_limit:
        reason = Reason(
            "with {config} it needs a workspace of {need} bytes; the limit is {limit}",
            config=str(plan.config), need=plan.workspace_bytes, limit=workspace_limit,
        )  # fmt: skip
        raise UnsupportedProblem(str(problem), {method.name: reason})
    return Choice(method, plan.config, plan, "asked for by name")


def prepared_plan(plan: Plan, w: Any, kept: dict[Any, PreparedFilter], stream: Any = None) -> PreparedFilter:
    """Return the weights prepared for a plan and a stream, from `kept` if possible; else prepare and store them there.

    Weights prepared under graph capture are not stored: they exist only after the graph has run.
    """
    key = (plan.algorithm.key, plan.problem, plan.config, plan.runtime, None if stream is None else stream.handle)
    prepared = kept.get(key)
    if prepared is None:
        upload = stream is None and plan.runtime.facts.backend != "cpu"
        prepared = plan.prepare(plan.runtime.upload(w) if upload else w, stream)
        if stream is not None and stream.capturing:
            return prepared
        while len(kept) >= PREPARED_KEPT:
            kept.pop(next(iter(kept)), None)
        kept[key] = prepared
    return prepared


def at_home(device: str | None) -> AbstractContextManager[None]:
    """Context in which a GPU is the thread's current one; does nothing for other devices."""
    return runtime_of(device).current() if isinstance(device, str) and device.startswith("cuda") else nullcontext()


def run(
    plan: Plan, home: Home, x: Any, w: Any, operands: Buffers, out: Any = None, prepared: PreparedFilter | None = None,
    stream: CallerStream | None = None, keep: Callable[[Ready | HostReady], None] | None = None,
) -> Any:  # fmt: skip
    """Run a plan on the caller's arrays, and return the caller's result.

    x and w are views from :meth:`Home.read`; if x has no batch axis, neither have the residual and the result. `keep`
    caches the call; see :meth:`Calls.keeper`. With prepared weights, the caller's arrays are x, the residual and amax;
    else they are x, w and the operands.
    """
    shape, dtype = plan.problem.out_shape, plan.problem.out_dtype
    lacks_batch = len(shape) - x.ndim
    inputs = tuple([array for array in (x, w, operands.get("bias"), operands.get("residual")) if array is not None])
    output = home.output(out, shape[lacks_batch:], dtype, inputs)
    first = (None,) * lacks_batch
    x_whole, out_whole = (x[first], output.view[first]) if first else (x, output.view)
    if first and "residual" in operands:
        operands = {**operands, "residual": operands["residual"][first]}
    given = {name: array for name, array in operands.items() if name in ("residual", "amax")}
    fixed = {name: array for name, array in operands.items() if name not in given}

    if keep is not None and output.wanted is None and stream is not None:
        moving = {plan.input: x_whole, **given}
        if prepared is None:
            moving |= {plan.weights: w, **operands} if plan.weights else {}
        ready = ready_for(plan, home, moving, out_whole, prepared, fixed, stream,
                          shape=output.view.shape, given=out is not None)  # fmt: skip
        places = [address(array) for array in (*moving.values(), output.view)]
        aligned = out is not None or not places[-1] % ALIGNMENT
        if ready is not None and aligned and ready.run(places, output.written) is not None:
            keep(ready)
            return output.finish(stream)
    execute(plan, x_whole, w, operands, out_whole, prepared, stream)
    if keep is not None and output.wanted is None and stream is None and plan.runtime.facts.backend == "cpu":

        def compute(inputs: tuple[Any, ...], out: Any) -> None:
            x, *others = inputs
            x, out = (x[first], out[first]) if first else (x, out)
            if prepared is None:
                w, bias = (*others, None, None)[:2]
                plan(plan.buffers(x, plan.borrow(w), operands if bias is None else {"bias": bias}, out))
            else:
                named = dict(zip(given, (array[first] if first else array for array in others), strict=True))
                plan(plan.buffers(x, prepared, {**fixed, **named}, out))

        keep(HostReady(home.library, shape[lacks_batch:], dtype, compute))
    return output.finish(stream)


def execute(
    plan: Plan, x: Any, w: Any, operands: Buffers, out: Any, prepared: PreparedFilter | None = None,
    stream: CallerStream | None = None,
) -> None:  # fmt: skip
    """Run a plan on the caller's stream; without a stream, copy host arrays to the device and the result back."""
    runtime = plan.runtime
    if stream is None and runtime.facts.backend != "cpu":
        x, w = runtime.upload(x), None if w is None else runtime.upload(w)
        there = runtime.empty(out.shape, out.dtype)
        with np.errstate(all="ignore"):  # a bias beyond the range of float32 becomes Inf
            dtype = plan.problem.operand_dtype if operands else None  # type of scale and bias only
            uploaded = {
                name: runtime.upload(np.ascontiguousarray(array, dtype if name in ("scale", "bias") else None))
                for name, array in operands.items()
            }
        plan(plan.buffers(x, prepared or plan.borrow(w), uploaded, there))
        out[...] = runtime.download(there)
        if "amax" in operands:
            operands["amax"][...] = runtime.download(uploaded["amax"]).reshape(operands["amax"].shape)
        return
    if plan.algorithm.reads == "forward":
        for name, array in {"x": x, "w": w, **operands, "out": out}.items():
            if hasattr(array, "strides") and any(step < 0 or step % array.itemsize for step in array.strides):
                reason = Reason(
                    "it reads strides of whole elements that are not negative; {name} has strides of {strides} "
                    "bytes: copy {name} first, or use a method of convforge's",
                    name=name,
                    strides=str(array.strides),
                )
                raise UnsupportedProblem(str(plan.problem), {plan.algorithm.name: reason})
    plan(plan.buffers(x, plan.borrow(w, stream) if prepared is None else prepared, operands, out), stream)
