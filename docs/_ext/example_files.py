"""Small files that stand for large ones on the pages: a slide, a volume of a microscope, a folder of photographs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from convforge.imaging.photographs import photograph


def slide(folder: Path) -> None:
    """Write slide.tif: a BigTIFF of 1024 x 1024 pixels of 0.5 um, in tiles of JPEG, with two reduced copies."""
    from tifffile import TiffWriter

    pixels = np.tile(photograph("immunohistochemistry"), (2, 2, 1))
    with TiffWriter(folder / "slide.tif", bigtiff=True) as file:
        for factor in (1, 2, 4):
            file.write(
                _means(pixels, factor), tile=(256, 256), photometric="rgb", compression="jpeg",
                compressionargs={"level": 90}, resolution=(20_000 / factor, 20_000 / factor),
                resolutionunit="centimeter", subifds=2 if factor == 1 else None, subfiletype=0 if factor == 1 else 1,
            )  # fmt: skip


def _means(pixels: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    """Return the means of blocks of factor x factor pixels."""
    h, w, bands = pixels.shape
    blocks = pixels.reshape(h // factor, factor, w // factor, factor, bands)
    return np.rint(blocks.mean(axis=(1, 3))).astype(np.uint8)


def cells(folder: Path) -> None:
    """Write cells.ome.tif: TCZYX 2 x 2 x 12 x 96 x 96 uint16; voxels of 1 x 0.25 x 0.25 um; channels DAPI and GFP."""
    from tifffile import imwrite

    random = np.random.default_rng(7)
    grid = np.stack(np.meshgrid(np.arange(12), *2 * [np.arange(96) / 4], indexing="ij"))  # micrometres
    volume = random.normal(120, 10, (2, 2, 12, 96, 96))
    for channel in volume.reshape(-1, 12, 96, 96):
        for centre in random.uniform((1, 2, 2), (11, 22, 22), (12, 3)):
            channel += 900 * np.exp(-0.5 * ((grid - centre[:, None, None, None]) ** 2).sum(axis=0))
    imwrite(
        folder / "cells.ome.tif", np.rint(volume).astype(np.uint16), photometric="minisblack", tile=(32, 32),
        compression="zlib",
        metadata={
            "axes": "TCZYX", "Channel": {"Name": ["DAPI", "GFP"]}, "PhysicalSizeZ": 1.0, "PhysicalSizeY": 0.25,
            "PhysicalSizeX": 0.25, **{f"PhysicalSize{axis}Unit": "µm" for axis in "ZYX"},
        },
    )  # fmt: skip


def photographs(folder: Path) -> None:
    """Write photographs/: astronaut.png, eye.jpg with EXIF, more/tissue.tif, notes.txt, the cut broken.png."""
    from PIL import Image

    (folder / "photographs" / "more").mkdir(parents=True)
    place = folder / "photographs"
    exif = Image.Exif()
    exif.update({271: "Maker of the camera", 306: "2024:05:01 12:00:00", 315: "Ada"})  # Make, DateTime, Artist
    Image.fromarray(photograph("retina")[400:800, 400:1000]).save(place / "eye.jpg", dpi=(300, 300), exif=exif)
    Image.fromarray(photograph()).save(place / "astronaut.png")
    Image.fromarray(photograph("immunohistochemistry")).save(place / "more" / "tissue.tif")
    (place / "notes.txt").write_text("The eye is the left one.\n", encoding="utf-8")
    (place / "broken.png").write_bytes((place / "astronaut.png").read_bytes()[:5000])


OF_PAGE: dict[str, Callable[[Path], None]] = {"slides": slide, "volumes": cells, "photographs": photographs}
"""The page, by its name in docs/, and what makes its files."""
