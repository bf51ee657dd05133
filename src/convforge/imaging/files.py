"""Read and write images: the first bytes of a file determine the format read, the suffix the format written."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Hashable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from convforge.imaging.axes import Axes, AxesError
from convforge.imaging.formats import tiff
from convforge.imaging.formats.exif import GEOGRAPHIC, in_words, main_of
from convforge.imaging.formats.known import FORMATS, WRITABLE_SUFFIXES, Format, format_for, format_in, format_of_start
from convforge.imaging.image import MAX_PIXELS, Declared, Image, ImageError, Metadata, is_sample_dtype
from convforge.imaging.replacing import replacing

__all__ = [
    "MAX_PIXELS",
    "WRITABLE_SUFFIXES",
    "AxesError",
    "Declared",
    "Image",
    "ImageError",
    "Metadata",
    "axes_of",
    "check_holds",
    "check_start",
    "check_writable",
    "declared_of",
    "encode",
    "header_of",
    "load_decoders",
    "not_kept",
    "read_image",
    "suffix_of",
    "write_image",
]

StrPath = str | os.PathLike[str]


def read_image(path: StrPath, *, max_pixels: int = MAX_PIXELS, axes: str | None = None) -> Image:
    """Read a PNG, JPEG, TIFF or .npy file; its content determines the format, not its name.

    Samples of 16 bits in PNG and of any type in TIFF and .npy keep their type. Palettes and samples of 1 to 7 bits
    become 8 bits, as in a viewer; samples of 9 to 15 bits keep their values. If zero is white in a TIFF, its colours
    are inverted, but not alpha and other samples. JPEG, PNG and TIFF are rotated upright by their orientation tag. In
    a TIFF's result the first axis counts pages, the last bands.

    Parameters
    ----------
    path : path-like
    max_pixels : int
        Largest width x height x pages accepted (bands beyond four count as further pages), checked before decoding.
    axes : str, optional
        The axes of the array, or of a TIFF's stack, by the letters of `imaging.axes.LETTERS`: Y and X are rows
        and columns, C or S the bands, T, Z and I pages, such as "CYX" or "TZYXC". Page axes are merged into one.
        Required for a .npy unless it is (H, W), (H, W, B) or (T, H, W, B) with up to four bands, and for TIFF pages so
        narrow that they may be rows of an image.

    Returns
    -------
    Image
        Pixels in the file's sample type, separate alpha, metadata.

    Raises
    ------
    ImageError
        The file does not exist, is no image, empty, truncated, damaged or too large; it declares more pixels than its
        bytes can hold; its sample type or colour space cannot be filtered; its pages differ in shape. AxesError if
        `axes` is required, or does not fit the file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "ramp.png")
    ...     write_image(path, Image(np.arange(12, dtype=np.uint16).reshape(3, 4) * 5000))
    ...     read_image(path).pixels
    array([[    0,  5000, 10000, 15000],
           [20000, 25000, 30000, 35000],
           [40000, 45000, 50000, 55000]], dtype=uint16)
    """
    path = Path(path)
    if max_pixels < 1:
        raise ImageError(f"max_pixels is {max_pixels}; it must be at least 1")
    named = None if axes is None else Axes(axes.upper())
    kind = format_in(path)
    with _faults_of(path, kind):
        return kind.read(path, max_pixels, named)


@contextmanager
def _faults_of(path: Path, kind: Format) -> Iterator[None]:
    """Turn the faults of a decoder into an ``ImageError`` that names the file."""
    try:
        yield
    except ImageError as error:
        if str(error).startswith(str(path)):
            raise
        raise type(error)(f"{path}: {error}") from error  # Image does not know the path
    except ImportError:  # a missing library is not the image's fault
        raise
    except MemoryError as error:
        raise ImageError(f"{path}: the decoded image does not fit into memory; cut it into parts first") from error
    except Exception as error:
        # Decoders raise many classes (their own, struct.error, KeyError): raise one instead.
        raise ImageError(
            f"{path}: truncated or damaged {kind.name} ({_one_line(error)}); get it again from its source"
        ) from error


def header_of(path: StrPath) -> tuple[Hashable, ...]:
    """Return the format and the facts of a file's header; files with equal headers have images of one shape and type.

    No pixel is decoded. ``ImageError`` if the file is no image or its header is damaged.
    """
    path = Path(path)
    kind = format_in(path)
    with _faults_of(path, kind):
        return kind.name, *kind.header(path)


def declared_of(path: StrPath, *, axes: str | None = None) -> Declared:
    """Return the size and the sample type that a file's header declares; no pixel is decoded.

    The size is that before a rotation by the orientation tag, and in a TIFF all pages count as pages, whatever `axes`
    says. ``ImageError`` if the file is no image, its
    header is damaged, or it is of a kind that `read_image` refuses.
    """
    path = Path(path)
    kind = format_in(path)
    with _faults_of(path, kind):
        return kind.declared(path, None if axes is None else Axes(axes.upper()))


def axes_of(path: StrPath) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the sizes of the page axes that a file names, by their letters, and the names of its channels.

    Only a TIFF names them, in its OME-XML, ImageJ or tifffile description.
    """
    path = Path(path)
    return tiff.named(path) if format_in(path).name == "TIFF" else ({}, ())


def check_writable(
    path: StrPath, dtype: npt.DTypeLike, *, bands: int = 1, pages: bool = False, alpha: bool = False
) -> None:
    """Raise ``ImageError`` if a file cannot hold a result, before the result is computed.

    The suffix of `path` determines the format; `bands` does not count alpha. Causes are an unknown suffix, a sample
    type, band count, alpha or pages that the format does not support, and a folder without write access.
    """
    path = Path(path)
    check_holds(path, dtype, bands=bands, pages=pages, alpha=alpha)
    try:
        _check_place(path)
    except OSError as error:  # a name too long, a folder without read access
        raise ImageError(f"{path}: cannot be written ({error.strerror}); choose another place") from error


def check_holds(
    path: StrPath, dtype: npt.DTypeLike, *, bands: int = 1, pages: bool = False, alpha: bool = False
) -> None:
    """Raise ``ImageError`` if the format of a suffix cannot hold a result; the place is not looked at."""
    path = Path(path)
    kind = format_for(path)
    dtype = np.dtype(dtype)
    if not is_sample_dtype(dtype):
        raise ImageError(f"{path}: {dtype} is no sample type of an image; add --out-dtype uint8 or float32")
    if kind.dtypes and dtype.name not in kind.dtypes:
        holds = " or ".join(kind.dtypes)
        # PNG supports uint16, JPEG does not
        other = ".png, .tif" if dtype == np.uint16 and not pages else ".tif or .npy"
        raise ImageError(
            f"{path}: {kind.name} holds {holds}, the result is {dtype}; write {other}, or add --out-dtype uint8"
        )
    if kind.bands and bands not in kind.bands:
        raise ImageError(
            f"{path}: {kind.name} holds 1 or 3 bands, the result has {bands}; write .tif or .npy, take one band "
            "(--channel 0), or sum them (--channels sum)"
        )
    if alpha and not kind.alpha:
        raise ImageError(f"{path}: {kind.name} has no alpha; write .png or .tif to keep it")
    if pages and not kind.pages:
        raise ImageError(f"{path}: {kind.name} holds one page; write .tif or .npy to keep them all")


def load_decoders(*paths: Path) -> None:
    """Import the decoders for these files, so that read times do not include the imports."""
    suffixes = {path.suffix.lower() for path in paths}
    for kind in FORMATS:
        for name in kind.decoders if suffixes.intersection(kind.suffixes) else ():
            pkgutil.resolve_name(name)


def not_kept(path: StrPath, image: Image) -> tuple[str, ...]:
    """List the metadata of the image and of its source file that `write_image` does not write to `path`.

    Examples
    --------
    >>> scan = Image(np.ones((2, 3), np.uint8), metadata=Metadata((300, 300), left=("XMP",)))
    >>> not_kept("scan.npy", scan)
    ('XMP', 'resolution')
    """
    path = Path(path)
    kind = format_for(path)
    words = [*image.metadata.left, *_not_held(image, kind.holds), *kind.lost(image)]
    if path.name.lower().endswith((".ome.tif", ".ome.tiff")):
        words.append(f"the OME that {''.join(path.suffixes[-2:])} promises: the file is a plain TIFF")
    return tuple(dict.fromkeys(words))


def _not_held(image: Image, holds: Set[str]) -> list[str]:
    """List the metadata of an image that a format cannot store.

    `holds` names the fields of `Metadata` that the format can store, and "geography" for GeoTIFF tags.
    """
    metadata, bands = image.metadata, image.bands
    found = ["description"] if metadata.description and "description" not in holds else []
    found += ["resolution"] if metadata.resolution is not None and "resolution" not in holds else []
    if metadata.icc_profile is not None and "icc_profile" not in holds:
        found.append("ICC profile")
    elif metadata.icc_profile is not None and metadata.profile_for(bands) is None:
        space = metadata.icc_profile[16:20].decode("latin-1").strip()
        found.append(f"ICC profile (of {space}, and the result has {bands} band{'' if bands == 1 else 's'})")
    if metadata.exif is not None and "exif" not in holds:
        found.append(in_words(metadata.exif))
    elif "geography" not in holds and GEOGRAPHIC & main_of(metadata.exif).keys():
        found.append("GeoTIFF's place")
    if "png" not in holds:
        texts = [body.partition(b"\0")[0] for kind, body in metadata.png if kind[1:] in (b"EXt", b"TXt")]
        chunks = [kind for kind, _ in metadata.png if kind[1:] not in (b"EXt", b"TXt")]
        found += [f"PNG's {name.decode('latin-1')}" for name in (*texts, *chunks)]
    return found


def write_image(path: StrPath, image: Image) -> None:
    """Write an image completely or not at all; the suffix (.png, .jpg, .jpeg, .tif, .tiff, .npy) determines the format.

    The data is written to a temporary file in the same folder. When complete, it replaces an existing file and keeps
    that file's permissions; after a failure it is removed. A temporary file of a killed process is removed by a write
    into the folder after one hour or more. Alpha is converted to the pixels' sample type; in .npy it becomes the last
    band. JPEG has quality 95 without chroma subsampling. `not_kept` lists the metadata that is lost (.npy: all).

    Raises
    ------
    ImageError
        The format or the folder cannot hold the image (see `check_writable`), the disk is full, the encoder fails.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "scan.tif")
    ...     write_image(path, Image(np.ones((2, 3), np.float32), metadata=Metadata((300, 300), "inch", "leaf")))
    ...     read_image(path).metadata
    Metadata(resolution=(300.0, 300.0), unit='inch', description='leaf', premultiplied=False)
    """
    path = Path(path)
    check_writable(path, image.pixels.dtype, bands=image.bands, pages=image.pages, alpha=image.alpha is not None)
    target = Path(os.path.realpath(path))  # replace the target of a symbolic link, not the link
    try:
        with replacing(target) as file:
            encode(file, path, image)
    except ImageError:
        raise
    except OSError as error:
        raise ImageError(f"{path}: cannot be written ({error.strerror or error}); choose another place") from error


def encode(file: BinaryIO, path: StrPath, image: Image) -> None:
    """Write an image to an open file, which must allow to seek, in the format that the suffix of `path` determines.

    ``ImageError`` names `path`; ``OSError`` if the file cannot be written.
    """
    path = Path(path)
    kind = format_for(path)
    try:
        kind.write(file, image)
    except ImageError as error:
        raise ImageError(f"{path}: {error}") from error
    except OSError:
        raise
    except MemoryError as error:
        raise ImageError(f"{path}: not enough memory to encode {kind.name}; write .npy or in parts") from error
    except Exception as error:
        raise ImageError(f"{path}: {kind.name} could not hold this image ({_one_line(error)}); try .npy") from error


def check_start(path: StrPath, head: bytes) -> None:
    """Raise ``ImageError``, which names `path`, if a file that begins with these 16 bytes is no image."""
    format_of_start(Path(path), head)


def suffix_of(path: StrPath) -> str:
    """Return the suffix of the format that a file's content has, such as ".png"."""
    return format_in(Path(path)).suffixes[0]


def _check_place(path: Path) -> None:
    target = Path(os.path.realpath(path))
    folder = target.parent
    if target.is_dir():
        raise ImageError(f"{path}: is a folder; name a file in it")
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise ImageError(f"{path}: cannot be written, the folder {folder} {what}; make it first")
    if target.exists() and not target.is_file():  # renaming over a device would replace the device
        raise ImageError(f"{path}: is no regular file; write to a file")
    if target.exists() and not os.access(target, os.W_OK):
        raise ImageError(f"{path}: is write-protected; choose another name")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ImageError(f"{path}: cannot be written, no permission to write in {folder}; choose another folder")


def _one_line(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
