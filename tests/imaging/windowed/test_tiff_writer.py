"""TIFF written window by window: the storage of the source, read back by tifffile and by other readers."""

from __future__ import annotations

import lzma
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from tests.imaging.windowed.windows import (
    PLAIN,
    begun,
    copied,
    each,
    filled,
    incomplete,
    layout_for,
    noise,
    regions,
    whole,
    within,
)  # fmt: skip

from convforge.imaging.image import ImageError
from convforge.imaging.windowed import Layout, Url, format_of, open_windows
from convforge.imaging.windowed import tiff as module
from convforge.imaging.windowed.tiff.storage import Storage

SHAPES: dict[str, tuple[int, ...]] = {"gray": (70, 100), "contig": (70, 100, 3), "separate": (3, 70, 100)}
GRIDS: tuple[dict[str, Any], ...] = ({"tile": (32, 48)}, {"rowsperstrip": 16})
KEPT = ("compression", "predictor", "tile", "rowsperstrip", "photometric", "planarconfig", "shaped", "extrasamples")


def kept(path: Path, array: Any, kind: str = "gray", **options: Any) -> Path:
    more = {"photometric": "minisblack"} if kind == "gray" else {"photometric": "rgb", "planarconfig": kind}
    tifffile.imwrite(path, array, **PLAIN | more | options)
    return path


def storage(path: Path) -> dict[str, Any]:
    with tifffile.TiffFile(path) as file:
        page = file.pages.first.aspage()
        return {name: getattr(page, name) for name in KEPT} | {"order": file.byteorder, "big": file.is_bigtiff}


@pytest.mark.parametrize("order, big", [("<", False), (">", True)])
@pytest.mark.parametrize("codec", [None, "lzw", "zlib", "zstd", "packbits", "lzma", "jpeg2000", "jpeg", "webp", "png"])
def test_storage_is_kept(tmp_path: Path, codec: str | None, order: Any, big: bool) -> None:
    for kind, grid in each(SHAPES, GRIDS):
        if codec == "webp" and kind != "contig":
            continue  # WebP has colours only
        predictor = {"predictor": True} if codec in ("lzw", "zlib", "zstd") else {}
        options: dict[str, Any] = {"byteorder": order, "bigtiff": big, "compression": codec, **grid, **predictor}
        dtype = np.uint8 if codec in ("jpeg", "webp", "png") else np.uint16
        path = kept(tmp_path / "a.tif", noise(*SHAPES[kind], dtype=dtype), kind, **options)
        (tmp_path / "b.tif").unlink(missing_ok=True)
        source, layout, back = copied(path, tmp_path / "b.tif")
        assert storage(tmp_path / "b.tif") == storage(path)
        result = tifffile.imread(tmp_path / "b.tif")
        np.testing.assert_array_equal(result, back)
        notes = module.FORMAT.notes(source, layout)
        if codec == "jpeg":
            assert [text for text in notes if "JPEG at quality 95" in text]
            assert np.abs(result.astype(int) - whole(source)).mean() < 12
        else:
            assert notes == ()
            np.testing.assert_array_equal(result, whole(source))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize(
    "codec", ["lzw", "zlib", "zstd", "packbits", "lzma", "lerc", "png", "webp", "jpegxl", "jpeg2000"]
)
def test_what_cannot_be_compressed_is_encoded_all_the_same(tmp_path: Path, codec: str, dtype: str) -> None:
    if codec == "webp" and dtype != "uint8":
        return  # WebP has samples of 8 bits only
    array = np.random.default_rng(3).integers(0, np.iinfo(dtype).max, (150, 300, 3), dtype=dtype, endpoint=True)
    for grid in ({"tile": (16, 16)}, {"tile": (128, 256)}, {"rowsperstrip": 1}, {"rowsperstrip": 150}):
        kept(tmp_path / "a.tif", array, "contig", compression=codec, **grid)
        copied(tmp_path / "a.tif", tmp_path / "b.tif")
        np.testing.assert_array_equal(tifffile.imread(tmp_path / "b.tif"), tifffile.imread(tmp_path / "a.tif"))
        assert storage(tmp_path / "b.tif") == storage(tmp_path / "a.tif")


@pytest.mark.thorough  # LZMA takes ten seconds
def test_a_large_tile_of_noise_in_lzma(tmp_path: Path) -> None:
    tile = np.random.default_rng(3).integers(0, 2**16, (3400, 3400), dtype=np.uint16)
    storage = Storage(tile.dtype, 1, False, (3400, 3400), 0, 34925, 1, "<", False, False)
    assert lzma.decompress(storage.encoded(tile[..., np.newaxis])) == tile.tobytes()


@pytest.mark.parametrize("dtype", ["int8", "uint32", "int64", "float16", "float32", "float64"])
def test_sample_types(tmp_path: Path, dtype: str) -> None:
    array = noise(40, 50, dtype=np.float64).astype(dtype)
    for predictor in (False, dtype != "int64"):
        kept(tmp_path / "a.tif", array, tile=(16, 16), compression="zlib", predictor=predictor)
        copied(tmp_path / "a.tif", tmp_path / "b.tif")
        np.testing.assert_array_equal(tifffile.imread(tmp_path / "b.tif"), array)
        assert storage(tmp_path / "b.tif") == storage(tmp_path / "a.tif")


def test_a_compression_that_cannot_hold_the_result(tmp_path: Path) -> None:
    kept(tmp_path / "a.tif", noise(40, 50, 3), "contig", tile=(16, 16), compression="jpeg")
    source, layout, _ = copied(tmp_path / "a.tif", tmp_path / "b.tif", dtype=np.dtype(np.float32))
    (note,) = module.FORMAT.notes(source, layout)
    assert "JPEG" in note
    assert "Deflate" in note
    assert storage(tmp_path / "b.tif")["compression"] == tifffile.COMPRESSION.ADOBE_DEFLATE
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "b.tif"), whole(source))


@pytest.mark.parametrize("subsampling", [(1, 1), (2, 1), (2, 2), (4, 1)])
@pytest.mark.parametrize("grid", [{"tile": (48, 80)}, {"rowsperstrip": 32}, {"rowsperstrip": 70}])
def test_jpeg_with_fewer_samples_of_colour(tmp_path: Path, subsampling: Any, grid: dict[str, Any]) -> None:
    ramp = np.add.outer(np.arange(70), np.arange(100)).astype(np.uint8)
    if "tile" in grid and subsampling == (4, 1):
        grid = {"tile": (64, 96)}
    options: dict[str, Any] = {"compression": "jpeg", "subsampling": subsampling, **grid}
    kept(tmp_path / "a.tif", np.stack([ramp, ramp[::-1], ramp], -1), "contig", **options)
    source, _, back = copied(tmp_path / "a.tif", tmp_path / "b.tif")
    with tifffile.TiffFile(tmp_path / "b.tif") as file:
        assert file.pages.first.aspage().subsampling == subsampling
    assert storage(tmp_path / "b.tif") == storage(tmp_path / "a.tif")
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "b.tif"), back)
    assert np.abs(back.astype(int) - whole(source)).mean() < 2


@pytest.mark.parametrize("name", ["pyvips", "PIL", "cv2"])
def test_other_readers_agree(tmp_path: Path, name: str) -> None:
    reader = pytest.importorskip({"PIL": "PIL.Image"}.get(name, name))
    for number, (codec, order, grid) in enumerate(each((None, "lzw", "zlib"), "<>", GRIDS)):
        array = noise(70, 100, 3)
        kept(tmp_path / "a.tif", array, "contig", compression=codec, byteorder=order, **grid)
        path = str(tmp_path / f"{number}.tif")  # pyvips remembers files by name
        copied(tmp_path / "a.tif", Path(path))
        if name == "pyvips":
            found = reader.Image.new_from_file(path).numpy()
        elif name == "PIL":
            with reader.open(path) as image:
                found = np.asarray(image)
        else:
            found = reader.imread(path, reader.IMREAD_UNCHANGED)[..., ::-1]
        np.testing.assert_array_equal(found, array)


def test_alpha_tags_and_resolution_are_kept(tmp_path: Path) -> None:
    tags = [(315, "s", 0, "Müller".encode(), True), (33550, "d", 3, (1.5, 2.5, 0.0), True), (700, "B", 2, b"<>", True)]
    for order in "<>":
        kept(
            tmp_path / "a.tif", noise(20, 30, 4), "contig", extrasamples=["assocalpha"], byteorder=order, tile=(16, 16),
            resolution=(300, 150), resolutionunit="inch", description="a leaf", extratags=tags,
            datetime="2020:01:02 03:04:05",
        )  # fmt: skip
        source, layout, _ = copied(tmp_path / "a.tif", tmp_path / "b.tif")
        assert layout.alpha
        with tifffile.TiffFile(tmp_path / "b.tif") as file:
            page = file.pages.first
            found = {code: page.tags.valueof(code) for code in (270, 282, 283, 296, 306, 315, 33550, 338)}
        assert found == {
            270: "a leaf", 282: (300, 1), 283: (150, 1), 296: 2, 306: "2020:01:02 03:04:05", 315: "Müller",
            33550: (1.5, 2.5, 0.0), 338: (1,),
        }  # fmt: skip
        assert module.FORMAT.lost(source, layout) == ("XMP",)


@pytest.mark.parametrize("order", ["<", ">"])
def test_directories_of_exif_are_kept(tmp_path: Path, order: str) -> None:
    from convforge.imaging.formats import exif, tiff_tags
    from convforge.imaging.image import Metadata

    camera: exif.Directory = {33434: exif.Entry(exif.RATIONAL, 1, b"\1\0\0\0\xfa\0\0\0")}
    metadata = Metadata(exif=exif.pack_block({exif.CAMERA: camera}))
    with (tmp_path / "a.tif").open("w+b") as file:
        options = tiff_tags.page_options(metadata, 1, big=False, order=order)
        with tifffile.TiffWriter(file, byteorder=order) as writer:
            writer.write(noise(20, 30), **options)
        tiff_tags.point_to_tags(file, metadata)
    copied(tmp_path / "a.tif", tmp_path / "b.tif")
    with tifffile.TiffFile(tmp_path / "b.tif") as read:
        assert read.byteorder == order
        assert read.pages.first.tags.valueof(34665)["ExposureTime"] == (1, 250)


def test_pyramid_is_written_where_the_source_has_it(tmp_path: Path) -> None:
    array = noise(128, 192)
    for below in (True, False):
        with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
            writer.write(array, tile=(16, 16), subifds=2 if below else None, **PLAIN)
            for step in (2, 4):
                writer.write(array[::step, ::step], tile=(16, 16), subfiletype=1, **PLAIN)
        copied(tmp_path / "a.tif", tmp_path / "b.tif")
        with tifffile.TiffFile(tmp_path / "b.tif") as file:
            assert [level.shape for level in file.series[0].levels] == [(128, 192), (64, 96), (32, 48)]
            assert len(file.pages) == (1 if below else 3)
            np.testing.assert_array_equal(file.series[0].asarray(), array)
            assert (file.series[0].levels[2].asarray() == 3).all()
        (tmp_path / "b.tif").unlink()


def test_slide_becomes_a_pyramidal_bigtiff(tmp_path: Path) -> None:
    array = noise(256, 384, 3)
    options: dict[str, Any] = {"photometric": "rgb", "compression": "jpeg", "tile": (64, 64), **PLAIN}
    with tifffile.TiffWriter(tmp_path / "a.svs") as writer:
        writer.write(array, description="Aperio Image Library v12.0.15\n384x256|MPP = 0.5", **options)
        writer.write(array[:100, :150], description="Aperio Image", photometric="rgb", **PLAIN)
        writer.write(array[::4, ::4], description="Aperio Image", **options)
    source, layout, back = copied(tmp_path / "a.svs", tmp_path / "b.tif")
    again = open_windows(tmp_path / "b.tif")
    assert again.layout == replace(layout_for(source, tmp_path / "b.tif"), origin=(), steps=())  # of results only
    assert again.layout.spacing[:2] == pytest.approx((0.5, 0.5))
    np.testing.assert_array_equal(whole(again), back)
    assert storage(tmp_path / "b.tif")["big"]
    with tifffile.TiffFile(tmp_path / "b.tif") as file:  # as in the slide; OpenSlide finds reduced copies only there
        assert [page.shape[:2] for page in file.pages] == [(256, 384), (64, 96)]
    assert "the scanner's description" in module.FORMAT.lost(source, layout)


@pytest.mark.parametrize(
    "axes, shape, chunks, tile",
    [
        ("TCZYX", (2, 3, 4, 70, 90), (1, 1, 1, 32, 48), (32, 48)),
        ("YXC", (70, 90, 5), None, (512, 512)),
        ("YX", (700, 900), (100, 100), (512, 512)),
        ("SYX", (3, 70, 90), (3, 32, 32), (32, 32)),
        ("YXS", (70, 90, 1), (64, 64, 1), (64, 64)),
    ],
)
@pytest.mark.parametrize("name", ["b.tif", "b.ome.tif"])
def test_from_an_array(tmp_path: Path, axes: str, shape: Any, chunks: Any, tile: Any, name: str) -> None:
    array = noise(*shape, dtype=np.uint16)
    np.save(tmp_path / "a.npy", array)
    source = open_windows(tmp_path / "a.npy")
    spacing = tuple({"Y": 0.5, "X": 0.25, "Z": 2.0}.get(letter) for letter in axes)
    names = ("red", "green", "blue") if axes == "TCZYX" else ()
    layout = layout_for(source, tmp_path / name, axes, chunks=chunks, shards=chunks, spacing=spacing, channels=names)
    writer = begun(source, tmp_path / name, layout)
    filled(writer, array)
    np.testing.assert_array_equal(whole(writer), array)
    writer.finish()
    incomplete(tmp_path / name).rename(tmp_path / name)
    assert storage(tmp_path / name)["tile"] == tile
    assert storage(tmp_path / name)["predictor"] == 2
    with tifffile.TiffFile(tmp_path / name) as file:
        assert bool(file.is_ome) == name.endswith(".ome.tif")
        np.testing.assert_array_equal(file.series[0].asarray(), array.squeeze())
    found = open_windows(tmp_path / name).layout
    if axes == "TCZYX":
        assert (found.axes, found.shape) == (axes, shape)
        assert found.spacing == pytest.approx(spacing)
        assert found.channels == ("red", "green", "blue")
    assert found.spacing[found.axes.index("X")] == pytest.approx(0.25)


def test_ome_xml_is_kept_and_made_true(tmp_path: Path) -> None:
    array = noise(2, 3, 64, 96)
    metadata: dict[str, Any] = {
        "axes": "ZCYX", "PhysicalSizeX": 250.0, "PhysicalSizeXUnit": "nm", "PhysicalSizeY": 250.0,
        "PhysicalSizeYUnit": "nm", "Channel": {"Name": ["DAPI", "FITC", "Cy5"]}, "Name": "leaf",
    }  # fmt: skip
    tifffile.imwrite(
        tmp_path / "a.ome.tif", array, photometric="minisblack", metadata=metadata, tile=(16, 16), compression="zlib"
    )
    source = open_windows(tmp_path / "a.ome.tif")
    half = layout_for(source, tmp_path / "b.tif", shape=(2, 3, 32, 48), spacing=(None, None, 0.5, 0.5))
    writer = begun(source, tmp_path / "b.ome.tif", half)
    filled(writer, array[..., ::2, ::2])
    writer.finish()
    incomplete(tmp_path / "b.ome.tif").rename(tmp_path / "b.ome.tif")
    again = open_windows(tmp_path / "b.ome.tif")
    assert again.layout.channels == ("DAPI", "FITC", "Cy5")
    assert again.layout.spacing == pytest.approx((None, None, 0.5, 0.5))
    np.testing.assert_array_equal(whole(again), array[..., ::2, ::2])
    with tifffile.TiffFile(tmp_path / "b.ome.tif") as file:
        text = file.pages.first.description
        assert file.series[0].axes == "ZCYX"
        np.testing.assert_array_equal(file.series[0].asarray(), array[..., ::2, ::2])
    assert 'Name="leaf"' in text
    assert 'SizeX="48"' in text
    assert "<OME " in text


def test_imagej_stays_imagej(tmp_path: Path) -> None:
    array = noise(2, 3, 40, 50, dtype=np.uint16)
    metadata = {"axes": "ZCYX", "spacing": 3.0, "unit": "um", "min": 0.0, "max": 99.0}
    tifffile.imwrite(tmp_path / "a.tif", array, imagej=True, metadata=metadata, resolution=(4.0, 2.0))
    source, layout, _ = copied(tmp_path / "a.tif", tmp_path / "b.tif")
    with tifffile.TiffFile(tmp_path / "b.tif") as file:
        assert file.is_imagej
        assert file.series[0].axes == "ZCYX"
        assert file.imagej_metadata is not None
        assert "max" not in file.imagej_metadata
        np.testing.assert_array_equal(file.series[0].asarray(), array)
    assert open_windows(tmp_path / "b.tif").layout.spacing == pytest.approx((3.0, None, 0.5, 0.25))
    assert module.FORMAT.lost(source, layout) == ("range that ImageJ shows",)
    half = layout_for(
        source, tmp_path / "b.tif", shape=(2, 3, 20, 25), spacing=(3.0, None, 1.0, 0.5), steps=(1, 1, 2, 2)
    )
    begun(source, tmp_path / "c.tif", half)
    assert open_windows(incomplete(tmp_path / "c.tif")).layout.spacing == pytest.approx((3.0, None, 1.0, 0.5))


def test_imagej_with_fewer_pages_is_described_anew(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", noise(3, 40, 50, dtype=np.uint16), imagej=True, metadata={"axes": "CYX"})
    source = open_windows(tmp_path / "a.tif")
    layout = module.FORMAT.arranged(Layout((40, 50), np.dtype(np.uint16), "YX"), tmp_path, source)
    begun(source, tmp_path / "b.tif", layout)
    with tifffile.TiffFile(incomplete(tmp_path / "b.tif")) as file:
        assert not file.is_imagej
    assert "ImageJ's description" in module.FORMAT.lost(source, layout)


def test_descriptions_of_later_pages_are_named_as_lost(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        for text in ("one", "two"):
            writer.write(noise(20, 30), description=text, **PLAIN)
    source, layout, _ = copied(tmp_path / "a.tif", tmp_path / "b.tif")
    assert module.FORMAT.lost(source, layout) == ("ImageDescription of the pages behind the first",)
    with tifffile.TiffFile(tmp_path / "b.tif") as file:
        assert file.pages.first.description == "one"


def test_windows_from_several_threads(tmp_path: Path) -> None:
    array = noise(256, 256, 3)
    kept(tmp_path / "a.tif", array, "contig", tile=(32, 32), compression="zlib")
    source = open_windows(tmp_path / "a.tif")
    layout = layout_for(source, tmp_path / "b.tif")
    writer = begun(source, tmp_path / "b.tif", layout)
    every = regions(layout)

    def write(mine: Any) -> None:
        for region in mine:
            writer.write(region, array[region])

    threads = [threading.Thread(target=write, args=(every[start::4],)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(tifffile.imread(incomplete(tmp_path / "b.tif")), array)


@pytest.mark.parametrize("codec", [None, "zlib"])
def test_reopened_writer_continues(tmp_path: Path, codec: str | None) -> None:
    array = noise(2, 100, 100)
    kept(tmp_path / "a.tif", array, compression=codec, rowsperstrip=25)
    source = open_windows(tmp_path / "a.tif")
    layout = layout_for(source, tmp_path / "b.tif")
    first, *rest = regions(layout)
    begun(source, tmp_path / "b.tif", layout).write(first, array[first])
    with incomplete(tmp_path / "b.tif").open("ab") as file:  # a window that a killed process had not finished
        file.write(b"\xff" * 999)
    kind = format_of(tmp_path / "b.tif")
    assert kind is not None
    writer = kind.reopen(incomplete(tmp_path / "b.tif"), layout, source)
    for region in [*rest, rest[-1]]:
        writer.write(region, array[region])
    np.testing.assert_array_equal(tifffile.imread(incomplete(tmp_path / "b.tif")), array)
    other = layout_for(source, tmp_path / "b.tif", shape=(2, 90, 100))
    with pytest.raises(ImageError, match="is of another result"):
        kind.reopen(incomplete(tmp_path / "b.tif"), other, source)


def test_a_huge_file_takes_little(tmp_path: Path) -> None:

    np.save(tmp_path / "a.npy", noise(20, 20))
    source, side = open_windows(tmp_path / "a.npy"), 100_000
    grid = (1024, 1024)
    layout = module.FORMAT.arranged(
        Layout((side, side), np.dtype(np.uint16), "YX", chunks=grid, shards=grid), tmp_path, source
    )
    region = (slice(99_328, side), slice(1024, 2048))
    tile = noise(672, 1024, dtype=np.uint16)
    with within(40e6):
        writer = begun(source, tmp_path / "b.tif", layout)
        writer.write(region, tile)
        np.testing.assert_array_equal(writer.read(region), tile)
    assert incomplete(tmp_path / "b.tif").stat().st_size < 2e6
    with tifffile.TiffFile(incomplete(tmp_path / "b.tif")) as file:
        assert file.is_bigtiff
        assert file.pages.first.shape == (side, side)


@pytest.mark.parametrize("name", ["b.btf", "b.tf8", "b.tif"])
def test_suffixes_of_bigtiff(tmp_path: Path, name: str) -> None:
    kept(tmp_path / "a.tif", noise(20, 30))
    copied(tmp_path / "a.tif", tmp_path / name)
    assert storage(tmp_path / name)["big"] == (name != "b.tif")


def test_urls_are_not_written(tmp_path: Path) -> None:
    source = open_windows(kept(tmp_path / "a.tif", noise(20, 30)))
    layout = layout_for(source, tmp_path / "b.tif")
    with pytest.raises(ImageError, match="written on a local disk only"):
        module.FORMAT.create(Url("s3://bucket/b.tif"), layout, source)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_full_disk_is_an_image_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import os

    source = open_windows(kept(tmp_path / "a.tif", noise(64, 64), tile=(16, 16), compression="zlib"))
    layout = layout_for(source, tmp_path / "b.tif")
    writer = begun(source, tmp_path / "b.tif", layout)

    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ImageError, match="No space left"):
        writer.write(regions(layout)[0], whole(source)[regions(layout)[0]])
