"""A TIFF filtered in units: equal to the image in memory bit for bit, resumed after a kill, read from URLs."""

from __future__ import annotations

import functools
import http.server
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from tests.imaging.pipeline.large import kill_a_run, recipe
from tests.imaging.windowed.windows import PLAIN, noise, part, whole

import convforge
from convforge.imaging.image import ImageError
from convforge.imaging.pipeline.large import LargeFilter
from convforge.imaging.selection import Selection
from convforge.imaging.windowed import Url, WindowWriter, open_windows

GRIDS: tuple[dict[str, Any], ...] = (
    {"tile": (32, 48), "compression": "zlib", "predictor": True},
    {"rowsperstrip": 16, "compression": "lzw"},
    {"rowsperstrip": 16},
    {"tile": (16, 16)},
)


@pytest.mark.parametrize("grid", GRIDS, ids=["tiles", "strips", "rows", "plain tiles"])
@pytest.mark.parametrize("axes, shape", [("YX", (150, 200)), ("YXS", (150, 200, 3)), ("SYX", (3, 150, 200))])
def test_units_equal_the_whole_bit_for_bit(tmp_path: Path, axes: str, shape: Any, grid: dict[str, Any]) -> None:
    array = noise(*shape)
    options: dict[str, Any] = {"photometric": "minisblack"}
    if "S" in axes:
        options = {"photometric": "rgb", "planarconfig": "contig" if axes == "YXS" else "separate"}
    tifffile.imwrite(tmp_path / "a.tif", array, **PLAIN | options | grid)
    for border, stride in (("reflect", 1), ("zeros", 2)):
        (tmp_path / "b.tif").unlink(missing_ok=True)
        run = LargeFilter(
            tmp_path / "a.tif", tmp_path / "b.tif", recipe("gaussian:5:1", border=border, stride=(stride, stride)),
            memory=6 * array.nbytes, workers=1,
        )  # fmt: skip
        assert len(run.division) > 1 or stride > 1
        run()
        want = convforge.filter(array, "gaussian:5:1", border=border, stride=stride, axes=axes)
        np.testing.assert_array_equal(tifffile.imread(tmp_path / "b.tif"), want)


def test_stack_to_ome_tiff(tmp_path: Path) -> None:
    array = noise(2, 3, 100, 120, dtype=np.uint16)
    tifffile.imwrite(
        tmp_path / "a.ome.tif", array, photometric="minisblack", metadata={"axes": "TZYX"}, tile=(32, 32),
        compression="zlib",
    )  # fmt: skip
    LargeFilter(tmp_path / "a.ome.tif", tmp_path / "b.ome.tif", recipe("box:3"), memory=1_000_000)()
    with tifffile.TiffFile(tmp_path / "b.ome.tif") as file:
        assert file.series[0].axes == "TZYX"
        np.testing.assert_array_equal(file.series[0].asarray(), convforge.filter(array, "box:3", axes="TZYX"))


@pytest.mark.parametrize("unit", ["centimeter", "inch", "none"])
def test_a_region_keeps_the_resolution_and_a_stride_divides_it(tmp_path: Path, unit: str) -> None:
    array = noise(64, 96)
    tags = [(33922, "d", 6, (0.0, 0.0, 0.0, 9.0, 8.0, 0.0), True)]  # GeoTIFF's place of the first pixel
    tifffile.imwrite(
        tmp_path / "a.tif", array, tile=(16, 16), resolution=(20000, 10000), resolutionunit=unit, extratags=tags
    )
    region = Selection.of(region="16:48,32:", channel=None, z=None, time=None)
    for chosen, stride, want in ((None, 1, (20000, 10000)), (region, 1, (20000, 10000)), (region, 2, (10000, 5000))):
        one = replace(recipe("box:3", stride=(stride, stride)), selection=chosen)
        run = LargeFilter(tmp_path / "a.tif", tmp_path / "b.tif", one)
        lost = run().lost
        with tifffile.TiffFile(tmp_path / "b.tif") as file:
            page = file.pages.first
            assert page.resolution == want
            assert page.resolutionunit == {"none": 1, "inch": 2, "centimeter": 3}[unit]
            assert (33922 in page.tags) == (chosen is None)
        assert ("GeoTIFF's place" in lost) == (chosen is not None)


@pytest.mark.parametrize(("name", "notes"), [("b.tif", 1), ("b.npy", 0), ("b.zarr", 0)])
def test_only_a_result_in_jpeg_is_said_to_lose_detail(tmp_path: Path, name: str, notes: int) -> None:
    if name == "b.zarr":
        pytest.importorskip("tensorstore")
    tifffile.imwrite(tmp_path / "a.tif", noise(64, 64, 3), photometric="rgb", compression="jpeg", tile=(32, 32))
    run = LargeFilter(tmp_path / "a.tif", tmp_path / name, recipe("box:3"))
    assert len([note for note in run.notes if "JPEG at quality 95" in note]) == len(run.notes) == notes


@pytest.mark.parametrize("suffix", [".npy", ".zarr", ".tif"])
def test_from_and_to_other_formats(tmp_path: Path, suffix: str) -> None:
    if suffix == ".zarr":
        pytest.importorskip("tensorstore")
    array = noise(150, 200)
    np.save(tmp_path / "a.npy", array)
    LargeFilter(tmp_path / "a.npy", tmp_path / f"b{suffix}", recipe("box:3"), memory=4_000_000)()
    LargeFilter(tmp_path / f"b{suffix}", tmp_path / "c.tif", recipe("box:3"), memory=4_000_000)()
    want = convforge.filter(convforge.filter(array, "box:3"), "box:3")
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "c.tif"), want)


@pytest.mark.parametrize("grid", GRIDS[:3], ids=["tiles", "strips", "rows"])
def test_resumed_after_an_end_at_any_window(
    tmp_path: Path, grid: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from convforge.imaging.windowed.tiff import writer as tiff_writer

    array = noise(300, 200)
    tifffile.imwrite(tmp_path / "a.tif", array, **PLAIN | grid)

    def run() -> Any:
        return LargeFilter(tmp_path / "a.tif", tmp_path / "b.tif", recipe("box:3"), memory=120_000, workers=1)()

    plain, ends = tiff_writer.TiffLevel.write, (2, 3)
    left = 0

    def ending(self: WindowWriter, region: Any, window: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:  # as by a kill: the bytes may be there, the journal has no line of them
            plain(self, region, window * 0)  # type: ignore[arg-type]
            raise KeyboardInterrupt
        plain(self, region, window)  # type: ignore[arg-type]

    for end in ends:
        left = end
        with monkeypatch.context() as patch:
            patch.setattr(tiff_writer.TiffLevel, "write", ending)
            with pytest.raises(KeyboardInterrupt):
                run()
    outcome = run()
    assert outcome.resumed >= 2
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "b.tif"), convforge.filter(array, "box:3"))


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("grid", GRIDS[:3], ids=["tiles", "strips", "rows"])
def test_a_killed_run_is_resumed(tmp_path: Path, grid: dict[str, Any]) -> None:
    array, target = noise(3000, 96), tmp_path / "b.tif"
    tifffile.imwrite(tmp_path / "a.tif", array, **PLAIN | grid)
    kill_a_run(tmp_path / "a.tif", target, 60_000)
    run = LargeFilter(tmp_path / "a.tif", target, recipe("laplacian"), memory=60_000)
    outcome = run()
    assert outcome.resumed >= 4
    assert outcome.units > 0
    np.testing.assert_array_equal(tifffile.imread(target), convforge.filter(array, "laplacian"))


def test_of_memory(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    array = noise(100, 120, 3)
    tifffile.imwrite(tmp_path / "a.tif", array, photometric="rgb", tile=(32, 32), compression="zlib", **PLAIN)
    url = Url("memory://images/a.tif")
    with fsspec.open(url.text, "wb") as file:
        file.write((tmp_path / "a.tif").read_bytes())
    reader = open_windows(url)
    np.testing.assert_array_equal(whole(reader), array)
    before = reader.fingerprint()
    with fsspec.open(url.text, "wb") as file:
        file.write((tmp_path / "a.tif").read_bytes() + b"\0")
    assert open_windows(url).fingerprint() != before
    with pytest.raises(ImageError, match=r"memory://images/b\.tif: cannot be read"):
        open_windows(Url("memory://images/b.tif"))


class Ranges(http.server.SimpleHTTPRequestHandler):
    """A server that gives parts of files."""

    def do_GET(self) -> None:
        content = Path(self.translate_path(self.path)).read_bytes()
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last or len(content) - 1), len(content) - 1) + 1
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        self.wfile.write(content[start:stop])

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Ranges, directory=str(tmp_path))) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{found.server_address[1]}"
        found.shutdown()
        thread.join()


def test_of_a_server(tmp_path: Path, server: str) -> None:
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    array = noise(3, 100, 120)
    tifffile.imwrite(
        tmp_path / "a.tif", array, photometric="minisblack", tile=(32, 32), compression="zlib", metadata={"axes": "ZYX"}
    )
    reader = open_windows(Url(f"{server}/a.tif"))
    assert reader.layout.axes == "ZYX"
    np.testing.assert_array_equal(whole(reader), array)
    region = part(array)
    np.testing.assert_array_equal(reader.read(region), array[region])


def test_a_scheme_that_is_not_read() -> None:
    with pytest.raises(ImageError, match=r"schemes that are: .*http.*s3"):
        open_windows(Url("gopher://example.org/a.tif"))
