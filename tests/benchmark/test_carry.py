"""Stored results are carried over a change that leaves the machine code as it was, and over no other."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from tests.algorithms.compiling import H200, compiled
from tests.benchmark.fakes import result

from convforge.algorithms import find
from convforge.benchmark.carry import PACKAGE, _probed, carry, tree_of
from convforge.benchmark.digests import current_digest
from convforge.benchmark.records import Result
from convforge.benchmark.store import load_run
from convforge.problem import parse_problem

PICTURE = "n1c3h64w64_k1r3s3_st1_p1_f32_nchw"
KERNEL = "algorithms/direct/naive.cu"
PYTHON = "algorithms/direct/cpu.py"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another tree's package, for now as it is here."""
    folder = tmp_path_factory.mktemp("tree") / "src" / "convforge"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__", "*.po"))
    return folder


def changed(package: Path, file: str, before: str, after: str) -> None:
    """Write a file of the other tree anew, from ours, with a part of it replaced."""
    text = (PACKAGE / file).read_text(encoding="utf-8")
    assert before in text
    (package / file).write_text(text.replace(before, after), encoding="utf-8")


def row(backend: str) -> dict[str, str]:
    """direct_naive or direct_rows in its default config."""
    name = "direct_naive" if backend == "cuda" else "direct_rows"
    method = find("conv2d", backend, name)
    config = str(method.configs(parse_problem(PICTURE), H200)[0])
    return {"operation": "conv2d", "backend": backend, "name": name, "problem": PICTURE, "config": config}


def stored(folder: Path, asked: dict[str, str], digest: str) -> Path:
    """A stored run of one result with that digest."""
    one = result(algorithm=asked["name"], backend=asked["backend"], problem=PICTURE, config=asked["config"],
                 digest=digest)  # fmt: skip
    header = {
        "kind": "run", "schema": 1, "run": "made-up", "started": "2026-01-02T03:04:05+00:00", "suite": "made-up",
        "device": "h200", "machine": {"facts": H200.to_table()}, "versions": {}, "commit": "0" * 40, "dirty": False,
        "settings": {},
    }  # fmt: skip
    path = folder / "run.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, one.to_record())), encoding="utf-8")
    return path


def of(path: Path) -> Result:
    (found,) = load_run(path).results
    return found


def then(package: Path, asked: dict[str, str]) -> str:
    """The digest that the other tree gives."""
    (answer,) = _probed(package, [asked], H200.to_table(), {}, compile_=False)
    return str(answer["digest"])


@compiled
def test_a_renaming_is_carried_and_names_its_commit(package: Path, tmp_path: Path) -> None:
    changed(package, KERNEL, "step_p", "rows_ahead")
    asked = row("cuda")
    path = stored(tmp_path, asked, then(package, asked))
    assert load_run(path).is_stale(of(path))
    assert carry(path, package, "f" * 40) == {"carried": 1}
    assert of(path).carried == "f" * 40
    assert of(path).digest == current_digest(**asked, facts=H200.to_table())
    assert not load_run(path).is_stale(of(path))
    assert carry(path, package, "e" * 40) == {"current": 1}
    assert of(path).carried == "f" * 40


@compiled
def test_a_constant_that_nothing_reads_is_carried_over(package: Path, tmp_path: Path) -> None:
    changed(package, KERNEL, 'extern "C"', 'constexpr int NOBODY_READS_THIS = 7;\n\nextern "C"')
    asked = row("cuda")
    path = stored(tmp_path, asked, then(package, asked))
    assert carry(path, package, "f" * 40) == {"carried": 1}


@compiled
def test_other_machine_code_is_not_carried(package: Path, tmp_path: Path) -> None:
    changed(package, KERNEL, "plane += gridDim.z", "plane += 2 * gridDim.z")
    asked = row("cuda")
    path = stored(tmp_path, asked, then(package, asked))
    before = path.read_text(encoding="utf-8")
    assert carry(path, package, "f" * 40) == {"machine code differs": 1}
    assert path.read_text(encoding="utf-8") == before


@compiled
def test_what_that_commit_did_not_measure_is_not_carried(package: Path, tmp_path: Path) -> None:
    changed(package, KERNEL, "step_p", "rows_ahead")
    path = stored(tmp_path, row("cuda"), "0" * 64)
    assert carry(path, package, "f" * 40) == {"measured with another code than this commit has": 1}


def test_python_is_carried_over_comments_and_names_of_others_alone(package: Path, tmp_path: Path) -> None:
    asked = row("cpu")
    changed(package, PYTHON, "@jit\ndef ", "# A comment.\n@jit\ndef ")
    path = stored(tmp_path, asked, then(package, asked))
    assert not load_run(path).is_stale(of(path)), "a comment changes no digest"
    changed(package, PYTHON, "@jit\ndef ", "@jit\ndef another_")
    path = stored(tmp_path, asked, "1" * 64)
    assert "carried" not in carry(path, package, "f" * 40)


@pytest.mark.thorough
def test_python_is_carried_over_a_renaming_that_is_named(tmp_path: Path) -> None:
    asked, other = row("cpu"), tmp_path / "src" / "convforge"
    shutil.copytree(PACKAGE, other, ignore=shutil.ignore_patterns("__pycache__", "*.po"))
    changed(other, PYTHON, "strip_whole", "whole_strip")
    renamed = {"whole_strip": "strip_whole"}
    path = stored(tmp_path, asked, then(other, asked))
    assert "carried" not in carry(path, other, "f" * 40)
    assert carry(path, other, "f" * 40, renamed | {"row": "np"}) == Counter(
        {"not planned there: ValueError: new names that already occur: np": 1}
    )
    assert carry(path, other, "f" * 40, renamed) == {"carried": 1}
    assert carry(path, other, "e" * 40) == {"current": 1}


def test_a_commit_is_checked_out_and_removed(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        return subprocess.run(
            ["git", *identity, "-C", str(tmp_path), *words], capture_output=True, text=True, check=True
        ).stdout  # fmt: skip

    git("init", "--quiet")
    (tmp_path / "src/convforge").mkdir(parents=True)
    (tmp_path / "src/convforge/a.py").write_text("then\n")
    git("add", "-A")
    git("commit", "--quiet", "-m", "one")
    (tmp_path / "src/convforge/a.py").write_text("now\n")
    with tree_of("HEAD", tmp_path) as (name, folder):
        assert name == git("rev-parse", "HEAD").strip()
        assert (folder / "a.py").read_text() == "then\n"
        assert str(folder.parents[1]) in git("worktree", "list")
    assert not folder.exists()
    assert len(git("worktree", "list").splitlines()) == 1
    with pytest.raises(ValueError, match="commit 'nothing' cannot be checked out"), tree_of("nothing", tmp_path):
        pass
