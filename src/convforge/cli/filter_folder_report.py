"""Report of a run over many images: methods, bytes, rate, notes, and the share of each stage."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from convforge.cli.filter_report import count_of, line
from convforge.cli.output import plain_table

if TYPE_CHECKING:
    from convforge.imaging.pipeline.folder import Share, Written
    from convforge.imaging.windowed import Place


def print_folder(folder: Path | None, written: dict[Place, Written], seconds: float, shares: Sequence[Share]) -> None:
    from rich.console import Console
    from rich.filesize import decimal

    from convforge.imaging.pipeline.folder import limit_of

    done = written.values()
    pixels_in, pixels_out = sum(one.pixels_in for one in done), sum(one.pixels_out for one in done)
    files_in, files_out = sum(one.file_in for one in done), sum(one.file_out for one in done)
    methods = [f"{name} ({count_of(n, 'image')})" for name, n in Counter(one.method for one in done).most_common()]
    gigabytes = (pixels_in + pixels_out) / 1e9 / seconds
    line("method", ", ".join(methods) or "none")
    if parted := [one.units for one in done if one.units]:
        line("in parts", f"{count_of(len(parted), 'image')}, in {count_of(sum(parted), 'unit')}")
    line("pixels", f"{decimal(pixels_in)} in, {decimal(pixels_out)} out")
    line("files", f"{decimal(files_in)} in, {decimal(files_out)} out")
    line("time", f"{seconds:.3g} s")
    if not written:
        return
    line("rate", f"{len(done) / seconds:.3g} images/s, {gigabytes:.3g} GB/s of pixels, in and out")
    if shares:
        line("limit", limit_of(shares))
    names = {place: _name(place, folder) for place in sorted(written, key=str)}
    for text, some in _alike({names[place]: written[place].notes for place in names}):
        line("note", f"{text.removesuffix('.')} ({some})")
    for text, some in _alike({names[place]: (", ".join(written[place].lost),) for place in names}):
        if text:
            line("not kept", f"{text} of {some}")
    if not shares:
        return
    typer.echo()
    table = plain_table()
    table.add_column("stage", no_wrap=True)
    for name in ("busy", "threads", "of their time"):
        table.add_column(name, justify="right", no_wrap=True)
    for share in shares:
        table.add_row(share.stage, f"{share.seconds:.3g} s", str(share.threads), f"{share.of_time:.0%}")
    Console(file=sys.stdout, highlight=False).print(table)


def _name(place: Place, folder: Path | None) -> str:
    return str(place.relative_to(folder)) if isinstance(place, Path) and folder is not None else str(place)


def _alike(texts: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    """Return each text once, with the names of some images that have it."""
    found: dict[str, list[str]] = {}
    for name, own in texts.items():
        for text in own:
            found.setdefault(text, []).append(name)
    return [
        (text, f"{', '.join(names[:2])} and {len(names) - 2} more" if len(names) > 3 else ", ".join(names))
        for text, names in found.items()
    ]
