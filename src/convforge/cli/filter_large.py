"""`convforge filter` of an image in units: the plan before it starts, a progress bar, the rate."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import typer

from convforge.cli.filter_forecast import disk_warning, size_text, watched
from convforge.cli.filter_places import only_in_units
from convforge.cli.filter_report import count_of, failing, kernel_text, line, print_method, say_waiting
from convforge.cli.output import Failure
from convforge.imaging.image import MAX_PIXELS

if TYPE_CHECKING:
    from convforge.imaging.kernels import Kernel
    from convforge.imaging.pipeline.large import LargeFilter
    from convforge.imaging.pipeline.recipe import Recipe
    from convforge.imaging.windowed import Layout, Place


TIFF = frozenset({".tif", ".tiff"})


def is_large(
    source: Place, target: Place, memory: int | None, max_pixels: int, *, volume: bool = False,
    spacing: Mapping[str, float] | None = None,
) -> bool:  # fmt: skip
    """True if an image is filtered in units, and not in memory as a whole.

    That is so

    - with --memory, and for a kernel that reaches along Z (`volume`);
    - for URLs, and for what only units know: Zarr, folders of slices, slides such as .svs, and endings such as .btf;
    - for more samples than --max-pixels allows, unless it is below its default, which asks to refuse large images;
    - from TIFF to TIFF, if the source has tiles, reduced copies, 64-bit offsets (BigTIFF) or OME-XML, so that the
      result has them too;
    - to a name that ends in .ome.tif, so that the result has OME-XML;
    - to TIFF with a `spacing` along Z by --spacing, so that the result has it.

    The last four hold only if units know both formats and can read the source, else memory is tried.
    """
    from convforge.imaging.formats.tiff import is_structured
    from convforge.imaging.windowed import Url, format_of, open_windows

    if memory is not None or volume or isinstance(source, Url) or isinstance(target, Url):
        return True
    if only_in_units(source, read=True) or only_in_units(target, read=False):
        return True
    if format_of(source) is None or format_of(target) is None or not source.is_file():
        return False
    try:
        samples = prod(open_windows(source).layout.shape)
    except ValueError:  # reported where the image is read
        return False
    if samples > max_pixels >= MAX_PIXELS or target.name.lower().endswith((".ome.tif", ".ome.tiff")):
        return True
    if "Z" in (spacing or ()) and target.suffix.lower() in TIFF:
        return True
    return {source.suffix.lower(), target.suffix.lower()} <= TIFF and is_structured(source)


def filter_large(
    source: Place, target: Place, kernel: Kernel, recipe: Recipe, *, memory: int | None, jobs: int | None
) -> None:
    """Filter an image in units: print what will be done, show the progress, print what was done."""
    from convforge.imaging.pipeline.heap import return_large_blocks
    from convforge.imaging.pipeline.large import LargeFilter
    from convforge.imaging.replacing import interrupts
    from convforge.imaging.windowed import FORMATS, format_of, suffixes_of

    if memory is not None and format_of(source) is None:
        raise Failure(
            f"{source}: cannot be read in parts, for which --memory asks; leave --memory out, or convert it to "
            f"{suffixes_of(FORMATS)}"
        )
    return_large_blocks()
    guarded = partial(failing, source, recipe)
    with guarded():
        run = LargeFilter(source, target, recipe, memory=memory, workers=jobs)
        before, notes = len(run.finished()), run.notes
    _print_plan(run, before, kernel)
    for note in notes:
        line("note", note.removesuffix("."))
    if warning := disk_warning(run, before):
        typer.echo(f"convforge: {warning}", err=True)
    sys.stdout.flush()
    try:
        with interrupts(say_waiting), watched(run) as watch, guarded():
            outcome = run(watch)
    except KeyboardInterrupt as stop:
        finished = len(run.finished())
        rest = f", {finished} of {count_of(run.units, 'unit')} are finished; the same command does the rest"
        typer.echo(f"convforge: interrupted; {target} was not written{rest if finished else ''}", err=True)
        raise typer.Exit(130) from stop
    line("done", f"{count_of(outcome.units, 'unit')} in {outcome.seconds:.3g} s")
    if outcome.units:
        line("rate", f"{outcome.rate.bytes_per_second / 1e9:.3g} GB/s of samples, in and out")
        line("limit", f"{outcome.rate.slowest}: the stage whose threads are busiest")
    if outcome.lost:
        typer.echo(f"convforge: {target}: not kept: {', '.join(outcome.lost)}", err=True)


def _print_plan(run: LargeFilter, before: int, kernel: Kernel) -> None:
    """Print the plan of a run, of which `before` units were finished earlier."""
    from rich.filesize import decimal

    division, done = run.division, f"; {before} of {run.units} were finished before" if before else ""
    line("in", f"{run.source}: {_layout(run.reader.layout)}")
    if run.recipe.selection is not None:
        line("part", str(run.recipe.selection))
    line("out", f"{run.target}: {_layout(run.result)}")
    spacing, lost = run.result.spacing_by_letter, run.lost
    if spacing and not any(word.startswith("spacing") for word in lost):
        line("spacing", f"{' x '.join(f'{gap:.4g}' for gap in spacing.values())} um along {' x '.join(spacing)}")
    line("kernel", kernel_text(kernel, run.recipe, run.plan.problem.c))
    print_method(run.plan, run.recipe)
    if len(run.devices) > 1:
        line("devices", f"{len(run.devices)} GPUs: {', '.join(run.devices)}")
    line("size", size_text(run))
    copies = run.units - len(division)
    more = f", and {copies} for {count_of(len(run.result.levels), 'level')} of the pyramid" if copies else ""
    line(
        "units",
        f"{len(division)} of {' x '.join(map(str, division.unit))} samples ({division.letters_out}){more}{done}",
    )
    most = count_of(max(each.most for each in run.passes), "unit")
    line("memory", f"{decimal(run.needs)} of {decimal(run.memory)}: at most {most} in work")


def _layout(layout: Layout) -> str:
    from rich.filesize import decimal

    text = f"{' x '.join(map(str, layout.shape))} {layout.dtype}, {decimal(layout.nbytes)}"
    if layout.chunks is None:
        return text
    text += f", chunks {' x '.join(map(str, layout.chunks))}"
    return text if layout.shards in (None, layout.chunks) else f"{text}, shards {' x '.join(map(str, layout.shards))}"
