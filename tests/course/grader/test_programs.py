"""Programs that are right, wrong, broken, endless, greedy: each gets a verdict, and nothing of them is left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.course.grader.kernels import EXAMPLES

from convforge.course.grader import Report, cases_of, check_program
from convforge.course.grader.check import command_of
from convforge.course.grader.process import Limits, resident_bytes, run_limited

PROGRAM = (EXAMPLES / "student_conv.py").read_text(encoding="utf-8")
SAVE = "np.save(options.y, y)"
LIMITED = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux alone")


def checked(
    folder: Path,
    text: str,
    problem: str = "n1c2h8w11_k3r3s3_st2_p1_f32_nchw",
    limits: Limits | None = None,
    timed: str = "",
) -> Report:
    file = folder / "own.py"
    file.write_text(text, encoding="utf-8")
    return check_program(str(file), cases_of(problem), limits=limits, timed=timed)


def broken(with_: str) -> str:
    assert PROGRAM.count(SAVE) == 1
    return PROGRAM.replace(SAVE, with_)


def test_the_example_is_right_on_every_case() -> None:
    report = check_program(str(EXAMPLES / "student_conv.py"), cases_of(""))
    assert report.status == "right", report.to_text()
    assert report.exit_code == 0


def test_a_program_that_is_right_is_timed_beside_ours(tmp_path: Path) -> None:
    report = checked(tmp_path, PROGRAM, timed="n1c2h8w11_k3r3s3_st2_p1_f32_nchw")
    assert [time.name for time in report.times][:3] == ["your program", "of which start-up, about", "direct_naive"]
    assert all(time.seconds is not None and time.seconds > 0 for time in report.times[:3]), report.to_text()
    assert "start-up, reading and writing files included" in report.to_text()


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("text", "status", "says"),
    [
        (broken("np.save(options.y, y.astype(np.float64))"), "wrong", "the output is float64 of shape (1, 3, 4, 6)"),
        (broken("np.save(options.y, y[:, :, 1:])"), "wrong", "must be float32 of shape (1, 3, 4, 6)"),
        (broken("np.save(options.y, y.transpose(0, 2, 3, 1))"), "wrong", "NHWC instead of NCHW"),
        (broken("np.save(options.y, y[..., ::-1].transpose(0, 1, 3, 2))"), "wrong", "swapped H and W of the output"),
        (broken("np.save(options.y, 3 * y)"), "wrong", "scaled by a constant: 3"),
        (broken("y[:, :, -1] = 0; np.save(options.y, y)"), "wrong", "last row of the outputs, which is 0"),
        (PROGRAM.replace("stride, pad = options.stride", "stride, pad = 1"), "wrong", "stride ignored"),
        (PROGRAM.replace("w[:, :, r, s]", "w[:, :, R - 1 - r, S - 1 - s]"), "wrong", "flipped filter"),
        (broken("pass"), "no output", "wrote no output: the third argument is the file to write"),
        (broken("open(options.y, 'wb').write(b'12345')"), "no output", "cannot be read as a .npy file"),
        (broken("open(options.y, 'wb')"), "no output", "cannot be read as a .npy file"),
        (broken("np.save(options.y, np.array([{}], object))"), "no output", "cannot be read as a .npy file"),
        (broken("np.savez(open(options.y, 'wb'), y=y)"), "no output", "cannot be read as a .npy file"),
        (broken("raise SystemExit('too tired')"), "crash", "exit code 1; 0 says that the output is written"),
        (broken("import ctypes; ctypes.string_at(0)"), "crash", "it crashed (SIGSEGV)"),
        ("def (", "crash", "SyntaxError"),
    ],
)  # fmt: skip
def test_a_wrong_program_gets_a_verdict(tmp_path: Path, text: str, status: str, says: str) -> None:
    report = checked(tmp_path, text)
    assert {result.status for result in report.results} == {status}, report.to_text()
    assert says in report.to_text()
    for result in report.results:
        of_a_shape = "the output is" in result.message
        assert (result.first is not None) == (status == "wrong" and not of_a_shape), result
        assert result.first is None or report.to_text().count(str(result.first)) >= 1
    assert "Traceback" not in report.to_text()
    assert report.exit_code == 1


def test_an_endless_program_is_stopped_and_not_begun_again(tmp_path: Path) -> None:
    report = checked(tmp_path, broken("while True: pass"), limits=Limits(1.0))
    assert [result.status for result in report.results] == ["time", "not run"]
    assert "it did not end within 1 s" in report.to_text()


@LIMITED
def test_a_greedy_program_is_stopped(tmp_path: Path) -> None:
    greedy = "import numpy as np\nkept = []\nwhile True: kept.append(np.ones(1 << 22))\n"
    report = checked(tmp_path, greedy, limits=Limits(30, 200_000_000))
    assert [result.status for result in report.results] == ["memory", "not run"]
    assert "it held more than 200 MB" in report.to_text()


@LIMITED
def test_memory_of_children_counts(tmp_path: Path) -> None:
    child = "import numpy as np, time; kept = np.ones(1 << 25); time.sleep(60)"
    greedy = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])\n"
    report = checked(tmp_path, greedy, limits=Limits(30, 200_000_000))
    assert report.results[0].status == "memory"


@LIMITED
def test_what_a_program_leaves_running_ends_with_it(tmp_path: Path) -> None:
    note = tmp_path / "session"
    child = "import time; time.sleep(60)"
    text = f"import os, subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {child!r}])\n"
    text += f"open({str(note)!r}, 'w').write(str(os.getsid(0)))\n"
    ended = run_limited([sys.executable, "-c", text], Limits())
    assert ended.code == 0
    deadline = time.monotonic() + 5
    while resident_bytes(int(note.read_text())) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert resident_bytes(int(note.read_text())) == 0


@LIMITED
def test_an_endless_output_does_not_fill_the_disk(tmp_path: Path) -> None:
    ended = run_limited([sys.executable, "-c", "while True: print('x' * 10**6)"], Limits(30, 1 << 26))
    assert ended.code != 0
    assert ended.limit == ""


def test_a_compiled_program_is_run(tmp_path: Path) -> None:
    if shutil.which("cc") is None and not os.environ.get("CI"):
        pytest.skip("there is no C compiler")
    source = tmp_path / "own.c"
    source.write_text("int main(int n, char **words) { return *(volatile int *)8; }\n", encoding="utf-8")
    subprocess.run(["cc", str(source), "-o", str(tmp_path / "own")], check=True)
    report = check_program(str(tmp_path / "own"), cases_of("n1c1h3w3_k1r1s1_st1_p0_f32_nchw"))
    assert [result.status for result in report.results] == ["crash", "crash"]
    assert report.faults == ["crash: SIGSEGV"]


def test_a_command_of_several_words_is_run() -> None:
    assert command_of("python own.py --fast") == ["python", "own.py", "--fast"]


@pytest.mark.parametrize(
    ("problem", "words"),
    [("st2_p1", "--stride 2 --padding 1"), ("st2x1_p1x0x2x2", "--stride 2x1 --padding 1x0x2x2")],
)
def test_sizes_that_are_equal_are_one_number(tmp_path: Path, problem: str, words: str) -> None:
    report = checked(tmp_path, "import sys; sys.exit(' '.join(sys.argv[4:]))", f"n1c1h9w9_k1r3s3_{problem}")
    assert f"it said: {words}" in report.to_text()


def test_what_cannot_be_executed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("echo", encoding="utf-8")
    with pytest.raises(ValueError, match="chmod"):
        command_of(str(tmp_path / "plain"))
    with pytest.raises(ValueError, match="there is no such file"):
        command_of(str(tmp_path / "gone"))
    with pytest.raises(ValueError, match="is a folder"):
        command_of(str(tmp_path))
    (tmp_path / "plain").chmod(0o755)
    report = check_program(str(tmp_path / "plain"), cases_of("n1c1h3w3_k1r1s1_st1_p0_f32_nchw"))
    assert "cannot be started" in report.to_text()
