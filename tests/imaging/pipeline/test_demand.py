"""The memory that an image takes, told from its header, against that of a process that filters it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from tests.imaging.pipeline.large import recipe

from convforge.imaging.files import Image, write_image
from convforge.imaging.pipeline.demand import Demand

# Filters a folder, and prints the most memory that the process has held, in KiB.
COMMAND = """
import sys
from convforge.cli.app import main
sys.argv = ["convforge", "filter", *sys.argv[1:]]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
print("peak", next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""

# Bytes by which the peak of the program itself varies from run to run.
NOISE = 12e6


def noise(*shape: int, dtype: str = "uint8") -> np.ndarray[Any, Any]:
    return np.random.default_rng(8).integers(0, 250, shape, dtype=np.uint8).astype(dtype)


def colours(side: int, dtype: str = "uint8", alpha: bool = False) -> Image:
    return Image(noise(side, side, 3, dtype=dtype), noise(side, side, dtype=dtype) if alpha else None)


def peak(folder: Path, out: Path, *words: str) -> int:
    command = [sys.executable, "-c", COMMAND, str(folder), str(out), "--method", "direct_naive", "--jobs", "4", *words]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(ran.stdout.rpartition("peak")[2]) * 1024


def grown(small: Path, large: Path, out: Path, *words: str) -> int:
    """Return the bytes that the large images take; small ones of the same kinds are filtered first, twice."""
    peak(small, out, *words)  # compiles
    return peak(large, out, *words) - peak(small, out, *words)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif", "a.npy"])
@pytest.mark.parametrize("options", [{}, {"magnitude": True}, {"out_dtype": np.dtype("float64")}, {"gray": True}])
def test_it_holds_what_must_be_there_at_once(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    """The pixels, the sums, and the result if it is not the sums; but not many times that."""
    write_image(tmp_path / name, colours(300))
    size = Demand(recipe("sobel-x", **options)).of(tmp_path / name, tmp_path / "b.npy")
    pixels = 300 * 300 * 3
    result = pixels // (3 if "gray" in options else 1) * (8 if "out_dtype" in options else 1)
    sums = result * (2 if "magnitude" in options else 1)
    least = pixels + sums + result * ("magnitude" in options)
    assert least < size.item < 6 * least
    assert size.lane == 0


def test_alpha_pages_and_wide_samples_count(tmp_path: Path) -> None:
    demand = Demand(recipe("laplacian"))

    def of(name: str, image: Image) -> int:
        write_image(tmp_path / name, image)
        return demand.of(tmp_path / name, tmp_path / name).item

    plain = of("a.png", colours(200))
    assert of("b.png", colours(200, alpha=True)) > plain * 4 / 3
    assert of("c.png", colours(200, "uint16")) > plain * 1.9
    one, four = (of("d.tif", Image(noise(count, 90, 200), pages=True)) for count in (2, 8))
    assert four == pytest.approx(4 * one, rel=0.1)


def test_of_one_colour_it_is_that_of_the_pixels(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", Image(np.zeros((5000, 5000), np.uint8)))
    assert (tmp_path / "a.png").stat().st_size < 100_000
    assert Demand(recipe("box:3")).of(tmp_path / "a.png", tmp_path / "b.png").item > 3 * 25e6


linux = pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")


@linux
@pytest.mark.thorough
@pytest.mark.parametrize("words", [(), ("--abs",)], ids=["direct", "abs"])
@pytest.mark.parametrize("name", ["a.png", "alpha.png", "a.jpg", "a.tif", "alpha.tif", "float.tif", "float.npy"])
def test_a_process_takes_no_more(tmp_path: Path, name: str, words: tuple[str, ...]) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    for place, side in ((small, 40), (large, 2000)):
        place.mkdir()
        write_image(place / name, colours(side, "float32" if "float" in name else "uint8", "alpha" in name))
    told = Demand(recipe("sobel-x", magnitude=bool(words), algorithm="direct_naive")).of(large / name, large / name)
    taken = grown(small, large, tmp_path / "out", "--kernel", "sobel-x", *words)
    assert 0.3 * told.item < taken < told.item + NOISE


@linux
@pytest.mark.thorough
@pytest.mark.parametrize("memory", [60, 150])
def test_a_folder_of_mixed_sizes_stays_below_the_limit(tmp_path: Path, memory: int) -> None:
    """Small images come first, as they say nothing of the large ones; some go in parts."""
    small, large = tmp_path / "small", tmp_path / "large"
    for place, side in ((small, 40), (large, 1000)):
        place.mkdir()
        for at in range(6):
            write_image(place / f"a{at}.png", colours(40))
            write_image(place / f"b{at}.png", colours(side + at, alpha=at % 2 == 0))
            write_image(place / f"c{at}.jpg", colours(side + at))
            write_image(place / f"d{at}.tif", colours(side + at, "float32"))
            tifffile.imwrite(place / f"e{at}.tif", noise(2 * side, 2 * side), tile=(128, 128), compression="zlib")
    taken = grown(small, large, tmp_path / "out", "--kernel", "sobel-x", "--abs", "--memory", f"{memory}MB")
    assert taken < memory * 1e6 + NOISE
