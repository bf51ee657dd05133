"""The results behind the README and the docs: measure every suite, then write tables and pictures from what is stored.

    make bench                                 # or: python benchmarks/run.py [SUITE ...] [--budget 3m]
    python benchmarks/run.py --no-measure      # only write the tables and pictures again

Results go to benchmarks/results/DEVICE/. On a machine with nothing else to do, all suites take about fifteen minutes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import convforge
from convforge.bench.store import load_runs
from convforge.cli.bench import bench
from convforge.images.convert import to_dtype
from convforge.images.files import Picture, write_picture
from convforge.images.photographs import photograph
from convforge.report import chart_png

HERE = Path(__file__).parent
ROOT = HERE.parent
PICTURES = ROOT / "docs" / "images"
# Suite -> the sizes that fit a few minutes on two cores; empty means all of them.
SUITES = {
    "images": "32,64,128,256,512,1024,2048",
    "images-u8": "512,2048",
    "layers-b1": "",
    "filters": "",
    "gemm": "512,1024,2048",
    "parts": "",
}


def pictures() -> None:
    """The photograph, its edges, and the chart of the image workload."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    pixels = photograph("astronaut")
    edges = convforge.filter(pixels, "laplacian", channels="sum", out_dtype=np.int32)
    write_picture(PICTURES / "photograph.png", Picture(pixels))
    write_picture(PICTURES / "edges.png", Picture(to_dtype(edges, np.uint8, absolute=True)))
    widest = max((run for run in load_runs(HERE / "results") if run.suite == "images"), key=lambda run: len(run.cases))
    (PICTURES / "time-by-size.png").write_bytes(chart_png(widest, "time"))


def main(
    suites: Annotated[list[str] | None, typer.Argument(metavar="[SUITE]...", help="All by default.")] = None,
    budget: Annotated[str, typer.Option(help="Time for each suite.")] = "4m",
    measure: Annotated[bool, typer.Option(help="Measure; else only write tables and pictures again.")] = True,
) -> None:
    """Measure, then write the tables of README and docs."""
    if measure:
        for suite in suites or list(SUITES):
            bench([suite], sizes=SUITES.get(suite, ""), budget=budget, out=HERE)
    pictures()
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    command = [sys.executable, "-m", "convforge.bench.markers", *map(str, pages)]
    sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    typer.run(main)
