"""Images in a page: shrunk and embedded as data URLs, duplicates only once."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, UnidentifiedImageError

from convforge.course.language import gettext

# Longest sides in pixels; the first that keeps the total of all images within the page's limit is used.
LONGEST_SIDES = (480, 360, 240, 160)
SHARE_BYTES = 900_000
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


class Figure(NamedTuple):
    """One image of the page, with its size in pixels."""

    caption: str
    address: str
    width: int
    height: int


def find_images(folder: Path) -> list[tuple[str, Path]]:
    """Find the images of a folder: the photograph first, then the others by name, each with its stem as caption.

    Raises ``ValueError`` if the folder does not exist or has no image.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder of images")
    found = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()]
    if not found:
        raise ValueError(f"{folder} holds no image ({', '.join(SUFFIXES)})")
    found.sort(key=lambda path: (path.stem not in ("photograph", "original"), path.name))
    return [(path.stem, path) for path in found]


def figures(images: Sequence[tuple[str, Path]]) -> list[Figure]:
    """Read, shrink and encode images, given as pairs of caption and path.

    Raises ``ValueError`` with the file's name if it is not an image, ``OSError`` if it cannot be read.
    """
    captions: dict[bytes, list[str]] = {}
    opened: dict[bytes, Image.Image] = {}
    for caption, path in images:
        raw = Path(path).read_bytes()
        captions.setdefault(raw, []).append(caption)
        if raw not in opened:
            opened[raw] = _open(raw, path)
    for side in LONGEST_SIDES:
        found = [_figure(captions[raw], image, side) for raw, image in opened.items()]
        if sum(len(figure.address) for figure in found) <= SHARE_BYTES:
            break
    return found


def _open(raw: bytes, path: Path) -> Image.Image:
    try:
        with Image.open(io.BytesIO(raw)) as opened:
            return opened.convert("RGBA" if opened.mode in ("RGBA", "LA", "PA") else "RGB")
    except UnidentifiedImageError:
        raise ValueError(f"{path} is no image that the page can show; mend it, or move it") from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as fault:
        raise ValueError(f"{path} is no image that the page can show: {fault}") from None


def _figure(captions: Sequence[str], image: Image.Image, side: int) -> Figure:
    shown, file = image.copy(), io.BytesIO()
    shown.thumbnail((side, side), Image.Resampling.LANCZOS)
    shown.save(file, "WEBP", quality=84, method=4)
    address = "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode()
    names = ", ".join(captions)
    caption = gettext("{names}: the same image, to the byte").format(names=names) if len(captions) > 1 else names
    return Figure(caption, address, shown.width, shown.height)
