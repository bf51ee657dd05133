"""`convforge filter`: filter an image, several images, or a folder of images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
import typer

from convforge.cli.filter_options import (
    SAMPLE_TYPES,
    border_of,
    cval_of,
    known_method,
    refuse_several,
    spacing_of,
    stride_of,
    suffix_of,
)
from convforge.cli.filter_streams import STREAM
from convforge.cli.output import Failure
from convforge.cli.values import finite, one_of, parse_bytes
from convforge.imaging.image import MAX_PIXELS

if TYPE_CHECKING:
    from convforge.imaging.kernels import Kernel
    from convforge.imaging.pipeline.recipe import Recipe


def filter_command(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="IN... OUT",
            help="IN: PNG, JPEG, TIFF, a slide (.svs, .ndpi, ...), .npy, .zarr, a folder of images, a URL, or - for "
            "standard input. OUT: its ending names the format; it may be IN, or - for standard output. With several "
            "IN it is a folder.",
        ),
    ],
    kernel: Annotated[
        str,
        typer.Option(
            metavar='NAME|FILE|"1 1 1; 1 -8 1; 1 1 1"',
            help="laplacian, sobel-x, sobel-y, scharr-x, scharr-y, gaussian:SIZE:SIGMA, log:SIZE:SIGMA (its "
            "Laplacian), box:SIZE, sharpen, emboss or identity; gaussian:2px, gaussian:0.5um, or sigma along Z, Y and "
            "X as in gaussian:2,0.5,0.5um; a .npy or text file; or the matrix. It is not flipped.",
        ),
    ],
    spacing: Annotated[
        str | None,
        typer.Option(
            metavar="[Z,]Y,X",
            help="Distance of the samples in micrometres: for sigma in nm, um or mm, and for the metadata of OUT. "
            "[default: as IN says]",
        ),
    ] = None,
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
            "images, such as ZYX or TZYXC. One whose axes are unclear needs this.",
        ),
    ] = None,
    max_pixels: Annotated[
        int, typer.Option(min=1, help="Most pixels that IN may declare, pages counted.")
    ] = MAX_PIXELS,
    device: Annotated[
        str,
        typer.Option(
            metavar="cpu|cuda|cuda:N,...",
            help="Where to run: cuda:1 is one GPU. An image in units takes all GPUs by cuda, several by cuda:0,cuda:1.",
        ),
    ] = "cpu",
    recursive: Annotated[bool, typer.Option("--recursive", help="A folder's sub-folders too.")] = False,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="png|jpg|tif|npy",
            help="Of a folder's results, or of standard output. [default: IN's] With a stack as IN: OUT is a folder, "
            "which gets a file for each plane.",
        ),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(
            metavar="ROWS,COLUMNS",
            help="Only this part of the result, in pixels of IN, as slices of NumPy: 0:512,1024:2048 or :,-100:.",
        ),
    ] = None,
    channel: Annotated[
        str | None,
        typer.Option(metavar="INDEX|SLICE|NAME", help="Only this channel (2), these (0:2), or that of a name."),
    ] = None,
    z: Annotated[str | None, typer.Option(metavar="INDEX|SLICE", help="Only these planes along Z.")] = None,
    time: Annotated[str | None, typer.Option(metavar="INDEX|SLICE", help="Only these planes along T.")] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Threads that read and write a folder's files or a large image. [default: the cores]"),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Filter in units that take at most so much memory together, such as 8GB. [default: a "
            "quarter of the machine's, where an image goes in units]",
        ),
    ] = None,
) -> None:
    """Filter images: edges, blur, any kernel; alpha, resolution and description are kept.

    The filter is a cross-correlation with the kernel's centre over each pixel. Integers are rounded and saturated once,
    at the end. For a folder or several images, OUT is a folder (created if missing) with the same file names; failures
    are listed last.
    """
    from convforge.cli.filter_kernel import kernel_for
    from convforge.imaging.axes import Axes
    from convforge.imaging.pipeline.recipe import Depth, Recipe
    from convforge.imaging.selection import Selection

    *sources, target = places
    if not sources:
        raise ValueError(f"{target} is the only name; write IN and OUT")
    letters = None if axes is None else Axes(axes.upper()).letters
    distances = spacing_of(spacing)
    suffix = suffix_of(format_)
    chosen = kernel_for(kernel, sources, target, spacing=distances, axes=letters, max_pixels=max_pixels, suffix=suffix)
    border = border_of(border)
    recipe = Recipe(
        taps=chosen.values,
        depth=None if chosen.depth is None else Depth.centred(chosen.depth.tolist()),
        channels=one_of(channels, ("each", "sum"), "--channels"),
        algorithm=known_method(method, device),
        stride=stride_of(stride),
        border=border,
        cval=cval_of(cval, border),
        out_dtype=None if out_dtype is None else np.dtype(one_of(out_dtype, SAMPLE_TYPES, "--out-dtype")),
        magnitude=magnitude,
        scale=finite(scale, "--scale"),
        gray=gray,
        device=device,
        max_pixels=max_pixels,
        axes=letters,
        selection=Selection.of(region=region, channel=channel, z=z, time=time),
        spacing=distances,
    )
    options = Options(recursive, suffix, jobs, None if memory is None else parse_bytes(memory))
    _filter(sources, target, chosen, recipe, options)


class Options(NamedTuple):
    """Options of the work with files, which not every kind of work takes."""

    recursive: bool
    suffix: str | None  # of --format
    jobs: int | None
    memory: int | None  # bytes

    def refuse(self, *names: str, why: str) -> None:
        """Raise ``ValueError`` if one of these options is given."""
        given = {
            "--recursive": self.recursive,
            "--format": self.suffix is not None,
            "--jobs": self.jobs is not None,
            "--memory": self.memory is not None,
        }
        for name in names:
            if given[name]:
                raise ValueError(f"{name} goes with {why}")

    @property
    def threads(self) -> int:
        """Threads that read and write many files: at least two, so that reads and writes overlap."""
        from convforge.backends.cpu import cpu_facts

        return self.jobs or max(cpu_facts().cores, 2)


def _filter(sources: Sequence[str], target: str, kernel: Kernel, recipe: Recipe, options: Options) -> None:
    """Do the kind of work that the places ask for."""
    from convforge.cli.filter_file import filter_file, filter_piped
    from convforge.cli.filter_folder import filter_folder, filter_several
    from convforge.cli.filter_large import filter_large, is_large
    from convforge.cli.filter_places import check_format, is_folder_of_images, is_stack, with_slices
    from convforge.imaging.formats.tiff import refuse_read_only
    from convforge.imaging.windowed import Url, local, place_of
    from convforge.imaging.windowed.slices import SliceFolder

    if len(sources) > 1:
        refuse_several(recipe.device, f"{len(sources)} images are given")
        if target == STREAM or isinstance(place_of(target), Url):
            raise ValueError(f"there are {len(sources)} images, so OUT must name a local folder; {target} is none")
        options.refuse("--recursive", why=f"one folder of images; {len(sources)} names are given")
        filter_several(
            sources, local(place_of(target)), kernel, recipe, suffix=options.suffix, jobs=options.threads,
            memory=options.memory,
        )  # fmt: skip
        return
    source = sources[0]
    if not os.path.isdir(target):
        refuse_read_only(target)
    if STREAM in (source, target):
        why = f"files; {STREAM} is one image on standard input or output"
        options.refuse("--recursive", "--jobs", "--memory", why=why)
        if target != STREAM:
            options.refuse("--format", why=f"a folder of images or with {STREAM} as OUT; {target} names the format")
        refuse_several(recipe.device, f"{STREAM} is one image in memory")
        filter_piped(source, target, kernel, recipe, options.suffix)
        return
    there, volume = place_of(source), recipe.depth is not None
    if isinstance(there, Path) and not there.exists():
        raise Failure(f"{source}: no such file; check the name and the folder")
    here = with_slices(there, place_of(target), options.suffix, volume=volume)
    if is_folder_of_images(there) and not volume and not is_stack(there, here):
        refuse_several(recipe.device, f"the images of {source} are filtered one by one")
        filter_folder(
            there, local(here), kernel, recipe, recursive=options.recursive, suffix=options.suffix,
            jobs=options.threads, memory=options.memory,
        )  # fmt: skip
    elif is_large(there, here, options.memory, recipe.max_pixels, volume=volume, spacing=recipe.spacing):
        what = "one stack" if is_folder_of_images(there) else "one image"
        options.refuse("--recursive", why=f"a folder of images; {source} is {what}")
        if not isinstance(here, SliceFolder):
            options.refuse("--format", why=f"a folder of images or of slices; {target} is {what}")
            check_format(here)
        filter_large(there, here, kernel, recipe, memory=options.memory, jobs=options.jobs)
    else:
        options.refuse("--recursive", "--format", "--jobs", why=f"a folder; {source} is none")
        refuse_several(recipe.device, f"{source} is filtered in memory, unless --memory is given")
        filter_file(local(there), local(here), kernel, recipe)
