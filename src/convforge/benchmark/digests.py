"""The digest of the code that a stored result depends on: a result is stale if its digest differs from today's.

For a method in CUDA C++, it covers the text that a plan of this problem and config compiles, and the launch shapes.
For a method in Python, ours or another library's behind our contract, it covers the code that computes. The code is
found automatically, so that no method can forget to declare a part of it.
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
from convforge.problem.types import allows

PACKAGE = Path(__file__).parents[1]
AnyAlgorithm = Algorithm[Any, Any]


def digest(algorithm: AnyAlgorithm, problem: Problem, config: Config | None, facts: DeviceFacts) -> str:
    """Digest of all that determines the time of a config of a method on a problem, except the versions of libraries.

    If there is no config, because the method refuses the problem, the digest is empty.

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
    """The digest that a stored result would have today; None if it can no longer be planned.

    `facts` are those of the device that measured it. Fields that an older config lacks get their default values.
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
    """True for our methods in CUDA C++, which are compiled at run time."""
    return algorithm.ours and algorithm.backend != "cpu"


def recorded(algorithm: AnyAlgorithm, problem: Any, config: Config, facts: DeviceFacts) -> tuple[Plan, Recording]:
    """Make a plan for a device that need not be present; return it with the recorder of its kernels."""
    recording: Any = Recording(facts)
    return algorithm.plan(problem, config, recording), recording


def code_files(algorithm: AnyAlgorithm, problems: Iterable[Any], facts: DeviceFacts) -> list[Path]:
    """Source files in a method's own folder that it computes with.

    CUDA C++: the files that the default plans of the problems compile; if all of them belong to another family, those.
    Python: the method's modules, those of kernels first.
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
    """Parse a stored problem, with the precision of the method."""
    return with_precision(algorithm, parse_problem(problem))


def with_precision(algorithm: AnyAlgorithm, problem: Any) -> Any:
    """The problem with the method's precision, if the problem itself does not allow that precision."""
    allowed = allows(problem.precision, algorithm.precision)
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
        f"{info.grid} {info.block} {info.scratch_bytes} {info.pdl}" + (f" {info.cluster}" if info.cluster else "")
        for info in plan.launches
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@cache
def _of_code(method: type) -> str:
    """Digest of the code that a class computes with; empty if its source is not on disk."""
    parts = sorted(part for parts in _code(method).values() for part in parts)
    return hashlib.sha256("\n\n".join(parts).encode()).hexdigest() if parts else ""


@cache
def _code(method: type) -> dict[Path, list[str]]:
    file = getattr(sys.modules[method.__module__], "__file__", None)
    if file is None or not Path(file).is_file():
        return {}
    return closure(PACKAGE, Path(file), method.__module__, method.__qualname__)
