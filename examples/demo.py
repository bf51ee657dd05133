"""The demonstration: edges of a photograph by every method, the image workload checked and timed, one report.

With an NVIDIA GPU, the GPU's methods follow those of the CPU.

    python examples/demo.py --out out

It runs for at most two minutes on two cores; the first time, half a minute of that is compiling. It writes
out/images/*.png, out/results/*/*.jsonl, out/report.html.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import convforge
from convforge import conv2d
from convforge.algorithms import refusal
from convforge.algorithms.contract import Plan
from convforge.backends import cuda
from convforge.backends.cpu import cpu_runtime
from convforge.backends.notices import quiet
from convforge.call.dispatch import runtime_of
from convforge.cli.bench import bench
from convforge.cli.report import report
from convforge.errors import UnsupportedProblem
from convforge.imaging.convert import to_dtype
from convforge.imaging.files import Image, write_image
from convforge.imaging.kernels import named_kernel
from convforge.imaging.photographs import photograph
from convforge.peers import every_algorithm
from convforge.problem import Conv2dProblem
from convforge.verify import Inputs, compare, truth

SIZES = "32,64,128,256,512,1024,2048"


def devices() -> list[str]:
    """The CPU, and the GPU if it can be used."""
    return ["cpu", "cuda"] if cuda.why_absent() is None else ["cpu"]


def methods(device: str = "cpu") -> list[Any]:
    """Every convolution method of a device."""
    return [a for a in every_algorithm() if a.operation == "conv2d" and a.backend == device]


# A filter of every kind that "auto" distinguishes: few taps, two passes, an exact mean.
KERNELS = ("laplacian", "sharpen", "gaussian:5:1", "gaussian:21:4", "box:3", "box:9")
SAMPLES = ("uint8", "float32")


def filter_once(kernel: str) -> None:
    """Filter small images as users do, without naming a method."""
    quiet()
    for dtype in SAMPLES:
        for shape in ((64, 64), (64, 64, 3)):
            convforge.filter(np.ones(shape, dtype), kernel)


def call_once(name: str) -> None:
    """Call a method on a small image, so that its kernels are compiled and stored on disk."""
    quiet()  # the bar already shows progress
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, np.float32) for shape in ((3, 16, 16), (3, 3, 3, 3)))
    precision = next(method.precision for method in methods() if method.name == name)
    with suppress(UnsupportedProblem):
        conv2d(x, w, padding=1, algorithm=name, precision=precision)


def compile_all() -> None:
    """Compile all float32 kernels, and the filters' kernels for bytes, on every core; once per machine."""
    names = [method.name for method in methods()]
    with ProcessPoolExecutor(cpu_runtime().facts.cores, mp_context=get_context("spawn")) as pool:
        done = chain(pool.map(filter_once, KERNELS), pool.map(call_once, names))
        for _ in track(done, "compiling", len(KERNELS) + len(names), console=Console(stderr=True)):
            pass


def edges(device: str, folder: Path, console: Console) -> None:
    """Detect a photograph's edges with every method: the 8-neighbour Laplacian, summed over RGB, to three outputs."""
    runtime = runtime_of(device)
    pixels = photograph("astronaut")
    height, width, bands = pixels.shape
    x = pixels.astype(np.float32)[None]
    w = np.broadcast_to(named_kernel("laplacian").values.astype(np.float32), (3, bands, 3, 3))
    problem = Conv2dProblem(n=1, c=bands, h=height, w=width, k=3, r=3, s=3, padding=(1, 1, 1, 1),
                            padding_mode="reflect", x_layout="NHWC")  # fmt: skip
    inputs = Inputs(x=x, w=w, operands={})
    exact = truth(problem, inputs)
    folder.mkdir(parents=True, exist_ok=True)
    write_image(folder / "photograph.png", Image(pixels))
    table = Table("method", "ms", "RMS error", "picture", title_justify="left",
                  title=f"edges of a {width}x{height} photograph on {runtime.facts.name}, {problem}")  # fmt: skip
    there = runtime.upload(x), runtime.upload(w), runtime.empty(problem.out_shape, np.float32)
    for method in track(methods(device), f"edges by every method, {device}", console=Console(stderr=True)):
        asked = problem.replace(precision=method.precision)
        if (reason := refusal(method, asked, runtime.facts)) is not None:
            table.add_row(method.name, "", "", f"refused: {reason}", style="dim")
            continue
        try:
            seconds = call_twice(method.plan(asked, method.configs(asked, runtime.facts)[0], runtime), *there)
        except UnsupportedProblem as refused:  # for a reason in the weights' values, such as their rank
            table.add_row(method.name, "", "", f"refused: {refused.reasons[method.name]}", style="dim")
            continue
        out = runtime.download(there[2])
        verdict = compare(asked, method.precision, out, exact, inputs)
        if not verdict.ok:
            table.add_row(method.name, "", f"{verdict.rms:.1e}", f"[red]wrong: {verdict.message}[/red]")
            continue
        path = folder / f"edges-{'' if device == 'cpu' else f'{device}-'}{method.name}.png"
        write_image(path, Image(to_dtype(out[0], np.uint8, absolute=True)))
        table.add_row(method.name, f"{seconds * 1e3:.2f}", f"{verdict.rms:.1e}", str(path))
    console.print(table)


def call_twice(plan: Plan, x: Any, w: Any, out: Any) -> float:
    """Seconds of the second call with prepared weights, because the first may compile."""
    plan({"x": x, "w": plan.prepare(w), "out": out})
    plan.runtime.fill(out, 0xFF)  # NaN, so that the checked output is that of the timed call
    return plan.runtime.time(lambda: plan({"x": x, "w": plan.prepare(w), "out": out}), 1)


def main(out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("out")) -> None:
    """Pictures, the image workload, the report."""
    console = Console()
    compile_all()
    for device in devices():
        edges(device, out / "images", console)
        bench(["images"], sizes=SIZES, device=device, budget="50s", quick=True, out=out)
    report([out / "results"], out=out / "report.html", images=out / "images")


if __name__ == "__main__":
    typer.run(main)
