"""CPU kernel of :mod:`convforge.algorithms.host.outside`."""

from __future__ import annotations

from typing import Any

import numpy as np

from convforge.algorithms.host.rows import store_row
from convforge.backends.cpu.jit import jit
from convforge.backends.cpu.simd import borrow


@jit
def store_outside(zeros: Any, rows: Any, runs: Any, out: Any, epilogue: Any, values: Any, K: Any, begin: Any,
                  end: Any) -> None:  # fmt: skip
    """Store zero sums through the epilogue. Work item = a row of an output channel, or its runs of columns.

    `zeros` (Q,) has the accumulation type. `rows` (P,) are flags. `runs` holds the first column of each run and the
    column after its last. `values` only gives the epilogue's type.
    """
    zeros, rows, runs, out, epilogue = borrow(zeros), borrow(rows), borrow(runs), borrow(out), borrow(epilogue)
    P, Q = rows.size, zeros.size
    value = np.empty(Q, values.dtype)
    for item in range(begin, end):
        p, k, n = item % P, item // P % K, item // P // K
        whole = rows[p]
        for i in range(1 if whole else runs.shape[0]):
            q0, q1 = (0, Q) if whole else (runs[i, 0], runs[i, 1])
            start = out.place[0] + n * out.place[1] + k * out.place[2] + p * out.place[3] + q0 * out.place[4]
            other = (
                epilogue.place[0]
                + n * epilogue.place[1]
                + k * epilogue.place[2]
                + p * epilogue.place[3]
                + q0 * epilogue.place[4]
            )
            store_row(zeros, 0, q1 - q0, value, k, out.flat, start, out.place[4], epilogue, other, epilogue.place[4])
