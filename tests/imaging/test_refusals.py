"""Bad files and impossible results: one clear sentence each, and nothing lost."""

from __future__ import annotations

import io
import os
import re
import stat
import struct
import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import PIL.Image
import pytest
import tifffile

from convforge.imaging.files import Image, ImageError, Metadata, check_writable, read_image, write_image
from convforge.imaging.formats import known

PIXELS = np.random.default_rng(3).integers(0, 256, (40, 50, 3), dtype=np.uint8)


def encoded(suffix: str) -> bytes:
    buffer = io.BytesIO()
    if suffix in (".png", ".jpg"):
        PIL.Image.fromarray(PIXELS).save(buffer, {".png": "png", ".jpg": "jpeg"}[suffix])
    elif suffix == ".npy":
        np.save(buffer, PIXELS)
    elif suffix == ".tif":
        tifffile.imwrite(buffer, PIXELS, photometric="rgb")
    elif suffix == ".zlib.tif":
        tifffile.imwrite(buffer, PIXELS, photometric="rgb", compression="zlib", rowsperstrip=8)
    else:
        tifffile.imwrite(buffer, np.stack([PIXELS] * 3), photometric="rgb")
    return buffer.getvalue()


def refused(path: Path, *words: str, **options: Any) -> str:
    """Return the message, which must be one line, begin with the file and hold every word."""
    with pytest.raises(ImageError) as caught:
        read_image(path, **options)
    assert caught.value.__cause__ is not caught.value, "an error that causes itself"
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".npy", ".tif", ".zlib.tif", ".pages.tif"])
@pytest.mark.parametrize("part", [1, 3, 4, 8, 12, 30, 60, 0.2, 0.5, 0.9, 0.999])
def test_truncated(tmp_path: Path, suffix: str, part: float, capfd: pytest.CaptureFixture[str]) -> None:
    data = encoded(suffix)
    path = tmp_path / f"a{suffix}"
    keep = int(part) if part >= 1 else int(part * len(data))
    path.write_bytes(data[:keep])
    if suffix.endswith("tif") and part == 0.999 and suffix != ".tif":
        # tifffile puts the pages' list before the last pixels: what is cut may be padding, which is no loss
        try:
            got = read_image(path).pixels
        except ImageError:
            return
        np.testing.assert_array_equal(got, PIXELS if suffix == ".zlib.tif" else np.stack([PIXELS] * 3))
        return
    message = refused(path)
    assert re.search("truncated|damaged", message)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("suffix", [".png", ".zlib.tif"])
def test_damaged_in_the_middle(tmp_path: Path, suffix: str) -> None:
    data = bytearray(encoded(suffix))
    at = len(data) // 2
    data[at : at + 20] = bytes(20)
    path = tmp_path / f"a{suffix}"
    path.write_bytes(data)
    refused(path, "damaged")


def test_not_an_image(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    refused(path, "no such file")
    refused(tmp_path, "folder")
    path.write_bytes(b"")
    refused(path, "empty", "0 bytes")
    path.write_text("hello world, I am no image")
    refused(path, "not an image", "PNG, JPEG, TIFF or .npy")
    path.write_bytes(b"GIF89a" + bytes(30))
    refused(path, "a GIF", "convert")
    path.write_bytes(b"RIFF\0\0\0\0WEBPVP8 ")
    refused(path, "a WebP")
    refused(Path("a\0b.png"), "no such file")
    refused(tmp_path / ("a" * 300), "cannot be read")
    with pytest.raises(ImageError, match="max_pixels is 0"):
        read_image(path, max_pixels=0)


# Headers that promise what the file does not hold.


def png_bomb(width: int, height: int, bits: int = 8, colour: int = 2, body: bytes | None = None) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    packed = zlib.compress(bytes(1000)) if body is None else body
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def jpeg_bomb(width: int, height: int) -> bytes:
    data = bytearray(encoded(".jpg"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def tiff_bomb(width: int, height: int, compression: int = 1, samples: int = 1, count: int = 100) -> bytes:
    tags = [(256, 4, width), (257, 4, height), (258, 3, 8), (259, 3, compression), (262, 3, 1), (273, 4, 200)]
    tags += [(277, 3, samples), (278, 4, height), (279, 4, count)]
    entries = b"".join(
        struct.pack("<HHI", tag, kind, 1) + struct.pack("<I" if kind == 4 else "<HH", *((v,) if kind == 4 else (v, 0)))
        for tag, kind, v in tags
    )
    data = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", 0)
    return data.ljust(200, b"\0") + bytes(100)


def npy_bomb(shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return buffer.getvalue() + bytes(100)


BOMBS = {
    "png": png_bomb(16000, 16000),
    "png16": png_bomb(16000, 16000, bits=16, colour=6),
    "jpeg": jpeg_bomb(16000, 16000),
    "tiff": tiff_bomb(16000, 16000),
    "tiff-deflate": tiff_bomb(16000, 16000, compression=8),
    "tiff-lzw": tiff_bomb(16000, 16000, compression=5),
    "tiff-zstd": tiff_bomb(16000, 16000, compression=50000),
    "tiff-sparse": tiff_bomb(16000, 16000, count=0),
    "npy": npy_bomb((16000, 16000)),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_declared_pixels_out_of_proportion(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import imagecodecs
    from PIL import JpegImagePlugin

    def decoded(*_: object, **__: object) -> None:
        raise AssertionError("decoded before the header was checked")

    monkeypatch.setattr(imagecodecs, "png_decode", decoded)
    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "load", decoded)
    monkeypatch.setattr(tifffile.TiffPage, "asarray", decoded)
    path = tmp_path / "bomb"
    path.write_bytes(BOMBS[kind])
    assert re.search("out of proportion|truncated", refused(path))


@pytest.mark.parametrize(
    "data",
    [
        png_bomb(20000, 20000),
        jpeg_bomb(20000, 20000),
        tiff_bomb(20000, 20000),
        tiff_bomb(2000, 2000, samples=1000),
    ],
    ids=["png", "jpeg", "tiff", "tiff-bands"],
)
def test_beyond_the_limit(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "large"
    path.write_bytes(data)
    refused(path, "beyond the limit of 268435456", "--max-pixels")


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".npy", ".tif", ".pages.tif"])
def test_the_limit_is_exact(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(encoded(suffix))
    count = 2000 * (3 if "pages" in suffix else 1)
    refused(path, f"beyond the limit of {count - 1}", max_pixels=count - 1)
    assert read_image(path, max_pixels=count).pixels.size == 3 * count


def test_an_honest_blank_image_is_read(tmp_path: Path) -> None:
    blank = np.zeros((3000, 3000), np.uint8)
    for suffix in (".png", ".tif", ".jpg"):
        write_image(tmp_path / f"a{suffix}", Image(blank))
        assert not read_image(tmp_path / f"a{suffix}").pixels.any()
    tifffile.imwrite(tmp_path / "z.tif", blank, compression="zstd")
    assert read_image(tmp_path / "z.tif").width == 3000


def test_samples_and_colours_that_cannot_be_filtered(tmp_path: Path) -> None:
    path = tmp_path / "a"
    tifffile.imwrite(path, np.zeros((3, 4), np.complex64))
    refused(path, "complex64", "convert")
    tifffile.imwrite(path, np.zeros((3, 4, 4), np.uint8), photometric="separated")
    refused(path, "CMYK", "RGB")
    for array, word in (
        (np.zeros((3, 4), complex), "complex128"),
        (np.zeros((3, 4), "U3"), "<U3"),
        (np.zeros((3, 4), [("a", "f4")]), "('a'"),
        (np.zeros(4), "shape (4,)"),
        (np.zeros((1, 2, 3, 4, 5)), "shape (1, 2, 3, 4, 5)"),
        (np.zeros((0, 4)), "no image"),
    ):
        with path.open("wb") as file:
            np.save(file, array)
        refused(path, word)
    with path.open("wb") as file:
        np.save(file, np.array([[object()]]), allow_pickle=True)
    refused(path, "object")


def test_pages_of_different_shapes(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as writer:
        writer.write(np.zeros((30, 40), np.uint8))
        writer.write(np.zeros((20, 10), np.uint8))
    refused(path, "pages of different shapes", "40 x 30", "page 2", "10 x 20", "split")


def test_animated_png(tmp_path: Path) -> None:
    frames = [PIL.Image.fromarray(PIXELS), PIL.Image.fromarray(PIXELS[::-1])]
    frames[0].save(tmp_path / "a.png", save_all=True, append_images=frames[1:])
    refused(tmp_path / "a.png", "animated", "TIFF")


# Writing.


@pytest.mark.parametrize(
    ("name", "dtype", "options", "words"),
    [
        ("a.bmp", "uint8", {}, ["unknown ending '.bmp'", ".png", ".jpg", ".tif", ".npy"]),
        ("a.NDPI", "uint8", {}, [".ndpi is only read; write a.tif, or a.ome.tif for OME-TIFF"]),
        ("a", "uint8", {}, ["no ending", ".png"]),
        ("a.png", "float32", {}, ["uint8 or uint16", "float32", "write .tif", "--out-dtype uint8"]),
        ("a.png", "int16", {}, ["int16", "--out-dtype"]),
        ("a.jpg", "uint16", {}, ["JPEG holds uint8", "uint16", ".png"]),
        ("a.png", "uint8", {"bands": 5}, ["1 or 3 bands", "5", ".tif"]),
        ("a.jpeg", "uint8", {"bands": 2}, ["1 or 3 bands"]),
        ("a.jpg", "uint8", {"alpha": True}, ["no alpha", ".png"]),
        ("a.png", "uint8", {"pages": True}, ["one page", ".tif"]),
        ("a.tif", "complex64", {}, ["complex64"]),
        ("a.tif", "bool", {}, ["bool"]),
        ("missing/a.tif", "uint8", {}, ["missing", "does not exist"]),
        ("file/a.tif", "uint8", {}, ["cannot be written", "not a folder"]),
        ("folder.tif", "uint8", {}, ["is a folder"]),
        ("a" * 300 + ".tif", "uint8", {}, ["cannot be written"]),
    ],
)
def test_check_writable(tmp_path: Path, name: str, dtype: str, options: dict[str, Any], words: list[str]) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder.tif").mkdir()
    with pytest.raises(ImageError) as caught:
        check_writable(tmp_path / name, dtype, **options)
    for word in [str(tmp_path / name), *words]:
        assert word in str(caught.value)
    check_writable(tmp_path / "a.tif", "float32", bands=9, pages=True, alpha=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.tif"]


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif", ".npy"])
@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("encoder"), KeyboardInterrupt()]
)
def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, error: BaseException
) -> None:
    path = tmp_path / f"a{suffix}"
    write_image(path, Image(PIXELS))
    before = path.read_bytes()

    class Failing:
        def __init__(self, kind: Any) -> None:
            self.kind = kind

        def __getattr__(self, name: str) -> Any:
            return getattr(self.kind, name)

        def write(self, file: io.BufferedWriter, image: Image) -> None:
            file.write(b"half of it")
            raise error

    monkeypatch.setattr(known, "FORMATS", tuple(Failing(kind) for kind in known.FORMATS))
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else ImageError
    with pytest.raises(expected):
        write_image(path, Image(PIXELS[::-1]))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_permissions_links_and_devices(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_image(tmp_path / "a.png", Image(PIXELS))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.png").stat().st_mode) == 0o640
    (tmp_path / "a.png").chmod(0o604)
    write_image(tmp_path / "a.png", Image(PIXELS))
    assert stat.S_IMODE((tmp_path / "a.png").stat().st_mode) == 0o604
    (tmp_path / "link.png").symlink_to("a.png")
    write_image(tmp_path / "link.png", Image(PIXELS[:5]))
    assert (tmp_path / "link.png").is_symlink()
    assert read_image(tmp_path / "a.png").height == 5
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ImageError, match="no regular file"):
        write_image(tmp_path / "pipe.png", Image(PIXELS))
    refused(tmp_path / "pipe.png", "no regular file")


def test_writing_over_the_image_just_read(tmp_path: Path) -> None:
    for suffix in (".png", ".tif", ".npy"):
        path = tmp_path / f"a{suffix}"
        write_image(path, Image(PIXELS))
        write_image(path, read_image(path))
        np.testing.assert_array_equal(read_image(path).pixels, PIXELS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"pixels": np.zeros(3)}, "shape (3,)"),
        ({"pixels": np.zeros((2, 3)), "pages": True}, "(T, H, W)"),
        ({"pixels": np.zeros((2, 0))}, "at least one pixel"),
        ({"pixels": np.zeros((2, 3), bool)}, "bool"),
        ({"pixels": np.zeros((2, 3)), "alpha": np.zeros((3, 2))}, "alpha"),
    ],
)
def test_no_impossible_image(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ImageError, match=re.escape(words)):
        Image(**arguments)


def test_large_jpeg_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="65500"):
        write_image(tmp_path / "a.jpg", Image(np.zeros((1, 70000), np.uint8), metadata=Metadata()))
    assert not list(tmp_path.iterdir())


def test_import_is_light() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from convforge.imaging import files, kernels, photographs;"
        "print([m for m in ('PIL', 'tifffile', 'imagecodecs', 'skimage', 'scipy') if m in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name, said", [("float8_e5m2", "'<f1'"), ("float8_e4m3fn", "|V1"), ("int4", "|V1")])
def test_types_beside_numpys_own_are_named(tmp_path: Path, name: str, said: str) -> None:
    np.save(tmp_path / "in.npy", np.ones((4, 4), getattr(ml_dtypes, name)))
    message = refused(tmp_path / "in.npy")
    assert f"samples are {said}" in message
    assert "convert the array to" in message
