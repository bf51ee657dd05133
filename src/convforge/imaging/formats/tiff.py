"""TIFF files by tifffile: any sample type, any number of bands and pages, strips or tiles, contiguous or planar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from convforge.imaging.axes import LETTERS, Axes, as_named, check_clear, may_hold_bands_as_columns
from convforge.imaging.formats import tiff_tags
from convforge.imaging.formats.tiff_log import listening
from convforge.imaging.image import (
    SAMPLE_DTYPES,
    Array,
    Declared,
    Image,
    ImageError,
    alpha_as,
    check_proportion,
    check_size,
    is_sample_dtype,
    upright,
    upright_pair,
)

if TYPE_CHECKING:
    from tifffile import TiffFile, TiffPage

MIN_IS_WHITE, MIN_IS_BLACK, RGB, PALETTE, YCBCR = 0, 1, 2, 3, 6
COLOURS = {MIN_IS_WHITE: 1, MIN_IS_BLACK: 1, RGB: 3, PALETTE: 1, YCBCR: 3}  # number of colour samples per pixel
ASSOCIATED, UNASSOCIATED = 1, 2  # values of ExtraSamples for alpha
EXTRA = {ASSOCIATED: "associated alpha", UNASSOCIATED: "alpha"}
STRANGE_COLOURS = {5: "CMYK", 8: "CIELab", 9: "ICCLab", 10: "ITULab", 32844: "LogL", 32845: "LogLuv"}
CODECS_THAT_GIVE_RGB = (6, 7)  # JPEG's decoder converts YCbCr to RGB, that of JPEG 2000 only with a JP2 header

# Aperio's JPEG 2000 of this number holds YCbCr, whatever the tag of the colours says; OpenSlide reads it so too.
APERIO_YCBCR = 33003

READ_ONLY = (".svs", ".ndpi", ".scn", ".bif", ".qptiff", ".lsm", ".stk")
"""Suffixes of the TIFF files of scanners and microscopes, which are read in parts and not written."""

# Largest ratio of each compression: none, LZW (a table of growing strings), Deflate, PackBits. All others
# (LZMA, LERC, wavelets) get the ratio of Zstandard, which is the largest: a block of 128 KiB in 4 bytes.
BEST_RATIO = {1: 1, 5: 4096, 8: 1032, 32946: 1032, 32773: 64}
LOOSEST_RATIO = 2**15


def refuse_read_only(place: object) -> None:
    """Raise ``ImageError``, which names a suffix to write instead, if a path or a URL has one of `READ_ONLY`."""
    name = PurePath(str(place))
    if (suffix := name.suffix.lower()) in READ_ONLY:
        raise ImageError(f"{place}: {suffix} is only read; write {name.stem}.tif, or {name.stem}.ome.tif for OME-TIFF")


def read(path: Path, max_pixels: int, axes: Axes | None) -> Image:
    """Read all pages of a TIFF, rotated upright, except reduced copies (pyramids, thumbnails) and masks."""
    with listening() as said, _opened(path) as file:
        every = [page.aspage() for page in file.pages]
        if said.chain_faults or not every:
            raise ImageError(f"{path}: truncated TIFF, its list of pages ends early; get it again from its source")
        pages = _images(every)
        _check_alike(path, pages)
        first = pages[0]
        stack = _undivided_stack(file, first)
        count = stack or len(pages)
        _check_page(path, first)
        height, width = first.shaped[2:4]
        bands = first.shaped[0] * first.shaped[4]
        check_size(path, height, width, bands=bands, pages=count, max_pixels=max_pixels)
        for page in pages:
            _check_segments(path, page, len(every) == 1 and stack is not None)
        series = tiff_tags.series_shape(file, every, count)
        if axes is None and "Q" in series and may_hold_bands_as_columns((count, height, width)):
            check_clear(str(path), (count, height, width))
        if stack is not None:
            raw = np.asarray(file.series[0].asarray()).reshape(stack, *first.shaped)
            parts = [_turned(first, *_finish(first, one)) for one in raw]
        else:
            parts = [_turned(page, *_finish(page, np.asarray(page.asarray(squeeze=False)))) for page in pages]
        alpha = next((kind for kind in extra_samples(first, bands) if kind in (ASSOCIATED, UNASSOCIATED)), None)
        metadata = tiff_tags.metadata_of(file, every, pages, series, axes, premultiplied=alpha == ASSOCIATED)
    if len(parts) == 1:
        return as_named(axes, Image(*parts[0], metadata), tuple(series.values()))
    masks = [alpha for _, alpha in parts if alpha is not None]
    pixels = np.stack([pixels for pixels, _ in parts])
    image = Image(pixels, np.stack(masks) if masks else None, metadata, pages=True)
    return as_named(axes, image, tuple(series.values()))


def header(path: Path) -> tuple[str, int]:
    """Return the size and samples of the first page, upright, and the number of pages."""
    with _opened(path) as file:
        pages = _images([page.aspage() for page in file.pages])
        return _kind(pages[0]), _undivided_stack(file, pages[0]) or len(pages)


def declared(path: Path, axes: Axes | None) -> Declared:
    """Return what the directory of the first page declares, and the number of pages."""
    with _opened(path) as file:
        pages = _images([page.aspage() for page in file.pages])
        first = pages[0]
        _check_page(path, first)
        count = _undivided_stack(file, first) or len(pages)
        samples = first.shaped[0] * first.shaped[4]
        alpha = any(kind in (ASSOCIATED, UNASSOCIATED) for kind in extra_samples(first, samples))
        bands = samples - alpha + (2 if int(first.photometric) == PALETTE else 0)
        dtype = np.dtype(np.uint8) if first.dtype.kind == "b" else np.dtype(first.dtype)
        height, width = first.shaped[2:4]
        return Declared(count, height, width, bands, alpha, dtype.newbyteorder("="))


def named(path: Path) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the sizes of the page axes that the file names, by their letters, and the names of its channels."""
    with _opened(path) as file:
        every = [page.aspage() for page in file.pages]
        pages = _images(every)
        count = _undivided_stack(file, pages[0]) or len(pages)
        sizes = tiff_tags.series_shape(file, every, count)
        known = sizes if all(letter in LETTERS for letter in sizes) else {}
        return known, tiff_tags.channel_names(file)


def is_structured(path: Path) -> bool:
    """True for a TIFF with tiles, reduced copies, 64-bit offsets (BigTIFF) or OME-XML; False for a damaged one."""
    from tifffile import TiffFileError

    try:
        with _opened(path) as file:
            first = file.pages.first
            if file.is_bigtiff or file.is_ome or first.is_tiled or first.subifds:
                return True
            return any(int(page.aspage().subfiletype) & tiff_tags.REDUCED for page in file.pages)
    except (TiffFileError, ImageError, OSError):
        return False


@contextmanager
def _opened(path: Path) -> Iterator[TiffFile]:
    """Open a TIFF by tifffile, after a check of the sizes of its tags, which tifffile reads whole into memory."""
    from tifffile import TiffFile

    from convforge.imaging.windowed.tiff.tag_sizes import check_file  # later: its package reads formats of images

    check_file(path)
    with listening(), TiffFile(path) as file:
        yield file


def _images(every: list[TiffPage]) -> list[TiffPage]:
    """Return the pages that are images, without reduced copies and masks."""
    return [page for page in every if not int(page.subfiletype) & (tiff_tags.REDUCED | tiff_tags.MASK)] or every


def write(file: BinaryIO, image: Image) -> None:
    """Write a TIFF page by page: RGB for three bands, else gray with extra bands; compress integers by Deflate."""
    from tifffile import TiffWriter

    pixels = image.pixels if image.pages else image.pixels[np.newaxis]
    pixels = pixels if pixels.ndim == 4 else pixels[..., np.newaxis]
    colours = 3 if pixels.shape[-1] == 3 else 1
    extra = ["unspecified"] * (pixels.shape[-1] - colours)
    if image.alpha is not None:
        alpha = image.alpha if image.pages else image.alpha[np.newaxis]
        pixels = np.concatenate([pixels, alpha_as(alpha, pixels.dtype)[..., np.newaxis]], axis=-1)
        extra.append("assocalpha" if image.metadata.premultiplied else "unassalpha")
    options = tiff_tags.write_options(image)
    tags = options.pop("extratags")
    options["photometric"] = "rgb" if colours == 3 else "minisblack"
    if pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
    else:
        options["planarconfig"] = "contig"
    if extra:
        options["extrasamples"] = extra
    if pixels.dtype.kind in "ui":  # all readers support the integer predictor, few that of floats or 64 bits
        options |= {"compression": "zlib", "predictor": pixels.dtype.itemsize <= 4}
    with TiffWriter(file, bigtiff=tiff_tags.is_big(image), byteorder="<") as writer:
        for index, page in enumerate(pixels):
            text = image.metadata.description if index == 0 else ""
            more = tags if index == 0 else []
            writer.write(np.ascontiguousarray(page), description=text.encode() or None, extratags=more, **options)
    tiff_tags.point_to_tags(file, image.metadata)


def _check_alike(path: Path, pages: list[TiffPage]) -> None:
    first = _kind(pages[0])
    for number, page in enumerate(pages[1:], start=2):
        if (kind := _kind(page)) != first:
            raise ImageError(
                f"{path}: pages of different shapes, page 1 is {first:.200} and page {number} is {kind:.200}; "
                "split the file and read each kind by itself"
            )


def _kind(page: TiffPage) -> str:
    """Return the size and samples of an upright page, which must be equal in all pages of a stack."""
    samples = page.shaped[0] * page.shaped[4]
    height, width = upright_pair(page.shaped[2:4], tiff_tags.orientation_of(page))
    beside = ["a palette"] if int(page.photometric) == PALETTE else []
    for name, run in groupby(EXTRA.get(kind, "another sample") for kind in extra_samples(page, samples)):
        beside.append(name if (count := len([*run])) == 1 else f"{count} x {name}")
    words = f"{width} x {height} pixels of {samples} x {page.dtype}"
    return f"{words} with {' and '.join(beside)}" if beside else words


def _undivided_stack(file: TiffFile, first: TiffPage) -> int | None:
    """Count the pages that share one directory, as in ImageJ's stacks beyond 4 GB and tifffile's truncate=True."""
    if len(file.pages) > 1 or not (file.is_imagej or file.is_shaped):
        return None
    count = file.series[0].size // first.size if first.size else 0
    return count if count > 1 else None


def _check_page(path: Path, page: TiffPage) -> None:
    if page.shaped[1] > 1:
        raise ImageError(f"{path}: a volume (ImageDepth {page.shaped[1]}); save its slices as pages")
    if page.dtype is None or not (is_sample_dtype(page.dtype) or page.dtype.kind == "b"):
        what = page.dtype or f"{page.bitspersample} bits of format {page.sampleformat}"
        raise ImageError(f"{path}: samples are {what}; convert the image to {SAMPLE_DTYPES} first")
    colours = int(page.photometric)
    if colours == MIN_IS_WHITE and page.dtype.kind == "f":
        raise ImageError(
            f"{path}: {page.dtype} samples of which zero is white; no number is defined as black, save the image "
            "with zero as black (photometric MinIsBlack)"
        )
    name = STRANGE_COLOURS.get(colours)
    if colours == YCBCR and int(page.compression) not in CODECS_THAT_GIVE_RGB:
        name = "YCbCr"
    elif int(page.compression) == APERIO_YCBCR and page.samplesperpixel == 3:
        name = "YCbCr (Aperio's JPEG 2000, compression 33003)"
    if name is not None:
        raise ImageError(f"{path}: {name} colours; convert the image to RGB or gray first")


def _check_segments(path: Path, page: TiffPage, undivided: bool) -> None:
    """Refuse strips or tiles beyond the end of the file, and more declared pixels than they can hold."""
    size = path.stat().st_size
    segments = [(o, n) for o, n in zip(page.dataoffsets, page.databytecounts, strict=False) if o and n]
    if any(offset + count > size for offset, count in segments):
        raise ImageError(f"{path}: truncated TIFF, pixel data end beyond its {size} bytes; get it again")
    depth, height, width = page.shaped[1:4]
    each = page.bitspersample if isinstance(page.bitspersample, int) else max(page.bitspersample)
    bits = depth * height * width * page.shaped[0] * page.shaped[4] * each
    stored = sum(count for _, count in segments)
    # An empty tile means zeros (sparse files of GDAL), so only other tiles need bytes; refuse a file of empty tiles.
    share = len(segments) / len(page.dataoffsets) if segments and not undivided else 1.0
    check_proportion(path, int(bits / 8 * share), stored, BEST_RATIO.get(int(page.compression), LOOSEST_RATIO))


def _finish(page: TiffPage, raw: Array) -> tuple[Array, Array | None]:
    """Convert planar or contiguous samples (S, 1, H, W, s) to pixels (H, W) or (H, W, B) and alpha (H, W).

    Inversion and palettes apply to colours only, not to alpha and other extra samples.
    """
    planes = raw[:, 0]
    samples = planes[0] if planes.shape[0] == 1 else np.moveaxis(planes[..., 0], 0, -1)
    samples = np.asarray(samples, dtype=samples.dtype.newbyteorder("="))
    extra = extra_samples(page, samples.shape[-1])
    colours, rest = np.split(samples, [samples.shape[-1] - len(extra)], axis=-1)
    rest, alpha = _full_range(page, rest), None
    at = next((i for i, kind in enumerate(extra) if kind in (ASSOCIATED, UNASSOCIATED)), None)
    if at is not None:
        alpha = np.ascontiguousarray(rest[..., at])
        rest = np.delete(rest, at, axis=-1)
    if int(page.photometric) == PALETTE and page.colormap is not None:
        # By the standard, palettes have 16 bits, but some writers store 8 bits; libtiff uses the same test.
        table = page.colormap if page.colormap.max() < 256 else page.colormap >> 8
        colours = np.moveaxis(table.astype(np.uint8)[:, colours[..., 0].astype(np.intp)], 0, -1)
        rest = alpha_as(rest, colours.dtype)
    else:
        colours = _full_range(page, colours)
    if int(page.photometric) == MIN_IS_WHITE:
        associated = alpha is not None and at is not None and extra[at] == ASSOCIATED
        colours = _black_is_zero(page, colours, alpha if associated else None)
    pixels = np.concatenate([colours, rest], axis=-1) if rest.shape[-1] else colours
    return np.ascontiguousarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels), alpha


def extra_samples(page: TiffPage, count: int) -> list[int]:
    """Return the ExtraSamples value of each sample after the colours; 0 (unspecified) if the file has none."""
    named = [int(kind) for kind in page.extrasamples]
    colours = COLOURS.get(int(page.photometric), count - len(named))
    extra = max(count - colours, 0)
    return ([0] * (extra - len(named)) + named)[:extra]


def _full_range(page: TiffPage, samples: Array) -> Array:
    """Scale samples of fewer than 8 bits to 0 to 255, as viewers do; samples of 9 to 15 bits keep their values."""
    if samples.dtype.kind == "b":
        return samples.astype(np.uint8) * np.uint8(255)
    bits = page.bitspersample
    if samples.dtype != np.uint8 or not isinstance(bits, int) or bits >= 8:
        return samples
    codes = np.arange(2**bits)
    spread: Array = np.rint(codes * (255 / codes[-1])).astype(np.uint8)
    return np.asarray(spread[samples])


def _black_is_zero(page: TiffPage, colours: Array, associated: Array | None) -> Array:
    """Invert colours in which zero is white; with `associated` alpha, premultiplied white equals alpha."""
    if associated is not None:
        top = associated[..., np.newaxis]
        return np.asarray(top - np.minimum(colours, top))
    if colours.dtype.kind == "i":  # maps -128 to 127 and 127 to -128
        return np.invert(colours)
    bits = 8 if colours.dtype == np.uint8 else int(page.bitspersample)
    return np.asarray(colours.dtype.type(2**bits - 1) - colours)


def _turned(page: TiffPage, pixels: Array, alpha: Array | None) -> tuple[Array, Array | None]:
    orientation = tiff_tags.orientation_of(page)
    return upright(pixels, orientation), None if alpha is None else upright(alpha, orientation)
