"""What runs Hopper's kernels: a GPU of compute capability 9.0, or where there is none the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from tests.backends.emulated import needs_emulator
from tests.gpu.present import gpu

from convforge.algorithms import find
from convforge.backends.architecture import Architecture
from convforge.backends.cuda import why_absent
from convforge.backends.emulator import emulator_runtime

NUMBER = 90


@cache
def is_gpu() -> bool:
    """Whether it is a GPU."""
    return why_absent() is None and Architecture.parse(gpu().facts.architecture).number == NUMBER


def hopper() -> Any:
    """The runtime. The emulator takes threads, and computes what is asynchronous, in random order."""
    return gpu() if is_gpu() else emulator_runtime("shuffled")


def method_of(operation: str, name: str) -> Any:
    """A method of the runtime's."""
    return find(operation, "cuda" if is_gpu() else "emulator", name)


def some(configs: Sequence[Any], count: int) -> list[Any]:
    """So many configs from all along a list, the default first; on the emulator two, the default and the last."""
    if not is_gpu():
        return list(dict.fromkeys((configs[0], configs[-1])))
    return list(configs[:: max(1, len(configs) // count)])


needs_hopper = [] if is_gpu() else [needs_emulator]
on_gpu_alone = pytest.mark.skipif(not is_gpu(), reason="needs a GPU of compute capability 9.0")
