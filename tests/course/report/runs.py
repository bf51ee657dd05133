"""A made-up run in the store's format: the image grid by every method and peer, with ties, noise, refusals and faults.

Times follow a simple model (a call's overhead, then compute or memory), so that charts have the shape of real ones.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from convforge.benchmark.digests import current_digest
from convforge.problem import parse_problem

SIZES = (32, 64, 128, 256, 512, 1024, 2048)
# Method -> ours, class, nominal GFLOP/s at best, overhead in seconds, how strided work is wasted (1: not at all).
METHODS: dict[str, tuple[bool, str, float, float, float]] = {
    "direct_naive": (True, "strict", 2.1, 9e-6, 1.0),
    "direct_rows": (True, "strict", 24.0, 11e-6, 1.15),
    "im2col": (True, "strict", 5.2, 30e-6, 1.0),
    "winograd_f2": (True, "winograd", 9.0, 28e-6, 0.0),
    "winograd_f4": (True, "winograd", 12.0, 35e-6, 0.0),
    "fft": (True, "fft", 2.4, 160e-6, 3.9),
    "separable": (True, "separable", 19.0, 24e-6, 0.0),
    "torch_conv2d": (False, "strict", 2.7, 21e-6, 1.05),
    "torch_conv2d_channels_last": (False, "strict", 7.4, 24e-6, 1.05),
    "opencv_filter2d": (False, "strict", 23.5, 14e-6, 3.6),
    "scipy_ndimage": (False, "strict", 0.45, 70e-6, 3.9),
}
RMS = {"strict": 6.5e-8, "winograd": 4.2e-7, "fft": 1.9e-7, "separable": 1.1e-7}
COPY, FMA = 14.2e9, 88.0e9

# Why a row has no time, as the store has it.
LONG = [
    {
        "form": "a call would take about {time} ({known} for {problem})",
        "values": {"time": "0.4 s", "known": "100 ms", "problem": "n1c1h1024w1024_k1r3s3_st1_p1_f32_nchw"},
    },
    {"form": "the budget of {budget} was spent", "values": {"budget": "60 s"}},
]

Change = Callable[[dict[str, Any]], None]


def header(**changes: Any) -> dict[str, Any]:
    """The first line of a run."""
    facts = {
        "backend": "cpu", "name": "Example 9000 2.6 GHz", "cores": 2, "l1_bytes": 32 << 10, "l2_bytes": 512 << 10,
        "l3_bytes": 32 << 20, "memory_bytes": 24 << 30, "vector_bytes": 32, "architecture": "x86_64",
    }  # fmt: skip
    machine = {
        "facts": facts, "os": "Linux-6.1-x86_64", "python": "3.11.7", "implementation": "CPython",
        "load": [0.31, 0.42, 0.4], "governor": "performance", "clock_mhz": [2600.0, 2600.0],
        "threads": {"OMP_NUM_THREADS": "2"}, "byte_order": "little",
    }  # fmt: skip
    first = {
        "kind": "run", "schema": 1, "run": "images-20260102T030405Z", "started": "2026-01-02T03:04:05+00:00",
        "suite": "images", "device": "example-9000-2c", "machine": machine,
        "versions": {"convforge": "0.1.0", "numpy": "2.4.6", "numba": "0.68.1", "blas": "scipy-openblas 0.3.31"},
        "commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False,
        "settings": {"methods": [], "sizes": [], "strides": [], "budget_s": 60.0, "quick": False},
    }  # fmt: skip
    return first | changes


def ceilings(when: str, factor: float = 1.0) -> dict[str, Any]:
    """A line of ceilings."""
    return {"kind": "ceilings", "when": when, "copy_bytes_per_s": COPY * factor, "fma_flops_per_s": FMA * factor}


def results(sizes: tuple[int, ...] = SIZES, methods: tuple[str, ...] = tuple(METHODS)) -> Iterator[dict[str, Any]]:
    """The rows of the image grid, some refused, failed, skipped, noisy."""
    for k in (1, 3):
        for size in sizes:
            for stride in (1, 2, 3):
                for method in methods:
                    yield result(method, k, size, stride)


def digest_of_method(name: str) -> str | None:
    """That of its code; None if the CPU has no such method."""
    return current_digest("conv2d", "cpu", name, "", "", {})


def result(method: str, k: int, size: int, stride: int) -> dict[str, Any]:
    """One row."""
    dice = random.Random(f"{method} {k} {size} {stride}")
    problem = parse_problem(f"n1c3h{size}w{size}_k{k}r3s3_st{stride}_p1_f32_nchw")
    ours, precision, rate, overhead, waste = METHODS[method]
    operation = "conv2d"
    row: dict[str, Any] = {
        "kind": "result", "case": f"rgb_to_{k}_{size}_s{stride}", "problem": str(problem), "operation": operation,
        "algorithm": method, "backend": "cpu", "ours": ours, "precision": precision, "config": "", "status": "ok",
        "reason": None, "error": None, "time": None, "prepared_time": None, "first_call_s": None, "prepare_s": None,
        "workspace_bytes": None, "launches": [], "flops": problem.flops, "least_bytes": problem.least_bytes,
        "digest": digest_of_method(method) or "0" * 64,
        "library_versions": {} if ours else {method.split("_")[0]: "2.13.0"}, "note": None,
    }  # fmt: skip
    if reason := refusal(method, stride):
        return row | {"status": "refused", "reason": reason}
    if (method, size, stride) == ("fft", 2048, 1):
        return row | {"status": "skipped", "reason": LONG}
    rms = RMS[precision] * dice.uniform(0.8, 1.3)
    row["error"] = {"rms": rms, "max": rms * 12, "bound_ratio": dice.uniform(0.02, 0.2)}
    row |= {
        "first_call_s": dice.uniform(0.05, 0.4),
        "prepare_s": overhead / 9,
        "workspace_bytes": workspace(method, problem),
    }
    if (method, k, size, stride) == ("winograd_f4", 3, 64, 1):
        row["error"] = {"rms": 0.31, "max": 9.2, "bound_ratio": 52000.0}
        return row | {"status": "failed", "reason": "skipped border: index (0, 1, 0, 3): expected 1.25, got 0"}
    seconds = overhead + problem.flops * max(waste if stride > 1 else 1.0, 0.1) / (rate * 1e9)
    seconds = max(seconds, overhead + problem.least_bytes / (0.8 * COPY if size >= 256 else 3 * COPY))
    seconds *= dice.uniform(0.96, 1.04)
    noisy = dice.random() < 0.04
    row["time"] = timing(seconds, dice, noisy, size)
    row["prepared_time"] = timing(max(seconds - overhead / 9, seconds / 2), dice, False, size)
    return row


def refusal(method: str, stride: int) -> Any:
    """Reason for which a method refuses a stride."""
    if method.startswith("winograd") and stride > 1:
        form = "its tiles share their transforms at stride 1 alone; the stride is {stride}"
        return {"form": form, "values": {"stride": f"({stride}, {stride})"}}
    if method == "separable":
        return {"form": "sepFilter2D takes filters of rank 1; this one has rank {rank}", "values": {"rank": 3}}
    return None


def workspace(method: str, problem: Any) -> int:
    """Bytes of workspace."""
    return problem.taps * problem.p * problem.q * 4 if method in ("im2col", "fft") else 0


def timing(seconds: float, dice: random.Random, noisy: bool, size: int) -> dict[str, Any]:
    """A timing table."""
    width = 0.15 if noisy else 0.012
    samples = [seconds * (1 + width * dice.uniform(-1, 1)) for _ in range(15)]
    ring = max(1, (64 << 20) // (16 * size * size))
    return {
        "median_s": sorted(samples)[7], "spread": width / 2, "samples": samples, "calls": 4, "noisy": noisy,
        "few": False, "ring": min(ring, 256), "cold": size >= 128,
    }  # fmt: skip


def finalists(case: str, names: tuple[str, str], seconds: tuple[float, float], width: float) -> dict[str, Any]:
    """The final of a case between two methods, with a spread of about half of `width`."""
    table = []
    for name, middle in zip(names, seconds, strict=True):
        samples = [middle * (1 + width * (i - 7) / 7) for i in range(15)]
        time = {"samples": samples, "calls": 1, "noisy": False, "few": False, "ring": 4, "cold": True}
        table.append({"algorithm": name, "config": "", "time": time})
    return {"kind": "finalists", "case": case, "contestants": table}


def records(change: Change = lambda row: None, *, moved: float = 1.0, complete: bool = True, **first: Any) -> list[Any]:
    """All lines of a run of the image grid; `change` alters every result row in place."""
    lines: list[dict[str, Any]] = [header(**first), ceilings("before")]
    for row in results():
        change(row)
        lines.append(row)
    lines.append(finalists("rgb_to_3_2048_s1", ("direct_rows", "opencv_filter2d"), (29.1e-3, 29.3e-3), 0.05))
    if complete:
        lines += [ceilings("after", moved)]
    return [*lines, {"kind": "end", "complete": complete}]


def write(path: Path, lines: list[Any]) -> Path:
    """Write records as the store does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path
