"""Check a sample of output rows against the float64 truth, which is fast for problems of any size.

The sample holds border rows, rows on both sides of tile boundaries, and a few random rows, with all columns and
channels. The elementwise bound and the gate on RMS errors are those of a full check.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.backends.runtime import Runtime
from convforge.problem import Conv2dProblem, Problem
from convforge.verify.amax import FEW_ROUNDINGS
from convforge.verify.bounds import Bound, bound_of
from convforge.verify.gate import Gate
from convforge.verify.inputs import Inputs
from convforge.verify.rows import rows_of
from convforge.verify.truth import truth
from convforge.verify.verdict import within

# Most FLOPs that the direct method needs for the sampled rows; the first and the last row are always sampled.
SAMPLED_FLOPS = 2 * 10**7
# Largest number of sampled rows; number of random rows among the candidates.
MOST_ROWS, RANDOM_ROWS = 40, 4
# Outputs of up to this many bytes are downloaded whole, larger ones row by row.
WHOLE_BYTES = 16 << 20


class Sample:
    def __init__(self, problem: Problem, inputs: Inputs) -> None:
        self._problem, self._inputs = problem, inputs
        self._rows = rows_of(problem) if problem.multiplies else None  # None: whole results are compared
        self.items = sampled((self._rows.images, self._rows.height) if self._rows else (1, 1), problem.flops)
        self._truth = self._rows.true(inputs, self.items) if self._rows else truth(problem, inputs)
        self._bounds: dict[str, NDArray[np.float64]] = {}
        self._gate = Gate(problem, inputs, self._truth, self.items) if self._rows else None

    def fault(self, precision: str, out: Any, runtime: Runtime, amax: float | None = None) -> str | None:
        """Describe the first wrong sample of `out`, a whole output on a device; None if all samples are correct.

        `amax` is its largest absolute value, which must not be below those of the samples.
        """
        expected = self._truth.value
        if not expected.size:
            return None
        got = self._brought(out, runtime).astype(np.float64)
        with np.errstate(invalid="ignore"):
            good = within(self._problem, precision, got, self._truth, self._bound(precision))
        if good.all() and amax is not None and (fault := self._above(precision, amax)):
            return fault
        if good.all():
            excess = None if self._gate is None else self._gate.excess(precision, got)
            return None if excess is None else f"of the sampled outputs, {excess}"
        index = tuple(int(i) for i in np.argwhere(~good)[0])
        where = self._rows.place(int(self.items[index[0]]), *index[1:]) if self._rows else f"at {index}"
        wrong = f"{int((~good).sum())} of {good.size} sampled outputs are wrong"
        return f"{where}: expected {expected[index]!r}, got {got[index]!r}; {wrong}"

    def _above(self, precision: str, amax: float) -> str | None:
        """Describe why `amax` is not above all samples; None if it is."""
        assert isinstance(self._problem, Conv2dProblem)
        ends, truth = self._problem.epilogue, np.abs(self._truth.value)
        least = float((truth - self._bound(precision)).max()) * ends.out_scale * ends.amax_scale
        if amax >= least * (1 - FEW_ROUNDINGS) or not np.isfinite(truth).all():
            return None
        return f"amax is {amax!r}, and of the sampled outputs alone at least {least!r}"

    def _bound(self, precision: str) -> NDArray[np.float64]:
        if (known := self._bounds.get(precision)) is None:
            bound = bound_of(self._problem, precision, self._truth, self._inputs)
            if bound.more is not None and self._rows is not None:
                whole = np.broadcast_to(bound.more, self._problem.out_shape)
                bound = Bound(bound.factor, bound.constant, self._rows.taken(whole, self.items))
            known = self._bounds[precision] = bound.over(self._truth.magnitude)
        return known

    def _brought(self, out: Any, runtime: Runtime) -> NDArray[Any]:
        """Download the sampled rows, or the whole output if the problem has no rows."""
        if self._rows is None:
            return np.asarray(runtime.download(out))
        if out.nbytes <= WHOLE_BYTES:
            return self._rows.taken(runtime.download(out), self.items)
        return self._rows.brought(out, self.items, runtime.download)


def sampled(rows: tuple[int, int], flops: int) -> NDArray[np.int64]:
    """Choose rows n * P + p to sample: the first, the last, both sides of power-of-two tile boundaries, random rows."""
    images, height = rows
    total = images * height
    if total == 0:
        return np.empty(0, np.int64)
    wanted = [0, total - 1, height - 1, (images - 1) * height, 1, total - 2]
    size = 4
    while size < height:
        wanted += [size - 1, size]
        size *= 2
    wanted += np.random.default_rng(0).integers(total, size=RANDOM_ROWS).tolist()
    known = list(dict.fromkeys(i for i in wanted if 0 <= i < total))
    most = int(SAMPLED_FLOPS * total // max(flops, 1))
    return np.array(sorted(known[: max(2, min(most, MOST_ROWS))]), np.int64)
