"""Compare times of PyTorch calls and whole models in alternating rounds, as eager calls or in CUDA graphs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, Literal

import torch

from convforge.timing import Timing, order

# Number of rounds, in each of which every call is timed, and seconds for each call in a round.
ROUNDS = 7
ROUND_S = 0.004
# Maximum number of calls in a CUDA graph, and maximum seconds of its replay.
CAPTURED, REPLAY_S = 64, 0.001
# Number of calls before a capture; they choose and load kernels.
WARM = 2

Kept = Literal["convforge", "folded", "PyTorch"]
_NAMES = {
    "PyTorch": "PyTorch as it was",
    "folded": "PyTorch with BatchNorm2d folded in",
    "channels_last": "PyTorch in channels_last",
    "convforge": "convforge",
}


@contextmanager
def progress(total: int, wanted: bool) -> Iterator[Callable[[str], None]]:
    """Show a progress bar on standard error if `wanted` and it is a terminal; remove it at the end.

    Yields a function; call it with the name of each of the `total` items before the item is measured.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console, begun = Console(stderr=True), count()
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    if not (wanted and console.is_terminal):
        yield lambda name: None
        return
    # Redraw between measurements only: a drawing thread would slow them down.
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda name: bar.update(task, completed=next(begun), description=name, refresh=True)


def time_text(taken: Timing) -> str:
    """Return the median and its spread in readable units: "466 ms ± 5 %"."""
    median = float(f"{taken.median_s:.3g}")
    scale, unit = next((k, u) for k, u in ((1, "s"), (1e3, "ms"), (1e6, "us")) if median * k >= 1 or k == 1e6)
    return f"{median * scale:.4g} {unit} ± {100 * taken.spread:.0f} %"


def compared(calls: Sequence[Callable[[], Any]], device: Any, *, cuda_graph: bool = False) -> list[Timing]:
    """Time calls in rounds, every second one in reverse order; with `cuda_graph`, time replays on a GPU."""
    with torch.no_grad():
        for call in calls:
            call()
        runs = _captured(calls, device) if cuda_graph and device.type == "cuda" else [(call, 1) for call in calls]
        many = [max(1, min(1000, int(ROUND_S / max(_seconds(run, 1, device), 1e-9)))) for run, _ in runs]
        found: list[list[float]] = [[] for _ in runs]
        for turn in range(ROUNDS):
            order = range(len(runs)) if turn % 2 == 0 else reversed(range(len(runs)))
            for at in order:
                run, held = runs[at]
                found[at].append(_seconds(run, many[at], device) / held)
    return [Timing(tuple(seconds)) for seconds in found]


def _captured(calls: Sequence[Callable[[], Any]], device: Any) -> list[tuple[Callable[[], None], int]]:
    """Capture calls in CUDA graphs; return for each its replay function and the number of calls in it.

    The graphs share one memory pool, because replays run one after another and their results are not read.
    """
    found = []
    with torch.cuda.device(device):
        pool, side = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

        def graph(call: Callable[[], Any], many: int) -> Any:
            made = torch.cuda.CUDAGraph()
            with torch.cuda.graph(made, pool=pool):
                for _ in range(many):
                    call()
            return made

        for call in calls:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM):
                    call()
            torch.cuda.current_stream().wait_stream(side)
            once = graph(call, 1)
            held = max(1, min(CAPTURED, int(REPLAY_S / max(_seconds(once.replay, 1, device), 1e-9))))
            found.append(((once if held == 1 else graph(call, held)).replay, held))
    return found


def _seconds(call: Callable[[], Any], many: int, device: Any) -> float:
    """Return the mean seconds of `many` calls, with the device synchronized before and after."""
    wait = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    for _ in range(many):
        call()
    wait()
    return (time.perf_counter() - start) / many


def check_whole(
    model: Any, example: tuple[Any, ...], swapped: list[tuple[Any, type, type]], ours: bool, *, cuda_graph: bool = False
) -> tuple[Kept, str]:
    """Time a model by convforge, and by PyTorch unchanged, with BatchNorm2d folded in, and in channels_last.

    `swapped` are (layer, class before, class now); `ours` is true if convforge computes at least one layer.
    Returns the form to keep, and a sentence with all times. The model is left in convforge's form.
    """
    forms = _Forms(model, swapped)
    last = tuple(_last(one) for one in example)
    calls = {"PyTorch": example}
    if forms.has_folds:
        calls["folded"] = example
    if any(now is not then for now, then in zip(last, example, strict=True)):
        calls["channels_last"] = last
    if ours:
        calls["convforge"] = example

    def call(form: str, given: tuple[Any, ...]) -> Any:
        forms.take(form)
        return model(*given)

    device = next((t.device for t in (*example, *model.parameters()) if isinstance(t, torch.Tensor)), None)
    try:
        found = compared(
            [lambda form=form, given=given: call(form, given) for form, given in calls.items()],  # type: ignore[misc]
            device or torch.device("cpu"), cuda_graph=cuda_graph,
        )  # fmt: skip
    finally:
        forms.take("convforge")
    times = dict(zip(calls, found, strict=True))
    kept, why = _decide(times)
    listed = ", ".join(f"{_NAMES[form]} {time_text(taken)}" for form, taken in times.items())
    return kept, f"The whole model: {listed}. {why}"


def _decide(times: dict[str, Timing]) -> tuple[Kept, str]:
    """Return the form to keep, and the reason; ours only if it is faster than every other form."""
    mine = times.get("convforge")
    others = {form: taken for form, taken in times.items() if form != "convforge"}
    fastest = min(others, key=lambda form: others[form].median_s)
    if mine is not None and all(order(mine, taken) == "faster" for taken in others.values()):
        return "convforge", "convforge is the fastest."
    kept: Kept = "folded" if "folded" in times and order(times["folded"], times["PyTorch"]) == "faster" else "PyTorch"
    why = f"It is left to {_NAMES[kept]}"
    if mine is not None:
        why += {
            "faster": ", for convforge is not clearly faster than each of these",
            "level": f", for {_NAMES[fastest]} is as fast as convforge",
            "slower": f", for {_NAMES[fastest]} is faster than convforge",
            "unsure": ", for the times vary too much to tell whether convforge is faster",
        }[order(mine, others[fastest])]
    if "channels_last" in times and order(times["channels_last"], times[kept]) == "faster":
        why += "; PyTorch is faster still after model.to(memory_format=torch.channels_last), with inputs alike"
    return kept, why + "."


class _Forms:
    """The forms of a model, which differ in the classes of layers and the memory format of weights."""

    def __init__(self, model: Any, swapped: list[tuple[Any, type, type]]) -> None:
        self._layers = [(layer, kind, made, layer.__dict__.get("_fold")) for layer, kind, made in swapped]
        folds = {id(fold): fold for *_, fold in self._layers if fold is not None}
        self.has_folds = bool(folds)
        self._by_pytorch = {
            form: {at: dataclasses.replace(fold, by_pytorch=True, end=None, _kept=None) for at, fold in folds.items()}
            for form in ("folded", "channels_last")
        }
        self._weights = [(p, p.data, _last(p.data)) for p in model.parameters() if p.dim() == 4]

    def take(self, form: str) -> None:
        for parameter, plain, last in self._weights:
            parameter.data = last if form == "channels_last" else plain
        for layer, kind, made, fold in self._layers:
            if form == "convforge":
                layer.__class__ = made
                if fold is not None:
                    layer.__dict__["_fold"] = fold
            elif fold is None or form == "PyTorch" or layer is fold.end:
                layer.__class__ = kind
            else:
                layer.__class__ = made
                layer.__dict__["_fold"] = self._by_pytorch[form][id(fold)]


def _last(value: Any) -> Any:
    """Convert a floating-point tensor of four axes to channels_last; return anything else unchanged."""
    if not isinstance(value, torch.Tensor) or value.dim() != 4 or not value.is_floating_point():
        return value
    return value.contiguous(memory_format=torch.channels_last)
