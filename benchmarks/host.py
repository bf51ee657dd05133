"""Host cost of a warm call: python benchmarks/host.py --device cuda

The cost is the time until a call returns, on an idle device, with work so small that the host never waits for the
device. Calls are timed in batches of 32, which cannot fill the launch queue (it holds about a thousand). Between
batches, outside of the time, the host waits for the device. A figure is the median over batches. All calls are timed
alternately. On the CPU the time includes the computation, because a call returns after its work.

Every result is compared with the float64 truth before it is timed. The result goes to
benchmarks/results/DEVICE/host-TIME.json.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import convforge
from convforge.backends.cpu import cpu_runtime
from convforge.benchmark.sheets import Sheet
from convforge.call.dispatch import runtime_of
from convforge.problem import Conv2dProblem
from convforge.timing import StoppingRule, interleave
from convforge.verify import make_inputs, truth

PROBLEM = Conv2dProblem(n=1, c=3, h=8, w=8, k=4, r=3, s=3, padding=(1, 1, 1, 1))
BATCH = 32
SAMPLE_S = 200e-6


class HostCost:
    """A :class:`convforge.timing.timer.Clock` for batches of calls; it waits for the device between batches."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self._wait = wait

    def time(self, run: Callable[[], None], repeats: int) -> float:
        """Return the seconds until `repeats` calls have returned."""
        seconds = 0.0
        for begin in range(0, repeats, BATCH):
            self._wait()
            seconds += cpu_runtime().time(run, min(BATCH, repeats - begin))
        self._wait()
        return seconds


def libraries(device: str) -> dict[str, Callable[[Any], Any]]:
    """Installed library -> function that makes an array on the device."""
    found: dict[str, Callable[[Any], Any]] = {}
    if device == "cpu":
        found["NumPy"] = np.array
    if importlib.util.find_spec("torch") is not None:
        import torch

        found["PyTorch"] = lambda array: torch.tensor(array, device=device)
    if device != "cpu" and importlib.util.find_spec("cupy") is not None:
        import cupy

        def on_device(array: Any) -> Any:
            with cupy.cuda.Device(int(device.partition(":")[2] or 0)):
                return cupy.array(array)

        found["CuPy"] = on_device
    return found


def calls_of(library: str, x: Any, w: Any) -> dict[str, Callable[[], Any]]:
    """Name -> call for a library's arrays; for PyTorch also its own conv2d, and our operator."""
    out = convforge.conv2d(x, w, padding=1)
    kept = convforge.Filter(w, padding=1)
    found: dict[str, Callable[[], Any]] = {
        "conv2d": lambda: convforge.conv2d(x, w, padding=1),
        "conv2d, out=": lambda: convforge.conv2d(x, w, padding=1, out=out),
        "Filter": lambda: kept(x),
    }
    if library == "PyTorch":
        from torch.nn.functional import conv2d

        trained = w.clone().requires_grad_()
        found |= {
            "the operator": lambda: convforge.torch.conv2d(x, w, None, 1, 1),
            "the operator, with a gradient": lambda: convforge.torch.conv2d(x, trained, None, 1, 1).detach(),
            "PyTorch's conv2d": lambda: conv2d(x, w, None, 1, 1),
            "PyTorch's conv2d, with a gradient": lambda: conv2d(x, trained, None, 1, 1).detach(),
        }
    return found


def on_host(array: Any) -> Any:
    return array.get() if hasattr(array, "get") else np.asarray(array.cpu() if hasattr(array, "cpu") else array)


def measured(library: str, make: Callable[[Any], Any], runtime: Any, rule: StoppingRule) -> list[Mapping[str, Any]]:
    """Check and time each call of a library's arrays; return a row for each."""
    inputs = make_inputs(PROBLEM)
    calls = calls_of(library, make(inputs.x), make(inputs.w))
    expected = truth(PROBLEM, inputs).value
    for name, call in calls.items():
        np.testing.assert_allclose(on_host(call()), expected, atol=1e-4, err_msg=f"{library}, {name}")
    wait = runtime.synchronize
    if runtime.facts.backend == "cuda":  # wait for the whole device, not only for one stream
        from cuda.core import Device

        gpu = Device(runtime.device)
        gpu.set_current()
        wait = gpu.sync
    times = interleave(list(calls.values()), HostCost(wait), rule)
    return [{"library": library, "call": name, "time": time.to_table()}
            for name, time in zip(calls, times, strict=True)]  # fmt: skip


def main(
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    budget: Annotated[float, typer.Option(help="Seconds for each library.")] = 20.0,
    out: Annotated[Path, typer.Option(help="The result goes to OUT/DEVICE/.")] = Path(__file__).parent / "results",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what was interrupted.")] = False,
) -> None:
    """Time warm calls by the host's clock."""
    runtime = runtime_of(device)
    settings = {
        "device": device,
        "batch": BATCH,
        "picture": "x".join(map(str, PROBLEM.x_shape)),
        "problem": str(PROBLEM),
    }
    found = libraries(device)
    modules = {"PyTorch": "torch", "CuPy": "cupy"}
    versions = {modules[name]: str(sys.modules[modules[name]].__version__) for name in found if name in modules}
    sheet = Sheet.begin(out, "host", runtime.facts, settings, resume=resume, more_versions=versions)
    rule = StoppingRule(sample_s=SAMPLE_S, samples=31, patience_s=budget / 2, budget_s=budget)
    for library, make in found.items():
        if sheet.has(library=library):
            continue
        for row in measured(library, make, runtime, rule):
            sheet.add(row)
            time = row["time"]
            typer.echo(f"{library:8} {row['call']:34} {1e6 * time['median_s']:8.2f} us{' noisy' * time['noisy']}")
    sheet.finish()
    typer.echo(f"stored in {sheet.path}")


if __name__ == "__main__":
    typer.run(main)
