"""`convforge filter`: what the user asks for, checked; then an image, or a folder of them, is filtered."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from convforge.imaging.image import MAX_PIXELS

SAMPLE_TYPES = tuple(
    np.dtype(kind + size).name for kind, sizes in (("u", "1248"), ("i", "1248"), ("f", "248")) for size in sizes
)


def filter_command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="PNG, JPEG, TIFF or .npy, or a folder of them.")],
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
    max_pixels: Annotated[int, typer.Option(help="Most pixels that IN may declare, pages counted.")] = MAX_PIXELS,
    device: Annotated[str, typer.Option(help="Where to run.")] = "cpu",
    recursive: Annotated[bool, typer.Option("--recursive", help="A folder's sub-folders too.")] = False,
    format_: Annotated[
        str | None, typer.Option("--format", metavar="png|jpg|tif|npy", help="Of a folder's results. [default: IN's]")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Threads that read and write a folder's files. [default: the cores]")
    ] = None,
) -> None:
    """Filter an image or a folder: edges, blur, any kernel; alpha, resolution and description are kept.

    Cross-correlation, the kernel's centre over each pixel. Integers round and saturate once, at the end. A folder's
    images go to the folder OUT, which is made, under the same names; those that fail are told at the end.
    """
    from convforge.cli.filter_file import filter_file
    from convforge.cli.filter_folder import filter_folder
    from convforge.imaging.axes import Axes
    from convforge.imaging.kernels import load_kernel
    from convforge.imaging.pipeline.recipe import Reading, Recipe

    chosen, border = load_kernel(kernel), _border(border)
    recipe = Recipe(
        taps=chosen.values,
        channels=_one_of(channels, ("each", "sum"), "--channels"),
        algorithm=_known_method(method, device),
        stride=_stride(stride),
        border=border,
        cval=_cval(cval, border),
        out_dtype=None if out_dtype is None else np.dtype(_one_of(out_dtype, SAMPLE_TYPES, "--out-dtype")),
        magnitude=magnitude,
        scale=_finite(scale, "--scale"),
        gray=gray,
        device=device,
    )
    if max_pixels < 1:
        raise ValueError(f"--max-pixels {max_pixels} must be at least 1")
    reading = Reading(max_pixels, None if axes is None else Axes(axes.upper()).letters)
    workers = _jobs(jobs)
    if source.is_dir():
        suffix = _suffix(format_)
        filter_folder(source, target, chosen, recipe, reading, recursive=recursive, suffix=suffix, jobs=workers)
        return
    for name, given in (("--recursive", recursive), ("--format", format_ is not None), ("--jobs", jobs is not None)):
        if given:
            raise ValueError(f"{name} goes with a folder; {source} is none")
    filter_file(source, target, chosen, recipe, reading)


# What the user wrote, checked before anything is read.


def _one_of(word: str, known: Sequence[str], option: str) -> str:
    if word in known:
        return word
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise ValueError(f"{option} {word!r} is unknown{hint} Choose one of {', '.join(known)}")


def _border(word: str) -> str:
    from convforge.problem import PADDING_ALIASES, PADDING_MODES, near_padding_mode

    mode = PADDING_ALIASES.get(word, word)
    if mode in PADDING_MODES:
        return mode
    near = near_padding_mode(word)
    hint = f"; did you mean {near!r}?" if near else "."
    raise ValueError(f"--border {word!r} is unknown{hint} Choose one of {', '.join(PADDING_MODES)}")


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
    return _finite(value, "--cval")


def _finite(value: float, option: str) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{option} {value} must be a finite number")
    return value


def _suffix(word: str | None) -> str | None:
    from convforge.imaging.files import WRITABLE_SUFFIXES

    if word is None:
        return None
    known = [suffix.removeprefix(".") for suffix in WRITABLE_SUFFIXES]
    return f".{_one_of(word.lower().removeprefix('.'), known, '--format')}"


def _jobs(count: int | None) -> int:
    """Threads for files: by default one a core, but at least two, so that one can read while another writes."""
    from convforge.backends.cpu import cpu_facts

    if count is None:
        return max(cpu_facts().cores, 2)
    if count < 1:
        raise ValueError(f"--jobs {count} must be at least 1")
    return count
