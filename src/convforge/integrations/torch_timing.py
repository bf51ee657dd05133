"""Timing of calls of PyTorch against each other: in turns, several rounds; as they are, or in CUDA graphs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from convforge.timing import Timing

# Rounds in which all rivals are timed, one after the other, and the seconds that a rival gets in a round.
ROUNDS = 7
ROUND_S = 0.004
# Calls in a CUDA graph: at most so many, and no more than take this long.
CAPTURED, REPLAY_S = 64, 0.001
# Calls before one is captured: by then kernels are chosen and loaded.
WARM = 2


def told(taken: Timing) -> str:
    """The median and its spread in units that a person reads.

    Examples
    --------
    >>> told(Timing((0.4, 0.466, 0.5))), told(Timing((0.0009999,)))
    ('466 ms ± 5 %', '1 ms ± 0 %')
    """
    median = float(f"{taken.median_s:.3g}")
    scale, unit = next((k, u) for k, u in ((1, "s"), (1e3, "ms"), (1e6, "us")) if median * k >= 1 or k == 1e6)
    return f"{median * scale:.4g} {unit} ± {100 * taken.spread:.0f} %"


def compared(calls: Sequence[Callable[[], Any]], device: Any, *, cuda_graph: bool = False) -> list[Timing]:
    """Time calls in turns: each round times every one, and every other round in the opposite order.

    Parameters
    ----------
    cuda_graph : bool
        On a GPU, time replays of CUDA graphs that hold the calls.
    """
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
    """Replays of CUDA graphs, and how many calls each holds.

    The graphs share one pool of memory: replays follow one another, and nobody reads what they compute.
    """
    found = []
    with torch.cuda.device(device):
        pool, side = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        for call in calls:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM):
                    call()
            torch.cuda.current_stream().wait_stream(side)
            once = _graph(call, 1, pool)
            held = max(1, min(CAPTURED, int(REPLAY_S / max(_seconds(once.replay, 1, device), 1e-9))))
            found.append(((once if held == 1 else _graph(call, held, pool)).replay, held))
    return found


def _graph(call: Callable[[], Any], many: int, pool: Any) -> Any:
    """A CUDA graph of a call, several times."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        for _ in range(many):
            call()
    return graph


def _seconds(call: Callable[[], Any], many: int, device: Any) -> float:
    """Seconds of one of several calls, on a device that is idle before and after."""
    _wait(device)
    start = time.perf_counter()
    for _ in range(many):
        call()
    _wait(device)
    return (time.perf_counter() - start) / many


def _wait(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
