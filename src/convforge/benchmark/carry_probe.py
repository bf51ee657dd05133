"""Describe the code that a tree of the repository runs for stored results: a script run with that tree's package.

python carry_probe.py REQUEST.json ANSWER.json        # with PYTHONPATH=TREE/src

The tree may be old. Therefore the script imports from its package only what every version has, and reads kernels and
Python code with modules of today's tree, which the request names. See :mod:`convforge.benchmark.carry`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import re
import sys
import tokenize
from dataclasses import astuple, replace
from pathlib import Path
from types import ModuleType
from typing import Any

# The name of our module in an import, and the folder in the path of a kernel's file.
_OURS = re.compile(r"(?<=from )convforge[\w.]*(?= import )|(?<=\")algorithms/(?:\w+/)+(?=\w+\.cu\")")


def main(request: Path, answer: Path) -> None:
    """Answer a request: for every row the digest and the parts of its code, or the error."""
    task = json.loads(request.read_text(encoding="utf-8"))
    files = {name: _module(f"today_{name}", Path(path)) for name, path in task["files"].items()}
    answers = [_answer(row, task["facts"], files, task["compile"], task["renamed"]) for row in task["rows"]]
    answer.write_text(json.dumps(answers), encoding="utf-8")


def _module(name: str, path: Path) -> ModuleType:
    """Load a file of today's tree as a module; its imports come from the other tree."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module there
    spec.loader.exec_module(module)
    return module


def _answer(
    row: dict[str, str], facts: dict[str, Any], files: dict[str, ModuleType], compile_: bool, renamed: dict[str, str]
) -> dict[str, Any]:
    from convforge.algorithms import find
    from convforge.peers import PEERS

    room = "benchmark" if importlib.util.find_spec("convforge.benchmark") else "bench"  # older trees call it "bench"
    try:
        key = (row["operation"], row["backend"], row["name"])
        method: Any = next((peer for peer in PEERS if peer.key == key), None) or find(*key)
        if method.ours and method.backend != "cpu":
            code = _of_kernels(method, row, facts, files, compile_)
        else:
            code = {"kernels": {}, "rest": _of_python(method, files["closure"], renamed)}
        digests = importlib.import_module(f"convforge.{room}.digests")  # the digest as this tree computes it
        return {"digest": digests.current_digest(**row, facts=facts), **code}
    except Exception as fault:  # an older tree may fail in any way: the row is not carried, for this reason
        return {"fault": f"{type(fault).__name__}: {' '.join(str(fault).split())[:200]}"}


def _of_kernels(
    method: Any, row: dict[str, str], facts: dict[str, Any], files: dict[str, ModuleType], compile_: bool
) -> dict[str, Any]:
    """Digests of a plan's kernels (source -> machine code), and one of its launch shapes and transforms."""
    from convforge.algorithms import make_config
    from convforge.backends.cuda.compiler import compile_kernel
    from convforge.backends.facts import DeviceFacts
    from convforge.backends.kernel import included
    from convforge.problem import parse_problem

    part = files["kernel"].compiled_part
    problem: Any = parse_problem(row["problem"])
    if method.precision not in ("strict", problem.precision):
        problem = replace(problem, precision=method.precision)
    known = DeviceFacts.from_table(facts)
    recording = files["recording"].Recording(known)
    plan = method.plan(problem, make_config(method, problem, known, row["config"]), recording)
    kernels: dict[str, str] = {}
    for kernel in recording.kernels:
        texts = [kernel.name, *kernel.constants, part(kernel.file.read_text(encoding="utf-8"))]
        for header in sorted(included(kernel.file)):
            texts += [header.name, part(header.read_text(encoding="utf-8"))]
        code = compile_kernel(kernel, known.architecture).code if compile_ else b""
        kernels[_sha("\n".join(texts).encode())] = _sha(files["machine_code"].running(code)) if compile_ else ""
    # Older trees call the field `pdl` "early", and the oldest have no clusters.
    launches = [
        str((i.grid, i.block, i.scratch_bytes, i.pdl if hasattr(i, "pdl") else i.early, getattr(i, "cluster", ())))
        for i in plan.launches
    ]
    transforms = sorted({repr(astuple(fft)) for fft in recording.transforms})
    return {"kernels": kernels, "rest": _sha("\n".join([*transforms, *launches]).encode())}


def _of_python(method: Any, closure: ModuleType, renamed: dict[str, str]) -> str:
    """Digest of the code that a method in Python computes with, after renaming identifiers.

    ``ValueError`` if a new name already occurs: it might then refer to something else.
    """
    package = importlib.util.find_spec("convforge")
    assert package is not None
    kind = type(method)
    file = Path(str(sys.modules[kind.__module__].__file__))
    parts = closure.closure(Path(str(package.origin)).parent, file, kind.__module__, kind.__qualname__)
    texts = [_OURS.sub("", part) for texts in parts.values() for part in texts]  # names that may differ between trees
    words = {token.string for text in texts for token in _identifiers(text)}
    if taken := words & {new for old, new in renamed.items() if old in words}:
        raise ValueError(f"new names that already occur: {', '.join(sorted(taken))}")
    return _sha("\n\n".join(sorted(_renamed(text, renamed) for text in texts)).encode())


def _identifiers(text: str) -> list[tokenize.TokenInfo]:
    return [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.NAME]


def _renamed(text: str, renamed: dict[str, str]) -> str:
    lines = text.splitlines(keepends=True)
    for token in reversed(_identifiers(text)):
        (row, first), last = token.start, token.end[1]
        lines[row - 1] = lines[row - 1][:first] + renamed.get(token.string, token.string) + lines[row - 1][last:]
    return "".join(lines)


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
