"""Storage of a TIFF that is written: strips or tiles, compression, predictor, byte order, colours."""

from __future__ import annotations

import io
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import PurePath
from typing import Any

import numpy as np

from convforge.imaging.axes import Axes
from convforge.imaging.formats import tiff_tags
from convforge.imaging.formats.tiff import ASSOCIATED, COLOURS, UNASSOCIATED, YCBCR, extra_samples
from convforge.imaging.image import Array
from convforge.imaging.windowed.contract import Layout, Place, WindowReader
from convforge.imaging.windowed.tiff.reader import TiffReader

TILE = 512
LARGEST_SEGMENT = 2**25  # bytes of a strip or tile; of larger ones of the source, tiles of TILE are made
ROWS = 2**20  # bytes of rows of uncompressed strips that are written at once

NONE, LZW, JPEG, DEFLATE, PACKBITS, JPEG_2000, LZMA, ZSTD, WEBP = 1, 5, 7, 8, 32773, 34712, 34925, 50000, 50001

# Compressions that are read under several numbers, and the one that is written.
WRITTEN_AS = {6: JPEG, 33007: JPEG, 33003: JPEG_2000, 33004: JPEG_2000, 33005: JPEG_2000, 32946: DEFLATE,
              50013: DEFLATE, 34926: ZSTD, 34927: WEBP, 34934: 22610, 52546: 50002}  # fmt: skip

# Arguments with which imagecodecs encodes without loss.
LOSSLESS: dict[int, dict[str, Any]] = {
    JPEG_2000: {"level": 0, "reversible": True, "codecformat": 0},
    22610: {"level": 100},
    WEBP: {"lossless": True},
    50002: {"lossless": True},
    PACKBITS: {"axis": -2},
}
JPEG_QUALITY = 95

# Room for noise in LZMA beyond its samples: the share of them, and bytes. The bound that imagecodecs takes,
# `lzma_stream_buffer_bound`, holds for chunks of 64 KiB. The encoder that it calls makes smaller ones, whose headers
# take about 55 bytes per MiB, and noise of more than about 20 MB does not fit.
LZMA_SHARE, LZMA_LEAST = 2**12, 2**10

HORIZONTAL, FLOATING = 2, 3  # predictors

# Suffixes of files that are always BigTIFF.
BIG_SUFFIXES = (".tf2", ".tf8", ".btf")


@dataclass(frozen=True, slots=True)
class PageForm:
    """The axes of a layout as pages of a TIFF: `pages` are separate, `band` are the samples of a pixel, or empty."""

    letters: str
    pages: str
    band: str
    planar: bool  # each sample has a plane of its own

    @classmethod
    def of(cls, letters: str) -> PageForm:
        """Return the form of named axes: an axis behind YX is the samples, and S before YX planes of samples.

        Examples
        --------
        >>> PageForm.of("TYXS").band, PageForm.of("SYX").planar, PageForm.of("CYX").pages
        ('S', True, 'C')
        """
        Axes(letters)
        at = letters.index("Y")
        band, planar = letters[at + 2 :], False
        if not band and letters[:at].endswith("S"):
            band, planar = "S", True
        return cls(letters, letters[: at - 1 if planar else at], band, planar)

    def sizes(self, shape: tuple[int, ...]) -> dict[str, int]:
        return dict(zip(self.letters, shape, strict=True))

    def samples(self, shape: tuple[int, ...]) -> int:
        return self.sizes(shape).get(self.band, 1)

    def page_sizes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        sizes = self.sizes(shape)
        return tuple(sizes[letter] for letter in self.pages)


def arranged(layout: Layout, place: Place, source: WindowReader) -> Layout:
    """Return a layout whose shards are strips or tiles: those of the source, or tiles of 512 x 512 pixels.

    Chunks that are no tiles of a TIFF become strips if they are as wide as the image. Of uncompressed strips, which
    are written row by row, a shard is a run of rows, and `chunks` is None.
    """
    form = PageForm.of(layout.axes)
    sizes = form.sizes(layout.shape)
    samples = 1 if form.planar else form.samples(layout.shape)
    pixel = samples * layout.dtype.itemsize
    plain = layout.chunks is None and layout.shards is not None
    stored = layout.chunks or layout.shards
    rows, columns = TILE, TILE
    if stored is not None:
        kept = form.sizes(stored)
        tiles = kept["Y"] % 16 == 0 and kept["X"] % 16 == 0
        if plain:
            rows, columns = max(min(kept["Y"], ROWS // (sizes["X"] * pixel)), 1), sizes["X"]
        elif (tiles or kept["X"] >= sizes["X"]) and kept["Y"] * kept["X"] * pixel <= LARGEST_SEGMENT:
            rows, columns = kept["Y"], kept["X"] if tiles else sizes["X"]
    own = {"Y": rows, "X": columns, form.band: samples}
    shards = tuple(own.get(letter, 1) for letter in layout.axes)
    return replace(layout, chunks=None if plain else shards, shards=shards)


@dataclass(frozen=True)
class Storage:
    """Storage of the pages of a TIFF."""

    dtype: np.dtype[Any]
    samples: int
    planar: bool
    tile: tuple[int, int] | None  # rows and columns; None for strips
    rows: int  # of a strip
    compression: int
    predictor: int
    order: str  # "<" or ">"
    big: bool
    rgb: bool
    extra: tuple[int, ...] = ()  # values of ExtraSamples
    arguments: dict[str, Any] = field(default_factory=dict)  # of the encoder

    @property
    def stored(self) -> np.dtype[Any]:
        """Sample type in the file's byte order."""
        return np.dtype(f"{self.order}{self.dtype.str[1:]}")

    @property
    def segment_samples(self) -> int:
        return 1 if self.planar else self.samples

    @property
    def is_jfif(self) -> bool:
        """True if encoded data have JFIF headers."""
        if self.compression != JPEG:
            return False
        return self.encoded(np.zeros((16, 16, self.segment_samples), np.uint8))[6:10] == b"JFIF"

    def options(self) -> dict[str, Any]:
        """Return arguments of tifffile's writer."""
        found: dict[str, Any] = {
            "dtype": self.dtype, "photometric": "rgb" if self.rgb else "minisblack",
            "planarconfig": ("separate" if self.planar else "contig") if self.samples > 1 else None,
            "extrasamples": self.extra or None, "tile": self.tile, "rowsperstrip": None if self.tile else self.rows,
            "compression": self.compression if self.compression != NONE else None,
            "predictor": self.predictor if self.predictor != 1 else None,
        }  # fmt: skip
        if self.compression == JPEG:
            found["subsampling"] = self.arguments.get("subsampling")
            if "outcolorspace" in self.arguments:
                found["compressionargs"] = {"outcolorspace": self.arguments["outcolorspace"]}
        return found

    def encoded(self, samples: Array) -> bytes:
        """Encode a strip or tile (h, w, s) of native byte order."""
        from tifffile import TIFF

        if _is_of_images(self.compression):
            pixels = samples[..., 0] if samples.shape[-1] == 1 else samples
            return bytes(TIFF.COMPRESSORS[self.compression](np.ascontiguousarray(pixels), **self.arguments))
        stored = np.ascontiguousarray(samples, self.stored)
        if self.predictor != 1:
            stored = TIFF.PREDICTORS[self.predictor](stored, axis=-2)
        if self.compression == NONE:
            return stored.tobytes()
        room = {"out": stored.nbytes + stored.nbytes // LZMA_SHARE + LZMA_LEAST} if self.compression == LZMA else {}
        return bytes(TIFF.COMPRESSORS[self.compression](stored, **self.arguments, **room))


def storage_of(layout: Layout, source: WindowReader, name: str = "") -> Storage:
    """Return the storage of a result of an arranged layout: that of a source which is a TIFF, as far as possible."""
    form = PageForm.of(layout.axes)
    sizes, shards = form.sizes(layout.shape), form.sizes(layout.shards or layout.shape)
    samples = form.samples(layout.shape)
    known = source if isinstance(source, TiffReader) else None
    plain = layout.chunks is None
    tiled = not plain and shards["Y"] % 16 == 0 and shards["X"] % 16 == 0
    if known is not None and not known.is_slide and not known.segments.grid.tiled and shards["X"] >= sizes["X"]:
        tiled = False
    rows = min(shards["Y"], sizes["Y"])
    if plain and known is not None:
        rows = known.segments.grid.rows if known.segments.grid.down > 1 else sizes["Y"]
    rgb, extra = _colours(layout, samples, known)
    storage = Storage(
        layout.dtype.newbyteorder("="), samples, form.planar and samples > 1,
        (shards["Y"], shards["X"]) if tiled else None, min(rows, sizes["Y"]), NONE, 1,
        known.tiff.form.order if known is not None else "<", _is_big(layout, known, name), rgb, extra,
    )  # fmt: skip
    return storage if plain else _compressed(storage, known, one_strip=not tiled and rows >= sizes["Y"])


def _is_big(layout: Layout, known: TiffReader | None, name: str) -> bool:
    """True if offsets of 32 bits may not suffice, or if the source or the suffix asks for BigTIFF."""
    if PurePath(name).suffix.lower() in BIG_SUFFIXES or (known is not None and (known.tiff.is_big or known.is_slide)):
        return True
    total, form = 0, PageForm.of(layout.axes)
    profile = 0 if known is None else len(known.first.iccprofile or b"")  # every page has it
    for shape in (layout.shape, *layout.levels):
        nbytes = replace(layout, shape=shape).nbytes
        pages = int(np.prod(form.page_sizes(shape), dtype=object))
        segment = int(np.prod(layout.shards or shape, dtype=object)) * layout.dtype.itemsize
        total += nbytes + 16 * (-(-nbytes // segment)) + (2**12 + profile) * pages
    return total > tiff_tags.BIG


def _colours(layout: Layout, samples: int, known: TiffReader | None) -> tuple[bool, tuple[int, ...]]:
    """Return True for RGB, and the values of ExtraSamples: those of the source if the samples are the same."""
    opacity = UNASSOCIATED
    if known is not None:
        grid = known.segments.grid
        count = grid.samples * grid.planes
        extra = extra_samples(known.first, count)
        if count == samples:
            rgb = COLOURS.get(int(known.first.photometric)) == 3
            kinds = [kind if kind in (ASSOCIATED, UNASSOCIATED) else 0 for kind in extra]
            beside = samples - (3 if rgb else 1)  # of unknown colours, all but one sample
            return rgb, tuple([0] * (beside - len(kinds)) + kinds)
        opacity = ASSOCIATED if extra[-1:] == [ASSOCIATED] else UNASSOCIATED
    rgb = samples - layout.alpha == 3
    extra = [0] * (samples - (3 if rgb else 1))
    if layout.alpha and extra:
        extra[-1] = opacity
    return rgb, tuple(extra)


def _compressed(storage: Storage, known: TiffReader | None, *, one_strip: bool) -> Storage:
    """Return the storage with the source's compression if it can be written, else with Deflate."""
    kind = storage.dtype.kind
    deflate = replace(storage, compression=DEFLATE, predictor=_predictor(storage, HORIZONTAL if kind in "iu" else 1))
    if known is None:
        return deflate
    compression = WRITTEN_AS.get(known.segments.compression, known.segments.compression)
    if compression == NONE:
        return storage
    arguments = dict(LOSSLESS.get(compression, {}))
    if compression == JPEG:
        arguments = {"level": JPEG_QUALITY}
        if storage.rgb and not storage.planar:
            ycc = int(known.first.photometric) == YCBCR
            subsampling = _subsampling(storage, known.first.subsampling if ycc else None, one_strip=one_strip)
            if subsampling is None:
                return deflate
            colours = {"colorspace": "RGB", "outcolorspace": "YCBCR" if ycc else "RGB"}
            arguments |= {"subsampling": subsampling, **colours}
    predictor = _predictor(storage, 1 if _is_of_images(compression) else int(known.first.predictor))
    wanted = replace(storage, compression=compression, arguments=arguments, predictor=predictor)
    return wanted if _can_encode(wanted) else deflate


def _subsampling(storage: Storage, wanted: Any, *, one_strip: bool) -> tuple[int, int] | None:
    """Return the source's subsampling of colours, or none of it, as the strips or tiles allow; None if none fits."""
    for across, down in (tuple(wanted or (1, 1)), (1, 1)):
        side = 8 * max(across, down)
        fits = one_strip or all(length % side == 0 for length in storage.tile or (storage.rows,))
        if fits and (across, down) in {(1, 1), (2, 1), (2, 2), (4, 1)}:  # those that tifffile writes
            return across, down
    return None


def _predictor(storage: Storage, predictor: int) -> int:
    """Return the predictor that this sample type can have, for a source's."""
    if predictor == 1:
        return 1
    if storage.dtype.kind == "f":
        return FLOATING
    return HORIZONTAL if storage.dtype.itemsize <= 4 else 1


def _is_of_images(compression: int) -> bool:
    """True for compressions of images, such as JPEG, which go with no predictor."""
    from tifffile import TIFF

    return compression in TIFF.IMAGE_COMPRESSIONS


def _can_encode(storage: Storage) -> bool:
    arguments = tuple(sorted(storage.arguments.items()))
    return _reads_back(
        storage.dtype, storage.segment_samples, storage.compression, storage.predictor, storage.order, arguments,
        storage.rgb,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _reads_back(
    dtype: np.dtype[Any], samples: int, compression: int, predictor: int, order: str, arguments: Any, rgb: bool
) -> bool:
    """True if tifffile reads what :meth:`Storage.encoded` wrote: exactly, or for JPEG as an image of the same kind."""
    from tifffile import TiffFile, TiffWriter

    extra = (0,) * (samples - (3 if rgb and samples >= 3 else 1))
    storage = Storage(
        dtype, samples, False, (32, 32), 0, compression, predictor, order, False, rgb and samples >= 3, extra,
        dict(arguments),
    )  # fmt: skip
    if compression == JPEG and (dtype != np.uint8 or samples not in (1, 3)):
        return False
    ramp = np.arange(32 * 32 * samples).reshape(32, 32, samples)
    pixels = (ramp % 251).astype(dtype) if dtype.kind in "iu" else (ramp / 7.0).astype(dtype)
    shape = (32, 32) if samples == 1 else pixels.shape
    file = io.BytesIO()
    try:
        encoded = storage.encoded(pixels)
        with TiffWriter(file, byteorder=order, ome=False) as writer:
            writer.write(iter([encoded]), shape=shape, metadata=None, **storage.options())
        file.seek(0)
        with TiffFile(file) as read:
            back = read.asarray()
    except Exception:  # each codec and tifffile refuse in their own way; then Deflate is taken, and a note says so
        return False
    same_kind = back.shape == shape and back.dtype == dtype
    return same_kind and (compression == JPEG or bool(np.array_equal(back.reshape(pixels.shape), pixels)))
