"""The epilogue as CPU kernels see it."""

from __future__ import annotations

import numba
import numpy as np

from convforge.algorithms.contract import Buffers
from convforge.algorithms.host.epilogue import EpilogueArguments, epilogue_arguments
from convforge.problem import Conv2dProblem, parse_problem


def arguments_of(text: str, operands: Buffers) -> EpilogueArguments:
    problem = parse_problem(text)
    assert isinstance(problem, Conv2dProblem)
    return epilogue_arguments(problem, operands)


def test_operands_that_cannot_be_written_take_no_kernel_of_their_own() -> None:
    """Such as JAX's: the flag is part of Numba's types."""
    text, bias = "n1c2h9w9_k4r3s3_f32_nchw_+bias", np.arange(4, dtype=np.float32)
    before = arguments_of(text, {"bias": bias})
    bias.flags.writeable = False
    found = arguments_of(text, {"bias": bias})
    assert found.bias.tolist() == [0, 1, 2, 3]
    assert numba.typeof(found) == numba.typeof(before)
