"""Every kernel, compiled for every architecture without a GPU: default configs spill no registers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.algorithms.compiled_problems import (
    CARDS,
    EVERYWHERE,
    ONCE,
    OWN,
    SPILLS,
    accepted,
    compiled_for,
    is_for,
    methods,
    needs,
)
from tests.judged import named

from convforge.backends.kernel import PACKAGE
from convforge.backends.recording import Recording

# Of the problems of a method: `make test` compiles the first for the GPU that results are measured on.
FIRST, OTHERS, ALL = slice(1), slice(1, None), slice(None)
# How often a kernel that spills is compiled: now and then NVRTC makes other code of the same text.
ATTEMPTS = 3
# Another NVRTC may spill so many times as much, where anything is spilled.
MORE = 2


def able(architecture: str, part: slice) -> list[Any]:
    """The methods that an architecture has what they need for, as sets of parameters of a test."""
    marks = needs(architecture) if part == FIRST else [*needs(architecture), pytest.mark.thorough]
    mine = (method for method in methods() if is_for(method.name, architecture))
    return [
        pytest.param(method, architecture, part, id=f"{architecture}-{named(method)}", marks=marks)
        for method in mine
        if accepted(method, architecture)[part]
    ]


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("method", "architecture", "part"),
    [
        *able("sm_90", FIRST),
        *able("sm_90", OTHERS),
        *(one for name in CARDS if name != "sm_90" for one in able(name, ALL)),
    ],
)
def test_default_configs_do_not_spill(
    method: Any, architecture: str, part: slice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[str] = []
    for attempt in range(ATTEMPTS):
        made = compiled_for(method, architecture, part)
        assert made
        faults = [
            f"{kernel.name} [{config}] of {problem} spills {kernel.spill_bytes} bytes; stack: {kernel.stack_bytes}"
            for problem, config, kernel in made
            if max(kernel.spill_bytes, kernel.stack_bytes) > MORE * SPILLS.get(kernel.name, {}).get(architecture, 0)
        ]
        if not faults:
            break
        monkeypatch.setenv("CONVFORGE_CACHE_DIR", str(tmp_path / str(attempt)))  # nothing comes from the disk
    assert not faults, "\n".join(faults)


def test_every_method_is_compiled() -> None:
    for method in methods():
        assert method.name in OWN or (method.operation in EVERYWHERE and method.operation in ONCE), (
            f"say in compiled_problems.py what {method.operation} is compiled for"
        )
        for architecture in CARDS:
            if is_for(method.name, architecture):
                assert accepted(method, architecture), (
                    f"{method.name} refuses all that it is to be compiled for on {architecture}"
                )
            else:
                assert not accepted(method, architecture), f"{method.name} takes problems on {architecture}"


def kernels_on(architecture: str) -> set[str]:
    """The names of all kernels that default configs compile for an architecture."""
    found: set[str] = set()
    for method in methods():
        for problem in accepted(method, architecture):
            recording: Any = Recording(CARDS[architecture])
            method.plan(problem, method.configs(problem, recording.facts)[0], recording)
            found |= {kernel.name for kernel in recording.kernels}
    return found


def test_every_kernel_is_compiled() -> None:
    pattern = re.compile(r"__global__ void (?:__launch_bounds__\([^()]*\)\s+)?(\w+)\(")
    compiled_there = {architecture: kernels_on(architecture) for architecture in CARDS}
    files = sorted((PACKAGE / "algorithms").rglob("*.cu"))
    assert len(files) > 10
    for file in files:
        kernels = pattern.findall(file.read_text(encoding="utf-8"))
        assert kernels, f"{file.name} has no kernel"
        for kernel in kernels:
            found = {architecture for architecture, names in compiled_there.items() if kernel in names}
            assert found == {name for name in CARDS if is_for(kernel, name)}, f"{kernel} of {file.name}"
    assert SPILLS.keys() <= compiled_there["sm_90"]
