"""A GPU whose kernels have a fault planted in them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from tests.algorithms.planted import Fault
from tests.algorithms.test_planted_faults import copy_with
from tests.gpu.present import gpu

from convforge.backends.kernel import KernelSource
from convforge.problem import parse_problem
from convforge.verify import Judge, check_plan


class Faulty:
    """The GPU's runtime, whose kernels have a fault planted in them."""

    def __init__(self, fault: Fault, folder: Path) -> None:
        self.fault, self.folder, self.planted = fault, folder, False

    def __getattr__(self, name: str) -> Any:
        return getattr(gpu(), name)

    def compile(self, kernel: KernelSource) -> Any:
        copy = copy_with(self.fault, kernel.file, self.folder)
        self.planted |= copy != kernel.file
        return gpu().compile(dataclasses.replace(kernel, path=str(copy)))


def check_that_it_is_noticed(method: Any, fault: Fault, judge: Judge, folder: Path) -> None:
    """The method is right as it is, and wrong with the fault."""

    def verdict(runtime: Any) -> Any:
        return check_plan(method.plan(parse_problem(fault.run.problem), fault.run.config, runtime), judge)

    assert (sound := verdict(gpu())).ok, sound.message
    faulty = Faulty(fault, folder)
    assert not verdict(faulty).ok, f"{fault}: nobody noticed"
    assert faulty.planted
