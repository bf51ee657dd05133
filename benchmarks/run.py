"""Produce the results of the README and the docs: measure in parts, then write tables and images from stored results.

make bench                                 # the CPU, all parts: about fifteen minutes on an idle machine
make gpu-bench                             # an NVIDIA GPU
python benchmarks/run.py images gemm --device cuda --budget 5m
python benchmarks/run.py host first choices models examples --device cuda   # sheets, see below
python benchmarks/run.py networks --device cuda            # whole networks in CUDA graphs; --resume continues
python benchmarks/run.py --no-measure      # only write the tables and images again

Sheets are measurements outside of the suites: host cost of warm calls, first calls, choices against the full search,
whole models and networks of PyTorch, the examples, and images larger than memory. Each is a script that runs in its own
process, only if named.

Results go to benchmarks/results/DEVICE/. The budget is for each part. Compiling, and building plans of other libraries,
take additional time. --resume continues an interrupted part.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer

import convforge
from convforge.benchmark.formats import nearest
from convforge.benchmark.records import Run
from convforge.benchmark.store import load_runs
from convforge.cli.bench import bench
from convforge.cli.values import parse_seconds
from convforge.imaging.convert import to_dtype
from convforge.imaging.files import Image, write_image
from convforge.imaging.photographs import photograph

HERE = Path(__file__).parent
ROOT = HERE.parent
IMAGES = ROOT / "docs" / "images"


class Part(NamedTuple):
    """The options of ``convforge bench`` for a suite."""

    sizes: str = ""  # sizes that fit the budget; empty for all
    methods: str = ""
    all_configs: bool = False
    search: int = 0
    transfer: bool = False
    steps: bool = False
    heavy: bool = False


LAYERS = "implicit_gemm_mma,implicit_gemm_wgmma,implicit_gemm_split,implicit_gemm_split_mma"
DENSE = f"{LAYERS},cudnn,torch_conv2d,torch_conv2d_nchw"

# Kind of device -> suite -> part. On two cores, larger sizes do not fit a few minutes. On a GPU, the check of the
# largest outputs takes far longer than their calls, so that fewer methods take part.
PARTS: dict[str, dict[str, Part]] = {
    "cpu": {
        "images": Part("32,64,128,256,512,1024,2048"),
        "images-u8": Part("512,2048"),
        "layers-b1": Part(),
        "filters": Part(),
        "gemm": Part("512,1024,2048"),
        "parts": Part(),
    },
    "cuda": {
        "images": Part(methods="direct_*,im2col,cudnn", transfer=True),
        "blocks": Part("2048,8192", methods="direct_*", all_configs=True),
        "boxes": Part(methods="direct_boxes", all_configs=True),
        "gemm": Part(
            "512,1024,2048,4096,8192",
            methods="gemm_naive,gemm_shared,gemm_tile_*,gemm_vectorised,gemm_warp_tiled,cublas",
            all_configs=True,
            heavy=True,
        ),
        "products": Part(
            methods="gemm_warp_tiled,gemm_mma,gemm_wgmma,gemm_split,gemm_split_mma,gemm_tf32,gemm_tf32_mma,cublas*",
            heavy=True,
            search=6,
        ),
        "layers-b32": Part(
            methods="implicit_gemm_split,implicit_gemm,im2col,cudnn,torch_conv2d,torch_conv2d_channels_last", steps=True
        ),
        "dense": Part(methods=DENSE, search=12),
        "dense-configs": Part(methods="implicit_gemm_wgmma,implicit_gemm_split", all_configs=True),
        "dense-bf16": Part(methods=DENSE, search=12),
        "narrow": Part(
            methods="implicit_gemm_few_channels,implicit_gemm_split_few_channels,implicit_gemm_few_outputs,"
            f"{LAYERS},direct_tiled,im2col,cudnn,torch_conv2d",
            search=6,
        ),
        "bytes": Part(methods="implicit_gemm_int8,implicit_gemm_fp8,cudnn,cudnn_int8,cudnn_fp8", search=20),
        "bytes-memory": Part(
            methods="implicit_gemm_few_channels,depthwise_dp4a,depthwise_channels,cudnn,cudnn_int8,"
            "torch_conv2d_channels_last",
            search=20,
        ),
        "depthwise": Part(methods="depthwise_*,direct_boxes,cudnn,torch_conv2d,torch_conv2d_channels_last"),
        "filters": Part(methods="separable,fft*,depthwise_planes,direct_tiled,cudnn,torch_conv2d,cupy_ndimage"),
        "memory": Part(methods="direct_*"),
        "pictures": Part(
            methods="direct_boxes,direct_tiled,direct_mma,depthwise_*,cudnn,torch_conv2d,cupy_ndimage,npp_filter"
        ),
    },
}
BUDGETS = {"cpu": "4m", "cuda": "7m"}


class SheetPart(NamedTuple):
    """A script that measures a sheet."""

    script: Path  # has the options --device, --out, --resume, and --budget in seconds
    budget_s: float  # default


SHEETS = {
    "host": SheetPart(HERE / "host.py", 20.0),
    "first": SheetPart(HERE / "first.py", 60.0),
    "choices": SheetPart(HERE / "choices.py", 540.0),
    "models": SheetPart(ROOT / "examples" / "torch_swap.py", 10.0),
    "networks": SheetPart(HERE / "networks.py", 440.0),
    "errors": SheetPart(HERE / "errors.py", 120.0),
    "examples": SheetPart(HERE / "examples.py", 120.0),
    "large": SheetPart(HERE / "large.py", 3600.0),
}


def chosen(names: list[str], device: str) -> tuple[dict[str, Part], dict[str, SheetPart]]:
    """The suites and sheets of a device by name, by default only all suites; ``ValueError`` for an unknown name."""
    parts = PARTS["cuda" if device.startswith("cuda") else "cpu"]
    every = [*parts, *SHEETS]
    for name in names:
        if name not in every:
            raise ValueError(f"{device} has no part {name!r}{nearest(name, every)} It has: {', '.join(every)}")
    suites = {name: parts[name] for name in names or parts if name in parts}
    return suites, {name: SHEETS[name] for name in names if name in SHEETS}


def measure(parts: dict[str, Part], device: str, budget: str, sizes: str, out: Path, *, resume: bool) -> None:
    """Run every part; results go to ``OUT/results/``."""
    for suite, part in parts.items():
        budget = budget or BUDGETS["cuda" if device.startswith("cuda") else "cpu"]
        options = part._asdict() | {"sizes": sizes or part.sizes}
        bench([suite], device=device, budget=budget, out=out, resume=resume, **options)


def measure_sheets(sheets: dict[str, SheetPart], device: str, budget: str, out: Path, *, resume: bool) -> list[str]:
    """Run the script of every sheet; return the failed ones."""
    failed = []
    for name, part in sheets.items():
        budget_s = parse_seconds(budget) if budget else part.budget_s
        words = ["--device", device, "--out", str(out / "results"), "--budget", f"{budget_s:g}"]
        words += ["--resume"] * resume
        if subprocess.run([sys.executable, part.script, *words], cwd=ROOT, check=False).returncode:
            failed.append(name)
    return failed


def images() -> None:
    """Write the photograph, its edges, and the charts of the image workload."""
    from convforge.course.report import ahead_png, chart_png  # imports what a machine that only measures lacks

    IMAGES.mkdir(parents=True, exist_ok=True)
    pixels = photograph("astronaut")
    edges = convforge.filter(pixels, "laplacian", channels="sum", out_dtype=np.int32)
    write_image(IMAGES / "photograph.png", Image(pixels))
    write_image(IMAGES / "edges.png", Image(to_dtype(edges, np.uint8, absolute=True)))
    runs = load_runs(HERE / "results")
    for backend, name in (("cpu", "time-by-size.png"), ("cuda", "time-by-size-gpu.png")):
        if (widest := widest_of(runs, backend)) is not None:
            (IMAGES / name).write_bytes(chart_png(widest, "time"))
            if backend == "cuda":
                (IMAGES / "ahead.png").write_bytes(ahead_png(widest))


def widest_of(runs: list[Run], backend: str) -> Run | None:
    """The run of the image workload with the most cases on a kind of device; the first if several are equal."""
    able = [run for run in runs if run.suite == "images" and run.machine["facts"]["backend"] == backend]
    return max(able, key=lambda run: len(run.cases), default=None)


def main(
    parts: Annotated[
        list[str] | None, typer.Argument(metavar="[PART]...", help="Suites, all by default, and sheets.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    budget: Annotated[str, typer.Option(help="Time for each part; 4m on the CPU, 7m on a GPU.")] = "",
    sizes: Annotated[str, typer.Option(help="Only these sizes, such as 32,64.")] = "",
    out: Annotated[
        Path, typer.Option(help="Results go to OUT/results/DEVICE/; tables are made of those in the repository.")
    ] = HERE,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what was interrupted.")] = False,
    measuring: Annotated[bool, typer.Option("--measure/--no-measure", help="Else nothing is measured.")] = True,
    tables: Annotated[bool, typer.Option(help="Write tables and images.")] = True,
) -> None:
    """Measure, then write the tables of README and docs."""
    try:
        suites, sheets = chosen(parts or [], device)
        failed = []
        if measuring:
            measure(suites, device, budget, sizes, out, resume=resume)
            failed = measure_sheets(sheets, device, budget, out, resume=resume)
    except ValueError as mistake:
        typer.echo(f"run.py: {mistake}", err=True)
        raise typer.Exit(2) from None
    if tables:
        images()
        pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
        command = [sys.executable, "-m", "convforge.benchmark.markers", *map(str, pages)]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append("tables")
    if failed:
        typer.echo(f"run.py: failed: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
