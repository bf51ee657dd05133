"""benchmarks/run.py: which parts it measures on which device, and which run its chart is of."""

from __future__ import annotations

import fnmatch
import subprocess
from types import ModuleType
from typing import Any

import pytest
import typer
from tests.benchmark import fakes
from tests.benchmark.scripts import SCRIPTS, script_named
from typer.testing import CliRunner

from convforge.benchmark import suites
from convforge.peers import every_algorithm
from convforge.problem import Conv2dProblem, GemmProblem


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_named("run")


class Asked:
    """The script, with a bench that measures nothing and remembers what it was asked for."""

    def __init__(self, script: ModuleType, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[dict[str, Any]] = []
        patch.setattr(script, "bench", lambda targets, **more: self.calls.append({"targets": targets} | more))
        self._app = typer.Typer()
        self._app.command()(script.main)

    def __call__(self, *words: str) -> tuple[int, str]:
        done = CliRunner().invoke(self._app, [*words, "--no-tables"])
        return done.exit_code, done.output


@pytest.fixture
def asked(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(script, monkeypatch)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_every_part_selects_cases_and_methods(script: ModuleType, kind: str) -> None:
    for suite, part in script.PARTS[kind].items():
        _, cases = suites.load([suite])
        sizes = [int(size) for size in part.sizes.split(",") if size]
        kept = suites.select(cases, sizes=sizes, heavy=part.heavy)
        operations = {case.problem.operation for case in kept}
        names = [a.name for a in every_algorithm() if a.backend == kind and a.operation in operations]
        assert all(fnmatch.filter(names, word) for word in (part.methods or "*").split(",")), suite


def test_results_go_where_they_are_asked_for(script: ModuleType, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    done = subprocess.CompletedProcess([], 0)
    monkeypatch.setattr(script.subprocess, "run", lambda words, **_: commands.append(list(map(str, words))) or done)
    assert asked("images", "host", "--out", "elsewhere")[0] == 0
    assert asked.calls[0]["out"].name == "elsewhere"
    (command,) = commands
    assert command[command.index("--out") + 1] == str(asked.calls[0]["out"] / "results")


def test_the_gpu_has_the_whole_grid_the_blocks_and_the_largest_products(script: ModuleType, asked: Asked) -> None:
    assert asked("--device", "cuda")[0] == 0
    calls = {call["targets"][0]: call for call in asked.calls}
    assert list(calls) == [
        "images", "blocks", "boxes", "gemm", "products", "layers-b32", "dense", "dense-configs", "dense-bf16",
        "narrow", "bytes", "bytes-memory", "depthwise", "filters", "memory", "pictures",
    ]  # fmt: skip
    assert all(call["device"] == "cuda" and call["out"] == SCRIPTS for call in calls.values())
    assert calls["images"]["transfer"]
    assert calls["images"]["sizes"] == ""
    assert calls["blocks"]["all_configs"]
    assert calls["blocks"]["sizes"] == "2048,8192"
    assert calls["gemm"]["all_configs"]
    assert calls["layers-b32"]["steps"]
    assert not any(call["steps"] for name, call in calls.items() if name != "layers-b32")
    _, cases = suites.load(["gemm"])
    sizes = [int(size) for size in calls["gemm"]["sizes"].split(",")]
    kept = [case.problem for case in suites.select(cases, sizes=sizes, heavy=calls["gemm"]["heavy"])]
    squares = {p.m for p in kept if isinstance(p, GemmProblem) and p.m == p.n == p.k}
    assert squares >= {512, 1024, 2048, 4096, 8192}
    assert any(isinstance(p, GemmProblem) and p.n == 1 for p in kept), "the product by a vector"


def test_the_gpus_layers_are_resnets_in_both_layouts_by_every_rival(script: ModuleType) -> None:
    _, cases = suites.load(["layers-b32"])
    found = {(c.problem.h, c.problem.c, c.problem.x_layout, c.problem.out_layout)
             for c in cases if isinstance(c.problem, Conv2dProblem) and c.problem.n == 32}  # fmt: skip
    assert found >= {(h, c, layout, layout) for h, c in ((56, 64), (14, 256)) for layout in ("NCHW", "NHWC")}
    names = {a.name for a in every_algorithm() if a.backend == "cuda" and a.operation == "conv2d"}
    asked = script.PARTS["cuda"]["layers-b32"].methods.split(",")
    assert set(asked) <= names
    assert {"implicit_gemm", "im2col", "cudnn", "torch_conv2d"} <= set(asked)


def test_parts_budget_sizes_and_resume_are_passed_on(asked: Asked) -> None:
    assert asked("blocks", "images", "--device", "cuda:1", "--budget", "90s", "--sizes", "2048", "--resume")[0] == 0
    assert [call["targets"] for call in asked.calls] == [["blocks"], ["images"]]
    for call in asked.calls:
        assert (call["device"], call["budget"], call["sizes"], call["resume"]) == ("cuda:1", "90s", "2048", True)


def test_the_cpu_transfers_nothing(asked: Asked) -> None:
    assert asked()[0] == 0
    assert not any(call["transfer"] for call in asked.calls)
    assert {call["budget"] for call in asked.calls} == {"4m"}


def test_a_part_that_is_not_there_is_named_with_the_nearest(asked: Asked) -> None:
    code, said = asked("block", "--device", "cuda")
    assert code == 2
    assert "cuda has no part 'block'; did you mean 'blocks'?" in said
    assert not asked.calls


def test_sheets_are_scripts_that_run_where_they_are_named(
    script: ModuleType, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def run(words: list[Any], **options: Any) -> Any:
        ran.append([str(word) for word in words[1:]])
        return subprocess.CompletedProcess(words, 1 if "first.py" in str(words[1]) else 0)

    monkeypatch.setattr(script.subprocess, "run", run)
    assert asked("images")[0] == 0
    assert not ran
    code, said = asked("host", "first", "models", "--device", "cuda", "--budget", "2m", "--resume")
    assert code == 1
    assert "failed: first" in said
    assert len(asked.calls) == 1
    names = [words[0].rpartition("/")[2] for words in ran]
    assert names == ["host.py", "first.py", "torch_swap.py"]
    assert all(words[1:3] == ["--device", "cuda"] and words[-3:] == ["--budget", "120", "--resume"] for words in ran)
    assert all(part.script.is_file() for part in script.SHEETS.values())


def test_the_chart_is_of_the_run_with_the_most_cases_on_its_kind_of_device(script: ModuleType) -> None:
    def run(backend: str, *cases: str, suite: str = "images") -> Any:
        machine = {"facts": {"name": "A Test", "cores": 2, "backend": backend}}
        return fakes.run(*(fakes.result(case=case) for case in cases), suite=suite, machine=machine)

    few, many, gpu = run("cpu", "a"), run("cpu", "a", "b"), run("cuda", "a", "b", "c")
    runs = [few, many, gpu, run("cpu", "a", "b", "c", "d", suite="layers")]
    assert script.widest_of(runs, "cpu") is many
    assert script.widest_of(runs, "cuda") is gpu
    assert script.widest_of([few], "cuda") is None
