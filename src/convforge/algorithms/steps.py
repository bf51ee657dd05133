"""The steps of a plan over named buffers: declared launches, undeclared calls, and groups of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.errors import Reason

if TYPE_CHECKING:
    from convforge.algorithms.contract import Plan

# The arrays of one call by name: the problem's operands and results, and "workspace", raw bytes that all steps share.
# A :class:`PreparedFilter` replaces the weights. Arrays have the problem's physical layout.
Buffers = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PreparedFilter:
    """Weights that a plan flipped, cast, transformed or packed. It owns these copies, `nbytes` bytes in all."""

    tensors: dict[str, Any]
    nbytes: int
    said: Reason | Callable[[], Reason | None] | None = field(default=None, repr=False)

    @property
    def note(self) -> Reason | None:
        """Properties of the weights that preparation found; read from the device now, once its stream has finished."""
        return self.said() if callable(self.said) else self.said


def nothing_to_prepare(w: Any = None, stream: Any = None) -> PreparedFilter:
    """Prepare nothing: the default for problems without weights."""
    return PreparedFilter({}, 0)


def _name(step: Call | Launch) -> str:
    """Name of a step; benchmarks add up the times of steps with the same name."""
    return step.role or step.info.kernel


@dataclass(frozen=True, slots=True)
class Call:
    """An undeclared step: work of a library, a copy, or a CPU kernel. A GPU plan with one does not use the call cache.

    `run` takes the call's buffers and the stream. `role` is the step's part in its plan, such as "expansion"; empty
    if the kernel's name says it. `least_bytes` is the minimum traffic, with every array read or written once; None if
    unknown.
    """

    info: LaunchInfo
    run: Callable[[Buffers, Any], None] = field(repr=False)
    role: str = ""
    least_bytes: int | None = None

    name = property(_name)


@dataclass(frozen=True, slots=True)
class Launch:
    """A declared step: one kernel over a grid, with arguments that depend on the buffers alone.

    The call cache repeats it without its plan: it writes new buffer addresses into the struct, at the offsets that
    the struct's type declares (:mod:`convforge.backends.structs`).
    """

    info: LaunchInfo
    kernel: Any = field(repr=False)  # the runtime's compiled kernel
    # Returns the kernel's struct for a call's buffers, or None if the kernel cannot use these arrays. It reads only
    # shapes, strides, types and the lowest bits of addresses.
    fill: Callable[[Buffers], Any] = field(repr=False)
    runtime: Runtime = field(repr=False)
    role: str = ""
    least_bytes: int | None = None
    # If `fill` returns None, this returns the plan that computes the whole result instead of this and all later steps.
    # Without it, the step is then skipped.
    otherwise: Callable[[], Plan] | None = field(default=None, repr=False)

    name = property(_name)

    def run(self, buffers: Buffers, stream: Any) -> bool:
        """Fill the struct and launch the kernel; return True if the plan of `otherwise` computed the result instead."""
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
    """A preparation of weights that consists only of launches, so that the call cache can repeat it.

    `pieces` maps names to the shape and dtype of arrays that are allocated on the stream. `steps` work on these and on
    "given", the user's weights. `finish` makes the prepared filter from the same buffers and the stream; by default the
    filter has all pieces.
    """

    def __init__(
        self, runtime: Runtime, pieces: Mapping[str, tuple[tuple[int, ...], Any]], steps: Sequence[Launch],
        finish: Callable[[Buffers, Any], PreparedFilter] | None = None,
    ) -> None:  # fmt: skip
        self.pieces, self.steps = pieces, tuple(steps)
        self.finish = self._all_pieces if finish is None else finish
        self._runtime = runtime

    def of(self, given: Any) -> Preparation:
        """Return the preparation for these weights, chosen by shape, strides, type and lowest address bits."""
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

    `parts` maps the buffers of the call to those of each call of the other plan.
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

    Each group has a private slice of the workspace. Up to `slots` groups run at once, if the runtime can.
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
    """Run steps on buffers until one is replaced by a plan that computes the whole result."""
    for step in steps:
        if not isinstance(step, Launch):
            step.run(buffers, stream)
        elif step.run(buffers, stream):
            return
