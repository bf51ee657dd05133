"""TIFF in windows: every storage, against tifffile, and what is refused."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from tests.imaging.tiffs import tiff
from tests.imaging.windowed.windows import PLAIN, each, noise, part, whole, within

from convforge.imaging.image import ImageError
from convforge.imaging.windowed import open_windows
from convforge.imaging.windowed.tiff.ome_xml import read_ome

CODECS = [None, "lzw", "zlib", "zstd", "packbits", "lzma", "lerc", "jpeg2000", "jpeg", "webp", "jpegxl", "png"]
SHAPES: dict[str, tuple[int, ...]] = {"gray": (40, 70), "contig": (40, 70, 3), "separate": (3, 40, 70)}


def kept(path: Path, array: Any, kind: str = "gray", **options: Any) -> Path:
    more = {"photometric": "minisblack"} if kind == "gray" else {"photometric": "rgb", "planarconfig": kind}
    tifffile.imwrite(path, array, **PLAIN | more | options)
    return path


@pytest.mark.parametrize("order, big", [("<", False), (">", True)])
@pytest.mark.parametrize("codec", CODECS)
def test_every_storage_is_read(tmp_path: Path, codec: str | None, order: Any, big: bool) -> None:
    for kind, grid in each(SHAPES, ({"tile": (32, 48)}, {"rowsperstrip": 16})):
        predictor = {"predictor": True} if codec in ("lzw", "zlib", "zstd") else {}
        options: dict[str, Any] = {"byteorder": order, "bigtiff": big, "compression": codec, **grid, **predictor}
        dtype = np.uint8 if codec in ("jpeg", "webp", "packbits", "png") else np.uint16
        if (codec == "webp" and kind != "contig") or (codec in ("lerc", "jpegxl") and order == ">"):
            continue  # tifffile does not write these
        path = kept(tmp_path / "a.tif", noise(*SHAPES[kind], dtype=dtype), kind, **options)
        reader = open_windows(path)
        want = tifffile.imread(path)
        assert reader.layout.axes == {"gray": "YX", "contig": "YXS", "separate": "SYX"}[kind]
        np.testing.assert_array_equal(whole(reader), want)
        for _ in range(4):
            region = part(want)
            window = reader.read(region)
            assert window.flags.c_contiguous
            assert window.dtype == want.dtype
            np.testing.assert_array_equal(window, want[region])


@pytest.mark.parametrize("dtype", ["int8", "uint32", "int64", "uint64", "float16", "float32", "float64"])
def test_every_sample_type_is_read(tmp_path: Path, dtype: str) -> None:
    array = noise(40, 50, dtype=dtype)
    for predictor in (False, dtype not in ("int64", "uint64")):
        path = kept(tmp_path / "a.tif", array, tile=(16, 16), compression="zlib", predictor=predictor)
        np.testing.assert_array_equal(whole(open_windows(path)), array)


def test_a_window_of_uncompressed_strips_reads_only_its_rows(tmp_path: Path) -> None:
    path = kept(tmp_path / "a.tif", noise(100, 64), rowsperstrip=50)
    layout = open_windows(path).layout
    assert layout.chunks is None
    assert layout.shards == (50, 64)
    compressed = open_windows(kept(tmp_path / "b.tif", noise(100, 64), rowsperstrip=50, compression="lzw"))
    assert compressed.layout.chunks == (50, 64)


def test_absent_tiles_are_zeros(tmp_path: Path) -> None:
    array = noise(64, 64)
    tiles = (array[y : y + 32, x : x + 32] if y == x else None for y in (0, 32) for x in (0, 32))
    tifffile.imwrite(tmp_path / "a.tif", tiles, shape=(64, 64), dtype=np.uint8, tile=(32, 32), **PLAIN)
    array[:32, 32:] = array[32:, :32] = 0
    np.testing.assert_array_equal(whole(open_windows(tmp_path / "a.tif")), array)


@pytest.mark.parametrize(
    "axes, shape, options",
    [
        ("TCZYX", (2, 3, 4, 20, 30), {"ome": True}),
        ("TZCYX", (2, 3, 4, 20, 30), {"imagej": True}),
        ("TZCYXS", (2, 2, 2, 20, 30, 3), {"ome": True}),
        ("TZYX", (2, 3, 20, 30), {"truncate": True}),
        ("TCYX", (2, 3, 20, 30), {}),
        ("ZYXS", (4, 20, 30, 3), {}),
    ],
)
def test_axes_of_stacks(tmp_path: Path, axes: str, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    array = noise(*shape, dtype=np.uint8)
    tifffile.imwrite(
        tmp_path / "a.tif",
        array,
        photometric="rgb" if "S" in axes else "minisblack",
        metadata={"axes": axes},
        **options,
    )
    reader = open_windows(tmp_path / "a.tif")
    assert (reader.layout.axes, reader.layout.shape) == (axes, shape)
    np.testing.assert_array_equal(whole(reader), array)
    region = part(array)
    np.testing.assert_array_equal(reader.read(region), array[region])


def test_plain_pages_are_images(tmp_path: Path) -> None:
    array = noise(5, 20, 30)
    assert open_windows(kept(tmp_path / "a.tif", array)).layout.axes == "IYX"
    tifffile.imwrite(tmp_path / "b.tif", noise(100, 20, 3), photometric="minisblack")
    assert open_windows(tmp_path / "b.tif").layout.axes == ""  # rows of an RGB image, or narrow pages


def test_spacing_and_channels(tmp_path: Path) -> None:
    array = noise(2, 3, 20, 30)
    metadata: dict[str, Any] = {
        "axes": "ZCYX", "PhysicalSizeX": 250.0, "PhysicalSizeXUnit": "nm", "PhysicalSizeY": 0.5,
        "PhysicalSizeZ": 0.002, "PhysicalSizeZUnit": "mm", "Channel": {"Name": ["DAPI", "FITC", "Cy5"]},
    }  # fmt: skip
    tifffile.imwrite(tmp_path / "a.ome.tif", array, photometric="minisblack", metadata=metadata)
    layout = open_windows(tmp_path / "a.ome.tif").layout
    assert layout.axes == "ZCYX"
    assert layout.spacing == pytest.approx((2.0, None, 0.5, 0.25))
    assert layout.channels == ("DAPI", "FITC", "Cy5")
    resolution: dict[str, Any] = {"resolution": (4.0, 2.0)}
    tifffile.imwrite(
        tmp_path / "b.tif", array, imagej=True, metadata={"axes": "ZCYX", "spacing": 3.0, "unit": "um"}, **resolution
    )
    assert open_windows(tmp_path / "b.tif").layout.spacing == pytest.approx((3.0, None, 0.5, 0.25))
    kept(tmp_path / "c.tif", noise(20, 30), resolution=(10000, 5000), resolutionunit="centimeter")
    assert open_windows(tmp_path / "c.tif").layout.spacing == pytest.approx((2.0, 1.0))
    for unit in ("none", "inch"):  # inches say how large to print
        kept(tmp_path / "d.tif", noise(20, 30), resolution=(72, 72), resolutionunit=unit)
        assert open_windows(tmp_path / "d.tif").layout.spacing == ()


def test_alpha(tmp_path: Path) -> None:
    kept(tmp_path / "a.tif", noise(20, 30, 4), "contig", extrasamples=["unassalpha"])
    assert open_windows(tmp_path / "a.tif").layout.alpha
    kept(tmp_path / "b.tif", noise(20, 30, 4), "contig", extrasamples=["unspecified"])
    assert not open_windows(tmp_path / "b.tif").layout.alpha
    kept(tmp_path / "c.tif", noise(20, 30, 5), "contig", extrasamples=["unassalpha", "unspecified"])
    with pytest.raises(ImageError, match="alpha is not the last sample"):
        open_windows(tmp_path / "c.tif")


def test_pyramid_in_subifds(tmp_path: Path) -> None:
    array = noise(2, 64, 96, 3)
    with tifffile.TiffWriter(tmp_path / "a.ome.tif") as writer:
        options: dict[str, Any] = {"photometric": "rgb", "tile": (16, 16)}
        writer.write(array, subifds=2, metadata={"axes": "ZYXS"}, **options)
        writer.write(array[:, ::2, ::2], subfiletype=1, **options)
        writer.write(array[:, ::4, ::4], subfiletype=1, **options)
    reader = open_windows(tmp_path / "a.ome.tif")
    assert reader.layout.levels == ((2, 32, 48, 3), (2, 16, 24, 3))
    np.testing.assert_array_equal(whole(reader), array)


@pytest.mark.parametrize("marked", [False, True])
def test_pyramid_in_pages(tmp_path: Path, marked: bool) -> None:
    array = noise(128, 192)
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        writer.write(array, tile=(16, 16), **PLAIN)
        for step in (2, 4):
            writer.write(array[::step, ::step], tile=(16, 16), subfiletype=int(marked), **PLAIN)
    reader = open_windows(tmp_path / "a.tif")
    assert reader.layout.levels == ((64, 96), (32, 48))
    np.testing.assert_array_equal(whole(reader), array)


def test_slide(tmp_path: Path) -> None:
    from convforge.imaging.windowed import tiff as module

    array = noise(256, 384, 3)
    options: dict[str, Any] = {"photometric": "rgb", "compression": "jpeg", **PLAIN}
    with tifffile.TiffWriter(tmp_path / "a.svs", bigtiff=True) as writer:
        text = "Aperio Image Library v12.0.15\n384x256|AppMag = 20|MPP = 0.4990"
        writer.write(array, tile=(64, 64), description=text, **options)
        writer.write(array[:100, :150], description="Aperio Image Library v12", rowsperstrip=16, **options)
        writer.write(array[::4, ::4], tile=(64, 64), description="Aperio Image Library v12", **options)
        writer.write(array[:40, :30], description="Aperio\nlabel 30x40", subfiletype=1, rowsperstrip=16, **options)
        writer.write(array[:40, :80], description="Aperio\nmacro 80x40", subfiletype=9, rowsperstrip=16, **options)
    reader = open_windows(tmp_path / "a.svs")
    assert reader.layout.levels == ((64, 96, 3),)
    assert reader.layout.spacing == pytest.approx((0.499, 0.499, None))
    np.testing.assert_array_equal(whole(reader), tifffile.imread(tmp_path / "a.svs"))
    lost = module.FORMAT.lost(reader, reader.layout)
    assert [word for word in ("Thumbnail", "Label", "Macro") if any(word in text for text in lost)] == [
        "Thumbnail", "Label", "Macro",
    ]  # fmt: skip
    assert ".svs" not in module.FORMAT.suffixes


def test_ome_in_several_files(tmp_path: Path) -> None:
    array = noise(4, 20, 30)
    tifffile.imwrite(tmp_path / "a.ome.tif", array[:2], photometric="minisblack", metadata=None)
    tifffile.imwrite(tmp_path / "b.ome.tif", array[2:], photometric="minisblack", metadata=None)
    data = "".join(
        f'<TiffData FirstZ="{z}" IFD="{z % 2}"><UUID FileName="{"ab"[z // 2]}.ome.tif">u</UUID></TiffData>'
        for z in range(4)
    )
    text = (
        '<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"><Image ID="Image:0"><Pixels ID="Pixels:0" '
        'DimensionOrder="XYZCT" Type="uint8" SizeX="30" SizeY="20" SizeZ="4" SizeC="1" SizeT="1"><Channel ID="C:0"/>'
        f"{data}</Pixels></Image></OME>"
    )
    tifffile.tiffcomment(tmp_path / "a.ome.tif", text)
    reader = open_windows(tmp_path / "a.ome.tif")
    assert reader.layout.axes == "ZYX"
    np.testing.assert_array_equal(whole(reader), array)
    (tmp_path / "b.ome.tif").rename(tmp_path / "c.ome.tif")
    with pytest.raises(ImageError, match=r"in the file b\.ome\.tif, which is not beside it"):
        open_windows(tmp_path / "a.ome.tif")


def test_threads_read_one_file(tmp_path: Path) -> None:
    array = noise(256, 256, 3)
    path = kept(tmp_path / "a.tif", array, "contig", tile=(32, 32), compression="zlib", predictor=True)
    reader = open_windows(path)
    wrong: list[Any] = []

    def read() -> None:
        for y in range(0, 250, 10):
            region = (slice(y, y + 6), slice(y // 2, 256), slice(0, 3))
            if not np.array_equal(reader.read(region), array[region]):
                wrong.append(region)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    "content, words",
    [
        (tiff(noise(20, 20, 1), 8, 0), "inverted"),
        (tiff(noise(20, 20, 1) % 2, 1, 1), "samples are 1 bits"),
        (tiff(noise(20, 20, 4), 8, 5), "CMYK"),
        (tiff(noise(20, 20, 1) % 16, 4, 1), "leave --memory out"),
        (tiff(noise(20, 20, 1), 8, 3, colormap=np.zeros((3, 256), np.uint16)), "palette"),
        (b"not a TIFF at all", "is no TIFF"),
        (b"", "is no TIFF"),
    ],
)
def test_refused_by_name(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.tif"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=words) as caught:
        open_windows(path)
    assert str(path) in str(caught.value)


def test_other_refusals(tmp_path: Path) -> None:
    kept(tmp_path / "a.tif", noise(20, 30), extratags=[(274, "H", 1, 6, True)])
    with pytest.raises(ImageError, match="orientation 6"):
        open_windows(tmp_path / "a.tif")
    with tifffile.TiffWriter(tmp_path / "b.tif") as writer:
        writer.write(noise(20, 30), **PLAIN)
        writer.write(noise(21, 33), **PLAIN)
    with pytest.raises(ImageError, match="page 1 has 30 x 20 pixels and page 2 has 33 x 21"):
        open_windows(tmp_path / "b.tif")
    tifffile.imwrite(
        tmp_path / "c.tif", noise(4, 32, 32), volumetric=True, tile=(4, 16, 16), photometric="minisblack", **PLAIN
    )
    with pytest.raises(ImageError, match="ImageDepth 4"):
        open_windows(tmp_path / "c.tif")


@pytest.mark.parametrize("name", ["a.dat", "a.svs", "a.TIFF", "a"])
def test_recognised_by_content(tmp_path: Path, name: str) -> None:
    array = noise(20, 30)
    kept(tmp_path / "a.tif", array).rename(tmp_path / name)
    np.testing.assert_array_equal(whole(open_windows(tmp_path / name)), array)


@pytest.mark.thorough
def test_many_pages_take_little_memory(tmp_path: Path) -> None:
    array = np.zeros((20_000, 16, 16), np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", array, compression="zlib", metadata={"axes": "TYX"}, photometric="minisblack")
    with within(15e6):
        reader = open_windows(tmp_path / "a.tif")
        reader.read((slice(19_999, 20_000), slice(0, 16), slice(0, 16)))
    assert reader.layout.axes == "TYX"


@pytest.mark.parametrize(("plane", "others"), [
    ('TheZ="0" TheC="0" TheT="0"', ["Instrument"]), ('TheZ="0" ExposureTime="0.1"', ["Instrument", "Plane"]),
])  # fmt: skip
def test_elements_that_are_not_read_are_named(plane: str, others: list[str]) -> None:
    pixels = f'<Pixels DimensionOrder="XYZCT" SizeX="3" SizeY="2"><Channel/><TiffData/><Plane {plane}/></Pixels>'
    text = f"<OME><Instrument><Objective/></Instrument><Image>{pixels}</Image></OME>"
    assert read_ome(text, "a.ome.tif").others == others
