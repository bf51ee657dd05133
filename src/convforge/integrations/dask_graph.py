"""Graphs of dask: check a dask array, fix a method for all chunks, make one task for each output chunk."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple, Protocol, TypeVar

import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from convforge.algorithms import refusal
from convforge.algorithms.contract import Config
from convforge.call.arrays import Home, home_of
from convforge.call.dispatch import find_plan
from convforge.errors import UnsupportedProblem
from convforge.integrations.dask_chunks import Part, Read
from convforge.problem import Conv2dProblem
from convforge.problem.types import numpy_dtype
from convforge.tuning import LEVELS
from convforge.tuning.heuristic import choose

Result = TypeVar("Result")


class Method(NamedTuple):
    """A method and the text of its config, the same for all chunks."""

    name: str
    config: str


NOT_CHOSEN = Method("", "")


class Call(Protocol):
    """The arguments of a call that all of its tasks share; it pickles."""

    @property
    def problem(self) -> Conv2dProblem:
        """The problem of the whole array."""

    def problem_of(self, part: Part) -> Conv2dProblem:
        """Return the problem of an output chunk."""


def check_array(x: Any, name: str, function: str) -> Home:
    """Return the library and device of a dask array's blocks; ``TypeError`` or ``ValueError`` if it is not usable."""
    if not isinstance(x, da.Array):
        raise TypeError(
            f"{name} must be a dask array; got {type(x).__name__}: call convforge.{function}, or make a dask array "
            "with dask.array.from_array"
        )
    if any(math.isnan(size) for sizes in x.chunks for size in sizes):
        raise ValueError(f"{name} has chunks of unknown size, {x.chunks}; call {name}.compute_chunk_sizes() first")
    home = home_of(**{name: x._meta})
    home.library.check(x._meta, name)
    return home


def stand_in(x: da.Array) -> NDArray[Any]:
    """Return a NumPy array of the same shape and dtype that takes no memory, for checks of arguments."""
    return np.broadcast_to(np.zeros((), x.dtype), x.shape)


def fixed_method(
    call: Call, reads: Sequence[Sequence[Read]], algorithm: str, config: Config | Mapping[str, Any] | str | None,
    device: str | None, *, deterministic: bool = False,
) -> Method:  # fmt: skip
    """Return the method that the call on the whole array uses, and the config for all chunks.

    It measures nothing. "auto" takes the next method by rule if the method refuses a chunk. The config is the named
    one, or that of the largest chunk. Raises ``UnsupportedProblem`` with the chunk's problem.
    """
    plan = find_plan(call.problem, algorithm, config, device, tune=False, deterministic=deterministic)
    facts, refused = plan.runtime.facts, set[str]()
    problems = _problems(call, reads)
    while True:
        name = plan.algorithm.name
        allowed = plan.algorithm.precision if algorithm not in LEVELS else "strict"
        found = ((one, refusal(plan.algorithm, _allowing(one, allowed), facts)) for one in problems)
        fault = next(((one, reason) for one, reason in found if reason is not None), None)
        if fault is None:
            break
        if algorithm not in LEVELS:
            raise UnsupportedProblem(f"the chunk {fault[0]}", {name: fault[1]})
        refused.add(name)
        plan = choose(call.problem, plan.runtime, None, refused).plan
    if config is not None:
        return Method(name, str(plan.config))
    largest = call.problem_of(Part(tuple(max(axis, key=lambda read: read.size) for axis in reads)))
    own = find_plan(largest, algorithm, None, device, tune=False, deterministic=deterministic)
    own = own if own.algorithm.name == name else find_plan(largest, name, None, device, tune=False)
    return Method(name, str(own.config))


def _problems(call: Call, reads: Sequence[Sequence[Read]]) -> list[Conv2dProblem]:
    """The different problems of all chunks; most chunks have the same."""
    kinds = [{(read.size, read.padding, read.outputs): read for read in axis}.values() for axis in reads]
    return list(dict.fromkeys(call.problem_of(Part(part)) for part in product(*kinds) if all(r.outputs for r in part)))


def _allowing(problem: Conv2dProblem, precision: str) -> Conv2dProblem:
    return problem if precision == "strict" else problem.allowing(precision)


def with_config(method: Method, compute: Callable[[str | None], Result]) -> Result:
    """Compute a chunk with the config of all chunks; with the method's default if the chunk is too small for it."""
    try:
        return compute(method.config)
    except UnsupportedProblem:
        raise
    except ValueError:  # the call's arguments are checked, so the config does not fit
        return compute(None)


def chunked(
    function: Callable[..., Any], call: Call, x: da.Array, reads: Sequence[Sequence[Read]], operands: Sequence[Any],
    *, dropped: int | None = None, aligned: da.Array | None = None,
) -> da.Array:  # fmt: skip
    """Return the dask array with one task for each output chunk.

    A task calls ``function(call, part, operands, aligned block, input blocks)``. Each operand is None, a NumPy array,
    which the graph has once, or a dask array of one chunk. `dropped` is the axis of x that the result does not have.
    `aligned` has the shape of the result.
    """
    kept = [axis for axis in range(x.ndim) if axis != dropped]
    sizes = tuple(tuple(read.outputs for read in reads[axis]) for axis in kept)
    aligned = None if aligned is None else aligned.rechunk(sizes)
    names = [one.name if isinstance(one, da.Array) else one for one in (x, *operands, aligned)]
    name = f"convforge-{function.__name__.strip('_')}-{tokenize(call, reads, *names)}"
    layer: dict[Any, Any] = {}
    keys: list[Any] = []
    for i, operand in enumerate(operands):
        if isinstance(operand, da.Array):
            keys.append((operand.name, *(0,) * operand.ndim))
        elif operand is None:
            keys.append(None)
        else:
            keys.append(f"{name}-operand-{i}")
            layer[keys[-1]] = operand
    for indexed in product(*(enumerate(axis) for axis in reads)):
        index = tuple(indexed[axis][0] for axis in kept)
        part = Part(tuple(read for _, read in indexed))
        beside = None if aligned is None else (aligned.name, *index)
        layer[name, *index] = (function, call, part, keys, beside, [(x.name, *block) for block in part.blocks])
    sources = [one for one in (x, *operands, aligned) if isinstance(one, da.Array)]
    graph = HighLevelGraph.from_collections(name, layer, dependencies=sources)
    meta = meta_from_array(x._meta, len(sizes), numpy_dtype(call.problem.out_dtype))
    return da.Array(graph, name, sizes, meta=meta)


def one_block(value: Any, name: str, ranks: Iterable[int]) -> Any:
    """Return an operand for :func:`chunked`, and copy it, as the caller may change it; a dask array gets one chunk."""
    if isinstance(value, da.Array):
        check_array(value, name, "conv2d")
        home_of(**{name: stand_in(value)}).read(stand_in(value), name, tuple(ranks))
        return value.rechunk(-1)
    home = home_of(**{name: value})
    kept = home.kept(value, name, tuple(ranks))
    return kept if home.on_host else kept.get()  # of CuPy
