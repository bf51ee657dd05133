"""Every kernel, compiled for every architecture without a GPU: what the machine code takes, against the record."""

from __future__ import annotations

import re

import pytest
from tests.algorithms.compiling import compiled
from tests.algorithms.nvrtc12 import compiled12
from tests.algorithms.registers import (
    CARDS,
    EVERYWHERE,
    OLD,
    ONCE,
    Row,
    compiled_rows,
    methods,
    problems_of,
    read_record,
)

from convforge.algorithms import refusal
from convforge.backends.kernel import PACKAGE
from convforge.problem import parse_problem

REFRESH = "`make registers` writes the record anew; look at its diff"
ARCHITECTURES = [pytest.param(name, marks=[compiled, *([compiled12] if name in OLD else [])]) for name in CARDS]


def too_many(registers: int, recorded: int) -> bool:
    """Whether another version of NVRTC takes more than it may: registers are given out to warps in eights."""
    return registers > max(recorded + 8, 1.25 * recorded)


def fault_of(row: Row, recorded: Row | None) -> str | None:
    """What is worse in a kernel than its record says, or not as it says where the same compiler made both."""
    if recorded is None:
        return "is not in the record"
    if row.spill_bytes > recorded.spill_bytes:
        return f"spills {row.spill_bytes} bytes, {recorded.spill_bytes} before"
    if row.stack_bytes > recorded.stack_bytes:
        return f"has a stack frame of {row.stack_bytes} bytes, {recorded.stack_bytes} before"
    if row.shared_bytes != recorded.shared_bytes:
        return f"declares {row.shared_bytes} bytes of shared memory, {recorded.shared_bytes} before"
    if too_many(row.registers, recorded.registers):
        return f"takes {row.registers} registers, {recorded.registers} before"
    if row.nvrtc == recorded.nvrtc and row != recorded:
        return f"takes {row.registers} registers, {recorded.registers} before, by the same NVRTC {row.nvrtc}"
    return None


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_take_what_is_recorded(architecture: str) -> None:
    rows, record = compiled_rows(architecture), read_record()
    faults = [
        f"{' '.join(key)}: {fault}"
        for key, row in rows.items()
        if (fault := fault_of(row, record.get(key))) is not None
    ]
    gone = [f"{' '.join(key)}: is no longer compiled" for key in record if key[0] == architecture and key not in rows]
    assert not faults + gone, "\n".join([*faults, *gone, REFRESH])


def test_every_method_is_compiled() -> None:
    for method in methods():
        assert method.operation in EVERYWHERE, f"say in registers.py what {method.operation} is compiled for"
        assert method.operation in ONCE, f"say in registers.py what {method.operation} is compiled for on sm_90"
        for architecture, card in CARDS.items():
            asked = [parse_problem(text) for text in problems_of(method, architecture)]
            accepted = [problem for problem in asked if refusal(method, problem, card) is None]
            assert accepted, f"{method.name} refuses all that it is to be compiled for on {architecture}"


def test_every_kernel_is_in_the_record() -> None:
    pattern = re.compile(r"__global__ void (?:__launch_bounds__\([^()]*\) )?(\w+)\(")
    files = sorted((PACKAGE / "algorithms").rglob("*.cu"))
    assert len(files) > 10
    for file in files:
        kernels = pattern.findall(file.read_text(encoding="utf-8"))
        assert kernels, f"{file.name} has no kernel"
        for kernel in kernels:
            found = {architecture for architecture, name, _, _ in read_record() if name == kernel}
            assert found == set(CARDS), f"{kernel} of {file.name}: {REFRESH}"


RIGHT = Row("sm_90", "kernel", "problem", "config", "13.5", 64, 0, 0, 1024)


@pytest.mark.parametrize(
    ("registers", "spills", "stack", "shared", "nvrtc", "fault"),
    [
        (64, 0, 0, 1024, "13.5", None),
        (64, 0, 0, 1024, "13.6", None),
        (72, 0, 0, 1024, "13.6", None),
        (40, 0, 0, 1024, "13.6", None),
        (81, 0, 0, 1024, "13.6", "takes 81 registers, 64 before"),
        (65, 0, 0, 1024, "13.5", "takes 65 registers, 64 before, by the same NVRTC 13.5"),
        (63, 0, 0, 1024, "13.5", "takes 63 registers, 64 before, by the same NVRTC 13.5"),
        (64, 4, 0, 1024, "13.6", "spills 4 bytes, 0 before"),
        (64, 0, 8, 1024, "13.6", "has a stack frame of 8 bytes, 0 before"),
        (64, 0, 0, 1040, "13.6", "declares 1040 bytes of shared memory, 1024 before"),
    ],
)
def test_what_is_a_fault(registers: int, spills: int, stack: int, shared: int, nvrtc: str, fault: str | None) -> None:
    row = Row("sm_90", "kernel", "problem", "config", nvrtc, registers, spills, stack, shared)
    assert fault_of(row, RIGHT) == fault
    assert fault_of(row, None) == "is not in the record"
