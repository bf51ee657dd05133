"""The digest of all that a stored result depends on: a result with another digest than today's is stale.

For a method in CUDA C++ it is the text that a plan of this problem and config gives to the compiler, and the shapes of
its launches. For one in Python, ours or another library's under our contract, it is the code that computes. A method
declares nothing, so it can forget nothing.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import astuple, replace
from functools import cache
from pathlib import Path
from typing import Any

from convforge.algorithms import make_config, refusal
from convforge.algorithms.contract import Algorithm, Config, Plan
from convforge.backends.facts import DeviceFacts
from convforge.backends.recording import Recording
from convforge.benchmark.closure import closure
from convforge.errors import UnsupportedProblem
from convforge.peers import every_algorithm
from convforge.problem import Problem, parse_problem

PACKAGE = Path(__file__).parents[1]
AnyAlgorithm = Algorithm[Any, Any]


def digest(algorithm: AnyAlgorithm, problem: Problem, config: Config | None, facts: DeviceFacts) -> str:
    """A digest of all that decides the time of a method in a config on a problem, but for the libraries' versions.

    Without a config, as the method refuses the problem, the digest is empty.

    >>> from convforge.algorithms import find
    >>> from convforge.backends.cpu import cpu_facts
    >>> method, problem = find("gemm", "cpu", "gemm_blas"), parse_problem("m8n8k8_f32")
    >>> len(digest(method, problem, method.configs(problem, cpu_facts())[0], cpu_facts()))
    64
    """
    if config is None:
        return ""
    return _of_plan(algorithm, problem, config, facts) if compiles(algorithm) else _of_code(type(algorithm))


def current_digest(
    operation: str, backend: str, name: str, problem: str, config: str, facts: Mapping[str, Any]
) -> str | None:
    """The digest that a stored result would have now; None where it can no longer be planned.

    `facts` are those of the device that measured it. A field that an older config lacks has the default's value.
    """
    method = next((a for a in every_algorithm() if a.key == (operation, backend, name)), None)
    if method is None:
        return None
    if not compiles(method):
        return _of_code(type(method))
    try:
        return _planned(method, problem, config, DeviceFacts.from_table(facts))
    except (ValueError, UnsupportedProblem):  # a config, a field or a problem that no longer exists
        return None


def compiles(algorithm: AnyAlgorithm) -> bool:
    """True for our methods in CUDA C++."""
    return algorithm.ours and algorithm.backend != "cpu"


def recorded(algorithm: AnyAlgorithm, problem: Any, config: Config, facts: DeviceFacts) -> tuple[Plan, Recording]:
    """A plan for a device that need not be there, and what it compiles."""
    recording: Any = Recording(facts)
    return algorithm.plan(problem, config, recording), recording


def code_files(algorithm: AnyAlgorithm, problems: Iterable[Any], facts: DeviceFacts) -> list[Path]:
    """Files of a method's own folder that it computes with.

    Of one in CUDA C++ those that the default plans of problems compile, or another family's where these are all. Of one
    in Python its modules, the kernels' first.
    """
    own = Path(str(sys.modules[type(algorithm).__module__].__file__))
    if compiles(algorithm):
        kernels = [
            kernel.file
            for problem in problems
            if algorithm.refuses(problem, facts) is None
            for kernel in recorded(algorithm, problem, algorithm.configs(problem, facts)[0], facts)[1].kernels
        ]
        return list(dict.fromkeys(file for file in kernels if file.parent == own.parent) or dict.fromkeys(kernels))
    modules = [file for file in _code(type(algorithm)) if file.parent == own.parent]
    return sorted(modules, key=lambda file: (not file.stem.startswith("cpu"), file.name))


def stored_problem(algorithm: AnyAlgorithm, problem: str) -> Any:
    """A stored problem with the method's precision."""
    return with_precision(algorithm, parse_problem(problem))


def with_precision(algorithm: AnyAlgorithm, problem: Any) -> Any:
    """A problem with a method's precision where the problem does not allow it."""
    allowed = algorithm.precision in ("strict", problem.precision)
    return problem if allowed else replace(problem, precision=algorithm.precision)


@cache
def _planned(method: AnyAlgorithm, text: str, config: str, facts: DeviceFacts) -> str:
    problem = stored_problem(method, text)
    if (reason := refusal(method, problem, facts)) is not None:
        raise UnsupportedProblem(text, {method.name: reason})
    return _of_plan(method, problem, make_config(method, problem, facts, config), facts)


@cache
def _of_plan(algorithm: AnyAlgorithm, problem: Any, config: Config, facts: DeviceFacts) -> str:
    plan, recording = recorded(algorithm, problem, config, facts)
    parts = sorted({kernel.code_digest() for kernel in recording.kernels})
    parts += sorted({repr(astuple(fft)) for fft in recording.transforms})
    parts += [
        f"{info.grid} {info.block} {info.scratch_bytes} {info.early}" + (f" {info.cluster}" if info.cluster else "")
        for info in plan.launches
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@cache
def _of_code(method: type) -> str:
    """Of the code that a class computes with; empty where its source is not on the disk."""
    parts = sorted(part for parts in _code(method).values() for part in parts)
    return hashlib.sha256("\n\n".join(parts).encode()).hexdigest() if parts else ""


@cache
def _code(method: type) -> dict[Path, list[str]]:
    file = getattr(sys.modules[method.__module__], "__file__", None)
    if file is None or not Path(file).is_file():
        return {}
    return closure(PACKAGE, Path(file), method.__module__, method.__qualname__)
