"""The contract of a method: an Algorithm refuses a problem or offers Configs; a Config becomes a Plan."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np

from convforge.algorithms.steps import (
    Buffers,
    Call,
    Child,
    Chunks,
    Launch,
    Preparation,
    PreparedFilter,
    Single,
    Step,
    nothing_to_prepare,
    run_in_order,
)  # fmt: skip
from convforge.algorithms.traits import Mark, MethodCost, Preference, Way, Work
from convforge.backends.facts import DeviceFacts
from convforge.backends.forks import no_fork
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason, WorkspaceTooSmall
from convforge.problem import Problem
from convforge.problem.types import allows


@dataclass(frozen=True, slots=True)
class Config:
    """One way to run an algorithm. Its numbers are at least 1, or at least the ``least`` of the field's metadata."""

    def __str__(self) -> str:
        """Return ``field=value`` joined by commas: the key under which results are stored."""
        return ",".join(f"{f.name}={getattr(self, f.name)}" for f in dataclasses.fields(self))


P = TypeVar("P", bound=Problem)
C = TypeVar("C", bound=Config)


class Plan:
    """An algorithm, compiled for one problem, config and device. Immutable; safe to call from many threads at once.

    Results follow IEEE 754, Inf and NaN included. Preparation and calls ignore NumPy's error state: they never warn,
    and ``np.errstate(all="raise")`` of the caller does not stop them.

    Parameters
    ----------
    steps : sequence of Launch, Call, Child or Chunks
        Run in order.
    prepare, borrow : callable, optional
        Take the user's weights and a stream, return a :class:`PreparedFilter`; omitted for problems without weights.
        `borrow` is for calls that end before the weights change. Its default is `prepare.borrow`, or else `prepare`.
    workspace_bytes : int
        Bytes of workspace that a call needs from its caller.
    """

    allocates = False  # True for libraries that allocate the output of a call that has none
    takes_gaps = True  # the output may have gaps between its elements
    choice: Reason | None = None  # for libraries: how many ways it offers, and the outcome of each

    def __init__(
        self, algorithm: Algorithm[Any, Any], problem: Any, config: Config, runtime: Runtime, *, steps: Sequence[Step],
        prepare: Callable[[Any, Any], PreparedFilter] = nothing_to_prepare,
        borrow: Callable[[Any, Any], PreparedFilter] | None = None, workspace_bytes: int = 0,
    ) -> None:  # fmt: skip
        self.algorithm, self.problem, self.config, self.runtime = algorithm, problem, config, runtime
        self.steps, self.workspace_bytes = tuple(steps), workspace_bytes
        self.ways: tuple[tuple[str, str, Reason | str], ...] = algorithm.ways(problem, config)
        # Names of the buffers; `weights` is "" for a problem without weights.
        self.input, self.result = problem.operands[0].name, problem.results[0].name
        self.weights = problem.weights.name if problem.weights else ""
        self._prepare = prepare
        own: Callable[[Any, Any], PreparedFilter] = getattr(prepare, "borrow", prepare)
        self._borrow = own if borrow is None else borrow
        # SciPy's threads end before a fork and accept no work during it, so a fork waits for SciPy's calls.
        self._holds_forks = runtime.facts.backend == "cpu" and "scipy" in algorithm.versions()

    def prepare(self, w: Any, stream: Any = None) -> PreparedFilter:
        """Flip, cast, transform or pack weights of shape `w_shape` for this plan.

        The weights of a matrix product are B. For a problem without weights, `w` is ignored.
        """
        with np.errstate(all="ignore"), self._no_fork():
            return self._prepare(w, stream)

    def borrow(self, w: Any, stream: Any = None) -> PreparedFilter:
        """Like :meth:`prepare`, for calls that end before w changes; copies only weights that kernels cannot read."""
        with np.errstate(all="ignore"), self._no_fork():
            return self._borrow(w, stream)

    def buffers(
        self, x: Any, prepared: PreparedFilter | None = None, operands: Buffers | None = None, out: Any = None,
        workspace: Any = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Return the arrays of a call, keyed by the problem's names for them; omits those that are None.

        `operands` belong to the epilogue: "scale" of shape () or (K,), "bias" of shape (K,), "residual" of the output's
        shape; and "amax", which the call sets.
        """
        named = {self.input: x, **(operands or {}), self.result: out, "workspace": workspace}
        if self.weights:
            named[self.weights] = prepared
        return {name: array for name, array in named.items() if array is not None}

    def lay(self, x: Any) -> Any:
        """Return the input in the memory layout that suits the plan best, for benchmarks; by default x itself."""
        return x

    def lay_operands(self, operands: Buffers) -> Buffers:
        """Return the epilogue's operands in the types that the plan reads, for benchmarks; by default unchanged."""
        return operands

    def __call__(self, buffers: Buffers, stream: Any = None) -> Any:
        """Compute the result and return it. The caller owns all buffers.

        `buffers` has operands and result under the problem's names, the prepared filter instead of the weights, and
        "workspace", which is allocated if it is missing. Raises ``ValueError`` without an output, and
        ``WorkspaceTooSmall`` if the workspace has fewer than `workspace_bytes` bytes.
        """
        out = buffers.get(self.result)
        if out is None:
            raise ValueError(f"{self.algorithm.name} writes into its caller's output: {self.result} must be an array")
        target = self.runtime.writable(out)
        if self.workspace_bytes or target is not out:
            workspace = self.enough_workspace(buffers.get("workspace"), stream)
            buffers = {**buffers, self.result: target, "workspace": workspace}
        with np.errstate(all="ignore"):
            self.execute(buffers, stream)
        if target is not out:
            out[...] = target
        return out

    def enough_workspace(self, workspace: Any, stream: Any = None) -> Any:
        """Return the caller's workspace, or a new one for None; raises WorkspaceTooSmall if it is too small."""
        if not self.workspace_bytes:
            return workspace
        if workspace is None:
            return self.runtime.allocate(self.workspace_bytes, stream)
        if workspace.nbytes < self.workspace_bytes:
            raise WorkspaceTooSmall(
                f"{self.algorithm.name} needs {self.workspace_bytes} bytes of workspace; got {workspace.nbytes}"
            )
        return workspace

    def execute(self, buffers: Buffers, stream: Any = None) -> None:
        """Run all steps on the buffers of a call."""
        with self._no_fork():
            run_in_order(self.steps, buffers, stream)

    @property
    def preparation(self) -> Preparation | None:
        """The preparation of the weights inside a call if it consists only of launches, or None."""
        return self._borrow if isinstance(self._borrow, Preparation) else None

    @property
    def packing(self) -> Preparation | None:
        """The preparation of weights that the caller may change later if it consists only of launches, or None."""
        return self._prepare if isinstance(self._prepare, Preparation) else None

    def _no_fork(self) -> AbstractContextManager[None]:
        return no_fork() if self._holds_forks else nullcontext()

    @property
    def launches(self) -> tuple[LaunchInfo, ...]:
        """All launches of a call in order, including those of child plans."""

        def walk(steps: Iterable[Step]) -> Iterator[LaunchInfo]:
            for step in steps:
                if isinstance(step, Launch | Call):
                    yield step.info
                else:
                    yield from walk(step.plan.steps if isinstance(step, Child) else chain(*step.groups))

        return tuple(walk(self.steps))

    def __repr__(self) -> str:
        return f"<Plan {self.algorithm.name} [{self.config}] of {self.problem} on {self.runtime.facts.name}>"


class Algorithm(ABC, Generic[P, C]):
    """A method. Its registry key is (operation, backend, name). It has no state."""

    name: ClassVar[str]  # lower case, unique for its operation and backend
    summary: ClassVar[str]  # one line
    operation: ClassVar[str]  # "conv2d", "max_pool2d", "gemm" or "relu"
    backend: str = "cpu"  # or "cuda", "emulator"
    since: ClassVar[str | None] = None  # the step of the ladder that it builds on
    precision: ClassVar[str] = "strict"  # a key of :data:`convforge.problem.PRECISIONS`
    # Outputs that a NaN or Inf in x can change: those with it in their window ("exact"), its "tile", its "image".
    nan_spread: ClassVar[str] = "exact"
    # False for peers: other libraries under the same contract, measured with ours but chosen only on request.
    ours: ClassVar[bool] = True
    takes_fp8: ClassVar[bool] = False  # True if it computes from 8-bit floats
    takes_amax: ClassVar[bool] = False  # True if it computes the largest absolute value of the results
    # Strides that its arrays may have: "any", or non-negative multiples of the element size ("forward").
    reads: ClassVar[str] = "any"
    cost: ClassVar[MethodCost] = MethodCost()  # figures for the cost model
    look: ClassVar[Mark | None] = None  # its mark in charts, the same on every backend; None: any unused mark
    preference: ClassVar[Preference | None] = None  # its rank in the choice by rule, if it is the same for all problems

    @property
    def key(self) -> tuple[str, str, str]:
        """The registry key (operation, backend, name)."""
        return (self.operation, self.backend, self.name)

    def refuses(self, problem: P, facts: DeviceFacts) -> Reason | None:
        """Return why the method cannot compute the problem on the device, or None if it can (the default)."""
        return None

    def configs(self, problem: P, facts: DeviceFacts) -> Sequence[C]:
        """Return the configs worth trying, the default first. Only for problems that the method supports."""
        return [cast(C, Config())]

    @abstractmethod
    def plan(self, problem: P, config: C, runtime: Runtime) -> Plan:
        """Compile the kernels of a config and compute the size of its workspace."""

    def work_for(self, problem: P) -> Work:
        """FLOPs and bytes of a call; by default all products, and one read or write of each array."""
        return Work(problem.flops, problem.least_bytes)

    def preference_for(self, problem: P, facts: DeviceFacts) -> Preference | None:
        """Rank in the choice by rule if the problem allows the arithmetic, or None; does not check :meth:`refuses`."""
        return self.preference

    def ways(self, problem: P, config: C) -> tuple[Way, ...]:
        """The ways that a call of the plan may take, with their conditions; empty if there is only one."""
        return ()

    def versions(self) -> dict[str, str]:
        """Versions of the libraries that compute, by name; stored with every result."""
        return {}

    def __repr__(self) -> str:
        return f"<{self.operation}/{self.backend}/{self.name}>"


def precision_refusal(algorithm: Algorithm[Any, Any], precision: str) -> Reason | None:
    """Return why a problem does not allow an algorithm's arithmetic, or None."""
    if allows(precision, algorithm.precision):
        return None
    return Reason(
        "its arithmetic is {own!r}; the problem allows {allowed!r}: ask for it by name",
        own=algorithm.precision, allowed=precision,
    )  # fmt: skip


__all__ = [
    "Algorithm", "Buffers", "Call", "Child", "Chunks", "Config", "Launch", "P", "Plan", "Preparation",
    "PreparedFilter", "Single", "Step", "nothing_to_prepare", "precision_refusal",
]  # fmt: skip
