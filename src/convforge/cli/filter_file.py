"""An image in, a kernel over it, an image out; what was done, by which method, how fast."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import typer

from convforge.cli.failure import Failure

if TYPE_CHECKING:
    from convforge.algorithms.contract import Plan
    from convforge.errors import Reason
    from convforge.imaging.image import Image
    from convforge.imaging.kernels import Kernel
    from convforge.imaging.pipeline.clock import Clock
    from convforge.imaging.pipeline.recipe import Reading, Recipe


def filter_file(source: Path, target: Path, kernel: Kernel, recipe: Recipe, reading: Reading) -> None:
    """Filter one image and say what was done."""
    from convforge.cli.filter_signals import interrupts
    from convforge.cli.filter_words import load_decoders
    from convforge.imaging.files import not_kept
    from convforge.imaging.pipeline.clock import Clock

    clock = Clock()
    load_decoders(source, target)
    _check_place(target)
    with clock("read"):
        image = _read(source, reading)
    _check_holds(target, image, recipe)
    try:
        done = _filtered(image, recipe, clock)
    except MemoryError as error:
        raise Failure(f"{source}: there is not enough memory to filter it; cut it into parts first") from error
    written = False
    try:
        with clock("write"), interrupts() as interrupted:
            _write(target, done.image)
            written = True
            if interrupted():
                raise KeyboardInterrupt
    except KeyboardInterrupt as stop:
        typer.echo(f"convforge: interrupted; {target} {'is complete' if written else 'was not written'}", err=True)
        raise typer.Exit(130) from stop
    for line in _report(source, target, image, kernel, recipe, done, clock):
        typer.echo(line)
    if lost := not_kept(target, done.image):
        typer.echo(f"convforge: {target}: not kept: {', '.join(lost)}", err=True)


@dataclass(frozen=True, slots=True)
class _Done:
    """The filtered image, and how it was made."""

    image: Image
    plan: Plan
    why: str
    note: Reason | None


def _filtered(image: Image, recipe: Recipe, clock: Clock) -> _Done:
    """Filter the bands of every page; the sums are rounded once, to the type of the result."""
    from convforge.call.dispatch import runtime_of
    from convforge.cli.filter_words import refusal_text
    from convforge.errors import UnsupportedProblem
    from convforge.imaging.image import ImageError
    from convforge.imaging.pipeline.lanes import lanes_of
    from convforge.tuning import decide, with_peers

    try:
        stack = recipe.loaded(image, clock)
    except ImageError as error:
        raise Failure(str(error)) from error
    try:
        with lanes_of(runtime_of(recipe.device))[0] as lane:
            convolved = recipe.convolved(image, stack, recipe.convolver(clock), lane)
    except UnsupportedProblem as error:
        raise ValueError(refusal_text(recipe, error)) from error
    plan, why = convolved.plan, "asked for by name"
    if recipe.algorithm == "auto":
        why = decide(plan.problem, plan.runtime, peers=with_peers()).reason
    return _Done(recipe.finished(image, convolved.sums, clock), plan, why, convolved.prepared.note)


# A file that cannot be read or written is a failure; a result that its format has no place for is bad use.


def _check_place(target: Path) -> None:
    from convforge.imaging.files import WRITABLE_SUFFIXES, ImageError, check_writable

    try:
        check_writable(target, np.uint8)
    except ImageError as error:
        if target.suffix.lower() not in WRITABLE_SUFFIXES:
            raise
        raise Failure(str(error)) from error


def _check_holds(target: Path, image: Image, recipe: Recipe) -> None:
    from convforge.imaging.files import check_writable

    dtype, bands = recipe.dtype(image), recipe.bands(image)
    check_writable(target, dtype, bands=bands, pages=image.pages, alpha=image.alpha is not None)


def _read(source: Path, reading: Reading) -> Image:
    from convforge.imaging.files import AxesError, ImageError

    try:
        return reading(source)
    except AxesError:  # to be told, or told otherwise: bad use
        raise
    except ImageError as error:
        raise Failure(str(error)) from error


def _write(target: Path, image: Image) -> None:
    from convforge.imaging.files import ImageError, write_image

    try:
        write_image(target, image)
    except ImageError as error:
        raise Failure(str(error)) from error


# What is said.


def _report(
    source: Path, target: Path, image: Image, kernel: Kernel, recipe: Recipe, done: _Done, clock: Clock
) -> Iterator[str]:
    """One line a fact, under the names in the first column."""
    from convforge.cli.filter_words import kernel_text

    plan, config = done.plan, str(done.plan.config)
    note = f"; {done.note}" if done.note else ""
    yield f"in          {source}: {_size(image)}"
    if image.pages:
        letters, _ = image.axes
        yield f"stack       {letters or 'pages'}: each of the {image.page_count} planes by itself"
    elif image.axes[0]:
        yield f"axes        {image.axes[0]}: one plane"
    yield f"out         {target}: {_size(done.image)}"
    yield f"kernel      {kernel_text(kernel, recipe)}"
    yield f"method      {plan.algorithm.name}{f' [{config}]' if config else ''}: {done.why}{note}"
    yield f"arithmetic  {plan.problem.x_dtype} times {plan.problem.w_dtype}, summed in {plan.problem.acc_dtype}"
    yield f"workspace   {plan.workspace_bytes} bytes"
    for name, what in _STRETCHES.items():
        if name in clock.seconds:
            yield f"{name:<11} {_time(clock.seconds[name])}{what}"


# Stretches of the clock in the order they are told, and what each holds.
_STRETCHES = {
    "read": "",
    "gray": "",
    "widen": " (to float64)",
    "plan": "",
    "first call": " (kernels compiled or read from the cache; in no other time)",
    "upload": "",
    "filter": "",
    "download": "",
    "convert": "",
    "write": "",
}


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _size(image: Image) -> str:
    bands = f"{image.bands} band{'s' if image.bands > 1 else ''}"
    alpha = " and alpha" if image.alpha is not None else ""
    pages = f", {image.page_count} pages" if image.pages else ""
    return f"{image.width} x {image.height} pixels, {bands}{alpha}{pages}, {image.pixels.dtype}"
