"""Books of runs: those that are stored for the H200, and small made-up ones."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.course.studies.made_up import launch, result, rgb, run, steps

from convforge.benchmark.records import Run
from convforge.course.lab import Book, bind, find_runs

ROOT = Path(__file__).parents[3]
STORED = ROOT / "benchmarks" / "results" / "nvidia-h200-132sm"


@cache
def stored_runs() -> dict[str, Run]:
    """The H200's stored runs, by study."""
    return find_runs([STORED])


@cache
def stored() -> Book:
    """Of the H200's stored runs."""
    return bind(stored_runs())


def pictures(suite: str = "size", **more: object) -> Run:
    """Pictures of three sizes and two strides by two methods of ours and a library."""
    speeds = {"direct_naive": 4e-9, "direct_tiled": 1e-9, "cudnn": 2e-9}
    rows = [
        result(method, speed * size * size / stride, rgb(size, stride), case=f"rgb_{size}_s{stride}",
               **({"ours": False} if method == "cudnn" else {}))
        for size in (64, 128, 256) for stride in (1, 2) for method, speed in speeds.items()
    ]  # fmt: skip
    return run(*rows, suite=suite, run=suite, **more)


def blocks() -> Run:
    """One picture, every shape of block of the naive kernel, and two partitions."""
    rows = [
        result("direct_naive", seconds, rgb(256), case="rgb_256_s1", config=config, launches=launch((x, y), (1,), 0.5))
        for x, y, seconds, config in (
            (32, 4, 1e-4, "block_x=32,block_y=4,partition=pixel"),
            (32, 1, 3e-4, "block_x=32,block_y=1,partition=pixel"),
            (64, 4, 2e-4, "block_x=64,block_y=4,partition=pixel"),
            (32, 4, 9e-4, "block_x=32,block_y=4,partition=row"),
        )
    ]
    return run(*rows, suite="block-size", run="block-size")


def layers() -> Run:
    """im2col with its steps on two layers."""
    rows = [
        result("im2col", 3e-4, rgb(size), case=f"layer_{size}", steps=steps(expansion=1e-4, product=2e-4))
        for size in (14, 28)
    ]
    return run(*rows, suite="breakdown", run="breakdown")
