"""Pictures inside a page: each different one once, shrunk, as data addresses."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from convforge.course.language import gettext

if TYPE_CHECKING:
    from PIL.Image import Image

# Longest side in pixels: the first with which all pictures together stay within the page's share for them.
LONGEST_SIDES = (480, 360, 240, 160)
SHARE_BYTES = 900_000
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True, slots=True)
class Figure:
    """One picture of the page, with its size in pixels; it has several captions where files hold the same bytes."""

    captions: tuple[str, ...]
    address: str
    width: int
    height: int

    @property
    def caption(self) -> str:
        """The words below the picture.

        Examples
        --------
        >>> Figure(("edges by fft", "edges by im2col"), "", 1, 1).caption
        'edges by fft, edges by im2col: the same picture, to the byte'
        """
        names = ", ".join(self.captions)
        same = gettext("{names}: the same picture, to the byte")
        return names if len(self.captions) == 1 else same.format(names=names)


def find_pictures(folder: Path) -> list[tuple[str, Path]]:
    """The pictures of a folder: the photograph, then the others by name, each with its stem as caption.

    Raises
    ------
    ValueError
        There is no such folder, or no picture in it.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder of pictures")
    found = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()]
    if not found:
        raise ValueError(f"{folder} holds no picture ({', '.join(SUFFIXES)})")
    found.sort(key=lambda path: (path.stem not in ("photograph", "original"), path.name))
    return [(path.stem, path) for path in found]


def figures(pictures: Sequence[tuple[str, Path]]) -> list[Figure]:
    """Read, shrink and encode pictures, given as pairs of a caption and a path.

    Raises
    ------
    ValueError
        A file is no picture; the text names it.
    OSError
        A file cannot be read.
    """
    captions: dict[bytes, list[str]] = {}
    opened: dict[bytes, Image] = {}
    for caption, path in pictures:
        raw = Path(path).read_bytes()
        captions.setdefault(raw, []).append(caption)
        if raw not in opened:
            opened[raw] = _open(raw, path)
    for side in LONGEST_SIDES:
        found = [_figure(captions[raw], picture, side) for raw, picture in opened.items()]
        if sum(len(figure.address) for figure in found) <= SHARE_BYTES:
            break
    return found


def _open(raw: bytes, path: Path) -> Image:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(raw)) as opened:
            return opened.convert("RGBA" if opened.mode in ("RGBA", "LA", "PA") else "RGB")
    except UnidentifiedImageError:
        raise ValueError(f"{path} is no picture that the page can show; mend it, or move it") from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as fault:
        raise ValueError(f"{path} is no picture that the page can show: {fault}") from None


def _figure(captions: Sequence[str], picture: Image, side: int) -> Figure:
    from PIL.Image import Resampling

    shown = picture.copy()
    shown.thumbnail((side, side), Resampling.LANCZOS)
    file = io.BytesIO()
    shown.save(file, "WEBP", quality=84, method=4)
    address = "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode()
    return Figure(tuple(captions), address, shown.width, shown.height)
