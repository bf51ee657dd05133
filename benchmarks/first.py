"""Cost of first calls in fresh processes, with an empty and with a filled cache folder.

python benchmarks/first.py --device cuda

Each process imports convforge, initialises the device, and calls conv2d three times: on a new problem; on one with
another filter size, for which a kernel must be compiled or loaded; and on the first again. Tuning is disabled in these
processes. On a GPU, one more process tunes and reports the time of its search. The result goes to
benchmarks/results/DEVICE/first-TIME.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

# The program of each process. `tune` is False, or None if a call may measure.
CHILD = """
import json, sys, time
import numpy as np
device, tune = sys.argv[1], {"no": False, "yes": None}[sys.argv[2]]
times, last = {}, time.perf_counter()

def lap(name):
    global last
    now = time.perf_counter()
    times[name], last = now - last, now

import convforge
lap("import_s")
from convforge.call.dispatch import runtime_of
x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
small, large = (np.random.default_rng(1).standard_normal((16, 3, r, r)).astype(np.float32) for r in (3, 5))
last = time.perf_counter()
runtime_of(device)
lap("ready_s")
y = convforge.conv2d(x, small, padding=1, device=device, tune=tune)
lap("first_s")
convforge.conv2d(x, large, padding=2, device=device, tune=tune)
lap("new_s")
again = convforge.conv2d(x, small, padding=1, device=device, tune=tune)
lap("again_s")
assert np.array_equal(y, again)
from convforge.tuning import CHOICES
times["tuning_s"] = sum(found.spent_s for found in CHOICES._kept.values()) if tune is None else None
print(json.dumps(times))
"""


def lived(device: str, folder: Path, *, tune: bool = False) -> dict[str, Any]:
    """Run one process and return its times; ``RuntimeError`` with its error text if it fails."""
    away = {"CONVFORGE_CACHE_DIR": str(folder), "CUDA_CACHE_PATH": str(folder / "driver")}
    kept = {name: value for name, value in os.environ.items() if name not in ("CONVFORGE_TUNE", "CONVFORGE_TUNED")}
    done = subprocess.run([sys.executable, "-c", CHILD, device, "yes" if tune else "no"], env=kept | away, check=False,
                          capture_output=True, text=True)  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"a process ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    budget: Annotated[float, typer.Option(help="Seconds; at least one process of each kind runs.")] = 60.0,
    count: Annotated[int, typer.Option(min=1, help="Processes of each kind.")] = 5,
    out: Annotated[Path, typer.Option(help="The result goes to OUT/DEVICE/.")] = Path(__file__).parent / "results",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what was interrupted.")] = False,
) -> None:
    """Time first calls in fresh processes."""
    from time import monotonic

    from convforge.benchmark.sheets import Sheet
    from convforge.call.dispatch import runtime_of

    sheet = Sheet.begin(out, "first", runtime_of(device).facts, {"device": device, "count": count}, resume=resume)
    begin = monotonic()
    with tempfile.TemporaryDirectory(prefix="convforge-") as name:
        folder = Path(name)
        lived(device, folder / "filled")
        kinds = [("empty", False), ("filled", False)]
        if device != "cpu":
            kinds += [("empty, tuning", True), ("filled, tuned", True)]
            lived(device, folder / "tuned", tune=True)
        for at, (cache, tune) in enumerate(kinds):
            if sheet.has(cache=cache):
                continue
            samples = []
            while len(samples) < count and (not samples or monotonic() - begin < budget * (at + 1) / len(kinds)):
                where = {"filled": "filled", "filled, tuned": "tuned"}.get(cache, f"{at}-{len(samples)}")
                samples.append(lived(device, folder / where, tune=tune))
            sheet.add({"cache": cache, "samples": samples})
            shown = {name: f"{1e3 * value:.1f} ms" for name, value in samples[-1].items() if value is not None}
            typer.echo(f"{cache:16} {len(samples)} processes; the last: {shown}")
    sheet.finish()
    typer.echo(f"stored in {sheet.path}")


if __name__ == "__main__":
    typer.run(main)
