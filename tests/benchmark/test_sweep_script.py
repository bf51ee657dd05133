"""benchmarks/sweep.py: grids of configs, those that cannot be compiled, the fastest and the default."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.benchmark.scripts import SCRIPTS, script_named

from convforge.algorithms import find
from convforge.algorithms.direct.naive import NaiveConfig
from convforge.backends.cpu import cpu_facts
from convforge.benchmark.compiling import compile_ahead
from convforge.problem import parse_problem

PROBLEM = "n1c3h32w32_k1r3s3_p1_f32_nchw"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_named("sweep")


def test_a_grid_is_every_combination(script: ModuleType) -> None:
    assert len(script.grid("a=1,2 b=3,4,5")) == 6
    assert script.grid("") == [{}]
    with pytest.raises(ValueError, match="'a' is no NAME=VALUE"):
        script.grid("a")


def test_fields_are_read_as_what_they_are(script: ModuleType) -> None:
    assert script.changed(NaiveConfig(), {"block_x": "64", "partition": "row"}) == NaiveConfig(64, 4, "row")
    with pytest.raises(ValueError, match="NaiveConfig has no 'blocks'; it has block_x"):
        script.changed(NaiveConfig(), {"blocks": "64"})
    with pytest.raises(ValueError, match="invalid literal"):
        script.changed(NaiveConfig(), {"block_x": "wide"})


def test_configs_that_a_method_puts_first_come_with_the_grid(script: ModuleType) -> None:
    method, (case,) = find("conv2d", "cpu", "direct_rows"), script.load([PROBLEM])[1]
    offered = list(method.configs(case.problem, cpu_facts()))
    assert script.configs_of(method, case, "cpu", script.grid("")) == offered[:1]
    assert script.configs_of(method, case, "cpu", script.grid(""), 3) == offered[:3]
    found = script.configs_of(method, case, "cpu", script.grid("tile_p=61"), 2)
    assert found == [*offered[:2], script.changed(offered[0], {"tile_p": "61"})]


def test_configs_are_compiled_checked_and_timed(tmp_path: Path) -> None:
    words = ["direct_rows", PROBLEM, "--grid", "tile_p=2,4", "--seconds", "0.05", "--out", tmp_path / "a.jsonl",
             "--top", "1"]  # fmt: skip
    ran = subprocess.run([sys.executable, SCRIPTS / "sweep.py", *words], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    records = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {"tile_p=2", "tile_p=4"} <= {r["config"].split(",")[0] for r in records}
    assert {r["status"] for r in records} == {"ok"}
    assert "(the default)" in ran.stdout


def test_what_cannot_be_compiled_is_told() -> None:
    method, problem = find("conv2d", "cpu", "direct_rows"), parse_problem(PROBLEM)
    configs = (method.configs(problem, cpu_facts())[0], NaiveConfig())
    right, wrong = compile_ahead([(method, problem, config) for config in configs], cpu_facts())
    assert right is None
    assert "no attribute" in str(wrong)
