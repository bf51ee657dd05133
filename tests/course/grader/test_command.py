"""`convforge check` as a grader runs it: exit codes, JSON, and mistakes in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.backends.emulated import needs_emulator
from tests.cli.commands import Ran
from tests.cli.conftest import refused, run
from tests.course.grader.kernels import EXAMPLES, NAIVE, PLANTED, planted

__all__ = ["refused", "run"]  # fixtures

PROBLEM = "n1c2h8w11_k3r3s3_st1_p1_f32_nchw"
FIELDS = {
    "schema": int, "target": str, "kind": str, "device": str, "status": str, "passed": int, "cases": int,
    "faults": list, "advice": dict, "error": str, "results": list, "timed": str, "times": list, "notes": list,
}  # fmt: skip
OF_A_RESULT = {"case", "problem", "inputs", "status", "faults", "message", "first_wrong", "rms", "bound_ratio"}


def own(folder: Path, text: str) -> Path:
    path = folder / "own.cu"
    path.write_text(text, encoding="utf-8")
    return path


@needs_emulator
def test_a_right_kernel_ends_with_0(run: Callable[..., Ran]) -> None:
    ran = run("check", EXAMPLES / "student_naive.cu", "--device", "emulator", "--problem", PROBLEM)
    assert (ran.code, ran.err) == (0, "")
    assert "right: 2 of 2 cases right (kernel, emulator)" in ran.out
    assert "the emulator's times say nothing about a GPU" in ran.out


@needs_emulator
def test_a_wrong_kernel_ends_with_1_and_says_why(run: Callable[..., Ran], tmp_path: Path) -> None:
    file = own(tmp_path, planted(NAIVE, PLANTED["flip"]))
    ran = run("check", file, "--device", "emulator", "--problem", PROBLEM)
    assert (ran.code, ran.err) == (1, "")
    assert "likely fault: flipped filter: that is convolution" in ran.out


@needs_emulator
def test_json_has_every_field(run: Callable[..., Ran], tmp_path: Path) -> None:
    for text, code in ((NAIVE, 0), (planted(NAIVE, PLANTED["unset sum"]), 1), (NAIVE.replace("sum;", "som;"), 2)):
        ran = run("check", own(tmp_path, text), "--device", "emulator", "--problem", PROBLEM, "--json")
        assert ran.code == code
        table = json.loads(ran.out, parse_constant=pytest.fail)  # no NaN, no Infinity
        assert {name: type(value) for name, value in table.items()} == FIELDS
        assert table["status"] == ("right", "wrong", "not run")[code]
        assert all(set(result) == OF_A_RESULT for result in table["results"])
        assert table["passed"] == sum(result["status"] == "right" for result in table["results"])
        if code == 1:
            assert set(table["advice"]) == set(table["faults"]) == {PLANTED["unset sum"][2]}


@needs_emulator
def test_what_does_not_compile_ends_with_2_and_the_line(run: Callable[..., Ran], tmp_path: Path) -> None:
    text = NAIVE.replace("= sum;", "= som;")
    line = next(i for i, words in enumerate(text.splitlines(), 1) if "som" in words)
    ran = run("check", own(tmp_path, text), "--device", "emulator")
    assert (ran.code, ran.err) == (2, "")
    assert "it does not compile" in ran.out
    assert f"own.cu:{line}:" in ran.out
    assert f"line {line}: y[((n * K + k) * P + p) * Q + q] = som;" in ran.out


@needs_emulator
def test_an_endless_kernel_ends_with_1(run: Callable[..., Ran], tmp_path: Path) -> None:
    text = NAIVE.replace("float sum = 0.0f;", "float sum = 0.0f;\n    while (1) sum += 1;")
    ran = run("check", own(tmp_path, text), "--device", "emulator", "--timeout", "1s")
    assert ran.code == 1
    assert "it did not end within 1 s and was stopped" in ran.out
    assert ran.out.count("not run") == 9


@needs_emulator
def test_too_little_memory_ends_with_2(run: Callable[..., Ran]) -> None:
    ran = run("check", EXAMPLES / "student_naive.cu", "--device", "emulator", "--memory", "20MB")
    assert (ran.code, ran.err) == (2, "")
    assert "it held more than 20 MB" in ran.out


def test_a_program_is_checked(run: Callable[..., Ran]) -> None:
    ran = run("check", EXAMPLES / "student_conv.py", "--problem", PROBLEM, "--no-time")
    assert (ran.code, ran.err) == (0, "")
    assert "right: 2 of 2 cases right (program, process)" in ran.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("gone.cu",), ("gone.cu: there is no such file",)),
        (("gone",), ("gone: there is no such file",)),
        ((EXAMPLES / "student_conv.py", "--problem", "n1c2h8"), ("n1c2h8",)),
        ((EXAMPLES / "student_conv.py", "--problem", "m4n4k4_f32"), ("is no convolution",)),
        ((EXAMPLES / "student_conv.py", "--problem", PROBLEM.replace("f32", "f16")), ("float32, NCHW",)),
        ((EXAMPLES / "student_conv.py", "--timeout", "soon"), ("--timeout 'soon'",)),
        ((EXAMPLES / "student_conv.py", "--launch", "block=1 grid=1"), ("goes with a kernel's file",)),
        ((EXAMPLES / "student_naive.cu", "--device", "cpu"), ("a kernel runs on emulator, cuda",)),
    ],
)
def test_bad_use_is_one_line_and_ends_with_2(
    refused: Callable[..., str], words: tuple[str, ...], says: tuple[str, ...]
) -> None:
    refused(2, "check", *words, says=says)


def test_a_file_that_is_not_understood_is_reported_with_2(run: Callable[..., Ran], tmp_path: Path) -> None:
    file = own(tmp_path, NAIVE.replace("int N, ", ""))
    ran = run("check", file, "--device", "emulator", "--json")
    assert (ran.code, ran.err) == (2, "")
    assert "must take (const float *x, const float *w, float *y, int N," in json.loads(ran.out)["error"]
    ran = run("check", EXAMPLES / "student_naive.cu", "--device", "emulator", "--launch", "block=16 grid=Q/16")
    assert ran.code == 2
    assert "no whole number; write ceil(...)" in ran.out


def test_where_the_device_is_missing_it_ends_with_2(run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convforge.backends.emulator.absent.why_absent", lambda: "there is no g++")
    ran = run("check", EXAMPLES / "student_naive.cu", "--device", "emulator")
    assert (ran.code, ran.err) == (2, "")
    assert "could not be run" in ran.out
    assert "there is no g++" in ran.out


@needs_emulator
@pytest.mark.thorough  # three processes that compile
def test_the_loop_of_the_page_grades_a_class(tmp_path: Path) -> None:
    page = (EXAMPLES.parent / "docs" / "grading.md").read_text(encoding="utf-8")
    (loop,) = (block.partition("```")[0] for block in page.split("```{script}\n") if block.startswith("for file in"))
    (tmp_path / "homework").mkdir()
    for name, text in (("anna", NAIVE), ("bela", planted(NAIVE, PLANTED["flip"])), ("chen", "int main() {}")):
        (tmp_path / "homework" / f"{name}.cu").write_text(text, encoding="utf-8")
    command = tmp_path / "convforge"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m convforge "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": paths}
    subprocess.run(["bash", "-c", loop], cwd=tmp_path, env=environment, check=True)
    grades = (tmp_path / "grades.csv").read_text(encoding="utf-8").split()
    assert grades == ["anna,0", "bela,1", "chen,2"]
    tables = [json.loads((tmp_path / "homework" / f"{name}.json").read_text()) for name in ("anna", "bela", "chen")]
    assert [table["status"] for table in tables] == ["right", "wrong", "not run"]
    assert tables[1]["faults"] == ["flipped filter"]
    assert "host code" in tables[2]["error"]
