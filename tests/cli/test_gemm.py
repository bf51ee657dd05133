"""`convforge gemm`: a column for every rung and every tile, results that are checked, files, bad use."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.emulated import needs_emulator
from tests.benchmark import fakes
from tests.cli.commands import Ran

import convforge
from convforge import algorithms
from convforge.benchmark import runner
from convforge.benchmark.records import Run
from convforge.benchmark.store import load_runs
from convforge.call.dispatch import runtime_of
from convforge.cli.gemm import gemm

RUNGS = [found.name for found in algorithms() if found.operation == "gemm" and found.ours and found.backend == "cpu"]
TIMED = re.compile(r"[~*]*\S+ / \S+")


def test_the_emulator_is_refused() -> None:
    with pytest.raises(ValueError, match="its times say nothing about a GPU"):
        gemm(8, 8, 8, device="emulator")


@pytest.fixture
def run(run: Callable[..., Ran], wide: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run `convforge gemm WORDS...` in a wide terminal, on the emulator too; results go to a folder of its own."""
    monkeypatch.setattr("convforge.cli.gemm.timed_runtime", runtime_of)
    defaults = runner.Runner.__init__.__kwdefaults__ or {}
    monkeypatch.setattr(runner.Runner.__init__, "__kwdefaults__", defaults | {"ceilings": fakes.still})
    return lambda *words: run("gemm", *words, "--out", tmp_path / "out")


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[], Run]:
    """The one run that was stored."""

    def load() -> Run:
        (found,) = load_runs(tmp_path / "out" / "results")
        return found

    return load


def table(ran: Ran) -> tuple[list[str], dict[str, dict[str, str]]]:
    """The columns of the one table, and its rows: first cell -> column -> text."""
    lines = [
        [cell.strip() for cell in re.split("[┃│]", line)] for line in ran.out.splitlines() if re.search("[┃│]", line)
    ]
    columns, *rows = lines
    return columns, {row[0]: dict(zip(columns, row, strict=True)) for row in rows}


def test_every_rung_is_checked_and_timed(run: Callable[..., Ran], stored: Callable[[], Run]) -> None:
    ran = run(33, 40, 17)
    assert ran.code == 0, ran.err
    columns, rows = table(ran)
    assert columns[:2] == ["case", "stride"]
    assert columns[-1] == "fastest"
    assert columns[2 : 2 + len(RUNGS)] == RUNGS, "ours first, in the ladder's order"
    assert list(rows) == ["m33n40k17_f32", "largest RMS error"]
    results = {r.algorithm: r for r in stored().results}
    for name in RUNGS:
        assert TIMED.fullmatch(rows["m33n40k17_f32"][name]), name
        assert float(rows["largest RMS error"][name]) < 1e-6, "float32 has seven digits"
        assert results[name].status == "ok"
        error = results[name].error
        assert error is not None
        assert error.bound_ratio is not None
        assert error.bound_ratio <= 1
        assert results[name].problem == "m33n40k17_f32"
        assert results[name].flops == 2 * 33 * 40 * 17


def test_the_file_is_named_on_standard_error(run: Callable[..., Ran], stored: Callable[[], Run]) -> None:
    ran = run(4, 5, 6, "--methods", "gemm_loops")
    found = stored()
    assert ran.err == f"stored in {found.path}\n"
    assert found.suite == "gemm"
    assert found.complete
    assert [r.algorithm for r in found.results] == ["gemm_loops"]


def test_a_column_for_each_tile_of_the_rungs_that_have_one(run: Callable[..., Ran], stored: Callable[[], Run]) -> None:
    ran = run(33, 40, 17, "--block", "8x16, 16x32,7x5", "--methods", "gemm_loops,gemm_blo*")
    assert ran.code == 0, ran.err
    columns, rows = table(ran)
    tiled = [name for name in columns if name.startswith("gemm_blocked")]
    assert columns[2:-1] == ["gemm_loops", *tiled]
    tiles = [re.match(r"gemm_blocked\[tile_m=(\d+),tile_n=(\d+),", name) for name in tiled]
    assert [tile and tile.groups() for tile in tiles] == [("8", "16"), ("16", "32"), ("7", "5")]
    for name in columns[2:-1]:
        assert TIMED.fullmatch(rows["m33n40k17_f32"][name]), name
    results = stored().results
    assert [r.status for r in results] == ["ok"] * 4
    launches = {r.config: r.launches[0] for r in results if r.algorithm == "gemm_blocked"}
    assert len(launches) == 3
    assert [launch["grid"][0] for launch in launches.values()] == [5, 3, 5], "rows of tiles that cover 33 rows"


def test_tiles_leave_the_other_rungs_as_they_are(run: Callable[..., Ran], stored: Callable[[], Run]) -> None:
    assert run(8, 8, 8, "--block", "4x4,2x2", "--methods", "gemm_blas,gemm_blocked").code == 0
    found = sorted((r.algorithm, r.config.partition(",tile_k")[0], r.status) for r in stored().results)
    assert found == [
        ("gemm_blas", "", "ok"),
        ("gemm_blocked", "tile_m=2,tile_n=2", "ok"),
        ("gemm_blocked", "tile_m=4,tile_n=4", "ok"),
    ]


def test_tiles_that_no_rung_has_are_refused(run: Callable[..., Ran], tmp_path: Path) -> None:
    ran = run(8, 8, 8, "--block", "4x4", "--methods", "gemm_blas")
    assert (ran.code, ran.err.strip()) == (2, "convforge: --block: none of gemm_blas has tiles")
    assert not list(tmp_path.iterdir()), "before anything is written"


@pytest.mark.thorough
@needs_emulator
def test_a_gpus_rungs_take_the_tiles_that_they_have(run: Callable[..., Ran], stored: Callable[[], Run]) -> None:
    rungs = "gemm_naive,gemm_shared,gemm_tile_1d,gemm_warp_tiled"
    ran = run(33, 40, 17, "--device", "emulator", "--block", "32x32,8x32,24x24,64x64", "--methods", rungs)
    assert ran.code == 0, ran.err
    found: dict[str, set[str]] = {}
    refused: dict[str, str] = {}
    for r in stored().results:
        if r.status == "refused":
            refused[r.algorithm] = str(r.reason)
        else:
            assert r.status == "ok", r
            found.setdefault(r.algorithm, set()).add(r.config)
    assert found["gemm_naive"] == {"block_x=32,block_y=32", "block_x=32,block_y=8", "block_x=24,block_y=24"}
    assert found["gemm_shared"] == {"block=32", "block=24"}
    tiles = [re.match(r"block_m=(\d+),block_n=(\d+),", config) for config in sorted(found["gemm_tile_1d"])]
    assert {tile.groups() for tile in tiles if tile} == {("32", "32"), ("64", "64")}
    assert {config.split(",warp")[0] for config in found["gemm_warp_tiled"]} == {"block_m=64,block_n=64,block_k=16"}
    assert "64x64: block_x=64,block_y=64: a block has 32 to 1024 threads, not 4096" in refused["gemm_naive"]
    assert "it has no tile 8x32: its tiles are square" in refused["gemm_shared"]
    assert refused["gemm_tile_1d"].startswith("it has no tile 8x32, 24x24: its tiles are ")
    assert sorted(re.findall(r"\d+x\d+", refused["gemm_tile_1d"])) == ["24x24", "32x32", "64x64", "8x32"]
    launches = {r.config: r.launches[0] for r in stored().results if r.algorithm == "gemm_naive" and r.launches}
    assert {config: launch["grid"] for config, launch in launches.items()} == {
        "block_x=32,block_y=32": [4], "block_x=32,block_y=8": [10], "block_x=24,block_y=24": [4],
    }, "tiles that cover 33 rows and 40 columns"  # fmt: skip
    assert re.search(r"gemm_tile_1d.* refused on m33n40k17_f32: it has no tile", ran.out.replace("\n", " "))


@needs_emulator
def test_tiles_that_no_rung_of_the_gpu_has_are_refused(run: Callable[..., Ran], tmp_path: Path) -> None:
    ran = run(8, 8, 8, "--device", "emulator", "--block", "7x3", "--methods", "gemm_tile*,gemm_shared")
    assert ran.code == 2
    assert "gemm_tile_2d: it has no tile 7x3: its tiles are " in ran.err
    assert "gemm_shared: it has no tile 7x3: its tiles are square" in ran.err
    assert not list(tmp_path.iterdir())


@needs_emulator
def test_the_product_that_is_saved_is_the_devices(
    run: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run(5, 7, 3, "--device", "emulator", "--save", tmp_path / "saved", "--methods", "gemm_naive")
    assert ran.code == 0, ran.err
    a, b, c = (np.load(tmp_path / "saved" / f"{name}.npy") for name in "ABC")
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), atol=1e-5)
    asked = []
    honest = convforge.gemm

    def product(*words: Any, **more: Any) -> Any:
        asked.append(more["device"])
        return honest(*words, **more)

    monkeypatch.setattr(convforge, "gemm", product)
    run(5, 7, 3, "--device", "emulator", "--save", tmp_path / "again", "--methods", "gemm_naive")
    assert asked == ["emulator"]


def test_double_precision(run: Callable[..., Ran], stored: Callable[[], Run]) -> None:
    ran = run(20, 30, 40, "--dtype", "float64", "--methods", "gemm_*")
    assert ran.code == 0, ran.err
    _, rows = table(ran)
    assert list(rows) == ["m20n30k40_f64", "largest RMS error"]
    for result in stored().results:
        assert result.status == "ok"
        assert result.error is not None
        assert result.error.rms is not None
        assert result.error.rms < 1e-14


def test_another_arithmetic_is_allowed(run: Callable[..., Ran], stored: Callable[[], Run], tmp_path: Path) -> None:
    words = ("--precision", "tf32", "--methods", "gemm_blas", "--save", tmp_path / "saved")
    ran = run(20, 30, 40, *words)
    assert ran.code == 0, ran.err
    assert [r.problem for r in stored().results] == ["m20n30k40_f32_math-tf32"]
    assert np.load(tmp_path / "saved" / "C.npy").shape == (20, 30)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("sizes", [(0, 4, 3), (4, 0, 3), (4, 3, 0), (1, 1, 1)], ids=str)
def test_empty_and_single_products(
    run: Callable[..., Ran], stored: Callable[[], Run], sizes: tuple[int, int, int]
) -> None:
    assert run(*sizes, "--methods", "gemm_*").code == 0
    assert [r.status for r in stored().results] == ["ok"] * len(RUNGS)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_matrices_are_saved(run: Callable[..., Ran], tmp_path: Path, dtype: str) -> None:
    folder = tmp_path / "some" / "where"
    ran = run(5, 7, 3, "--save", folder, "--dtype", dtype, "--methods", "gemm_blas")
    assert ran.code == 0, ran.err
    assert f"wrote A.npy, B.npy and C.npy to {folder}" in ran.out
    a, b, c = (np.load(folder / f"{name}.npy") for name in "ABC")
    assert [(m.shape, m.dtype.name) for m in (a, b, c)] == [((5, 3), dtype), ((3, 7), dtype), ((5, 7), dtype)]
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(c, exact, atol=1e-5 if dtype == "float32" else 1e-13)
    assert np.abs(exact).max() > 0.1, "or this test shows nothing"


def test_a_wrong_product_is_given_no_time(
    run: Callable[..., Ran], stored: Callable[[], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    room = importlib.import_module("convforge.peers")
    monkeypatch.setattr(room, "every_algorithm", lambda: (fakes.Honest(), fakes.Silent()))
    ran = run(6, 5, 4)
    columns, rows = table(ran)
    assert columns == ["case", "stride", "honest", "fastest"], "a method without a time is in the notes"
    assert rows["m6n5k4_f32"]["fastest"] == "honest"
    results = {r.algorithm: r for r in stored().results}
    assert (results["honest"].status, results["silent"].status) == ("ok", "failed")
    assert results["silent"].time is None
    notes = [line for line in ran.out.splitlines() if "silent" in line]
    assert len(notes) == 1
    assert "failed" in notes[0]


@pytest.mark.parametrize(
    "words, says",
    [
        ((8, 8, 8, "--block", "8"), ("--block '8'", "rows x columns", "32x512")),
        ((8, 8, 8, "--block", "8x"), ("--block '8x'",)),
        ((8, 8, 8, "--block", "x8"), ("--block 'x8'",)),
        ((8, 8, 8, "--block", "8x8x8"), ("--block '8x8x8'",)),
        ((8, 8, 8, "--block", "8*8"), ("--block '8*8'",)),
        ((8, 8, 8, "--block", "0x8"), ("--block '0x8'",)),
        ((8, 8, 8, "--block", "-8x8"), ("--block '-8x8'",)),
        ((8, 8, 8, "--block", "8x8.5"), ("--block '8x8.5'",)),
        ((8, 8, 8, "--block", "8x8;4x4"), ("--block '8x8;4x4'",)),
        ((8, 8, 8, "--block", "8x8,wide"), ("--block 'wide'",)),
        ((8, 8, 8, "--methods", "gemm_bias"), ("'gemm_bias'", "did you mean 'gemm_blas'", "gemm_loops")),
        ((8, 8, 8, "--methods", "im2col"), ("'im2col'", "gemm_blocked")),
        ((8, 8, 8, "--dtype", "int16"), ("int16", "float32, float64")),
        ((8, 8, 8, "--dtype", "single"), ("single",)),
        ((8, 8, 8, "--precision", "half"), ("'half'", "strict", "tf32")),
        ((8, 8, 8, "--budget", "soon"), ("--budget 'soon'", "60s")),
        ((8, 8, 8, "--budget", "0s"), ("--budget '0s'",)),
        ((8, 8, 8, "--device", "gpu"), ("'gpu'", "'cpu'")),
        ((8, 8, 8, 8), ("8",)),
        ((8, 8), ("K",)),
        ((8, "wide", 8), ("'N'", "integer")),
        ((-1, 8, 8), ("-1",)),
    ],
)
def test_bad_use_is_refused_before_anything_is_written(
    refused: Callable[..., str], tmp_path: Path, words: tuple[object, ...], says: tuple[str, ...]
) -> None:
    refused(2, *words, says=says)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_a_failure(run: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    ran = run(8, 8, 8)
    assert (ran.code, ran.out) == (1, "")
    assert re.fullmatch(rf"convforge: {re.escape(str(tmp_path / 'out'))}\S*: .+\n", ran.err)
