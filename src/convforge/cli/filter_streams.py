"""Standard input and standard output of `convforge filter`: one image each, as bytes in any format of images."""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from convforge.cli.output import Failure

if TYPE_CHECKING:
    from convforge.imaging.image import Image
    from convforge.imaging.pipeline.recipe import Recipe

STREAM = "-"
"""The name of standard input as IN, and of standard output as OUT."""

INPUT, OUTPUT = "standard input", "standard output"

# Bytes of a file for each pixel that --max-pixels allows: four bands of float64; and for its metadata.
BYTES_PER_PIXEL, MORE_BYTES = 32, 2**24

# Bytes that are copied at a time; the first of them name the format.
BLOCK = 2**20


@contextmanager
def received(max_pixels: int) -> Iterator[Path]:
    """Copy standard input to a temporary file, which is removed afterwards; messages name it "standard input".

    ``ValueError`` if it is a terminal; ``Failure`` if it begins like no image, or has more bytes than an image of
    `max_pixels` pixels can have.
    """
    if sys.stdin.isatty():
        raise ValueError(f"{INPUT} is a terminal; send an image: convforge filter - OUT < image.png")
    with tempfile.TemporaryDirectory(prefix="convforge-") as folder:
        path = Path(folder, INPUT)
        try:
            with path.open("xb") as file:
                _copy(sys.stdin.buffer, file, BYTES_PER_PIXEL * max_pixels + MORE_BYTES)
            yield path
        except (Failure, ValueError) as error:
            raise type(error)(str(error).replace(str(path), INPUT)) from error
        except OSError as error:
            if error.filename != str(path):
                raise
            raise Failure(f"{INPUT}: cannot be kept in {folder} ({error.strerror})") from error


def _copy(source: BinaryIO, file: BinaryIO, most: int) -> None:
    from convforge.imaging.files import ImageError, check_start

    held = 0
    while block := source.read(BLOCK):
        if not held:
            try:
                check_start(INPUT, block[:16])
            except ImageError as error:
                raise Failure(str(error)) from error
        held += len(block)
        if held > most:
            raise Failure(f"{INPUT}: has more than {most} bytes, the most for --max-pixels; raise it, or name a file")
        file.write(block)


@contextmanager
def reported_on_stderr() -> Iterator[BinaryIO]:
    """Return standard output for the bytes of an image; what else is printed to it goes to standard error.

    ``ValueError`` if it is a terminal.
    """
    out = sys.stdout
    if out.isatty():
        raise ValueError(f"{OUTPUT} is a terminal, which shows no image; send it on: convforge filter IN - > image.png")
    sys.stdout = sys.stderr
    try:
        yield out.buffer
    finally:
        sys.stdout = out


def named(suffix: str) -> Path:
    """Return the name of standard output in messages, with the suffix of the format that is written to it."""
    return Path(f"{OUTPUT}{suffix}")


def check_holds(name: Path, recipe: Recipe, image: Image) -> None:
    """Raise ``ImageError`` if the format cannot hold the result."""
    from convforge.imaging import files

    alpha = image.alpha is not None
    files.check_holds(name, recipe.dtype(image), bands=recipe.bands(image), pages=image.pages, alpha=alpha)


def send(out: BinaryIO, name: Path, image: Image) -> None:
    """Write an image completely; ``BrokenPipeError`` if the reader has gone, ``ImageError`` for another fault."""
    from convforge.imaging.files import ImageError, encode

    data = io.BytesIO()
    encode(data, name, image)
    try:
        rest = data.getbuffer()
        while rest:  # without Python's buffer, as with PYTHONUNBUFFERED, a pipe takes a part at a time
            rest = rest[out.write(rest) :]
        out.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ImageError(f"{OUTPUT}: cannot be written ({error.strerror or error})") from error
