"""Faults planted in copies of the kernels: the emulator and the check must notice every one.

A copy is the kernel's file with the fault in it or in one of its headers; such a header stands in the copy itself, in
the place where it is included.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.faults import FAULTS
from tests.algorithms.faults_amax import AMAX_FAULTS
from tests.algorithms.faults_gemm_wgmma import GEMM_WGMMA_FAULTS
from tests.algorithms.faults_split import FILTER_FAULTS, PIXEL_FAULTS, SPLIT_FAULTS
from tests.algorithms.faults_wgmma import PACKING_FAULTS, ROWS_FAULTS, SHARES_FAULTS, WGMMA_FAULTS
from tests.algorithms.faults_wgmma_bytes import BYTES_FAULTS
from tests.algorithms.planted import Fault, Run
from tests.algorithms.ranks import fault_of_factors, filters_of_every_rank
from tests.algorithms.split_inputs import split_judge
from tests.backends.emulated import needs_emulator
from tests.judged import judge_of

from convforge.algorithms import ON_DEVICE, find
from convforge.algorithms.gemm.by_convolution import ByConvolution
from convforge.backends.emulator import EmulatorError, EmulatorRuntime
from convforge.backends.emulator.library import EmulatorKernel
from convforge.backends.kernel import HEADERS, PACKAGE, KernelSource, included
from convforge.problem import parse_problem
from convforge.verify import check_nan_spread, check_plan

ALGORITHMS = PACKAGE / "algorithms"
ORDERS = ("forward", "backward", "shuffled")


def copy_with(fault: Fault, file: Path, folder: Path) -> Path:
    """A copy of a kernel's file with a fault in it or in a header of it; the file itself where it is neither."""
    faulty = ALGORITHMS / fault.file
    if faulty != file and faulty not in included(file):
        return file
    pasted: set[Path] = set()

    def text_of(path: Path) -> str:
        text = path.read_text(encoding="utf-8")
        if path == faulty:
            assert text.count(fault.old) == 1, f"{fault}: {fault.old!r} must stand in {path.name} once"
            text = text.replace(fault.old, fault.new)
        return re.sub(r'^#include "([^"]+)"$', paste, text, flags=re.MULTILINE)

    def paste(line: re.Match[str]) -> str:
        header = HEADERS / line[1]
        if header != faulty and faulty not in included(header):
            return line[0]
        if header in pasted:
            return ""
        pasted.add(header)
        return text_of(header)

    copy = folder / file.name
    copy.write_text(text_of(file), encoding="utf-8")
    return copy


class OneCore(EmulatorRuntime):
    """The emulator as on a machine of one core, so that grids are the same everywhere."""

    def __init__(self, order: str) -> None:
        super().__init__(order)
        self.facts = dataclasses.replace(self.facts, cores=1)


class Faulty(OneCore):
    """An emulator whose kernels have a fault planted in them."""

    def __init__(self, fault: Fault, folder: Path, order: str) -> None:
        super().__init__(order)
        self.fault, self.folder, self.planted = fault, folder, False

    def compile(self, kernel: KernelSource) -> EmulatorKernel:
        copy = copy_with(self.fault, kernel.file, self.folder)
        self.planted |= copy != kernel.file
        return super().compile(dataclasses.replace(kernel, path=str(copy)))


def what_is_wrong(run: Run, runtime: EmulatorRuntime) -> str | None:
    """The fault that the emulator or the check reports for a run, or None."""
    problem = parse_problem(run.problem)
    method = find(problem.operation, "emulator", run.method)
    config = run.config if run.config is not None else method.configs(problem, runtime.facts)[0]
    try:
        plan = method.plan(problem, config, runtime)
        if run.ahead:
            return what_is_wrong_ahead(plan, run)
        if run.kind == "factors":
            return what_is_wrong_with_factors(plan)
        verdict = check_nan_spread(plan) if run.kind == "nan" else check_plan(plan, split_judge(run.problem, run.kind))
    except EmulatorError as error:
        return str(error)
    return None if verdict.ok else verdict.message


def what_is_wrong_with_factors(plan: Any) -> str | None:
    """The same of what a plan prepares of filters of every rank."""
    problem = plan.problem
    w = filters_of_every_rank(problem.w_shape, problem.w_dtype, problem.acc_dtype)
    tensors = plan.prepare(w).tensors
    return fault_of_factors(w[:, :, ::-1, ::-1] if problem.mode == "convolution" else w, tensors, problem.acc_dtype)


def what_is_wrong_ahead(plan: Any, run: Run) -> str | None:
    """The same of an elementwise method, on arrays that begin behind a whole vector and have others around them."""
    judge = judge_of(run.problem, run.kind)
    x = judge.inputs.x
    source, target = (np.full(x.size + 64, 77, x.dtype) for _ in range(2))
    aligned = [-array.ctypes.data % 16 // x.itemsize + run.ahead for array in (source, target)]
    seen = source[aligned[0] :][: x.size]
    seen[...] = x
    out = target[aligned[1] :][: x.size]
    plan(plan.buffers(seen, plan.prepare(None), out=out))
    around = np.delete(target, np.s_[aligned[1] : aligned[1] + out.size])
    if (around != 77).any():
        return "writes outside its output"
    verdict = judge.verdict(plan.algorithm.precision, out)
    return None if verdict.ok else verdict.message


@cache
def what_is_wrong_without(run: Run, order: str) -> str | None:
    """The same of the kernels as they are."""
    return what_is_wrong(run, OneCore(order))


def check_that_it_is_noticed(fault: Fault, folder: Path) -> None:
    """The kernel is right as it is; with the fault it is wrong in some order of the threads."""
    for order in ORDERS:
        assert what_is_wrong_without(fault.run, order) is None
        runtime = Faulty(fault, folder, order)
        if what_is_wrong(fault.run, runtime) is not None:
            assert runtime.planted
            return
    pytest.fail(f"{fault}: nobody noticed, in any order of the threads")


# Of the kernels of Hopper. A GPU must notice these too, in tests/gpu.
HOPPER_FAULTS = [*WGMMA_FAULTS, *BYTES_FAULTS, *AMAX_FAULTS, *SPLIT_FAULTS, *GEMM_WGMMA_FAULTS]


@needs_emulator
@pytest.mark.one_in(112)
@pytest.mark.parametrize("fault", HOPPER_FAULTS, ids=str)
def test_a_fault_planted_for_hopper_is_noticed(fault: Fault, tmp_path: Path) -> None:
    check_that_it_is_noticed(fault, tmp_path)


def every_fortieth(faults: Sequence[Fault]) -> Iterator[Any]:
    """The faults as parameters; of each file the first, the 41st and so on are not thorough."""
    seen: Counter[str] = Counter()
    for fault in faults:
        later = seen[fault.file] % 40 > 0
        yield pytest.param(fault, id=str(fault), marks=[pytest.mark.thorough] if later else [])
        seen[fault.file] += 1


@needs_emulator
@pytest.mark.parametrize("fault", list(every_fortieth(FAULTS)))
def test_a_planted_fault_is_noticed(fault: Fault, tmp_path: Path) -> None:
    check_that_it_is_noticed(fault, tmp_path)


MADE = (*ROWS_FAULTS, *SHARES_FAULTS, *PACKING_FAULTS, *FILTER_FAULTS, *PIXEL_FAULTS)


def test_what_a_fault_replaces_stands_in_its_file_once() -> None:
    for fault in (*FAULTS, *HOPPER_FAULTS, *MADE):
        text = (ALGORITHMS / fault.file).read_text(encoding="utf-8")
        assert (text.count(fault.old), fault.old != fault.new) == (1, True), str(fault)


def test_every_kernel_has_a_fault() -> None:
    files = {str(path.relative_to(ALGORITHMS)) for path in ALGORITHMS.rglob("*.cu")}
    headers = {str(path.relative_to(ALGORITHMS)) for path in HEADERS.glob("*.cuh")} - {
        "device/tma.cuh",
        "device/prefetch.cuh",
    }  # PTX alone
    assert len(files) > 10
    planted = [*FAULTS, *HOPPER_FAULTS, *MADE]
    assert files | headers == {fault.file for fault in planted}
    ours = {(a.operation, a.name) for a in ON_DEVICE if not isinstance(a, ByConvolution)}  # their kernels are others'
    assert ours == {(parse_problem(fault.run.problem).operation, fault.run.method) for fault in planted}


@pytest.mark.parametrize("file", sorted(ALGORITHMS.rglob("*.cu")), ids=lambda path: path.stem)
def test_every_barrier_has_a_fault(file: Path) -> None:
    if file.stem in ("wgmma", "split"):  # without its one, behind which others are there, a block may wait for ever
        return
    barriers = file.read_text(encoding="utf-8").count("__syncthreads();")
    here = [
        fault
        for fault in (*FAULTS, *BYTES_FAULTS, *ROWS_FAULTS, *PACKING_FAULTS, *FILTER_FAULTS, *PIXEL_FAULTS)
        if ALGORITHMS / fault.file == file
    ]
    mine = [fault for fault in here if "__syncthreads();" in fault.old]
    assert len(mine) == barriers
