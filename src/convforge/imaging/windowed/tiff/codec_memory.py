"""Memory that decoding and encoding a strip or a tile take, by compression and predictor.

Measured as the growth of the process's peak, with segments of 16 MB of ramps and of noise.
"""

from __future__ import annotations

from typing import NamedTuple

from convforge.imaging.windowed.tiff.codec_headers import JPEG_2000, JPEG_XL, LERC, WEBP

NONE, LZW, LZMA = 1, 5, 34925
FLOATING = {3, 34894, 34895}  # predictors of floats

# Compressed noise in copies of its samples: of LZW, and of the others.
LARGEST_LZW, LARGEST = 1.4, 1.1


class Use(NamedTuple):
    """Memory in copies of a segment's samples: of the decoder beside the samples and the data, and of the encoder."""

    decoder: float
    encoder: float


def use_of(compression: int, predictor: int, itemsize: int) -> Use:
    """Return the memory of a codec for samples of `itemsize` bytes.

    Examples
    --------
    >>> use_of(NONE, 1, 2)
    Use(decoder=0, encoder=1)
    """
    found = next((use for codes, use in _BY_CODES if compression in codes), _PLAIN)
    if compression in JPEG_2000:  # it computes in 32 bits
        found = Use(0.1 + LARGEST + 4 / itemsize, 3 * LARGEST + 7.5 / itemsize)
    more = int(predictor != 1)
    return Use(found.decoder + (predictor in FLOATING), found.encoder + more)


_PLAIN = Use(0.1, 2 * LARGEST)  # the encoder's data, and a copy of them
_BY_CODES: tuple[tuple[set[int], Use], ...] = (
    ({NONE}, Use(0, 1)), ({LZW}, Use(0.1, 2 * LARGEST_LZW)), ({LZMA}, Use(0.6, 7.2)), (LERC, Use(0.2, 1.2)),
    (JPEG_XL, Use(0.2, 8.7)), (WEBP, Use(1.4, 10.2)),
)  # fmt: skip


def decoding_bytes(compression: int, predictor: int, itemsize: int, samples: int, file_bytes: int) -> int:
    """Return the bytes that decoding a segment of `samples` samples takes beside these, with its data in the file."""
    nbytes = samples * itemsize
    data = min(file_bytes, int(nbytes * (LARGEST_LZW if compression == LZW else LARGEST)))
    return data + int(nbytes * use_of(compression, predictor, itemsize).decoder)


def encoding_bytes(compression: int, predictor: int, itemsize: int, samples: int) -> int:
    """Return the bytes that encoding a segment of `samples` samples takes beside these."""
    return int(samples * itemsize * use_of(compression, predictor, itemsize).encoder)
