"""Carries stored results over a change of the code that leaves what runs as it was, by proof.

    python -m convforge.benchmark.carry --from COMMIT [--from COMMIT...] benchmarks/results/DEVICE/*.jsonl

A result names a digest of what its time depends on (:mod:`convforge.benchmark.digests`). A renaming, or another way of
making the digest, gives another one though the same machine code runs. For every stale result this command

1. checks out COMMIT beside the repository, and asks that tree for the digest of the result's method, problem and
   config: it must be the stored one, so that this is the code that was measured;
2. compares what both trees compute: of kernels the text that is compiled and the shapes of launches, and where texts
   differ the machine code that NVRTC makes of them for the architecture that was measured
   (:mod:`convforge.benchmark.machine_code`); of methods in Python the code that they compute with;
3. where both are equal, writes today's digest, and from which commit it was carried.

All other results stay as they are, and tables mark them as stale.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from convforge.benchmark.digests import current_digest
from convforge.benchmark.records import Result
from convforge.benchmark.store import load_run
from convforge.problem import PRECISIONS

PACKAGE = Path(__file__).parents[1]
PROBE = Path(__file__).with_name("carry_probe.py")
# Files of today's tree by which both trees are read.
FILES = {
    "recording": PACKAGE / "backends/recording.py",
    "kernel": PACKAGE / "backends/kernel.py",
    "closure": PACKAGE / "benchmark/closure.py",
    "machine_code": PACKAGE / "benchmark/machine_code.py",
}
Answer = dict[str, Any]


def carry(path: Path, before: Path, commit: str) -> Counter[str]:
    """Carry what can be carried of one stored run.

    Parameters
    ----------
    path : Path
        The run's file, which is written anew where a result is carried.
    before : Path
        The package's folder in the tree of `commit`.
    commit : str
        What carried results name.

    Returns
    -------
    Counter
        Of "carried", "current" and of the reasons why results were not carried.
    """
    run = load_run(path)
    facts = run.machine["facts"]
    timed = [r for r in run.results if r.time is not None]
    stale = [r for r in timed if run.is_stale(r)]
    found: Counter[str] = Counter({"current": len(timed) - len(stale)})
    rows = [_row(r) for r in stale]
    old, new = _answers(before, rows, facts), _answers(PACKAGE, rows, facts)
    carried: dict[tuple[str, ...], str] = {}
    for result, row, then, now in zip(stale, rows, old, new, strict=True):
        reason = _difference(result, then, now)
        digest = current_digest(**row, facts=facts) if reason is None else None
        if digest:
            carried[result.key] = digest
        found["carried" if digest else reason or "it can no longer be planned"] += 1
    if carried:
        _write(path, carried, commit)
    return +found


def _row(result: Result) -> dict[str, str]:
    config = result.config if result.precision in PRECISIONS else ""  # as of Run.is_stale
    names = ("operation", "backend", "name", "problem", "config")
    values = (result.operation, result.backend, result.algorithm, result.problem, config)
    return dict(zip(names, values, strict=True))


def _difference(result: Result, then: Answer, now: Answer) -> str | None:
    """Return why two trees do not compute the same for a stored result, or None."""
    for where, answer in (("there", then), ("today", now)):
        if "fault" in answer:
            return f"not planned {where}: {answer['fault']}"
    if then["digest"] != result.digest:
        return "measured with another code than this commit has"
    if then["rest"] != now["rest"]:
        return "launches or Python code differ"
    if sorted(then["kernels"]) == sorted(now["kernels"]):
        return None
    same = sorted(then["kernels"].values()) == sorted(now["kernels"].values())
    return None if same else "machine code differs"


def _answers(package: Path, rows: Sequence[dict[str, str]], facts: dict[str, Any]) -> list[Answer]:
    return _ask(package, rows, facts, compile_=any(row["backend"] == "cuda" for row in rows))


def _ask(package: Path, rows: Sequence[dict[str, str]], facts: dict[str, Any], *, compile_: bool) -> list[Answer]:
    """Ask the probe about rows in a tree, in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        asked = {"files": {n: str(p) for n, p in FILES.items()}, "facts": facts, "rows": rows, "compile": compile_}
        request.write_text(json.dumps(asked), encoding="utf-8")
        variables = {**os.environ, "PYTHONPATH": str(package.parent)}
        subprocess.run([sys.executable, str(PROBE), str(request), str(answer)], env=variables, check=True)
        found: list[Answer] = json.loads(answer.read_text(encoding="utf-8"))
        return found


def _write(path: Path, carried: dict[tuple[str, ...], str], commit: str) -> None:
    """Write a run anew: other digests in carried results, everything else unchanged."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record.get("kind") == "result":
            key = Result.from_record(record).key
            if key in carried:
                line = json.dumps({**record, "digest": carried[key], "carried": commit})
        lines.append(line)
    temporary = path.with_suffix(".tmp")
    temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    temporary.replace(path)


@contextmanager
def tree_of(commit: str, repository: Path) -> Iterator[Path]:
    """The package's folder in a checkout of a commit, which is removed in the end.

    Raises
    ------
    ValueError
        There is no such commit.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        made = subprocess.run(
            ["git", "-C", str(repository), "worktree", "add", "--quiet", "--detach", str(tree), commit],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if made.returncode:
            raise ValueError(f"commit {commit!r} cannot be checked out: {made.stderr.strip()}")
        try:
            yield tree / "src" / "convforge"
        finally:
            subprocess.run(
                ["git", "-C", str(repository), "worktree", "remove", "--force", str(tree)], check=True
            )  # fmt: skip


def whole_name(commit: str, repository: Path) -> str:
    """The commit's whole name."""
    done = subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "--verify", f"{commit}^{{commit}}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ValueError(f"there is no commit {commit!r} in {repository}")
    return done.stdout.strip()


def main(
    files: Annotated[list[Path], typer.Argument(help="Stored runs.", exists=True)],
    commits: Annotated[
        list[str], typer.Option("--from", help="A commit whose code may have been measured; several are tried in turn.")
    ],
) -> None:
    """Carry stored results over a change that leaves what runs as it was."""
    repository = PACKAGE.parents[1]
    try:
        for name in [whole_name(commit, repository) for commit in commits]:
            with tree_of(name, repository) as before:
                for file in files:
                    found = carry(file, before, name)
                    words = ", ".join(f"{count} {what}" for what, count in found.most_common())
                    typer.echo(f"{name[:10]} {file.name}: {words or 'no results'}")
    except ValueError as mistake:
        typer.echo(f"carry: {mistake}", err=True)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    typer.run(main)
