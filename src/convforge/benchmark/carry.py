"""Carry stored results over a change of the code if the change provably leaves the machine code unchanged.

python -m convforge.benchmark.carry --from COMMIT [--from COMMIT...] benchmarks/results/DEVICE/*.jsonl

A stale result is carried on two conditions. First, its stored digest is that of COMMIT's tree, so this code was
measured. Second, COMMIT's tree and today's compute the same. For kernels, compiled text and launch shapes are compared;
if texts differ, NVRTC's machine code (:mod:`convforge.benchmark.machine_code`). For methods in Python, the code that
computes, in which `--rename OLD=NEW` renames identifiers. A carried result gets today's digest and names the commit.
All other results stay stale.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from convforge.backends.cache import write_whole
from convforge.benchmark.digests import PACKAGE, current_digest
from convforge.benchmark.records import Result
from convforge.benchmark.store import load_run
from convforge.problem import PRECISIONS

PROBE = Path(__file__).with_name("carry_probe.py")
# Files of today's tree that analyse both trees.
FILES = {
    "recording": PACKAGE / "backends/recording.py",
    "kernel": PACKAGE / "backends/kernel.py",
    "closure": PACKAGE / "benchmark/closure.py",
    "machine_code": PACKAGE / "benchmark/machine_code.py",
}
Answer = dict[str, Any]


def carry(path: Path, before: Path, commit: str, renamed: Mapping[str, str] | None = None) -> Counter[str]:
    """Carry results of one stored run where possible; count "carried", "current", and the reasons of all others.

    `before` is the package's folder in the tree of `commit`. Carried results name this commit. The run's file is
    rewritten if at least one result is carried. `renamed` maps identifiers of Python code there to those of today.
    """
    run = load_run(path)
    facts = run.machine["facts"]
    timed = [r for r in run.results if r.time is not None]
    stale = [r for r in timed if run.is_stale(r)]
    found: Counter[str] = Counter({"current": len(timed) - len(stale)})
    rows = [
        {"operation": r.operation, "backend": r.backend, "name": r.algorithm, "problem": r.problem,
         "config": r.config if r.precision in PRECISIONS else ""}  # as in Run.is_stale
        for r in stale
    ]  # fmt: skip
    on_gpu = any(row["backend"] == "cuda" for row in rows)
    old = _probed(before, rows, facts, renamed or {}, compile_=on_gpu)
    new = _probed(PACKAGE, rows, facts, {}, compile_=on_gpu)
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


def _difference(result: Result, then: Answer, now: Answer) -> str | None:
    """Return the reason why the code of a stored result differs between two trees, or None."""
    for where, answer in (("there", then), ("today", now)):
        if "fault" in answer:
            return f"not planned {where}: {answer['fault']}"
    if then["digest"] != result.digest:
        return "measured with another code than this commit has"
    if then["rest"] != now["rest"]:
        return "launches or Python code differ"
    same_text = sorted(then["kernels"]) == sorted(now["kernels"])
    same = same_text or sorted(then["kernels"].values()) == sorted(now["kernels"].values())
    return None if same else "machine code differs"


def _probed(
    package: Path, rows: Sequence[dict[str, str]], facts: dict[str, Any], renamed: Mapping[str, str], *, compile_: bool
) -> list[Answer]:
    """Run the probe on rows with a tree's package, in a separate process; return its answers."""
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        task = {"files": {n: str(p) for n, p in FILES.items()}, "facts": facts, "rows": rows, "compile": compile_,
                "renamed": dict(renamed)}  # fmt: skip
        request.write_text(json.dumps(task), encoding="utf-8")
        variables = {**os.environ, "PYTHONPATH": str(package.parent)}
        subprocess.run([sys.executable, str(PROBE), str(request), str(answer)], env=variables, check=True)
        found: list[Answer] = json.loads(answer.read_text(encoding="utf-8"))
        return found


def _write(path: Path, carried: dict[tuple[str, ...], str], commit: str) -> None:
    """Rewrite a run's file with the new digests of carried results; everything else is unchanged."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for i, line in enumerate(lines):
        record = json.loads(line)
        if record.get("kind") == "result" and (key := Result.from_record(record).key) in carried:
            lines[i] = json.dumps({**record, "digest": carried[key], "carried": commit})
    write_whole(path, ("\n".join(lines) + "\n").encode())


@contextmanager
def tree_of(commit: str, repository: Path) -> Iterator[tuple[str, Path]]:
    """Check out a commit; yield its full hash and the package's folder, which is deleted at the end.

    ``ValueError`` if the commit does not exist.
    """

    def git(*words: str) -> str:
        command = ["git", "-C", str(repository), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(f"commit {commit!r} cannot be checked out: {done.stderr.strip()}")
        return done.stdout.strip()

    name = git("rev-parse", "--verify", f"{commit}^{{commit}}")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        git("worktree", "add", "--quiet", "--detach", str(tree), name)
        try:
            yield name, tree / "src" / "convforge"
        finally:
            git("worktree", "remove", "--force", str(tree))


def _rename(words: str) -> tuple[str, str]:
    old, sign, new = words.partition("=")
    if not sign or not old.isidentifier() or not new.isidentifier():
        raise ValueError(f"--rename {words!r} must be OLD=NEW, two identifiers")
    return old, new


def main(
    files: Annotated[list[Path], typer.Argument(help="Stored runs.", exists=True)],
    commits: Annotated[
        list[str], typer.Option("--from", help="A commit whose code may have been measured; several are tried in turn.")
    ],
    renames: Annotated[
        list[str] | None, typer.Option("--rename", metavar="OLD=NEW", help="An identifier of Python code then and now.")
    ] = None,
) -> None:
    """Carry stored results over a change that leaves the machine code unchanged."""
    try:
        renamed = dict(_rename(words) for words in renames or ())
        for commit in commits:
            with tree_of(commit, PACKAGE.parents[1]) as (name, before):
                for file in files:
                    found = carry(file, before, name, renamed)
                    words = ", ".join(f"{count} {outcome}" for outcome, count in found.most_common())
                    typer.echo(f"{name[:10]} {file.name}: {words or 'no results'}")
    except ValueError as mistake:
        typer.echo(f"carry: {mistake}", err=True)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    typer.run(main)
