"""Images larger than memory: the table and the goals from made-up rows, and small images measured on the CPU."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.benchmark.scripts import SCRIPTS, script_named
from tests.benchmark.test_sheets import run_script, sheet

from convforge.benchmark.large_tables import LargeGoal, large_goal_lines
from convforge.benchmark.markers import table_of, update_files
from convforge.benchmark.peer_tables import load_rows
from convforge.benchmark.processes import Ended
from convforge.benchmark.sheet_tables import sheet_markdown
from convforge.benchmark.sheets import Sheet, load_sheets

# Made-up rows.

SETTINGS = {"device": "cpu", "threads": 2, "rounds": 3, "memory": {"zarr": 1_000_000_000}}


def row(contender: str, seconds: float, at: int = 0, case: str = "zarr-2GB", **more: Any) -> dict[str, Any]:
    ours = contender.startswith("convforge")
    return {
        "case": case, "kind": case.split("-")[0], "nbytes": 2_000_000_000, "contender": contender, "round": at,
        "ours": ours, "device": "cpu", "gpus": 0, "seconds": seconds, "work_s": seconds - 1, "cpu_s": 9.0,
        "peak_bytes": 900_000_000, "base_bytes": 200_000_000, "gpu_bytes": None,
        "limit_bytes": 1_000_000_000 if ours else None, "stored_bytes": [1, 1], "sync_s": 0.5, "error": 0.5,
    } | more  # fmt: skip


ROWS = [
    *(row("convforge", seconds, at) for at, seconds in enumerate((5.0, 4.0, 7.0))),
    *(row("dask-image", seconds, at, error=1.8) for at, seconds in enumerate((20.0, 21.0, 10.0))),
    row("tensorstore, no filter", 3.0, error=None),
    {"case": "zarr-2GB", "kind": "zarr", "nbytes": 2_000_000_000, "contender": "dask + SciPy", "round": None,
     "reason": "scipy is not installed"},
]  # fmt: skip
GOAL = LargeGoal("a goal", "zarr-*", "", "copy", 0.7)


def stored(folder: Path, rows: list[dict[str, Any]] = ROWS) -> Sheet:
    return sheet(folder, "large", rows, **SETTINGS)


def test_a_row_has_medians_ratios_and_peaks(tmp_path: Path) -> None:
    text = sheet_markdown("large", [stored(tmp_path)])
    assert text.startswith("zarr-2GB: convforge takes 5.00 s; dask-image, the fastest other library, 4.00x as long.\n")
    assert (
        "| zarr-2GB | 2 | **convforge** | 5.00 (4.00 to 7.00) | 1.00x | 9.00 | 1.00 | 50 % | 900 (200) | 1000 |  "
        "| 0.500 | 0.50 | 3 |" in text
    )
    assert "| zarr-2GB | 2 | dask-image | 20.0 (10.0 to 21.0) | 4.00x | 9.00 | 0.211 | 11 % | 900 (200) |  |  |" in text
    assert text.index("tensorstore, no filter") < text.index("**convforge**") < text.index("| dask-image")
    assert "dask + SciPy: scipy is not installed (zarr-2GB)." in text


def test_the_copy_of_the_blur_stands_beside_the_image(tmp_path: Path) -> None:
    blurred = row("tensorstore, no filter", 3.5, case="blurred-2GB", error=None)
    text = sheet_markdown("large", [stored(tmp_path, [*ROWS, blurred])])
    assert "| zarr-2GB | 2 | tensorstore, no filter, of the blur | 3.50 | 0.700x | 9.00 | 1.60 | 80 % |" in text
    assert "tensorstore, no filter, of the blur, the fastest" not in text
    assert "blurred" not in text


def test_a_contender_that_was_wrong_once_has_no_time(tmp_path: Path) -> None:
    wrong = {**ROWS[-1], "contender": "dask-image", "reason": "wrong: a sample is 9 off"}
    text = sheet_markdown("large", [stored(tmp_path, [*ROWS[:-1], wrong])])
    assert "| zarr-2GB | 2 | dask-image |" not in text
    assert "dask-image: wrong: a sample is 9 off (zarr-2GB)." in text


def test_an_image_is_shown_from_its_newest_sheet_alone(tmp_path: Path) -> None:
    old = stored(tmp_path, [*ROWS, row("convforge", 2.0, case="tiff-12000"), row("libvips", 4.0, case="tiff-12000")])
    new = stored(tmp_path, [row("convforge", 8.0), row("tensorstore, no filter", 7.0)])
    new.started = "2999-01-01T00:00:00+00:00"
    text = sheet_markdown("large", [new, old])
    assert "| zarr-2GB | 2 | **convforge** | 8.00 |" in text
    assert "| zarr-2GB | 2 | dask-image" not in text, "its time is of another run"
    assert "| tiff-12000 | 2 | libvips | 4.00 | 2.00x |" in text
    assert "Measured 2999-01-01" in text


@pytest.mark.parametrize(
    "goal, wanted, reached",
    [
        (GOAL, "70 %", "**50 %, missed**"),
        (replace(GOAL, wanted=0.5), "50 %", "50 %"),
        (replace(GOAL, than="peer", peer="dask-image", wanted=3.0), "3.00x", "4.00x"),
        (replace(GOAL, than="rate", peer="dask-image", wanted=5.0), "5.00x", "**4.75x, missed**"),
        (replace(GOAL, than="limit", wanted=1.0), "100 %", "70 %"),
        (replace(GOAL, than="limit", wanted=0.6), "60 %", "**70 %, missed**"),
        (replace(GOAL, than="bytes", wanted=1e9), "1000 MB", "900 MB"),
        (replace(GOAL, than="peer", peer="libvips"), "0.700x", "not measured"),
        (replace(GOAL, of="tiff-*"), "70 %", "not measured"),
        (replace(GOAL, device="another"), "70 %", "not measured"),
    ],
)
def test_goals(tmp_path: Path, goal: LargeGoal, wanted: str, reached: str) -> None:
    made = stored(tmp_path)
    (line,), measured = large_goal_lines([replace(goal, device=goal.device or made.device)], [made])
    assert line.split(" | ")[1:3] == [wanted, reached]
    assert bool(measured) == (reached != "not measured")


def test_the_worst_case_counts(tmp_path: Path) -> None:
    made = stored(tmp_path, [*ROWS, row("convforge", 50.0, case="zarr-16GB"),
                             row("tensorstore, no filter", 10.0, case="zarr-16GB")])  # fmt: skip
    (line,), _ = large_goal_lines([replace(GOAL, device=made.device)], [made])
    assert line == "| a goal | 70 % | **18 %, missed** | zarr-16GB |"


def test_goals_are_in_the_table_of_all_goals(tmp_path: Path) -> None:
    made = stored(tmp_path / "results")
    (tmp_path / "goals.toml").write_text(
        f'[[large]]\nwords = "a goal"\nof = "zarr-*"\ndevice = "{made.device}"\nthan = "copy"\nwanted = 0.7\n',
        encoding="utf-8",
    )
    page = tmp_path / "page.md"
    page.write_text("<!-- table:goals -->\n<!-- end -->\n<!-- table:large -->\n<!-- end -->\n", encoding="utf-8")
    assert update_files([page], tmp_path / "results") == [page]
    text = page.read_text(encoding="utf-8")
    assert "| a goal | 70 % | **50 %, missed** | zarr-2GB |" in text
    assert "| zarr-2GB | 2 | **convforge** |" in text
    assert f"Measured: large {made.started[:10]} on {made.device}." in text


def test_the_goals_of_the_project_can_be_read() -> None:
    goals = load_rows(SCRIPTS / "goals.toml", "large", LargeGoal)
    assert {goal.than for goal in goals} == {"copy", "peer", "rate", "limit", "bytes"}
    assert "not measured" in table_of("goals", [], [], [], [], goals)


# Measured, on the CPU.


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    found = script_named("large")
    monkeypatch.setattr(found, "TINY", 40)
    monkeypatch.setattr(found, "SMALL", 64)
    return found


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    found = importlib.import_module("large_images")
    monkeypatch.setattr(found, "POOL", 1 << 18)
    return found


def cases(script: ModuleType, *words: Any) -> list[Any]:
    return list(script.cases_of(*words))


def test_the_check_finds_a_wrong_pixel_of_a_window(images: ModuleType, script: ModuleType, tmp_path: Path) -> None:
    import tifffile
    from scipy.ndimage import correlate1d

    (case,) = cases(script, ["tiff"], [], 512, 0)
    source, result = tmp_path / "in.tif", tmp_path / "out.tif"
    case.make(source, 1)
    pixels = tifffile.imread(source)
    assert (pixels.shape, pixels.dtype) == ((512, 512, 3), np.uint8)
    assert source.stat().st_size < 0.7 * pixels.nbytes
    blurred = pixels.astype(np.float64)
    for axis in (0, 1):
        blurred = correlate1d(blurred, case._row(), axis=axis, mode="nearest")
    tifffile.imwrite(result, np.rint(blurred).astype(np.uint8), photometric="rgb")
    assert case.deviation(source, result) <= 0.5 + 1e-9
    shifted = np.rint(blurred).astype(np.uint8)
    shifted[-1, -1, 2] += 3
    tifffile.imwrite(result, shifted, photometric="rgb")
    assert 2.5 <= case.deviation(source, result) <= 3.5
    tifffile.imwrite(result, shifted[:-1], photometric="rgb")
    with pytest.raises(ValueError, match="its result is"):
        case.deviation(source, result)


def test_cases_and_words_of_programs(script: ModuleType) -> None:
    assert [case.name for case in cases(script, [], ["2GB", "500MB"], 9, 7)] == [
        "tiff-9", "zarr-500MB", "blurred-500MB", "zarr-2GB", "blurred-2GB", "synthetic-7", "synthetic-dense-21"
    ]  # fmt: skip
    with pytest.raises(ValueError, match="--only png"):
        script.cases_of(["png"], [], 1, 1)
    ran = Ended(0, 1.0, 1.0, 1, None, "warned\n" + json.dumps({"work_s": 0.25}), "")
    assert (script.work_of(ran), script.fault_of(ran, 9.0)) == (0.25, "")
    assert script.work_of(ran._replace(output="done        16 units in 3.1 s\nrate  0.3 GB/s\n")) == 3.1
    assert script.work_of(ran._replace(output="read  3 s\n")) is None
    assert script.fault_of(ran._replace(code=1, errors="a\nb\n"), 9.0) == "it ended with 1: b"
    assert script.fault_of(ran._replace(code=None), 9.0) == "it took longer than 9 s"


@pytest.mark.parametrize("name", ["tensorstore_copy", "dask_copy", "dask_image", "dask_scipy", "convforge_dask"])
def test_programs_of_zarr(name: str, images: ModuleType, script: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("tensorstore")
    programs = importlib.import_module("large_programs")
    library = {"dask_copy": "zarr", "dask_image": "dask_image", "dask_scipy": "zarr", "convforge_dask": "zarr"}
    pytest.importorskip(library.get(name, "tensorstore"))
    (case,) = cases(script, ["zarr"], ["100KB"], 0, 0)
    source, target = tmp_path / "in.zarr", tmp_path / "out.zarr"
    case.make(source, 2)
    job = programs.Job(source, target, case.sigma, case.taps, threads=2, device="cpu")
    assert programs.PROGRAMS[name](job) > 0
    grids = [json.loads((path / "zarr.json").read_text())["chunk_grid"] for path in (source, target)]
    assert grids[0] == grids[1]
    error = case.deviation(source, target)
    assert error > 10 if name.endswith("_copy") else error < (0.51 if name.startswith("convforge") else 2.0)


def test_the_blurred_image_is_the_blur_of_the_image(images: ModuleType, script: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("tensorstore")
    sharp, blurred = cases(script, ["zarr", "blurred"], ["100KB"], 0, 0)
    sharp.make(tmp_path / "sharp.zarr", 2)
    blurred.make(tmp_path / "blurred.zarr", 2)
    assert sharp.deviation(tmp_path / "sharp.zarr", tmp_path / "blurred.zarr") < 0.51
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("name, library, most", [("libvips", "pyvips", 2.0), ("opencv", "cv2", 1.0)])
def test_programs_of_tiff(
    name: str, library: str, most: float, images: ModuleType, script: ModuleType, tmp_path: Path
) -> None:
    pytest.importorskip(library)
    programs = importlib.import_module("large_programs")
    (case,) = cases(script, ["tiff"], [], 300, 0)
    source, target = tmp_path / "in.tif", tmp_path / "out.tif"
    case.make(source, 1)
    programs.PROGRAMS[name](programs.Job(source, target, case.sigma, case.taps, threads=1, device="cpu"))
    assert 0 < case.deviation(source, target) < most


def test_the_script_measures_checks_and_goes_on(
    images: ModuleType, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorstore")
    copy = script.CONTENDERS["zarr"]["tensorstore, no filter"]
    monkeypatch.setitem(script.CONTENDERS, "zarr", {
        "copy": copy, "wrong": copy._replace(most=1.0), "absent": copy._replace(modules=("no_such.library",)),
        "failing": copy._replace(program="no_such_program"), "on a GPU": copy._replace(on_gpu=True),
    })  # fmt: skip
    words = ["--only", "zarr", "--sizes", "100KB", "--rounds", "2", "--out", str(tmp_path), "--folder", str(tmp_path)]
    assert "the budget is spent" in run_script(script, *words, "--budget", "0")
    said = run_script(script, *words, "--resume")
    (made,) = load_sheets(tmp_path)
    assert str(made.path) in said
    assert made.complete
    assert [row["round"] for row in made.rows if row["contender"] == "copy"] == [0, 1]
    reasons = {row["contender"]: row["reason"] for row in made.rows if "reason" in row}
    assert set(reasons) == {"wrong", "absent", "failing"}
    assert reasons["absent"] == "no_such.library is not installed"
    assert reasons["wrong"].startswith("wrong: a sample is ")
    assert "on a small image it ended with 1: KeyError: 'no_such_program'" in reasons["failing"]
    first = next(row for row in made.rows if row["contender"] == "copy")
    assert 0 < first["work_s"] < first["seconds"]
    assert first["peak_bytes"] > 1e6
    assert first["stored_bytes"][1] > 1000
    assert [path.name for path in tmp_path.iterdir()] == [made.device], "the images are removed"
    made.rows.append(row("convforge", 2.0, case="zarr-100KB"))
    assert f"| zarr-100KB | {made.settings['threads']} | copy |" in sheet_markdown("large", [made])


def test_an_image_that_does_not_fit_the_disk_is_left_out(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000))
    words = ["--only", "zarr", "--sizes", "1GB", "--out", str(tmp_path), "--folder", str(tmp_path / "images")]
    assert "left out: " in run_script(script, *words)
    (made,) = load_sheets(tmp_path)
    (only,) = (row for row in made.rows if row["contender"] == "")
    assert "has 1000 free bytes, and it needs 1.5 times 1000000000" in only["reason"]
    assert not list((tmp_path / "images").iterdir())


def test_a_time_for_a_large_image_is_foreseen(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.Contender, "missing", None)
    made = stored(tmp_path, [row("dask-image", 100.0)])
    bench = script.Bench(made, tmp_path, "cpu", 0, 2, SETTINGS["memory"], limit_s=500.0)
    small, large = cases(script, ["zarr"], ["2GB", "16GB"], 0, 0)
    assert bench.forecast(small, "dask-image") == 100.0
    assert bench.forecast(large, "dask-image") == 800.0
    assert bench.forecast(large, "convforge") == 0.0
    assert "dask-image" not in bench.left(large, 0)
    assert made.rows[-1]["reason"] == "it would take about 800 s, by its time for a smaller image"


def test_programs_are_chosen_by_name(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script.Contender, "missing", None)
    made = stored(tmp_path, [])
    wanted = ("convforge", "tensorstore, no filter")
    bench = script.Bench(made, tmp_path, "cpu", 0, 2, SETTINGS["memory"], limit_s=500.0, programs=wanted)
    (case,) = cases(script, ["zarr"], ["2GB"], 0, 0)
    assert sorted(bench.left(case, 0)) == sorted(wanted)
    assert made.rows == [], "the others may run later"


@pytest.mark.thorough  # starts each library twice
def test_the_script_compares_all_that_is_installed(images: ModuleType, script: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("tensorstore")
    words = ["--sizes", "1MB", "--tiff-side", "500", "--synthetic-side", "500", "--rounds", "1"]
    run_script(script, *words, "--out", str(tmp_path), "--folder", str(tmp_path), "--memory", "500MB")
    (made,) = load_sheets(tmp_path)
    assert made.complete
    timed = {(row["kind"], row["contender"]): row for row in made.rows if "seconds" in row}
    assert {("zarr", "convforge"), ("zarr", "tensorstore, no filter"), ("tiff", "convforge")} <= set(timed)
    assert timed["zarr", "convforge"]["error"] <= 0.5 + 1e-6
    assert timed["zarr", "convforge"]["limit_bytes"] == 500_000_000
    text = sheet_markdown("large", [made])
    assert "zarr-1MB: convforge takes" in text or "dask-image: dask_image is not installed" in text.replace("\\", "")
