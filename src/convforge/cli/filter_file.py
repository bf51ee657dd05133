"""`convforge filter` of one image in memory: from a file or standard input, to a file or standard output."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import typer

from convforge.cli import filter_streams as streams
from convforge.cli.filter_report import count_of, failing, kernel_text, line, print_method
from convforge.cli.output import steps
from convforge.imaging import files

if TYPE_CHECKING:
    from convforge.imaging.image import Image
    from convforge.imaging.kernels import Kernel
    from convforge.imaging.pipeline.lanes import Clock, Convolved
    from convforge.imaging.pipeline.recipe import Recipe

# Timed steps in the order of the report, and their notes.
_PARTS = ("read", "gray", "widen", "plan", "first call", "upload", "filter", "download", "convert", "write")
_NOTES = {"widen": " (to float64)", "first call": " (kernels compiled or read from the cache; in no other time)"}

# What the bar of an image that takes long shows.
_STEPS = ("read", "filter", "write")


def filter_file(source: Path, target: Path, kernel: Kernel, recipe: Recipe, *, name: str = "") -> None:
    """Filter a file, which the report calls `name`, to a file.

    If a file cannot be read or written, the work failed (exit code 1). If the format cannot hold the result, it is
    wrong use (exit code 2).
    """
    from convforge.imaging.pipeline.lanes import Clock
    from convforge.imaging.replacing import interrupts

    clock, written, guarded = Clock(), False, partial(failing, source, recipe)
    files.load_decoders(source, target)
    with guarded() if target.suffix.lower() in files.WRITABLE_SUFFIXES else nullcontext():
        files.check_writable(target, np.uint8)
    with steps(_STEPS) as begin:
        with clock("read"), guarded():
            image = recipe.read(source)
        recipe.check_target(target, image)
        begin("filter")
        with guarded():
            result, convolved = recipe(image, clock)
        begin("write")
        try:
            with clock("write"), interrupts() as interrupted:
                with guarded():
                    files.write_image(target, result)
                written = True
                if interrupted():
                    raise KeyboardInterrupt
        except KeyboardInterrupt as stop:
            done = "is complete" if written else "was not written"
            typer.echo(f"convforge: interrupted; {target} {done}", err=True)
            raise typer.Exit(130) from stop
    _report(name or str(source), str(target), image, result, convolved, kernel, recipe, clock)
    _say_lost(target, result)


def filter_piped(source: str, target: str, kernel: Kernel, recipe: Recipe, suffix: str | None) -> None:
    """Filter one image; `-` is standard input as source and standard output as target.

    Standard output gets the format of `suffix`, else that of the source.
    """
    from convforge.imaging.pipeline.lanes import Clock

    with ExitStack() as open_:
        out = open_.enter_context(streams.reported_on_stderr()) if target == streams.STREAM else None
        from_input = source == streams.STREAM
        path = open_.enter_context(streams.received(recipe.max_pixels)) if from_input else Path(source)
        if out is None:
            filter_file(path, Path(target), kernel, recipe, name=streams.INPUT if from_input else source)
            return
        clock, guarded = Clock(), partial(failing, path, recipe)
        with steps(_STEPS) as begin:
            with clock("read"), guarded():
                image = recipe.read(path)
                name = streams.named(suffix or files.suffix_of(path))
            streams.check_holds(name, recipe, image)
            begin("filter")
            with guarded():
                result, convolved = recipe(image, clock)
            begin("write")
            with clock("write"), guarded():
                streams.send(out, name, result)
        _report(streams.INPUT if from_input else source, str(name), image, result, convolved, kernel, recipe, clock)
        _say_lost(name, result)


def _report(
    source: str,
    target: str,
    image: Image,
    result: Image,
    convolved: Convolved,
    kernel: Kernel,
    recipe: Recipe,
    clock: Clock,
) -> None:
    line("in", f"{source}: {_size(image)}")
    if recipe.selection is not None:
        line("part", str(recipe.selection))
    if image.pages:
        line("stack", f"{image.axes[0] or 'pages'}: each of the {image.page_count} planes by itself")
    elif image.axes[0]:
        line("axes", f"{image.axes[0]}: one plane")
    line("out", f"{target}: {_size(result)}")
    line("kernel", kernel_text(kernel, recipe, convolved.plan.problem.c))
    print_method(convolved.plan, recipe, convolved.prepared.note)
    for name in _PARTS:
        if (taken := clock.seconds.get(name)) is not None:
            line(name, (f"{taken * 1e3:.3g} ms" if taken < 0.9995 else f"{taken:.3g} s") + _NOTES.get(name, ""))


def _say_lost(target: Path, result: Image) -> None:
    if lost := files.not_kept(target, result):
        typer.echo(f"convforge: {target}: not kept: {', '.join(lost)}", err=True)


def _size(image: Image) -> str:
    alpha = " and alpha" if image.alpha is not None else ""
    pages = f", {image.page_count} pages" if image.pages else ""
    return f"{image.width} x {image.height} pixels, {count_of(image.bands, 'band')}{alpha}{pages}, {image.pixels.dtype}"
