"""The contract of a method: Algorithm -> Config -> Plan -> output.

An algorithm refuses a problem or gives its configs. A config becomes a plan. The plan prepares weights once or on every
call, and is then called many times.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Config:
    """One way to run an algorithm. Subclasses add fields: tile sizes, block shapes, a child's config.

    A number is at least 1, or the ``least`` of its field's metadata.
    """

    def __str__(self) -> str:
        """Text form, ``field=value`` joined by commas: the key under which results are stored."""
        return ",".join(f"{f.name}={getattr(self, f.name)}" for f in dataclasses.fields(self))


P = TypeVar("P", bound=Problem)
C = TypeVar("C", bound=Config)


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOPs of the direct method (nominal), and the fewest bytes that must move."""

    flops: int
    least_bytes: int


class Plan:
    """An algorithm made ready for one problem, config and device. Immutable; safe to call from many threads at once.

    Results follow IEEE 754, Inf and NaN included. Preparation and calls ignore NumPy's error state, so a caller's
    ``np.errstate(all="raise")`` stops no call, and no call warns.

    Parameters
    ----------
    steps : sequence of Launch, Call, Child or Chunks
        Run in order.
    prepare : callable, optional
        The user's weights and a stream -> :class:`PreparedFilter`; omitted where there are no weights.
    borrow : callable, optional
        The same for calls that end before the weights change; by default `prepare.borrow`, or else `prepare`.
    workspace_bytes : int
        Bytes of scratch memory that a call needs from its caller.

    Attributes
    ----------
    input, weights, result : str
        Names of the buffers: of the first operand, the weights and the output; `weights` is "" where there are none.
    allocates : bool
        A call without an output allocates one. True for some libraries, for no plan of ours.
    takes_gaps : bool
        The output may have gaps between its elements.
    choice : Reason or None
        Of a library: the number of ways that it offers, and the outcome of each.
    ways : tuple of (str, str, Reason or str)
        The ways of a call, where there are several (:class:`convforge.algorithms.traits.Way`).
    """

    allocates = False
    takes_gaps = True
    choice: Reason | None = None

    def __init__(
        self, algorithm: Algorithm[Any, Any], problem: Any, config: Config, runtime: Runtime, *, steps: Sequence[Step],
        prepare: Callable[[Any, Any], PreparedFilter] = nothing_to_prepare,
        borrow: Callable[[Any, Any], PreparedFilter] | None = None, workspace_bytes: int = 0,
    ) -> None:  # fmt: skip
        self.algorithm, self.problem, self.config, self.runtime = algorithm, problem, config, runtime
        self.steps, self.workspace_bytes = tuple(steps), workspace_bytes
        self.ways: tuple[tuple[str, str, Reason | str], ...] = algorithm.ways(problem, config)
        first, *others = problem.operands
        self.input = first.name
        self.weights = next((operand.name for operand in others if operand.role == "weights"), "")
        self.result = problem.results[0].name
        self._prepare = prepare
        own: Callable[[Any, Any], PreparedFilter] = getattr(prepare, "borrow", prepare)
        self._borrow = own if borrow is None else borrow
        # SciPy's threads end before a fork, and refuse work during it: forks wait for its calls.
        self._holds_forks = runtime.facts.backend == "cpu" and "scipy" in algorithm.versions()

    def prepare(self, w: Any, stream: Any = None) -> PreparedFilter:
        """Flip, cast, transform or pack the weights, of the problem's `w_shape`, for this plan.

        The weights of a matrix product are B. Without weights, `w` is ignored.
        """
        with np.errstate(all="ignore"), self._no_fork():
            return self._prepare(w, stream)

    def borrow(self, w: Any, stream: Any = None) -> PreparedFilter:
        """Like :meth:`prepare`, for calls that end before the weights change.

        Copies nothing if the kernels can read the weights.
        """
        with np.errstate(all="ignore"), self._no_fork():
            return self._borrow(w, stream)

    def buffers(
        self, x: Any, prepared: PreparedFilter | None = None, operands: Buffers | None = None, out: Any = None,
        workspace: Any = None,
    ) -> dict[str, Any]:  # fmt: skip
        """The arrays of a call by the problem's names for them, without those that are None.

        Parameters
        ----------
        x : array
            A, for a matrix product.
        prepared : PreparedFilter or None
            Ignored where there are no weights.
        operands : mapping of str to array, optional
            Of the epilogue: "scale" of shape () or (K,), "bias" (K,), "residual" of the output's shape.
        """
        named = {self.input: x, **(operands or {}), self.result: out, "workspace": workspace}
        if self.weights:
            named[self.weights] = prepared
        return {name: array for name, array in named.items() if array is not None}

    def lay(self, x: Any) -> Any:
        """The input in the memory layout that suits the plan best, for benchmarks; by default x itself."""
        return x

    def __call__(self, buffers: Buffers, stream: Any = None) -> Any:
        """Compute the result and return it. The caller owns all buffers.

        Parameters
        ----------
        buffers : mapping of str to array
            Operands and result by the problem's names for them, the prepared filter in place of the weights, and
            "workspace", which is allocated here if it is missing.

        Raises
        ------
        ValueError
            There is no output.
        WorkspaceTooSmall
            The workspace has fewer than `workspace_bytes` bytes.
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
        """The caller's workspace, or a new one if that is None; WorkspaceTooSmall if it is too small."""
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
        """Run the steps on the buffers of a call."""
        with self._no_fork():
            run_in_order(self.steps, buffers, stream)

    @property
    def preparation(self) -> Preparation | None:
        """The preparation of weights in a call, if it consists only of launches."""
        return self._borrow if isinstance(self._borrow, Preparation) else None

    @property
    def packing(self) -> Preparation | None:
        """The preparation of weights that the caller may change, if it consists only of launches."""
        return self._prepare if isinstance(self._prepare, Preparation) else None

    def _no_fork(self) -> AbstractContextManager[None]:
        return no_fork() if self._holds_forks else nullcontext()

    @property
    def launches(self) -> tuple[LaunchInfo, ...]:
        """All launches of a call in order, those of child plans included."""

        def walk(steps: Iterable[Step]) -> Iterator[LaunchInfo]:
            for step in steps:
                if isinstance(step, Launch | Call):
                    yield step.info
                elif isinstance(step, Child):
                    yield from walk(step.plan.steps)
                else:
                    for group in step.groups:
                        yield from walk(group)

        return tuple(walk(self.steps))

    @property
    def cost(self) -> Cost:
        """Nominal FLOPs and least bytes of the problem."""
        return Cost(self.problem.flops, self.problem.least_bytes)

    def __repr__(self) -> str:
        return f"<Plan {self.algorithm.name} [{self.config}] of {self.problem} on {self.runtime.facts.name}>"


class Algorithm(ABC, Generic[P, C]):
    """A method. Its registry key is (operation, backend, name); it holds no state.

    Attributes
    ----------
    name : str
        Lower case, unique for its operation and backend.
    summary : str
        One line.
    operation : str
        "conv2d", "max_pool2d", "gemm" or "relu".
    backend : str
        "cpu", "cuda" or "emulator".
    since : str or None
        The step of the ladder that it builds on.
    precision : str
        A key of :data:`convforge.problem.PRECISIONS`.
    nan_spread : {"exact", "tile", "picture"}
        The outputs that a NaN or Inf in x reaches: those whose window holds it, its tile, or its whole image.
    ours : bool
        False for peers: other libraries under the same contract, measured with ours and chosen only on request.
    reads : {"any", "forward"}
        Strides that its arrays may have: any, or multiples of the element size that are not negative.
    cost : MethodCost
        Figures for the cost model.
    look : Mark or None
        Its mark in charts, the same on every backend; None: any unused mark.
    preference : Preference or None
        Its place in the choice by rule, if that is the same for all problems.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    operation: ClassVar[str]
    backend: str = "cpu"
    since: ClassVar[str | None] = None
    precision: ClassVar[str] = "strict"
    nan_spread: ClassVar[str] = "exact"
    ours: ClassVar[bool] = True
    reads: ClassVar[str] = "any"
    cost: ClassVar[MethodCost] = MethodCost()
    look: ClassVar[Mark | None] = None
    preference: ClassVar[Preference | None] = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Registry key: operation, backend, name."""
        return (self.operation, self.backend, self.name)

    def refuses(self, problem: P, facts: DeviceFacts) -> Reason | None:
        """The reason why it cannot compute the problem on the device; None if it can, the default."""
        return None

    def configs(self, problem: P, facts: DeviceFacts) -> Sequence[C]:
        """The configs worth trying, the default first; by default one without fields. Only for problems it can do."""
        return [cast(C, Config())]

    @abstractmethod
    def plan(self, problem: P, config: C, runtime: Runtime) -> Plan:
        """Compile the kernels of a config, and compute the size of its workspace."""

    def work_for(self, problem: P) -> Work:
        """FLOPs and bytes of a call; by default all products, with every array read or written once."""
        return Work(problem.flops, problem.least_bytes)

    def preference_for(self, problem: P, facts: DeviceFacts) -> Preference | None:
        """Its place in the choice by rule for a problem that allows its arithmetic, even if it refuses it; or None."""
        return self.preference

    def ways(self, problem: P, config: C) -> tuple[Way, ...]:
        """The ways of a call of the plan, and their conditions; empty where there is only one."""
        return ()

    def versions(self) -> dict[str, str]:
        """Versions of the libraries that do the work, by name; stored with every result."""
        return {}

    def __repr__(self) -> str:
        return f"<{self.operation}/{self.backend}/{self.name}>"


def precision_refusal(algorithm: Algorithm[Any, Any], precision: str) -> Reason | None:
    """The reason why a problem does not allow an algorithm's arithmetic; None if it does."""
    if algorithm.precision in ("strict", precision):
        return None
    return Reason(
        "its arithmetic is {own!r}; the problem allows {allowed!r}: ask for it by name",
        own=algorithm.precision, allowed=precision,
    )  # fmt: skip


__all__ = [
    "Algorithm", "Buffers", "Call", "Child", "Chunks", "Config", "Cost", "Launch", "P", "Plan", "Preparation",
    "PreparedFilter", "Single", "Step", "nothing_to_prepare", "precision_refusal",
]  # fmt: skip
