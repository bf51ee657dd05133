"""`convforge gemm`: every rung of the matrix product's ladder on one size, checked and timed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from convforge.bench.row import Row


def gemm(
    m: Annotated[int, typer.Argument(metavar="M", help="Rows of A and C.")],
    n: Annotated[int, typer.Argument(metavar="N", help="Columns of B and C.")],
    k: Annotated[int, typer.Argument(metavar="K", help="Columns of A, rows of B.")],
    block: Annotated[
        str, typer.Option(help="Tiles of C for the rungs that have one, rows x columns, such as 32x512,64x256.")
    ] = "",
    methods: Annotated[str, typer.Option(help="Names or patterns, such as 'gemm_b*'; all by default.")] = "",
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    device: Annotated[str, typer.Option(help="Where to run.")] = "cpu",
    budget: Annotated[str, typer.Option(help="Time for the whole run, such as 60s.")] = "60s",
    out: Annotated[Path, typer.Option(help="Folder; results go to OUT/results/DEVICE/.")] = Path("out"),
    save: Annotated[Path | None, typer.Option(help="Folder to write A.npy, B.npy and C.npy to.")] = None,
) -> None:
    """Check and time every rung of the GEMM ladder on one M, N, K."""
    from convforge.algorithms import algorithms
    from convforge.bench.runner import Runner, Settings, begin, choose
    from convforge.bench.store import load_run
    from convforge.bench.suites import Case
    from convforge.cli.bench import progress, seconds, show
    from convforge.execution import runtime_of
    from convforge.problem import GemmProblem

    tiles = _tiles(block)
    if save is not None and save.exists() and not save.is_dir():
        raise ValueError(f"--save {save} is a file; give a folder")
    problem = GemmProblem(m=m, n=n, k=k, dtype=dtype)
    runtime = runtime_of(device)
    names = tuple(word.strip() for word in methods.split(",") if word.strip())
    settings = Settings(methods=names, budget_s=seconds(budget))
    chosen = choose(names, runtime.facts.backend, {"gemm"}, algorithms())
    with begin(out / "results", "gemm", runtime, settings) as store, progress() as watch:
        runner = Runner([Case(str(problem), problem)], chosen, runtime, settings, store, watch=watch)
        if tiles and not any(hasattr(row.config, "tile_m") for row in runner.rows):
            raise ValueError(f"--block: none of {', '.join(a.name for a in chosen)} has tiles")
        if tiles:
            runner.rows = [tiled for row in runner.rows for tiled in _tiled(row, tiles)]
        runner.run()
    show(load_run(store.path))
    typer.echo(f"stored in {store.path}", err=True)
    if save is not None:
        _save(problem, save)


def _tiles(text: str) -> list[tuple[int, int]]:
    """Pairs of rows and columns.

    Examples
    --------
    >>> _tiles("32x512, 64x256")
    [(32, 512), (64, 256)]
    """
    tiles = []
    for word in (word.strip() for word in text.split(",") if text):
        sides = word.split("x")
        if len(sides) != 2 or not all(side.isdecimal() and int(side) > 0 for side in sides):
            raise ValueError(f"--block {word!r} is no tile; write rows x columns, as in 32x512")
        tiles.append((int(sides[0]), int(sides[1])))
    return tiles


def _tiled(row: Row, tiles: list[tuple[int, int]]) -> list[Row]:
    """A row for each tile, where the method has tiles; else the row as it is."""
    config: Any = row.config
    if config is None or not hasattr(config, "tile_m"):
        return [row]
    return [
        dataclasses.replace(row, config=dataclasses.replace(config, tile_m=rows, tile_n=columns))
        for rows, columns in tiles
    ]


def _save(problem: Any, folder: Path) -> None:
    """The matrices of the check, and their product by the default rung."""
    import numpy as np

    from convforge import gemm as product
    from convforge.check import make_inputs

    inputs: Any = make_inputs(problem)
    folder.mkdir(parents=True, exist_ok=True)
    for name, matrix in (("A", inputs.x), ("B", inputs.w), ("C", product(inputs.x, inputs.w))):
        np.save(folder / f"{name}.npy", matrix)
    typer.echo(f"wrote A.npy, B.npy and C.npy to {folder}")
