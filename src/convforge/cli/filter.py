"""`convforge filter`: filter an image, or a folder of images."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from convforge.cli.filter_large import filter_large, is_large
from convforge.cli.filter_report import count_of, failing, kernel_text, line, print_method, reason_of
from convforge.cli.output import Failure, plain_table, progress
from convforge.cli.values import Device, finite, one_of, parse_bytes
from convforge.imaging.image import MAX_PIXELS

if TYPE_CHECKING:
    from convforge.imaging.image import Image
    from convforge.imaging.kernels import Kernel
    from convforge.imaging.pipeline.folder import Listing, Share, Written
    from convforge.imaging.pipeline.lanes import Clock
    from convforge.imaging.pipeline.recipe import Recipe

SAMPLE_TYPES = tuple(
    np.dtype(kind + size).name for kind, sizes in (("u", "1248"), ("i", "1248"), ("f", "248")) for size in sizes
)

# Timed steps in the order of the report, and their notes.
_PARTS = ("read", "gray", "widen", "plan", "first call", "upload", "filter", "download", "convert", "write")
_NOTES = {"widen": " (to float64)", "first call": " (kernels compiled or read from the cache; in no other time)"}


def filter_command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="PNG, JPEG, TIFF, .npy, .zarr, or a folder of images.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="Its ending names the format; may be IN.")],
    kernel: Annotated[
        str,
        typer.Option(
            metavar='NAME|FILE|"1 1 1; 1 -8 1; 1 1 1"',
            help="laplacian, sobel-x, sobel-y, scharr-x, scharr-y, gaussian:SIZE:SIGMA, log:SIZE:SIGMA (its "
            "Laplacian), box:SIZE, sharpen, emboss or identity; a .npy or text file; or the matrix. It is not flipped.",
        ),
    ],
    channels: Annotated[str, typer.Option(metavar="each|sum", help="Each band by itself, or all summed.")] = "each",
    method: Annotated[str, typer.Option(help="An algorithm of conv2d, such as direct_rows or fft.")] = "auto",
    stride: Annotated[str, typer.Option(metavar="N|HxW", help="Keep every so many-th row and column.")] = "1",
    border: Annotated[
        str,
        typer.Option(
            help="Outside the image: zeros, constant, reflect (edge pixel not repeated), symmetric (repeated), "
            "replicate or circular; or SciPy's, NumPy's or OpenCV's word, such as mirror, edge or wrap."
        ),
    ] = "reflect",
    cval: Annotated[float | None, typer.Option(help="The value outside, with --border constant.")] = None,
    out_dtype: Annotated[
        str | None, typer.Option(help="Sample type of OUT; integers round half to even and saturate. [default: IN's]")
    ] = None,
    magnitude: Annotated[bool, typer.Option("--abs", help="Magnitudes: edges of both signs show.")] = False,
    scale: Annotated[float, typer.Option(help="Multiply the result, before it is rounded.")] = 1.0,
    gray: Annotated[bool, typer.Option("--gray", help="Turn red, green and blue into gray first.")] = False,
    axes: Annotated[
        str | None,
        typer.Option(
            metavar="LETTERS",
            help="The axes of a .npy array or a TIFF stack: Y rows, X columns, C or S bands, Z depth, T time, I "
            "images, such as ZYX or TZYXC. A stack is filtered plane by plane; one whose axes are unclear needs this.",
        ),
    ] = None,
    max_pixels: Annotated[
        int, typer.Option(min=1, help="Most pixels that IN may declare, pages counted.")
    ] = MAX_PIXELS,
    device: Device = "cpu",
    recursive: Annotated[bool, typer.Option("--recursive", help="A folder's sub-folders too.")] = False,
    format_: Annotated[
        str | None, typer.Option("--format", metavar="png|jpg|tif|npy", help="Of a folder's results. [default: IN's]")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Threads that read and write a folder's files or a large image. [default: the cores]"),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Filter .npy or .zarr in units that take at most so much memory together, such as 8GB. "
            "[default: a quarter of the machine's, for .zarr and for .npy beyond --max-pixels]",
        ),
    ] = None,
) -> None:
    """Filter an image or a folder: edges, blur, any kernel; alpha, resolution and description are kept.

    The filter is a cross-correlation with the kernel's centre over each pixel. Integers are rounded and saturated once,
    at the end. For a folder, OUT is a folder (created if missing) with the same file names; failures are listed last.
    """
    from convforge.backends.cpu import cpu_facts
    from convforge.imaging.axes import Axes
    from convforge.imaging.kernels import load_kernel
    from convforge.imaging.pipeline.recipe import Recipe

    chosen, border = load_kernel(kernel), _border(border)
    recipe = Recipe(
        taps=chosen.values,
        channels=one_of(channels, ("each", "sum"), "--channels"),
        algorithm=_known_method(method, device),
        stride=_stride(stride),
        border=border,
        cval=_cval(cval, border),
        out_dtype=None if out_dtype is None else np.dtype(one_of(out_dtype, SAMPLE_TYPES, "--out-dtype")),
        magnitude=magnitude,
        scale=finite(scale, "--scale"),
        gray=gray,
        device=device,
        max_pixels=max_pixels,
        axes=None if axes is None else Axes(axes.upper()).letters,
    )
    if is_large(source, target, memory, max_pixels):
        for name, given in (("--recursive", recursive), ("--format", format_ is not None)):
            if given:
                raise ValueError(f"{name} goes with a folder of images; {source} is one image")
        limit = None if memory is None else parse_bytes(memory)
        filter_large(source, target, chosen, recipe, memory=limit, jobs=jobs)
        return
    if source.is_dir():
        threads = jobs or max(cpu_facts().cores, 2)  # at least two, so that reads and writes overlap
        _filter_folder(source, target, chosen, recipe, recursive=recursive, suffix=_suffix(format_), jobs=threads)
        return
    for name, given in (("--recursive", recursive), ("--format", format_ is not None), ("--jobs", jobs is not None)):
        if given:
            raise ValueError(f"{name} goes with a folder; {source} is none")
    _filter_file(source, target, chosen, recipe)


# One image. If a file cannot be read or written, the work failed (exit code 1). If the format cannot hold the result,
# it is wrong use (exit code 2).


def _filter_file(source: Path, target: Path, kernel: Kernel, recipe: Recipe) -> None:
    from convforge.imaging import files
    from convforge.imaging.pipeline.lanes import Clock
    from convforge.imaging.replacing import interrupts

    clock, written, guarded = Clock(), False, partial(failing, source, recipe)
    files.load_decoders(source, target)
    with guarded() if target.suffix.lower() in files.WRITABLE_SUFFIXES else nullcontext():
        files.check_writable(target, np.uint8)
    with clock("read"), guarded():
        image = recipe.read(source)
    recipe.check_target(target, image)
    with guarded():
        result, convolved = recipe(image, clock)
    try:
        with clock("write"), interrupts() as interrupted:
            with guarded():
                files.write_image(target, result)
            written = True
            if interrupted():
                raise KeyboardInterrupt
    except KeyboardInterrupt as stop:
        typer.echo(f"convforge: interrupted; {target} {'is complete' if written else 'was not written'}", err=True)
        raise typer.Exit(130) from stop
    line("in", f"{source}: {_size(image)}")
    if image.pages:
        line("stack", f"{image.axes[0] or 'pages'}: each of the {image.page_count} planes by itself")
    elif image.axes[0]:
        line("axes", f"{image.axes[0]}: one plane")
    line("out", f"{target}: {_size(result)}")
    line("kernel", kernel_text(kernel, recipe))
    print_method(convolved.plan, recipe, convolved.prepared.note)
    for name in _PARTS:
        if (taken := clock.seconds.get(name)) is not None:
            line(name, (f"{taken * 1e3:.3g} ms" if taken < 0.9995 else f"{taken:.3g} s") + _NOTES.get(name, ""))
    if lost := files.not_kept(target, result):
        typer.echo(f"convforge: {target}: not kept: {', '.join(lost)}", err=True)


def _size(image: Image) -> str:
    alpha = " and alpha" if image.alpha is not None else ""
    pages = f", {image.page_count} pages" if image.pages else ""
    return f"{image.width} x {image.height} pixels, {count_of(image.bands, 'band')}{alpha}{pages}, {image.pixels.dtype}"


# A folder: show a progress bar, then a table and the failures.


def _filter_folder(
    folder: Path, out: Path, kernel: Kernel, recipe: Recipe, *, recursive: bool, suffix: str | None, jobs: int
) -> None:
    from convforge.call.dispatch import runtime_of
    from convforge.imaging.files import WRITABLE_SUFFIXES, load_decoders
    from convforge.imaging.pipeline.folder import FILES, LANES, list_folder, shares_of
    from convforge.imaging.pipeline.lanes import Clock, lanes_of

    if out.suffix.lower() in WRITABLE_SUFFIXES and not out.exists():
        raise ValueError(f"{folder} is a folder, so OUT must name one; {out} names an image")
    listing = list_folder(folder, out, recursive=recursive, suffix=suffix)
    left = f"{count_of(listing.left_alone, 'other file')} left alone"
    if not listing.jobs:
        for error in listing.unreadable:
            raise Failure(reason_of(error, recipe)) from error
        deeper = "" if recursive else "; --recursive looks into its sub-folders"
        raise Failure(f"{folder}: holds no image ({left}){deeper}")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"{out}: cannot be made ({error.strerror}); choose another place") from error
    if not os.access(out, os.W_OK | os.X_OK):
        raise Failure(f"{out}: cannot be written, no permission; choose another folder")
    load_decoders(*(path for job in listing.jobs for path in (job.source, job.target)))
    clock, jobs = Clock(), min(jobs, len(listing.jobs))
    begin = perf_counter()
    written, failed = _run(listing, recipe, clock, jobs)
    seconds = perf_counter() - begin
    shares = shares_of(clock.seconds, seconds, {FILES: jobs, LANES: len(lanes_of(runtime_of(recipe.device)))})
    line("in", f"{folder}: {count_of(len(listing.jobs), 'image')}{f'; {left}' if listing.left_alone else ''}")
    line("out", f"{out}: {count_of(len(written), 'image')}{f'; {len(failed)} failed' if failed else ''}")
    line("kernel", kernel_text(kernel, recipe))
    _print_folder(folder, written, seconds, shares)
    failures = [(str(error.filename), reason_of(error, recipe)) for error in listing.unreadable]
    failures += [(str(path), reason) for path, reason in sorted(failed.items())]
    for name, reason in failures:
        typer.echo(f"convforge: {reason if name in reason else f'{name}: {reason}'}", err=True)
    if failures:
        raise typer.Exit(1)


def _run(listing: Listing, recipe: Recipe, clock: Clock, jobs: int) -> tuple[dict[Path, Written], dict[Path, str]]:
    """Filter every image; return the results, and the reasons of failed images. Other errors end the run."""
    from convforge.imaging.pipeline.folder import filter_files
    from convforge.imaging.replacing import interrupts

    written: dict[Path, Written] = {}
    failed: dict[Path, str] = {}
    try:
        with (
            interrupts() as interrupted,
            progress(measuring=False) as watch,
            closing(filter_files(listing.jobs, recipe, clock, workers=jobs)) as results,
        ):
            watch(0, len(listing.jobs), "")
            for count, (job, future) in enumerate(results, start=1):
                try:
                    written[job.source] = future.result()
                except (ValueError, OSError, MemoryError) as error:
                    failed[job.source] = reason_of(error, recipe)
                watch(count, len(listing.jobs), "")
                if interrupted():
                    raise KeyboardInterrupt
    except KeyboardInterrupt as stop:
        done = f"{len(written)} of {len(listing.jobs)} images were filtered, and every file in OUT is complete"
        typer.echo(f"convforge: interrupted; {done}", err=True)
        raise typer.Exit(130) from stop
    return written, failed


def _print_folder(folder: Path, written: dict[Path, Written], seconds: float, shares: Sequence[Share]) -> None:
    from rich.console import Console
    from rich.filesize import decimal

    from convforge.imaging.pipeline.folder import limit_of

    done = written.values()
    pixels_in, pixels_out = sum(one.pixels_in for one in done), sum(one.pixels_out for one in done)
    files_in, files_out = sum(one.file_in for one in done), sum(one.file_out for one in done)
    methods = [f"{name} ({count_of(n, 'image')})" for name, n in Counter(one.method for one in done).most_common()]
    gigabytes = (pixels_in + pixels_out) / 1e9 / seconds
    line("method", ", ".join(methods) or "none")
    line("pixels", f"{decimal(pixels_in)} in, {decimal(pixels_out)} out")
    line("files", f"{decimal(files_in)} in, {decimal(files_out)} out")
    line("time", f"{seconds:.3g} s")
    line("rate", f"{len(done) / seconds:.3g} images/s, {gigabytes:.3g} GB/s of pixels, in and out")
    line("limit", limit_of(shares))
    lost: dict[tuple[str, ...], list[str]] = {}
    for path in sorted(written):
        lost.setdefault(written[path].lost, []).append(str(path.relative_to(folder)))
    for words, names in lost.items():
        if words:
            more = f" and {len(names) - 2} more" if len(names) > 3 else ""
            line("not kept", f"{', '.join(words)} of {', '.join(names[:2] if more else names)}{more}")
    typer.echo()
    table = plain_table()
    table.add_column("stage", no_wrap=True)
    for name in ("busy", "threads", "of their time"):
        table.add_column(name, justify="right", no_wrap=True)
    for share in shares:
        table.add_row(share.stage, f"{share.seconds:.3g} s", str(share.threads), f"{share.of_time:.0%}")
    Console(file=sys.stdout, highlight=False).print(table)


# Options, which are checked before any file is read.


def _border(word: str) -> str:
    from convforge.problem import PADDING_ALIASES, PADDING_MODES, near_padding_mode

    return one_of(PADDING_ALIASES.get(word, word), PADDING_MODES, "--border", near_padding_mode(word))


def _known_method(method: str, device: str) -> str:
    from convforge.algorithms import find
    from convforge.call.dispatch import runtime_of
    from convforge.peers import every_algorithm

    backend = runtime_of(device).facts.backend
    return method if method == "auto" else find("conv2d", backend, method, every_algorithm()).name


def _stride(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,9})(?:x([0-9]{1,9}))?", text.strip())
    steps = (0, 0) if match is None else (int(match[1]), int(match[2] or match[1]))
    if min(steps) < 1:
        raise ValueError(f"--stride {text!r} must be a whole number of at least 1, or two as HxW, such as 2 or 2x1")
    return steps


def _cval(value: float | None, border: str) -> float:
    if value is None:
        return 0.0
    if border != "constant":
        raise ValueError(f"--cval {value:g} goes with --border constant; the border is {border}")
    return finite(value, "--cval")


def _suffix(word: str | None) -> str | None:
    from convforge.imaging.files import WRITABLE_SUFFIXES

    if word is None:
        return None
    known = [suffix.removeprefix(".") for suffix in WRITABLE_SUFFIXES]
    return f".{one_of(word.lower().removeprefix('.'), known, '--format')}"
