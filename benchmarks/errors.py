"""Errors of float32 layers for several ways to compute them: python benchmarks/errors.py --device cuda

Each layer has three kinds of inputs: normal random numbers, positive random numbers, and features of photographs (the
output of a first layer of random filters). Every result is compared with sums in float64. The ways:

- loop: one float32 multiply-add after another (`direct_naive`)
- split in tiles, split first: `implicit_gemm_split`, which splits pixels in its tiles, or in a kernel before it
- cudnn: cuDNN's fastest plan in strict float32

A row has the RMS and the mean of the error for each way, both divided by the RMS of the true result. A mean far from
zero shows that sums were truncated instead of rounded. The result goes to benchmarks/results/DEVICE/errors-TIME.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from convforge.algorithms import find
from convforge.backends.runtime import Runtime, upload_weights
from convforge.benchmark.sheets import Sheet
from convforge.call.dispatch import runtime_of
from convforge.imaging.photographs import PHOTOGRAPHS, photograph
from convforge.peers import every_algorithm
from convforge.problem import Conv2dProblem, parse_problem
from convforge.verify import Inputs, make_inputs, truth

# Dense layers of ResNet-50, VGG-16, GoogLeNet and DeepLab, batch 4.
LAYERS = (
    "n4c64h56w56_k64r3s3_p1_f32_nhwc", "n4c128h56w56_k128r3s3_st2_p1_f32_nhwc", "n4c256h14w14_k256r3s3_p1_f32_nhwc",
    "n4c512h7w7_k512r3s3_p1_f32_nhwc", "n4c64h56w56_k256r1s1_f32_nhwc", "n4c1024h14w14_k256r1s1_f32_nhwc",
    "n4c32h28w28_k96r5s5_p2_f32_nhwc", "n4c512h28w28_k512r3s3_p1_f32_nhwc", "n4c256h33w33_k256r3s3_p12_d12_f32_nhwc",
)  # fmt: skip

# Name -> method, and the required fields of its config.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "loop": ("direct_naive", {}),
    "split in tiles": ("implicit_gemm_split", {"split_first": False}),
    "split first": ("implicit_gemm_split", {"split_first": True}),
    "cudnn": ("cudnn", {}),
}
SIDE = 7  # height and width of the first layer's filters


def features(problem: Conv2dProblem, rng: np.random.Generator) -> NDArray[np.float32]:
    """First-layer features of photographs: random filters, each channel normalised, ReLU; (N, C, H, W)."""
    weights = rng.standard_normal((3 * SIDE * SIDE, problem.c)).astype(np.float32)
    found = []
    for n in range(problem.n):
        pixels = photograph(list(PHOTOGRAPHS)[n % len(PHOTOGRAPHS)]).astype(np.float32) / 255
        windows = np.lib.stride_tricks.sliding_window_view(pixels, (SIDE, SIDE), axis=(0, 1))
        rows, columns = (np.linspace(0, count - 1, size).astype(int)
                         for count, size in zip(windows.shape[:2], (problem.h, problem.w), strict=True))  # fmt: skip
        made = windows[rows][:, columns].reshape(problem.h * problem.w, -1) @ weights
        made = (made - made.mean(axis=0)) / np.maximum(made.std(axis=0), 1e-6)
        found.append(np.maximum(made, 0).T.reshape(problem.c, problem.h, problem.w))
    return np.stack(found)


DATA: dict[str, Callable[[Conv2dProblem, Inputs], Inputs]] = {
    "normal": lambda problem, made: made,
    "positive": lambda problem, made: replace(made, x=np.abs(made.x), w=np.abs(made.w)),  # type: ignore[type-var]
    "photographs": lambda problem, made: replace(
        made, x=np.ascontiguousarray(features(problem, np.random.default_rng(2)).transpose(0, 2, 3, 1))
    ),
}


@cache
def inputs_of(text: str, data: str) -> Inputs:
    problem = parse_problem(text)
    assert isinstance(problem, Conv2dProblem)
    return replace(DATA[data](problem, make_inputs(problem, seed=1)), kind="given")


def result_of(problem: Conv2dProblem, inputs: Inputs, name: str, fields: Mapping[str, Any], runtime: Runtime) -> Any:
    """Compute with the first config of a method that has these fields.

    ``ValueError`` if no such method or config exists; ``UnsupportedProblem`` if the method refuses the problem.
    """
    method = find("conv2d", runtime.facts.backend, name, every_algorithm())
    configs = method.configs(problem, runtime.facts)
    config = next((c for c in configs if all(getattr(c, key) == value for key, value in fields.items())), None)
    if config is None:
        raise ValueError(f"{name} has no config with {', '.join(f'{key}={value}' for key, value in fields.items())}")
    plan = method.plan(problem, config, runtime)
    assert inputs.w is not None
    w = plan.prepare(upload_weights(runtime, inputs.w, problem.w_layout))
    out = None if plan.allocates else runtime.empty(problem.out_shape, problem.out_dtype)
    return np.asarray(runtime.download(plan(plan.buffers(runtime.upload(inputs.x), w, {}, out))))


def error_of(found: NDArray[Any], exact: NDArray[np.float64]) -> dict[str, float]:
    """RMS and mean of the error, divided by the RMS of the truth."""
    size, error = float(np.sqrt(np.mean(exact**2))), found.astype(np.float64) - exact
    return {"rms": float(np.sqrt(np.mean(error**2))) / size, "mean": float(np.mean(error)) / size}


def row_of(text: str, data: str, runtime: Runtime) -> dict[str, Any]:
    """Compute a layer in every way, and make its row."""
    problem: Any = parse_problem(text)
    inputs = inputs_of(text, data)
    exact = truth(problem, inputs, runtime if runtime.facts.backend == "cuda" else None).value
    row: dict[str, Any] = {"problem": text, "data": data, "terms": problem.taps, "errors": {}, "faults": {}}
    for way, (name, fields) in WAYS.items():
        try:
            row["errors"][way] = error_of(result_of(problem, inputs, name, fields, runtime), exact)
        except Exception as fault:  # the device lacks this way: store the reason
            row["faults"][way] = " ".join(str(fault).split()) or type(fault).__name__
    return row


def main(
    device: Annotated[str, typer.Option(help="cuda, cuda:1, emulator, ...")] = "cuda",
    budget: Annotated[float, typer.Option(help="Seconds in all; what it cuts off, --resume goes on with.")] = 120.0,
    out: Annotated[Path, typer.Option(help="The result goes to OUT/DEVICE/.")] = Path(__file__).parent / "results",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what was interrupted.")] = False,
    layer: Annotated[list[str] | None, typer.Option(help="Only this layer, as a text; may be repeated.")] = None,
) -> None:
    """Compare each way's results with sums in float64."""
    runtime, begin = runtime_of(device), monotonic()
    every = [(text, data) for text in layer or LAYERS for data in DATA]
    sheet = Sheet.begin(out, "errors", runtime.facts, {"device": device, "count": len(every)}, resume=resume)
    for text, data in every:
        if sheet.has(problem=text, data=data):
            continue
        if sheet.rows and monotonic() - begin > budget:
            typer.echo(f"{budget:g} s are over: go on with --resume. So far stored in {sheet.path}")
            return
        row = row_of(text, data, runtime)
        sheet.add(row)
        shown = ", ".join(f"{way} {error['rms']:.1e}" for way, error in row["errors"].items())
        typer.echo(f"{text}, {data}: {shown}{''.join(f'; {way}: {why}' for way, why in row['faults'].items())}")
    sheet.finish()
    typer.echo(f"stored in {sheet.path}")


if __name__ == "__main__":
    typer.run(main)
