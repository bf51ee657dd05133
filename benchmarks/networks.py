"""Whole networks of PyTorch with convforge's layers: python benchmarks/networks.py --device cuda

ResNet-18, ResNet-50, MobileNetV2 and U-Net in eval mode, in both memory formats and three types, each side in a CUDA
graph:

- convforge: `convforge.torch.replace(model, x, cuda_graph=True)`
- eager: the unchanged model
- folded: 16-bit types, BatchNorm folded by torch.fx's `fuse`, in channels_last
- compiled: float32, torch.compile
- max-autotune: torch.compile(mode="max-autotune"), which captures graphs itself

float32 is strict: no side may round to TF32. Each output is compared with the same model in float64; a wrong side gets
no time. Then all sides are timed alternately, with GPU events around graph replays. On the CPU there are no graphs, and
channels and image sides are divided by eight.

The most important rows come first. A row begins only while its share of the budget is left; --resume measures the
others. The result goes to benchmarks/results/DEVICE/networks-TIME.json.
"""

from __future__ import annotations

import copy
import gc
import math
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import torch
import typer
from torch import nn

import convforge
from convforge.benchmark.sheets import Sheet
from convforge.call.dispatch import runtime_of
from convforge.timing import StoppingRule, interleave

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))
import torch_swap  # noqa: E402

sys.path.remove(str(EXAMPLES))

FORMATS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
# Type -> error that convforge may always have, even if PyTorch's is smaller.
FLOORS = {"float16": 1e-3, "float32": torch_swap.FLOOR, "bfloat16": 8e-3}
# Channels of the first layer; divisor of channels and image size on the CPU.
WIDTH, ON_CPU = 64, 8
# Weight of the last BatchNorm of a bottleneck. With weight 1, each of the sixteen blocks magnifies rounding errors, up
# to 0.1 in bfloat16, so that a wrong layer cannot be told from a right one.
BRANCH = 0.25
# Largest share of the budget for a row; shares of this for measuring layers (most) and for compiling (least).
SHARE, REPLACING, COMPILING = 0.25, 0.3, 0.4
# Most and least seconds of timing.
TIMING_S = (12.0, 2.0)
# Bytes of GPU memory for all sides of a row.
MEMORY = 60e9
# Sides that use torch.compile.
COMPILERS = ("compiled", "max-autotune")
# Calls before the capture, in which PyTorch and convforge choose and load kernels, and torch.compile records its graph.
WARM = 3
# Batch size of the float64 model.
EXACT = 4


def bottleneck(c: int, k: int, stride: int) -> tuple[nn.Module, int]:
    """The body of a ResNet-50's block (1x1, 3x3 with the stride as in v1.5, 1x1), and its number of output channels."""
    unit = torch_swap.unit
    convolution, norm = list(unit(k, 4 * k, 1))[:2]
    nn.init.constant_(norm.weight, BRANCH)
    return nn.Sequential(unit(c, k, 1), unit(k, k, 3, stride), convolution, norm), 4 * k


@dataclass(frozen=True, slots=True)
class Network:
    make: Callable[[int], nn.Module]  # width -> model
    size: int  # height and width of the images
    fewer: int = 0  # smaller batch if the larger one may need too much memory, else 0


NETWORKS = {
    "ResNet-18": Network(partial(torch_swap.resnet, classes=1000), 224),
    "ResNet-50": Network(partial(torch_swap.resnet, counts=(3, 4, 6, 3), block=bottleneck, classes=1000), 224),
    "MobileNetV2": Network(lambda width: torch_swap.mobilenet(width // 2, 1000), 224),
    "U-Net": Network(torch_swap.unet, 512, fewer=8),
}


def every_row(batches: Sequence[int]) -> list[dict[str, Any]]:
    """The rows, the most important first: float16 and float32 in channels_last, and larger batches first."""
    found = [
        {"network": network, "batch": batch, "format": layout, "dtype": dtype}
        for layout in FORMATS for dtype in FLOORS for batch in batches for network in NETWORKS
    ]  # fmt: skip
    second = {("channels_last", "float16"): 0, ("channels_last", "float32"): 0}
    return sorted(found, key=lambda row: (second.get((row["format"], row["dtype"]), 1), row["batch"] != max(batches)))


@cache
def network_of(name: str, device: str, shrink: int) -> nn.Module:
    """Make a float32 network with random weights."""
    torch.manual_seed(0)
    network = NETWORKS[name]
    return torch_swap.settled(network.make(WIDTH // shrink).to(device), network.size // shrink)


@dataclass(frozen=True, slots=True)
class Side:
    """A model that is ready to be timed."""

    run: Callable[[], Any]  # computes once; returns the output, or None if `out` holds it
    out: Any = None
    held: tuple[Any, ...] = ()  # objects that must outlive the graph

    def output(self) -> torch.Tensor:
        """Compute again, and return the output in new memory."""
        made = self.run()
        return (self.out if made is None else made).clone()


def captured(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Side:
    """Capture a call in a CUDA graph; on the CPU, use the plain call."""
    if x.device.type != "cuda":
        return Side(partial(call, x))
    stream, current = torch.cuda.Stream(x.device), torch.cuda.current_stream(x.device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for _ in range(WARM):
            call(x)
    current.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call(x)
    return Side(graph.replay, out, (graph, call, x))


def folded(model: nn.Module, x: torch.Tensor) -> Side:
    """Convert the model to channels_last and fold BatchNorm in float64, so that weights are rounded once."""
    from torch.fx.experimental.optimization import fuse

    made = fuse(copy.deepcopy(model).double()).to(dtype=x.dtype, memory_format=torch.channels_last)
    return captured(made, x.contiguous(memory_format=torch.channels_last))


def autotuned(model: nn.Module, x: torch.Tensor) -> Side:
    """Compile the model with torch.compile, which captures its own graph and reads x in place."""
    torch._dynamo.mark_static_address(x)
    call = torch_swap.compiled(model, x, "max-autotune")
    for _ in range(WARM):
        call(x)
    return Side(partial(call, x))


def replaced(model: nn.Module, x: torch.Tensor, row: dict[str, Any], budget_s: float) -> Side:
    """Replace the model's layers with convforge's; the report of its layers goes into the row."""
    ours, begin = copy.deepcopy(model), monotonic()
    report = convforge.torch.replace(ours, x, progress=False, budget_s=budget_s, cuda_graph=True)
    row["replace_s"] = monotonic() - begin
    row["layers"] = len(report.layers)
    row["ours_layers"] = sum(layer.by == "convforge" for layer in report.layers)
    row["replace_notes"] = list(report.notes)
    return captured(ours, x)


class Late(BaseException):
    """The time for compiling is up. It is a BaseException so that no handler of ordinary errors catches it."""


def within(seconds: float, make: Callable[[], Side]) -> Side:
    """Make a side with torch.compile, in the main thread; ``Late`` if that takes more than `seconds`."""
    ended = False

    def raise_late(*_: Any) -> None:
        if not ended:
            raise Late(f"it was not compiled within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, raise_late)
    # Repeat each second: an exception in a destructor or a C callback is lost.
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.01), 1.0)
    try:
        return make()
    finally:
        ended = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Replays:
    """A :class:`convforge.timing.timer.Clock` for the GPU's work between two events."""

    def time(self, run: Callable[[], object], repeats: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(repeats):
            run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3


def exact_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Compute the model in float64, a few images at a time."""
    trials = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        double = copy.deepcopy(model).double()
        return torch.cat([double(part.double()) for part in x.split(EXACT)])
    finally:
        torch.backends.cudnn.benchmark = trials


def names_of(dtype: str) -> list[str]:
    """Names of the sides for a type."""
    return ["eager", "convforge", "compiled" if dtype == "float32" else "folded", "max-autotune"]


def fitting(batch: int, fewer: int, needed: float) -> tuple[int, str]:
    """The batch that fits into memory if `batch` needs `needed` bytes, and the reason if it is smaller."""
    if not fewer or needed <= MEMORY:
        return batch, ""
    return fewer, f"{fewer} images: {batch} take about {needed / 1e9:.0f} GB of GPU memory, more than 60 GB"


@torch.no_grad()
def needed_by(model: nn.Module, x: torch.Tensor, sides: int) -> float:
    """Bytes of GPU memory that `sides` graphs of a model and one more call need."""
    model(x)  # cuDNN's trials need more memory than its calls
    torch.cuda.reset_peak_memory_stats(x.device)
    before = torch.cuda.memory_allocated(x.device)
    model(x)
    return float((torch.cuda.max_memory_allocated(x.device) - before) * (sides + 1))


@torch.no_grad()
def measured(model: nn.Module, x: torch.Tensor, with_compile: bool, limit_s: float) -> dict[str, Any]:
    """Measure each side's error, and its time or the reason why it has none."""
    begin, dtype = monotonic(), str(x.dtype).removeprefix("torch.")
    row: dict[str, Any] = {"pictures": len(x)}
    exact, sides = exact_of(model, x), dict[str, Side]()
    errors: dict[str, float] = {}
    faults: dict[str, str] = {}
    makers: dict[str, Callable[[], Side]] = {
        "eager": lambda: captured(model, x),
        "folded": lambda: folded(model, x),
        "convforge": lambda: replaced(model, x, row, REPLACING * limit_s),
        "compiled": lambda: captured(torch_swap.compiled(model, x), x),
        "max-autotune": lambda: autotuned(model, x),
    }
    names = names_of(dtype)
    compilers = [name for name in COMPILERS if name in names]
    for name in names:
        if name in compilers and not with_compile:
            faults[name] = "torch.compile was not run"
            continue
        try:
            if name in compilers:
                left = max(limit_s - TIMING_S[0] - (monotonic() - begin), COMPILING * limit_s)
                sides[name] = within(left / (len(compilers) - compilers.index(name)), makers[name])
            else:
                sides[name] = makers[name]()
            errors[name] = torch_swap.rms(sides[name].output() - exact) / torch_swap.rms(exact)
        except Late as late:
            faults[name] = str(late)
        except Exception as fault:  # no compiler, no memory, a layer that cannot be captured
            sides.pop(name, None)
            faults[name] = torch_swap.in_words(fault)
    row["faults"] = faults
    if is_lost(x.device):
        return row
    most = torch_swap.eager_most(model, x, exact)
    row["bound"] = finite(bound := max(torch_swap.FACTOR * most, FLOORS[dtype]))
    row["errors"] = {name: finite(error) for name, error in errors.items()}
    row["wrong"] = [name for name, error in errors.items() if not error <= bound]
    right = {name: side for name, side in sides.items() if name not in row["wrong"]}
    if right:
        seconds = min(TIMING_S[0], max(TIMING_S[1], limit_s - (monotonic() - begin)))
        rule = StoppingRule(sample_s=5e-3, samples=15, patience_s=seconds / 2, budget_s=seconds)
        clock = Replays() if x.device.type == "cuda" else torch_swap.WholeCalls(x.device)
        times = interleave([side.run for side in right.values()], clock, rule)
        row["times"] = {name: timing.to_table() for name, timing in zip(right, times, strict=True)}
    return row


def is_lost(device: torch.device) -> bool:
    """True if the GPU accepts no more work from this process, for example after a kernel's fault."""
    try:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def finite(value: float) -> float | None:
    """The number, or None if JSON cannot hold it."""
    return value if math.isfinite(value) else None


def row_of(about: dict[str, Any], device: str, shrink: int, with_compile: bool, limit_s: float) -> dict[str, Any]:
    """Measure one row, then free all its memory."""
    network, layout, begin = NETWORKS[about["network"]], FORMATS[about["format"]], monotonic()
    dtype, size = getattr(torch, about["dtype"]), network.size // shrink
    row = about | {"pictures": about["batch"], "note": "", "layers": None, "ours_layers": None, "replace_s": None,
                   "bound": None, "errors": {}, "wrong": [], "faults": {}, "times": {}}  # fmt: skip
    if with_compile:
        torch.compiler.reset()  # code compiled for another batch would make this one's sizes dynamic
    try:
        model = copy.deepcopy(network_of(about["network"], device, shrink)).to(dtype=dtype, memory_format=layout)
        torch.manual_seed(1)
        x = torch.randn(about["batch"], 3, size, size).to(device, dtype).contiguous(memory_format=layout)
        if x.device.type == "cuda" and 0 < network.fewer < len(x):
            images, row["note"] = fitting(len(x), network.fewer, needed_by(model, x, len(names_of(about["dtype"]))))
            x = x[:images].clone(memory_format=torch.preserve_format)
        row |= measured(model, x, with_compile, limit_s)
    except Exception as fault:  # too little memory for the model in float64
        row["note"] = torch_swap.in_words(fault)
    row |= {"lost": is_lost(torch.device(device)), "spent_s": monotonic() - begin}
    model = x = None
    if device != "cpu" and not row["lost"]:
        gc.collect()
        torch.cuda.empty_cache()
    return row


def main(
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    budget: Annotated[float, typer.Option(help="Seconds in all; what it cuts off, --resume goes on with.")] = 440.0,
    out: Annotated[Path, typer.Option(help="The result goes to OUT/DEVICE/.")] = Path(__file__).parent / "results",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what was interrupted.")] = False,
    network: Annotated[list[str] | None, typer.Option(help="Only this one, such as U-Net; may be repeated.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only this type; may be repeated.")] = None,
    format_: Annotated[list[str] | None, typer.Option("--format", help="Only this one; may be repeated.")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Only this batch; may be repeated.")] = None,
    with_compile: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="Time torch.compile: on a GPU it is.")
    ] = None,
) -> None:
    """Time whole networks alternately on all sides."""
    end, on_gpu = monotonic() + budget, device != "cpu"
    shrink, batches = (1, (1, 32)) if on_gpu else (ON_CPU, (1, 2))
    if on_gpu:
        torch.cuda.set_device(int(device.partition(":")[2] or 0))
        torch_swap.allow_tf32(False)
        torch.backends.cudnn.benchmark = True
    every = every_row(batches)
    only = {"network": network, "dtype": dtype, "format": format_, "batch": batch}
    asked = [row for row in every if all(not values or row[name] in values for name, values in only.items())]
    settings = {"device": device, "width": WIDTH // shrink, "batches": list(batches), "count": len(every),
                "pictures": {name: one.size // shrink for name, one in NETWORKS.items()},
                "factor": torch_swap.FACTOR, "floors": FLOORS}  # fmt: skip
    more = {"torch": torch.__version__}
    sheet = Sheet.begin(out, "networks", runtime_of(device).facts, settings, resume=resume, more_versions=more)
    for about in asked:
        if sheet.has(**about):
            continue
        if end - monotonic() < SHARE * budget:
            typer.echo(f"The rest of {budget:g} s is less than a row's share: go on with --resume.")
            break
        row = row_of(about, device, shrink, on_gpu if with_compile is None else with_compile, SHARE * budget)
        sheet.add(row)
        typer.echo(f"{', '.join(map(str, about.values()))}: {line_of(row)}")
        if row["lost"]:
            typer.echo("The GPU takes no more work of this process: go on with --resume.")
            raise typer.Exit(1)
    if all(sheet.has(**about) for about in every):
        sheet.finish()
    typer.echo(f"{'' if sheet.complete else 'so far '}stored in {sheet.path}")


def line_of(row: dict[str, Any]) -> str:
    """Format a row as text."""
    times = [f"{name} {1e3 * table['median_s']:.3f} ms" for name, table in row["times"].items()]
    wrong = [f"{name} is wrong ({row['errors'][name]} for {row['bound']})" for name in row["wrong"]]
    faults = [f"{name}: {reason}" for name, reason in row["faults"].items()]
    notes = [row["note"]] if row["note"] else []
    return "; ".join([*times, *wrong, *faults, *notes, f"{row['ours_layers']} of {row['layers']} layers by convforge"])


if __name__ == "__main__":
    typer.run(main)
