"""Run the examples on a device and store their output: python benchmarks/examples.py --device cuda

Each runs in its own process, as for a user. If one fails, its row holds the error. Examples that have their own sheet,
such as torch_swap, are not run here. The result goes to benchmarks/results/DEVICE/examples-TIME.json.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

ROOT = Path(__file__).parents[1]
EXAMPLES = ("numpy_picture", "train_cnn", "quantized_network", "jax_array", "ship_choices")
# Number of the last lines of output that are stored.
LINES = 4


def ran(name: str, device: str, seconds: float) -> dict[str, Any]:
    """Run an example, and make its row."""
    command, begin = [sys.executable, f"examples/{name}.py", "--device", device], monotonic()
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=seconds)
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        fault = "" if done.returncode == 0 else f"it ended with {done.returncode}: {last[-300:]}"
        said = [line.strip() for line in done.stdout.splitlines() if line.strip()][-LINES:]
    except subprocess.TimeoutExpired:
        fault, said = f"it ran longer than {seconds:g} s", []
    return {"example": name, "seconds": monotonic() - begin, "said": said, "fault": fault}


def main(
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    budget: Annotated[float, typer.Option(help="Seconds for each example, at most.")] = 120.0,
    out: Annotated[Path, typer.Option(help="The result goes to OUT/DEVICE/.")] = Path(__file__).parent / "results",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what was interrupted.")] = False,
) -> None:
    """Run each example in a process of its own."""
    from convforge.benchmark.sheets import Sheet
    from convforge.call.dispatch import runtime_of

    sheet = Sheet.begin(out, "examples", runtime_of(device).facts, {"device": device}, resume=resume)
    for name in EXAMPLES:
        if not sheet.has(example=name):
            row = ran(name, device, budget)
            sheet.add(row)
            typer.echo(f"{name:16} {row['seconds']:6.1f} s  {row['fault'] or '; '.join(row['said'][-1:])}")
    sheet.finish()
    typer.echo(f"stored in {sheet.path}")


if __name__ == "__main__":
    typer.run(main)
