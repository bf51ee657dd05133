"""Sheets: stored whole after every row, gone on with, and shown: made-up rows, and small ones measured on the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.backends.emulated import needs_emulator
from tests.benchmark.scripts import SCRIPTS, script_named
from typer.testing import CliRunner

from convforge.backends.cpu import cpu_facts
from convforge.benchmark.digests import current_digest
from convforge.benchmark.markers import table_of, update_files
from convforge.benchmark.sheet_tables import over_best, sheet_markdown
from convforge.benchmark.sheets import Sheet, load_sheet, load_sheets
from convforge.problem import parse_problem
from convforge.timing.timer import Timing


def timing(microseconds: float, spread: float = 0.0) -> dict[str, Any]:
    """A timing as JSON holds it."""
    s = microseconds * 1e-6
    return Timing((s * (1 - spread), s * (1 - spread), s, s * (1 + spread), s * (1 + spread))).to_table()


def sheet(folder: Path, kind: str, rows: list[dict[str, Any]], complete: bool = True, **settings: Any) -> Sheet:
    """A stored sheet."""
    made = Sheet.begin(folder, kind, cpu_facts(), settings)
    for row in rows:
        made.add(row)
    if complete:
        made.finish()
    return made


def test_a_sheet_is_on_the_disk_after_every_row_and_gone_on_with(tmp_path: Path) -> None:
    made = Sheet.begin(tmp_path, "host", cpu_facts(), {"device": "cpu"})
    made.add({"library": "NumPy", "call": "conv2d"})
    stored = load_sheet(made.path)
    assert (stored.rows, stored.complete, stored.device) == (made.rows, False, made.device)
    other = Sheet.begin(tmp_path, "host", cpu_facts(), {"device": "cpu"})
    assert other.path != made.path
    other.finish()
    again = Sheet.begin(tmp_path, "host", cpu_facts(), {"device": "cpu"}, resume=True)
    assert again.path == made.path
    assert again.has(library="NumPy", call="conv2d")
    assert not again.has(library="NumPy", call="Filter")
    again.finish()
    assert [found.complete for found in load_sheets(tmp_path)] == [True, True]
    new = Sheet.begin(tmp_path, "host", cpu_facts(), {"device": "cpu", "batch": 1}, resume=True)
    assert new.path not in (made.path, other.path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kind": "crosscheck"}', '{"kind": "host", "schema": 99}'])
def test_what_is_no_sheet_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "host-1.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"host-1\.json is no sheet of results"):
        load_sheet(path)
    (tmp_path / "crosscheck-1.json").write_text(text, encoding="utf-8")
    path.unlink()
    assert load_sheets(tmp_path) == []


def test_what_is_not_stored_says_how_it_is_measured(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- table:choices -->\n<!-- end -->\n", encoding="utf-8")
    (tmp_path / "results").mkdir()
    assert update_files([page], tmp_path / "results") == [page]
    assert "Nothing is stored yet: `python benchmarks/run.py choices --device cuda`" in page.read_text(encoding="utf-8")
    assert update_files([page], tmp_path / "results", check=True) == []
    with pytest.raises(ValueError, match="a sheet takes device= alone"):
        table_of("host sizes=3", [])
    with pytest.raises(ValueError, match="a sheet takes device= alone"):
        table_of("host view=steps", [])


def test_the_cost_of_a_call_beside_pytorchs(tmp_path: Path) -> None:
    rows = [{"library": "PyTorch", "call": call, "time": timing(us)}
            for call, us in (("conv2d", 8.0), ("the operator", 11.5), ("PyTorch's conv2d", 4.0))]  # fmt: skip
    settings = {"batch": 32, "picture": "1x3x8x8"}
    made = sheet(tmp_path, "host", rows, device="cuda", **settings)
    text = sheet_markdown("host", [made])
    assert "takes 8.00 us (under 10 us), the operator of `convforge.torch` +3.5 us." in text
    assert "| PyTorch | conv2d | 8.00 | 2.00x |" in text
    slow = sheet(tmp_path, "host", [rows[0] | {"time": timing(12.0)}], device="cuda", **settings)
    assert "takes 12.0 us (over 10 us)." in sheet_markdown("host", [slow])
    on_cpu = sheet(tmp_path, "host", rows[:1], device="cpu", **settings)
    assert "takes 8.00 us." in sheet_markdown("host", [on_cpu])


def test_the_newest_complete_sheet_of_each_device_is_shown(tmp_path: Path) -> None:
    def one(us: float, complete: bool = True) -> Sheet:
        row = {"library": "NumPy", "call": "conv2d", "time": timing(us)}
        return sheet(tmp_path, "host", [row], complete, device="cpu", batch=32, picture="")

    old, new, broken = one(1.0), one(2.0), one(3.0, complete=False)
    new.started = broken.started = "2999-01-01T00:00:00+00:00"
    gpu = one(4.0)
    gpu.device = "a-gpu"
    text = sheet_markdown("host", [broken, new, old, gpu])
    assert "takes 4.00 us" in text
    assert "takes 2.00 us" in text
    assert "takes 1.00 us" not in text
    assert "takes 3.00 us" not in text
    assert "takes 2.00 us" not in sheet_markdown("host", [new, gpu], ["a-gpu"])
    assert "The run is not complete." in sheet_markdown("host", [broken])
    broken.rows.append({**broken.rows[0], "time": timing(5.0)})
    begun = one(6.0, complete=False)
    begun.started = "2999-02-02T00:00:00+00:00"
    assert "takes 6.00 us" not in sheet_markdown("host", [begun, broken]), "of unfinished ones the fullest"


def test_first_calls(tmp_path: Path) -> None:
    times = {"import_s": 0.2, "ready_s": 0.1, "first_s": 0.5, "again_s": 0.001, "tuning_s": None}
    rows = [{"cache": cache, "samples": [times | {"new_s": s} for s in (new, new / 2, new * 2)]}
            for cache, new in (("empty", 0.4), ("filled", 0.02))]  # fmt: skip
    del rows[1]["samples"][1:]
    text = sheet_markdown("first", [sheet(tmp_path, "first", rows, device="cuda", count=3)])
    assert "With nothing on the disk a call on a new problem takes 400 ms (over 300 ms)." in text
    assert "From the disk a call on a new problem takes 20.0 ms (under 30 ms)." in text
    assert "| empty | 3 | 200 | 100 | 500 | 400 | 1.00 |  |" in text
    assert "| filled | 1 | 200 | 100 | 500 | 20.0 | 1.00 |  |" in text, "its budget ended with the first process"


def choice_row(case: str, heuristic: float, auto: float, best: float, spread: float = 0.0) -> dict[str, Any]:
    """A case whose three levels chose three methods."""
    names = dict(zip(("heuristic", "auto", "max"), ("direct_rows", "im2col", "implicit_gemm"), strict=True))
    times = [
        {
            "algorithm": name,
            "config": "",
            "digest": current_digest("conv2d", "cpu", name, "", "", {}),
            "time": timing(us, spread),
        }
        for name, us in zip(names.values(), (heuristic, auto, best), strict=True)
    ]
    levels = {level: {"algorithm": name, "config": "", "why": ""} for level, name in names.items()}
    return {"case": case, "group": "images, batch 1", "problem": "", "backend": "cpu", "levels": levels,
            "times": times, "search_s": 1.0, "tried": 3, "whole": True}  # fmt: skip


def test_examples_stand_with_what_they_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"example": "a", "seconds": 1.25, "said": ["one", "two"], "fault": ""},
            {"example": "b", "seconds": 9.0, "said": [], "fault": "it ended with 1: no such thing"}]  # fmt: skip
    text = sheet_markdown("examples", [sheet(tmp_path, "examples", rows)])
    assert "| examples/a.py | 1.2 | one; two |" in text.replace("\\_", "_")
    assert text.startswith("With an error: b.")

    script = script_named("examples")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    (tmp_path / "examples").mkdir()
    for name, code in {
        "right": "print('\\n1\\n2\\n3\\n4\\n5')",
        "wrong": "raise SystemExit('broken')",
        "slow": "input()",
    }.items():
        (tmp_path / "examples" / f"{name}.py").write_text(code, encoding="utf-8")
    assert script.ran("right", "cpu", 30.0)["said"] == ["2", "3", "4", "5"]
    assert script.ran("wrong", "cpu", 30.0)["fault"] == "it ended with 1: broken"


def test_errors_of_layers(tmp_path: Path) -> None:
    """What the split is compared with, where it is not below, and who has no result."""

    def row(data: str, split: float, **errors: float) -> dict[str, Any]:
        every = {"split in tiles": split, "split first": 1e-7, **errors}
        return {"problem": "layer", "data": data, "terms": 576, "faults": {},
                "errors": {way: {"rms": rms, "mean": -3e-9} for way, rms in every.items()}}  # fmt: skip

    rows = [row("normal", 1.5e-7, loop=4e-7, cudnn=3e-7), row("positive", 5e-7, loop=4e-7, cudnn=6e-7)]
    rows.append(row("photographs", 2e-7, loop=3e-7) | {"faults": {"cudnn": "there is none"}})
    text = sheet_markdown("errors", [sheet(tmp_path, "errors", rows)])
    assert text.startswith(
        "The error of `implicit_gemm_split` is below that of cuDNN's fastest strict plan in 2 of 2 rows. The error of "
        "`implicit_gemm_split` is below that of a loop of multiply-adds in 2 of 3 rows; it is not in layer "
        "(positive).\n"
    )
    assert "| layer | normal | 576 | 1.5e-07 (-3e-09) | **1.0e-07 (-3e-09)** | 4.0e-07 (-3e-09) |" in text
    assert "cudnn has no result: there is none (layer)." in text


@needs_emulator
def test_the_errors_script_compares_every_way(tmp_path: Path) -> None:
    layer, problem = "n4c40h9w8_k32r3s3_p1_f32_nhwc", parse_problem("n4c40h9w8_k32r3s3_p1_f32_nhwc")
    script = script_named("errors")
    seen = {data: script.inputs_of(layer, data) for data in script.DATA}
    assert all(made.x.shape == problem.input.shape and made.x.dtype == np.float32 for made in seen.values())
    assert (seen["positive"].x >= 0).all()
    assert (seen["photographs"].x >= 0).all()
    assert 0.3 < (seen["photographs"].x == 0).mean() < 0.7, "ReLU"
    assert len({made.x[0, :, :, 0].tobytes() for made in seen.values()}) == 3
    exact = np.array([3.0, 4.0, 0.0, 0.0])
    assert script.error_of(np.array([3.0, 4.0, 0.0, 1.0]), exact) == pytest.approx({"rms": 0.2, "mean": 0.1})

    words = ("--device", "emulator", "--out", str(tmp_path), "--layer", layer)
    run("errors", *words)
    text = shown("errors", tmp_path)
    assert "below that of a loop of multiply-adds in 3 of 3 rows." in text
    assert "cudnn has no result" in text
    (made,) = load_sheets(tmp_path)
    assert [row["data"] for row in made.rows] == list(script.DATA)
    assert all(0 < error["rms"] < 1e-6 for row in made.rows for error in row["errors"].values())


def test_shares_of_choices_and_ties(tmp_path: Path) -> None:
    rows = [choice_row("a", 160, 104, 100), choice_row("b", 120, 110, 100), choice_row("c", 100, 104, 100, 0.04),
            {"case": "d", "group": "layers, batch 1", "problem": "", "backend": "cpu", "reason": "full"}]  # fmt: skip
    assert [round(over_best(rows[0], level), 2) for level in ("heuristic", "auto", "max")] == [1.6, 1.04, 1.0]
    assert over_best(rows[1], "auto") == pytest.approx(1.1)
    assert over_best(rows[2], "auto") == 1.0, "a tie"
    rows[1]["whole"] = False
    made = sheet(tmp_path, "choices", rows, search_s=30.0, count=5)
    text = sheet_markdown("choices", [made])
    assert "auto is within 5 % of the best in 67 % of 3 cases (less than aimed at: 95 %)" in text
    assert "the heuristic within 1.5x in 67 %." in text
    assert "| all | 3 | heuristic | 33 % | 67 % | 1.60x | a |" in text
    assert "1 cases are not in it: d (full)." in text
    assert "1 cases were not reached" in text
    assert "The full search of 1 cases ended with its budget" in text
    assert "Sources have changed" not in text
    rows[0]["times"][0]["digest"] = "other"
    assert "Sources have changed since for a." in sheet_markdown("choices", [made])


def test_models_slower_and_wrong_ones_are_named(tmp_path: Path) -> None:
    def row(model: str, ours: float | None, right: bool = True) -> dict[str, Any]:
        times = {"eager": timing(1000.0)} | ({} if ours is None else {"convforge": timing(ours)})
        return {"model": model, "batch": 1, "setting": "strict", "right": right, "error": 1e-6, "eager_error": 1e-6,
                "compile_fault": "no Triton", "layers": 20, "ours_layers": 12, "times": times}  # fmt: skip

    rows = [row("A", 900.0), row("B", 1029.0), row("C", 1040.0), row("D", None, right=False)]
    text = sheet_markdown("models", [sheet(tmp_path, "models", rows, factor=2.0, floor=1e-5)])
    assert "Slower than PyTorch at the same setting by more than 3 %: C, batch 1, strict." in text
    assert "Wrong, and so without a time: D, batch 1, strict." in text
    assert "| A | 1 | strict | 1.00 |  | 0.900 | 0.900x | 12 of 20 |" in text
    assert text.count("torch.compile: no Triton") == 4
    text = sheet_markdown("models", [sheet(tmp_path, "models", rows[:2], factor=2.0, floor=1e-5)])
    assert "None of 2 is slower than PyTorch at the same setting by more than 3 %. All outputs keep" in text
    unsteady = row("E", 1060.0)
    unsteady["times"] = {"eager": timing(1000.0, 0.2), "convforge": timing(1060.0, 0.2)}
    text = sheet_markdown("models", [sheet(tmp_path, "models", [unsteady], factor=2.0, floor=1e-5)])
    assert "None of 0 is slower than PyTorch" in text
    assert "Too noisy to rank, with a median above that: E, batch 1, strict." in text


# Measured, on the CPU.


def run(name: str, *words: str) -> str:
    return run_script(script_named(name), *words)


def run_script(script: ModuleType, *words: str) -> str:
    """What a script says, run with these arguments."""
    import typer

    app = typer.Typer()
    app.command()(script.main)
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def shown(kind: str, folder: Path) -> str:
    """The table of the one sheet that a script stored."""
    (made,) = load_sheets(folder)
    assert made.kind == kind
    return sheet_markdown(kind, [made])


def test_the_host_script_measures_every_call_once(tmp_path: Path) -> None:
    script = script_named("host")
    waits: list[int] = []
    calls: list[int] = []
    clock = script.HostCost(lambda: waits.append(len(calls)))
    assert clock.time(lambda: calls.append(1), 70) > 0
    assert waits == [0, 32, 64, 70], "batches that fill no queue, and a wait behind the last"
    run("host", "--out", str(tmp_path), "--budget", "0.2")
    text = shown("host", tmp_path)
    assert "A warm `conv2d` on arrays of NumPy takes" in text
    assert "| NumPy | Filter |" in text


@pytest.mark.thorough  # processes that compile for an empty cache
def test_the_first_script_measures_fresh_processes(tmp_path: Path) -> None:
    found = script_named("first").lived("cpu", tmp_path / "cache")
    assert set(found) == {"import_s", "ready_s", "first_s", "new_s", "again_s", "tuning_s"}
    assert found["first_s"] > found["again_s"] > 0
    assert any((tmp_path / "cache").iterdir())
    with pytest.raises(RuntimeError, match="device='tpu' is unknown"):
        script_named("first").lived("tpu", tmp_path / "cache")


@pytest.mark.thorough
def test_the_choices_script_chooses_times_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from convforge.backends.cache import cache_root
    from convforge.tuning import CHOICES

    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/numba").symlink_to(cache_root() / "numba")  # compiled before: that is not what is asked here
    monkeypatch.setenv("CONVFORGE_CACHE_DIR", str(tmp_path / "cache"))
    before = CHOICES.folder
    words = ["--out", str(tmp_path / "out"), "--cases", "rgb_to_1_32_s[12]", "--search", "5"]
    said = run("choices", *words, "--budget", "0.001")
    assert "2 cases are left: go on with --resume" in said
    assert CHOICES.folder == before
    for more in (["--compile"], ["--budget", "100", "--resume", "--device", "cpu,cpu"]):
        command = [sys.executable, SCRIPTS / "choices.py", *words, *more]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        assert "not compiled" not in ran.stdout
    (made,) = load_sheets(tmp_path / "out")
    assert {row["case"] for row in made.rows} == {"rgb_to_1_32_s2_b1", "rgb_to_1_32_s1_b1"}
    assert made.complete
    for row in made.rows:
        assert set(row["levels"]) == {"heuristic", "auto", "max"}
        assert row["tried"] >= 2
        keys = {(t["algorithm"], t["config"]) for t in row["times"]}
        assert keys == {(c["algorithm"], c["config"]) for c in row["levels"].values()}
    assert "of 2 cases" in shown("choices", tmp_path / "out")
    folders = {path.parent.parent.name for path in (tmp_path / "cache").rglob("n1c3*.json")}
    assert folders == {"auto", "max"}, "each level has choices of its own"


def test_a_case_that_is_wrong_or_does_not_fit_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = script_named("choices")
    (case,) = script.cases_of({"images": (1,)}, "rgb_to_1_32_s1")
    from convforge.backends.cpu import cpu_runtime

    monkeypatch.setattr(script, "memory_refusal", lambda problem, facts: "too large")
    assert script.measured(case, cpu_runtime(), 1.0, tmp_path)["reason"] == "too large"
    monkeypatch.undo()
    monkeypatch.setattr(script.DeviceTrial, "_checked", lambda trial, candidate: "row 0: wrong")
    assert "its result was wrong when it was measured" in script.measured(case, cpu_runtime(), 1.0, tmp_path)["reason"]


def test_a_process_that_ends_is_a_reason_and_another_goes_on(tmp_path: Path) -> None:
    """One case ends its process, as a GPU's fault does; the next has a new one."""
    code = """
import os, pathlib, sys, time
sys.path.insert(0, sys.argv[1])
import choices

def measured(case, runtime, search_s, folder):
    if case.name == "rgb_to_1_32_s2_b1":
        os._exit(3)
    if case.name == "rgb_to_1_32_s3_b1":
        raise TypeError("no such thing")
    return {"case": case.name}

choices.measured = measured
if __name__ == "__main__":
    cases = choices.cases_of({"images": (1,)}, "rgb_to_1_32_s?")
    for row in choices.rows_of(cases, ["cpu"], 1.0, time.monotonic() + 100, pathlib.Path()):
        print(row["case"], "|", row.get("reason", "measured"))
"""
    script = tmp_path / "script.py"
    script.write_text(code, encoding="utf-8")
    ran = subprocess.run([sys.executable, script, SCRIPTS], capture_output=True, text=True, check=False)
    said = dict(line.split(" | ") for line in ran.stdout.splitlines())
    assert said["rgb_to_1_32_s1_b1"] == "measured", ran.stderr
    assert said["rgb_to_1_32_s2_b1"].startswith("BrokenProcessPool: ")
    assert said["rgb_to_1_32_s3_b1"] == "TypeError: no such thing"


def test_the_batches_of_suites_and_the_smallest_first() -> None:
    script = script_named("choices")
    cases = script.cases_of(script.SUITES)
    groups = {case.source for case in cases}
    assert groups == {"images, batch 1", "layers, batch 1", "layers, batch 32"}
    assert [case.problem.flops for case in cases] == sorted(case.problem.flops for case in cases)
    assert len({case.name for case in cases}) == len(cases)
