"""Preparations of weights in two steps: in another form, then as filters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from convforge.algorithms.contract import Buffers, Launch, Preparation, PreparedFilter
from convforge.algorithms.host.conv import ArrayView
from convforge.backends.runtime import Runtime


class Chained(Preparation):
    """Writes weights in another form to the array `name` by the launches `first`, then prepares them by `filters`.

    `view` returns the written weights. The array is kept, because the prepared filters may be a view of it.
    """

    def __init__(
        self, runtime: Runtime, first: Sequence[Launch], filters: Preparation, name: str,
        piece: tuple[tuple[int, ...], Any], view: Callable[[Buffers], ArrayView],
    ) -> None:  # fmt: skip
        def viewed(buffers: Buffers) -> Buffers:
            return {**buffers, "given": view(buffers)}

        def finish(buffers: Buffers, stream: Any) -> PreparedFilter:
            made, kept = filters.finish(viewed(buffers), stream), buffers[name]
            return replace(made, tensors={**made.tensors, name: kept}, nbytes=made.nbytes + kept.nbytes)

        steps = [*first, *(on_views(step, viewed) for step in filters.steps)]
        super().__init__(runtime, {**filters.pieces, name: piece}, steps, finish)


def on_views(step: Launch, view: Callable[[Buffers], Buffers]) -> Launch:
    fill = step.fill
    return replace(step, fill=lambda buffers: fill(view(buffers)))
