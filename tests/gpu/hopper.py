"""The runtime of Hopper's kernels: a GPU of compute capability 9.0, or where there is none the emulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.backends.emulated import needs_emulator
from tests.gpu.present import gpu

from convforge.algorithms import find
from convforge.backends.architecture import Architecture
from convforge.backends.cuda import why_absent
from convforge.backends.emulator import EmulatorRuntime
from convforge.problem import parse_problem

NUMBER = 90


@cache
def is_gpu() -> bool:
    """Tell if it is a GPU."""
    return why_absent() is None and Architecture.parse(gpu().facts.architecture).number == NUMBER


class FewCores(EmulatorRuntime):
    """The emulator as on a machine of so many cores that some problems have more tiles than it has, and some fewer.

    Threads run, and what is asynchronous is computed, in random order.
    """

    def __init__(self) -> None:
        super().__init__("shuffled")
        self.facts = replace(self.facts, cores=12)


@cache
def hopper() -> Any:
    """The runtime."""
    return gpu() if is_gpu() else FewCores()


def method_of(operation: str, name: str) -> Any:
    """A method of the runtime's."""
    return find(operation, "cuda" if is_gpu() else "emulator", name)


def bits_of(plan: Any, inputs: Any) -> Any:
    """The bits of the 16-bit results of a plan."""
    out = hopper().upload(np.zeros(plan.problem.out_shape, plan.problem.out_dtype))
    plan(plan.buffers(hopper().upload(inputs.x), plan.prepare(hopper().upload(inputs.w)), {}, out))
    return np.asarray(hopper().download(out)).view(np.uint16)


def assert_same_bits(method: Any, problem: Any, inputs: Any, configs: Sequence[Any]) -> None:
    """Every config gives the same bits, and an image those that it has in a batch of three."""
    found = []
    for images in (slice(0, 3), slice(1, 2)):
        part = problem.replace(n=images.stop - images.start)
        for config in configs:
            bits = bits_of(method.plan(part, config, hopper()), replace(inputs, x=inputs.x[images]))
            found.append(bits[1 if images.start == 0 else 0])
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def assert_preferred(method: Any, taken: Mapping[str, bool]) -> None:
    """The choice by rule takes the method for these problems, or does not."""
    for text, expected in taken.items():
        assert (method.preference_for(parse_problem(text), hopper().facts) is not None) == expected, text


def some(configs: Sequence[Any], count: int) -> list[Any]:
    """So many configs from all along a list, the default first; on the emulator two, the default and the last."""
    if not is_gpu():
        return list(dict.fromkeys((configs[0], configs[-1])))
    return list(configs[:: max(1, len(configs) // count)])


# A size with several tiles for each SM.
MANY_TILES = "m2048n2312k72" if is_gpu() else "m520n712k72"

needs_hopper = [] if is_gpu() else [needs_emulator]
on_gpu_alone = pytest.mark.skipif(not is_gpu(), reason="needs a GPU of compute capability 9.0")
