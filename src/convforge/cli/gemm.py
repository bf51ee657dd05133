"""`convforge gemm`: check and time every rung of the matrix product's ladder on one size."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from convforge.cli.output import progress
from convforge.cli.values import Device, Out, parse_seconds, timed_runtime, words_of

if TYPE_CHECKING:
    from convforge.backends.facts import DeviceFacts
    from convforge.benchmark.row import Row


def gemm(
    m: Annotated[int, typer.Argument(metavar="M", help="Rows of A and C.")],
    n: Annotated[int, typer.Argument(metavar="N", help="Columns of B and C.")],
    k: Annotated[int, typer.Argument(metavar="K", help="Columns of A, rows of B.")],
    block: Annotated[
        str, typer.Option(help="Tiles of C for the rungs that have such, rows x columns, as in 32x32,64x64.")
    ] = "",
    methods: Annotated[str, typer.Option(help="Names or patterns, such as 'gemm_b*'; all by default.")] = "",
    dtype: Annotated[str, typer.Option(help="float32, float64, float16, bfloat16, int8 or uint8.")] = "float32",
    precision: Annotated[str, typer.Option(help="Arithmetic that is allowed: strict, or tf32 of float32.")] = "strict",
    device: Device = "cpu",
    budget: Annotated[str, typer.Option(help="Time for the whole run, such as 60s.")] = "60s",
    out: Out = Path("out"),
    save: Annotated[Path | None, typer.Option(help="Folder to write A.npy, B.npy and C.npy to.")] = None,
) -> None:
    """Check and time every rung of the GEMM ladder on one M, N, K."""
    from convforge.benchmark.runner import Runner, Settings, begin, choose, rows_of
    from convforge.benchmark.store import load_run
    from convforge.benchmark.suites import Case
    from convforge.cli.bench import show
    from convforge.peers import every_algorithm
    from convforge.problem import GemmProblem

    tiles = _tiles(block)
    if save is not None and save.exists() and not save.is_dir():
        raise ValueError(f"--save {save} is a file; give a folder")
    problem = GemmProblem(m=m, n=n, k=k, dtype=dtype, precision=precision)
    runtime = timed_runtime(device)
    settings = Settings(methods=words_of(methods), budget_s=parse_seconds(budget))
    chosen = choose(settings.methods, runtime.facts.backend, {"gemm"}, every_algorithm())
    case = Case(str(problem), problem)
    rows = list(rows_of(case, chosen, runtime, settings))
    if tiles:
        rows = _tiled_rows(rows, tiles, runtime.facts)
    with begin(out / "results", "gemm", runtime, settings) as store, progress() as watch:
        runner = Runner([case], chosen, runtime, settings, store, watch=watch)
        runner.rows = rows
        runner.run()
    show(load_run(store.path))
    typer.echo(f"stored in {store.path}", err=True)
    if save is not None:
        _save(problem, device, save)


def _tiles(text: str) -> list[tuple[int, int]]:
    """Parse (rows, columns) pairs such as "32x512, 64x256"."""
    tiles = []
    for word in (word.strip() for word in text.split(",") if text):
        if (sides := re.fullmatch(r"(0*[1-9]\d*)x(0*[1-9]\d*)", word, re.ASCII)) is None:
            raise ValueError(f"--block {word!r} is no tile; write rows x columns, as in 32x512")
        tiles.append((int(sides[1]), int(sides[2])))
    return tiles


def _tiled_rows(rows: list[Row], tiles: list[tuple[int, int]], facts: DeviceFacts) -> list[Row]:
    """Return a row for each config with one of the tiles. Rungs that lack a tile refuse; those without tiles stay."""
    from convforge.algorithms.gemm.device import configs_of_tile, has_tiles
    from convforge.errors import Reason

    found: list[Row] = []
    refusals: list[str] = []
    any_tile = False
    for row in rows:
        if row.config is None or not has_tiles(row.config):
            found.append(row)
            continue
        problem: Any = row.problem
        configs, missing = row.algorithm.configs(problem, facts), dict[Reason, list[str]]()
        for high, wide in tiles:
            fitting = configs_of_tile(row.algorithm, problem, configs, high, wide)
            if isinstance(fitting, Reason):
                missing.setdefault(fitting, []).append(f"{high}x{wide}")
            else:
                any_tile = True
                found += [dataclasses.replace(row, config=config) for config in fitting]
        reasons = [Reason("it has no tile {tiles}: {why}", tiles=", ".join(ts), why=why) for why, ts in missing.items()]
        if (refusal := Reason.joined(reasons)) is not None:
            refusals.append(f"{row.algorithm.name}: {refusal}")
            found.append(dataclasses.replace(row, config=None, refusal=refusal))
    if not any_tile:
        tried, why = ", ".join(row.algorithm.name for row in rows), "; ".join(refusals)
        raise ValueError(f"--block: none of {tried} has {f'such tiles; {why}' if why else 'tiles'}")
    return found


def _save(problem: Any, device: str, folder: Path) -> None:
    import numpy as np

    from convforge import gemm as product
    from convforge.verify import make_inputs

    inputs: Any = make_inputs(problem)
    folder.mkdir(parents=True, exist_ok=True)
    c = product(inputs.x, inputs.w, precision=problem.precision, device=device)
    for name, matrix in (("A", inputs.x), ("B", inputs.w), ("C", c)):
        np.save(folder / f"{name}.npy", matrix)
    typer.echo(f"wrote A.npy, B.npy and C.npy to {folder}")
