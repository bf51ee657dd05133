"""The formats of images in memory: a file's first bytes name the one to read, a suffix the one to write."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from convforge.imaging.axes import Axes
from convforge.imaging.formats import jpeg, npy, png, tiff, tiff_tags
from convforge.imaging.image import Declared, Image, ImageError


@dataclass(frozen=True)
class Format:
    """A format, its functions, and what its files can hold."""

    name: str
    suffixes: tuple[str, ...]
    magic: tuple[bytes, ...]
    decoders: tuple[str, ...]  # names to import; imagecodecs loads a decoder on attribute access
    read: Callable[[Path, int, Axes | None], Image]
    header: Callable[[Path], tuple[Hashable, ...]]  # see `files.header_of`
    declared: Callable[[Path, Axes | None], Declared]  # see `files.declared_of`
    write: Callable[[BinaryIO, Image], None]
    holds: frozenset[str]  # see `files.not_kept`
    lost: Callable[[Image], list[str]] = lambda image: []  # names of further metadata that it loses
    dtypes: tuple[str, ...] = ()  # () allows every sample type
    bands: tuple[int, ...] = ()  # () allows any number
    alpha: bool = True
    pages: bool = True


_COMMON = frozenset({"description", "resolution", "icc_profile", "exif"})
FORMATS = (
    Format("PNG", (".png",), (png.SIGNATURE,), ("imagecodecs:png_decode",), png.read, png.header, png.declared,
           png.write, _COMMON | {"png"}, dtypes=("uint8", "uint16"), bands=(1, 3), pages=False),
    Format("JPEG", (".jpg", ".jpeg"), (b"\xff\xd8\xff",), ("PIL.JpegImagePlugin",), jpeg.read, jpeg.header,
           jpeg.declared, jpeg.write, _COMMON, jpeg.lost, dtypes=("uint8",), bands=(1, 3), alpha=False, pages=False),
    Format("TIFF", (".tif", ".tiff"), (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), ("imagecodecs", "tifffile"), tiff.read,
           tiff.header, tiff.declared, tiff.write, _COMMON | {"geography"}, tiff_tags.lost),
    Format(".npy", (".npy",), (b"\x93NUMPY",), (), npy.read, npy.header, npy.declared, npy.write, frozenset()),
)  # fmt: skip

WRITABLE_SUFFIXES = tuple(suffix for kind in FORMATS for suffix in kind.suffixes)
"""File name endings that `write_image` knows."""

# First bytes of unsupported formats, as regular expressions, for the error message.
_OTHERS = (
    (b"GIF8", "a GIF"), (b"BM", "a BMP"), (b"PK\x03\x04", "a ZIP archive (or .npz)"), (b"%PDF", "a PDF"),
    (b"\x89HDF", "an HDF5 file"), (b"v/1\x01", "an OpenEXR file"), (b"\0\0\0\x0cjP  ", "a JPEG 2000"),
    (b"\xff\x0a", "a JPEG XL"), (b"SIMPLE  =", "a FITS file"), (b"<", "an XML or SVG file"),
    (b"RIFF....WEBP", "a WebP"), (b"....ftyp", "a HEIF, AVIF or video"),
)  # fmt: skip


def format_in(path: Path) -> Format:
    """Return the format of a file by its first bytes; ``ImageError`` if it cannot be read, or is of no known format."""
    try:
        if path.is_dir():
            raise ImageError(f"{path}: is a folder; name one image in it")
        if not path.exists():
            raise ImageError(f"{path}: no such file; check the name and the folder")
        if not path.is_file():
            raise ImageError(f"{path}: is no regular file; copy the image to one first")
        with path.open("rb") as file:
            head = file.read(16)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        if isinstance(error, ImageError):
            raise
        raise ImageError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    return format_of_start(path, head)


def format_of_start(path: Path, head: bytes) -> Format:
    """Return the format that the first 16 bytes of a file have; ``ImageError``, which names `path`, if it is none."""
    if not head:
        raise ImageError(f"{path}: is empty (0 bytes); get it again from its source")
    for kind in FORMATS:
        if head.startswith(kind.magic):
            return kind
        if any(magic.startswith(head) for magic in kind.magic):
            raise ImageError(f"{path}: truncated {kind.name}, only {len(head)} bytes; get it again from its source")
    name = next((name for start, name in _OTHERS if re.match(start, head, re.DOTALL)), "")
    what = f"it is {name}" if name else f"it begins with {head[:8]!r}"
    raise ImageError(f"{path}: not an image that can be read, {what}; convert it to PNG, JPEG, TIFF or .npy")


def format_for(path: Path) -> Format:
    """Return the format that a suffix names for writing; ``ImageError`` if it names none."""
    suffix = path.suffix.lower()
    for kind in FORMATS:
        if suffix in kind.suffixes:
            return kind
    tiff.refuse_read_only(path)
    known = ", ".join(WRITABLE_SUFFIXES)
    what = f"unknown ending {path.suffix!r}" if suffix else "no ending to tell the format"
    raise ImageError(f"{path}: {what}; write one of {known}")
