"""`convforge report`: one offline HTML page of stored results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|FOLDER...", help="Results of convforge bench; of a folder, the newest of each kind."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("out/report.html"),
    title: Annotated[str, typer.Option(help="Title of the page.")] = "",
    images: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of images to show.")] = None,
    language: Annotated[str, typer.Option(metavar="en|zh", help="Language of the page.")] = "en",
) -> None:
    """Make one HTML page of stored results (tables, charts, errors, machine) that works without a network."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out {out}: the page is HTML; give a name that ends in .html")
    from convforge.course.report import find_images, load, render, write
    from convforge.course.report.numbers import byte_count

    runs, left_out = load(results)
    found = find_images(images) if images is not None else []
    size = write(out, render(runs, title=title or None, images=found, left_out=left_out, language=language))
    many = f"{len(runs)} runs" if len(runs) > 1 else "1 run"
    typer.echo(f"{out}: {byte_count(size)}, {sum(len(run.results) for run in runs)} results of {many}")
