"""`convforge bench` from the outside, with made-up methods: output, files, interrupt and resume, bad use."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from tests.benchmark import fakes
from typer.testing import CliRunner

from convforge.benchmark import runner
from convforge.benchmark.store import load_runs
from convforge.cli.bench import bench

TARGETS = ("m4n4k4_f32", "m8n8k8_f32", "--quick")


class Bench:
    """The command in a folder of its own, with methods of the test's choice."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.patch = patch
        self.methods: Sequence[fakes.Honest] = [fakes.Honest(), fakes.Rival()]
        room = importlib.import_module("convforge.peers")
        patch.setattr(room, "every_algorithm", lambda: tuple(self.methods))
        defaults = runner.Runner.__init__.__kwdefaults__ or {}
        patch.setattr(runner.Runner.__init__, "__kwdefaults__", defaults | {"ceilings": fakes.still})

    def __call__(self, *words: str) -> tuple[int, str, str]:
        app = typer.Typer()
        app.command()(bench)
        done = CliRunner().invoke(app, [*words, "--out", str(self.folder)])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_the_table_and_the_file(command: Bench, tmp_path: Path) -> None:
    code, out, err = command(*TARGETS)
    assert code == 0
    assert "honest" in out
    assert "m8n8k8_f32" in out
    (run,) = load_runs(tmp_path / "results")
    assert str(run.path) in err.replace("\n", "")
    assert run.path.parent.name == run.device
    assert len(run.results) == 4
    assert run.complete


def test_markdown_and_csv_alone_stand_on_standard_output(command: Bench) -> None:
    assert command(*TARGETS, "--markdown")[1].startswith("| case | stride | honest |")
    rows = list(csv.DictReader(io.StringIO(command(*TARGETS, "--csv", "--methods", "rival")[1])))
    assert [row["algorithm"] for row in rows] == ["rival", "rival"]


def test_ctrl_c_shows_what_is_finished_and_how_to_go_on(command: Bench, tmp_path: Path) -> None:
    command.methods = [fakes.Honest(), fakes.Interrupting(2)]
    code, out, err = command(*TARGETS)
    assert code == 130
    assert "honest" in out
    assert "not complete" in out
    assert "run the same command with --resume to go on" in err
    (run,) = load_runs(tmp_path / "results")
    before = {r.key for r in run.results}
    assert 0 < len(before) < 4
    command.methods = [fakes.Honest(), fakes.Interrupting(-1)]
    assert command(*TARGETS, "--resume")[0] == 0
    (run,) = load_runs(tmp_path / "results")
    assert run.complete
    assert len(run.results) == 4


def test_there_must_be_something_to_resume(command: Bench) -> None:
    with pytest.raises(ValueError, match="no unfinished run of problems"):
        command(*TARGETS, "--resume")


@pytest.mark.parametrize(
    "words, said",
    [
        (("smok",), "did you mean 'smoke'"),
        (("smoke", "--methods", "honset"), "did you mean 'honest'"),
        (("smoke", "--sizes", "3x"), "--sizes '3x'"),
        (("smoke", "--strides", "0"), "--strides '0'"),
        (("smoke", "--sizes", "12345"), "no case has sizes 12345"),
        (("smoke", "--budget", "soon"), "--budget 'soon'"),
        (("smoke", "--budget", "0s"), "--budget '0s'"),
        (("smoke", "--workspace-limit", "much"), "'much' is no size"),
        (("smoke", "--device", "gpu"), "'gpu'"),
        (("smoke", "--csv", "--markdown"), "exclude each other"),
        (("smoke", "--all-configs", "--search", "3"), "--all-configs and --search exclude each other"),
        (("smoke", "--device", "emulator"), "--device emulator: its times say nothing about a GPU"),
        (("smoke", "--transfer"), "--transfer goes with --device cuda; on cpu nothing is transferred"),
    ],
)
def test_bad_use_is_refused_before_anything_is_written(
    command: Bench, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        command(*words)
    assert not list(tmp_path.iterdir())


def test_the_budget_and_the_limit_are_stored(command: Bench, tmp_path: Path) -> None:
    command(*TARGETS, "--budget", "2m", "--workspace-limit", "1MiB", "--all-configs")
    (run,) = load_runs(tmp_path / "results")
    assert run.settings["budget_s"] == 120
    assert run.settings["workspace_limit"] == 1 << 20
    assert [r.config for r in run.results if r.algorithm == "honest"] == ["tile=8", "tile=16"] * 2
