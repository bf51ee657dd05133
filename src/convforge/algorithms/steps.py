"""The steps of a plan over named buffers: declared launches, undeclared calls, and groups of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason

if TYPE_CHECKING:
    from convforge.algorithms.contract import Plan

# The arrays of one call by name: the operands and results that the problem has, and "workspace", flat bytes that the
# steps share. Weights are replaced by a :class:`PreparedFilter`. Arrays are in the problem's physical layout.
Buffers = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PreparedFilter:
    """Weights that a plan flipped, cast, transformed or packed. It owns its copies, of `nbytes` bytes."""

    tensors: dict[str, Any]
    nbytes: int
    said: Reason | Callable[[], Reason | None] | None = field(default=None, repr=False)

    @property
    def note(self) -> Reason | None:
        """Properties of the weights found in their preparation, copied from a device now, after its stream."""
        return self.said() if callable(self.said) else self.said


def nothing_to_prepare(w: Any = None, stream: Any = None) -> PreparedFilter:
    """For problems without weights."""
    return PreparedFilter({}, 0)


@dataclass(frozen=True, slots=True)
class Call:
    """An undeclared step: work of a library, copies, kernels of the CPU. A GPU's plan with one is not cached.

    `run` takes the call's buffers and the stream. `role` is the step's part in its plan, such as "expansion"; empty
    where the kernel's name says it. `least_bytes` are those that it must move if it reads and writes everything once;
    None if unknown.
    """

    info: LaunchInfo
    run: Callable[[Buffers, Any], None] = field(repr=False)
    role: str = ""
    least_bytes: int | None = None

    @property
    def name(self) -> str:
        """Steps of a plan with the same name are timed together in benchmarks."""
        return self.role or self.info.kernel


@dataclass(frozen=True, slots=True)
class Launch:
    """A declared step: one kernel over a grid, whose arguments follow from the buffers alone.

    A call can be repeated without its plan: new addresses of buffers are written into the struct, at the offsets that
    its type declares (:mod:`convforge.backends.structs`).
    """

    info: LaunchInfo
    kernel: Any = field(repr=False)  # as the runtime compiled it
    # The call's buffers -> the kernel's struct, or None if it cannot use these arrays. It reads only shapes, strides,
    # types and the last bits of addresses.
    fill: Callable[[Buffers], Any] = field(repr=False)
    runtime: Runtime = field(repr=False)
    role: str = ""
    least_bytes: int | None = None
    # If `fill` gives None, returns the plan that replaces this step and all later ones and computes the whole result.
    # Without it, the step then does nothing.
    otherwise: Callable[[], Plan] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """See :attr:`Call.name`."""
        return self.role or self.info.kernel

    def run(self, buffers: Buffers, stream: Any) -> bool:
        """Fill the struct and launch the kernel; True if `otherwise`'s plan computed the result instead."""
        if 0 in self.info.grid:
            return False
        args = self.fill(buffers)
        if args is not None:
            self.runtime.launch(self.kernel, self.info, args, stream)
        elif self.otherwise is not None:
            plan = self.otherwise()
            plan.execute({**buffers, "workspace": plan.enough_workspace(None, stream)}, stream)
            return True
        return False


class Preparation:
    """Prepares weights only by launches, so that a call which prepares them can be repeated.

    `pieces` are the names of arrays, with shape and dtype, to allocate from the stream's memory; `steps` are over these
    and "given", the user's weights. `finish` makes the prepared filter of the same buffers and the stream; by default
    it has all pieces.
    """

    def __init__(
        self, runtime: Runtime, pieces: Mapping[str, tuple[tuple[int, ...], Any]], steps: Sequence[Launch],
        finish: Callable[[Buffers, Any], PreparedFilter] | None = None,
    ) -> None:  # fmt: skip
        self.pieces, self.steps = pieces, tuple(steps)
        self.finish = self._all_pieces if finish is None else finish
        self._runtime = runtime

    def of(self, given: Any) -> Preparation:
        """The preparation for these weights, by their shape, strides, type and the last bits of their address."""
        return self

    def _all_pieces(self, buffers: Buffers, stream: Any) -> PreparedFilter:
        tensors = {name: buffers[name] for name in self.pieces}
        return PreparedFilter(tensors, sum(tensor.nbytes for tensor in tensors.values()))

    def __call__(self, w: Any, stream: Any = None) -> PreparedFilter:
        own, buffers = self.of(w), {"given": w}
        for name, (shape, dtype) in own.pieces.items():
            buffers[name] = self._runtime.empty(shape, dtype, stream)
        for step in own.steps:
            step.run(buffers, stream)
        return own.finish(buffers, stream)


@dataclass(frozen=True, slots=True)
class Child:
    """A step that runs another plan on parts of the buffers, such as the matrix product inside im2col.

    `parts` gives, for the buffers of the call, those of each call of the other plan.
    """

    plan: Plan
    parts: Callable[[Buffers], Iterable[Buffers]] = field(repr=False)

    @property
    def name(self) -> str:
        return str(self.plan.algorithm.name)

    def run(self, buffers: Buffers, stream: Any) -> None:
        for part in self.parts(buffers):
            self.plan.execute(part, stream)


Single = Launch | Call | Child


@dataclass(frozen=True, slots=True)
class Chunks:
    """Groups of steps that do not depend on each other, such as the tiles of a partition.

    Each group runs with a private slice of the workspace, `slots` groups at a time if the runtime can.
    """

    groups: tuple[tuple[Single, ...], ...]
    slots: int
    slot_bytes: int
    runtime: Runtime = field(repr=False)

    def run(self, buffers: Buffers, stream: Any) -> None:
        """Run every group, in any order."""

        def task(group: tuple[Single, ...]) -> Callable[[int], None]:
            def run(slot: int) -> None:
                own = buffers
                if size := self.slot_bytes:
                    own = {**buffers, "workspace": buffers["workspace"][slot * size : (slot + 1) * size]}
                run_in_order(group, own, stream)

            return run

        self.runtime.parallel([task(group) for group in self.groups], self.slots)


Step = Single | Chunks


def run_in_order(steps: Iterable[Step], buffers: Buffers, stream: Any) -> None:
    """Run steps on buffers, up to one whose replacement plan computes the rest."""
    for step in steps:
        if not isinstance(step, Launch):
            step.run(buffers, stream)
        elif step.run(buffers, stream):
            return
