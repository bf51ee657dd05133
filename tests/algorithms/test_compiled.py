"""Every kernel, compiled for every architecture without a GPU: default configs spill no registers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.algorithms.compiled_problems import (
    CARDS,
    EVERYWHERE,
    OLD,
    ONCE,
    OWN,
    SPILLS,
    accepted,
    compiled_for,
    is_for,
    methods,
)
from tests.algorithms.compiling import compiled
from tests.algorithms.nvrtc12 import compiled12
from tests.judged import named

from convforge.backends.kernel import PACKAGE
from convforge.backends.recording import Recording

# Of the problems of a method: `make test` compiles the first for the GPU that results are measured on.
FIRST, OTHERS, ALL = slice(1), slice(1, None), slice(None)


def able(architecture: str, part: slice) -> list[Any]:
    """The methods that an architecture has what they need for, as sets of parameters of a test."""
    needs = [compiled, *([compiled12] if architecture in OLD else [])]
    marks = needs if part == FIRST else [*needs, pytest.mark.thorough]
    mine = (method for method in methods() if is_for(method.name, architecture))
    return [
        pytest.param(method, architecture, part, id=f"{architecture}-{named(method)}", marks=marks)
        for method in mine
        if accepted(method, architecture)[part]
    ]


@pytest.mark.parametrize(
    ("method", "architecture", "part"),
    [
        *able("sm_90", FIRST),
        *able("sm_90", OTHERS),
        *(one for name in CARDS if name != "sm_90" for one in able(name, ALL)),
    ],
)
def test_default_configs_do_not_spill(method: Any, architecture: str, part: slice) -> None:
    made = compiled_for(method, architecture, part)
    assert made
    spilling = [one for one in made if one.kernel.spill_bytes or one.kernel.stack_bytes]
    unknown = [one for one in spilling if architecture not in SPILLS.get(one.kernel.name, ())]
    assert not unknown, "\n".join(
        f"{kernel.name} [{config}] of {problem} spills {kernel.spill_bytes} bytes; its stack has {kernel.stack_bytes}"
        for problem, config, kernel in unknown
    )


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
    pattern = re.compile(r"__global__ void (?:__launch_bounds__\([^()]*\) )?(\w+)\(")
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
