"""What `make test` leaves to `make test-all`: no test is in neither, and each file has a planted fault in the first."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from tests.algorithms import test_planted_faults
from tests.algorithms.faults import FAULTS
from tests.conftest import keep_part

ROOT = Path(__file__).parents[1]
SUITE = """
import pytest

@pytest.mark.one_in(3)
@pytest.mark.parametrize("x", range(4))
@pytest.mark.parametrize("y", range(2))
def test_a_grid(x, y):
    assert x < 4

@pytest.mark.parametrize("x", range(3))
def test_all(x):
    assert x < 3

@pytest.mark.thorough
def test_long():
    assert True
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the suite above."""
    found = tmp_path_factory.mktemp("suite")
    (found / "test_suite.py").write_text(SUITE, encoding="utf-8")
    return found


@cache
def collected(folder: Path, chosen: str, *options: str) -> set[str]:
    """What pytest would run of the suite in a folder, by `-m` and other options."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "tests.conftest", "-c",
               str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "-m", chosen, *options, str(folder)]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line}


def test_every_nth_set_of_parameters_is_run_at_once_and_the_others_later(folder: Path) -> None:
    now = {"test_a_grid[0-0]", "test_a_grid[0-3]", "test_a_grid[1-2]", *(f"test_all[{x}]" for x in range(3))}
    every = {f"test_a_grid[{y}-{x}]" for y in range(2) for x in range(4)} | {f"test_all[{x}]" for x in range(3)}
    assert collected(folder, "not thorough") == now
    assert collected(folder, "thorough") == (every | {"test_long"}) - now


def test_parts_have_each_thorough_test_once_and_all_others(folder: Path) -> None:
    later, now = collected(folder, "thorough"), collected(folder, "not thorough")
    parts = [collected(folder, "thorough or not thorough", "--part", f"{i}/2") for i in (1, 2)]
    assert parts[0] & parts[1] == now
    assert parts[0] | parts[1] == now | later
    assert all(part - now for part in parts)


@pytest.mark.parametrize("part", ["0/3", "4/3", "1/0", "2", "-1/3"])
def test_a_part_that_there_is_not_is_refused(request: pytest.FixtureRequest, part: str) -> None:
    with pytest.raises(pytest.UsageError, match="must be I/N with I from 1 to N"):
        keep_part(request.config, [], part)


def test_a_fault_of_every_file_is_planted_at_once() -> None:
    found = list(test_planted_faults.every_fortieth(FAULTS))
    assert [param.values[0] for param in found] == FAULTS
    now = [param.values[0] for param in found if not param.marks]
    assert {fault.file for fault in now} == {fault.file for fault in FAULTS}
    assert len(FAULTS) / 40 <= len(now) < len(FAULTS) / 10
