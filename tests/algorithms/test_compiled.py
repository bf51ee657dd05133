"""Every kernel, compiled for every architecture without a GPU: what the machine code takes, against the record."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from tests.algorithms import compiling
from tests.algorithms.architectures import ARCHITECTURES
from tests.algorithms.compiling import compiled
from tests.algorithms.registers import (
    CARDS,
    EVERYWHERE,
    ONCE,
    OWN,
    SPILLS,
    Row,
    compiled_rows,
    is_for,
    methods,
    problems_of,
    read_record,
    rows_of,
)

from convforge.algorithms import refusal
from convforge.backends.kernel import PACKAGE
from convforge.problem import parse_problem

REFRESH = "`make registers` writes the record anew; look at its diff"
# How often a kernel that seems worse is compiled: now and then NVRTC makes other code of the same text.
ATTEMPTS = 3


def too_many(row: Row, recorded: Row) -> bool:
    """Whether registers differ by more than the eight that they are given out in; another NVRTC may take a quarter."""
    if row.nvrtc == recorded.nvrtc:
        return abs(row.registers - recorded.registers) > 8
    return row.registers > max(recorded.registers + 8, 1.25 * recorded.registers)


def fault_of(row: Row, recorded: Row | None) -> str | None:
    """What is worse in a kernel than its record says; registers may not be far fewer either by the same NVRTC."""
    if recorded is None:
        return "is not in the record"
    if row.spill_bytes and not recorded.spill_bytes:
        return f"spills {row.spill_bytes} bytes, none before"
    if row.spill_bytes > 2 * recorded.spill_bytes:
        return f"spills {row.spill_bytes} bytes, {recorded.spill_bytes} before"
    if row.stack_bytes and not recorded.stack_bytes:
        return f"has a stack frame of {row.stack_bytes} bytes, none before"
    if row.shared_bytes != recorded.shared_bytes:
        return f"declares {row.shared_bytes} bytes of shared memory, {recorded.shared_bytes} before"
    if too_many(row, recorded):
        return f"takes {row.registers} registers by NVRTC {row.nvrtc}, {recorded.registers} by {recorded.nvrtc} before"
    return None


@pytest.mark.parametrize(
    ("architecture", "again"),
    [
        *(pytest.param(*one.values, False, id=one.values[0], marks=one.marks) for one in ARCHITECTURES),
        pytest.param("sm_90", True, id="sm_90, once again", marks=[compiled, pytest.mark.thorough]),
    ],
)
def test_kernels_take_what_is_recorded(
    architecture: str, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not the text of the record is compiled, or every kernel once again: compilers take minutes."""
    record = read_record()
    known = list(record.values())
    if again:
        first = {str(parse_problem(problems_of(method, architecture)[0])) for method in methods()}
        again = {row.source for row in known if row.problem in first}
        known = [row for row in known if row.source not in again]
    for attempt in range(ATTEMPTS):
        rows = compiled_rows(architecture, known)
        found = {key: fault_of(row, record.get(key)) for key, row in rows.items()}
        found |= {key: "is no longer compiled" for key in record if key[0] == architecture and key not in rows}
        faults = [f"{' '.join(key)}: {fault}" for key, fault in found.items() if fault is not None]
        if not faults or any(key not in rows or key not in record for key in found):
            break
        known = []
        monkeypatch.setenv("CONVFORGE_CACHE_DIR", str(tmp_path / str(attempt)))  # nothing comes from the disk
    assert not faults, "\n".join([*faults, REFRESH])


@compiled
def test_a_text_of_the_record_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """But another text is, and so is the same for another architecture or by another NVRTC."""
    method = next(method for method in methods() if method.name == "relu")
    (row,) = rows_of(method, "sm_80")
    seen: list[str] = []
    real = compiling.compile_kernel
    monkeypatch.setattr(compiling, "compile_kernel", lambda kernel, a: seen.append(a) or real(kernel, a))
    assert rows_of(method, "sm_80", [row]) == [row]
    assert seen == []
    for other in ({"source": "0" * len(row.source)}, {"nvrtc": "1.0"}, {"kernel": "gelu"}):
        assert rows_of(method, "sm_80", [dataclasses.replace(row, **other)]) == [row]
    assert rows_of(method, "sm_86", [row]) != [row]
    assert seen == ["sm_80", "sm_80", "sm_80", "sm_86"]


def test_every_method_is_compiled() -> None:
    for method in methods():
        assert method.name in OWN or method.operation in EVERYWHERE, (
            f"say in registers.py what {method.operation} is compiled for"
        )
        assert method.name in OWN or method.operation in ONCE, (
            f"say in registers.py what {method.operation} is compiled for on sm_90"
        )
        for architecture, card in CARDS.items():
            asked = [parse_problem(text) for text in problems_of(method, architecture)]
            accepted = [problem for problem in asked if refusal(method, problem, card) is None]
            if is_for(method.name, architecture):
                assert accepted, f"{method.name} refuses all that it is to be compiled for on {architecture}"
            else:
                assert not accepted, f"{method.name} takes problems on {architecture}"


def test_every_kernel_is_in_the_record() -> None:
    pattern = re.compile(r"__global__ void (?:__launch_bounds__\([^()]*\) )?(\w+)\(")
    files = sorted((PACKAGE / "algorithms").rglob("*.cu"))
    assert len(files) > 10
    for file in files:
        kernels = pattern.findall(file.read_text(encoding="utf-8"))
        assert kernels, f"{file.name} has no kernel"
        for kernel in kernels:
            found = {architecture for architecture, name, _, _ in read_record() if name == kernel}
            assert found == {name for name in CARDS if is_for(kernel, name)}, f"{kernel} of {file.name}: {REFRESH}"


def test_what_spills_is_known() -> None:
    """A new record does not let a spill in unseen."""
    found = {(row.kernel, row.architecture) for row in read_record().values() if row.spill_bytes or row.stack_bytes}
    assert found == {(kernel, architecture) for kernel, which in SPILLS.items() for architecture in which}


RIGHT = Row("sm_90", "kernel", "problem", "config", "13.5", 64, 0, 0, 1024, "")


@pytest.mark.parametrize(
    ("registers", "spills", "stack", "shared", "nvrtc", "fault"),
    [
        (64, 0, 0, 1024, "13.5", None),
        (72, 0, 0, 1024, "13.5", None),
        (56, 0, 0, 1024, "13.5", None),
        (80, 0, 0, 1024, "13.6", None),
        (40, 0, 0, 1024, "13.6", None),
        (81, 0, 0, 1024, "13.6", "takes 81 registers by NVRTC 13.6, 64 by 13.5 before"),
        (73, 0, 0, 1024, "13.5", "takes 73 registers by NVRTC 13.5, 64 by 13.5 before"),
        (55, 0, 0, 1024, "13.5", "takes 55 registers by NVRTC 13.5, 64 by 13.5 before"),
        (64, 4, 0, 1024, "13.6", "spills 4 bytes, none before"),
        (64, 0, 8, 1024, "13.6", "has a stack frame of 8 bytes, none before"),
        (64, 0, 0, 1040, "13.6", "declares 1040 bytes of shared memory, 1024 before"),
    ],
)
def test_what_is_a_fault(registers: int, spills: int, stack: int, shared: int, nvrtc: str, fault: str | None) -> None:
    row = Row("sm_90", "kernel", "problem", "config", nvrtc, registers, spills, stack, shared, "")
    assert fault_of(row, RIGHT) == fault
    assert fault_of(row, None) == "is not in the record"


def test_what_spilled_may_spill_a_little_more() -> None:
    before = Row("sm_90", "kernel", "problem", "config", "13.5", 128, 16, 16, 0, "")
    assert fault_of(dataclasses.replace(before, spill_bytes=24, stack_bytes=24), before) is None
    assert fault_of(dataclasses.replace(before, spill_bytes=40), before) == "spills 40 bytes, 16 before"
