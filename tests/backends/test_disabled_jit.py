"""NUMBA_DISABLE_JIT=1 is for a user's own functions: convforge's kernels are compiled all the same."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
import numba
import numpy as np
import convforge

@numba.njit
def own(a):
    return type(a).__name__  # no compiled function can say that

x, w = np.arange(16, dtype="f4").reshape(1, 1, 4, 4), np.ones((1, 1, 3, 3), "f4")
call = {
    "relu": lambda: convforge.relu(x - 12)[0, 0, 2:],
    "gemm": lambda: convforge.gemm(x[0, 0], x[0, 0], algorithm="gemm_loops")[:2, 0],
}.get(sys.argv[1], lambda: convforge.conv2d(x, w, algorithm=sys.argv[1])[0, 0])
print(call().tolist(), own(1), numba.config.DISABLE_JIT)
"""

RIGHT = {
    "auto": "[[45.0, 54.0], [81.0, 90.0]]",
    "direct_rows": "[[45.0, 54.0], [81.0, 90.0]]",
    "relu": "[[0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 2.0, 3.0]]",
    "gemm": "[56.0, 152.0]",
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("call", RIGHT)
def test_kernels_are_compiled_and_users_functions_are_not(call: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, call], capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{RIGHT[call]} int 1"
