"""A folder of slices: read as one stack, written as a file for each plane."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from tests.imaging.pipeline.large import content, names, recipe, zarr_array

from convforge.imaging import files
from convforge.imaging.files import Image, ImageError, Metadata, read_image, write_image
from convforge.imaging.pipeline.large import LargeFilter
from convforge.imaging.windowed import format_of, open_windows, slices
from convforge.imaging.windowed.slices import SliceFolder, SliceReader

RANDOM = np.random.default_rng(43)
STACK = RANDOM.integers(0, 2**16, (12, 20, 31), dtype=np.uint16)


def written(folder: Path, stack: Any = STACK, name: str = "img{}.tif", **fields: Any) -> Path:
    folder.mkdir()
    for at, plane in enumerate(stack):
        write_image(folder / name.format(at), Image(plane, **fields))
    return folder


def whole(reader: Any) -> Any:
    return reader.read(tuple(slice(0, size) for size in reader.layout.shape))


def test_numbers_in_names_order_the_slices(tmp_path: Path) -> None:
    folder = written(tmp_path / "in")
    (folder / "notes.txt").touch()
    (folder / ".hidden.tif").touch()
    (folder / "more").mkdir()
    reader = open_windows(folder)
    assert isinstance(reader, SliceReader)
    layout = reader.layout
    assert (layout.shape, layout.axes, layout.dtype) == (STACK.shape, "ZYX", STACK.dtype)
    assert layout.chunks == layout.shards == (1, 20, 31)
    np.testing.assert_array_equal(whole(reader), STACK)
    np.testing.assert_array_equal(reader.read(np.s_[3:11, 5:9, 30:31]), STACK[3:11, 5:9, 30:31])


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".npy", ".tif"])
def test_any_format_of_images_and_bands(tmp_path: Path, suffix: str) -> None:
    stack = RANDOM.integers(0, 256, (3, 9, 8, 3), dtype=np.uint8)
    folder = written(tmp_path / "in", stack, "{}" + suffix)
    reader = open_windows(folder)
    assert (reader.layout.shape, reader.layout.axes) == (stack.shape, "ZYXC")
    np.testing.assert_array_equal(whole(reader), [read_image(folder / f"{at}{suffix}").pixels for at in range(3)])


def test_alpha_is_the_last_band_and_centimetres_are_a_spacing(tmp_path: Path) -> None:
    alpha = RANDOM.integers(0, 2**16, (20, 31), dtype=np.uint16)
    reader = open_windows(written(tmp_path / "in", alpha=alpha, metadata=Metadata((20000.0, 5000.0), "centimeter")))
    assert (reader.layout.shape, reader.layout.alpha) == ((12, 20, 31, 2), True)
    assert reader.layout.spacing == (None, 2.0, 0.5, None)
    np.testing.assert_array_equal(whole(reader)[..., 0], STACK)
    np.testing.assert_array_equal(whole(reader)[4, ..., 1], alpha)
    assert open_windows(written(tmp_path / "paper", metadata=Metadata((72, 72), "inch"))).layout.spacing == ()


@pytest.mark.parametrize(
    ("name", "image", "says"),
    [
        (
            "b.tif",
            Image(STACK[0, :, :30]),
            "b.tif: is 30 x 20 pixels of 1 x uint16, and a.tif is 31 x 20 pixels of 1 x",
        ),
        ("b.tif", Image(STACK[0].astype(np.int16)), "b.tif: is 31 x 20 pixels of 1 x int16"),
        ("b.png", Image(STACK[0], STACK[0]), "b.png: is 31 x 20 pixels of 1 x uint16 with alpha"),
        ("b.tif", Image(STACK[:2], pages=True), "b.tif: holds 2 planes"),
        ("b.npy", Image(STACK[0].T.copy()), "b.npy: is 20 x 31 pixels"),
    ],
)
def test_one_file_that_differs_is_named_before_the_run(tmp_path: Path, name: str, image: Image, says: str) -> None:
    write_image(tmp_path / "a.tif", Image(STACK[0]))
    write_image(tmp_path / name, image)
    with pytest.raises(ImageError, match=says):
        open_windows(tmp_path)


def test_headers_are_compared_and_pixels_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "in")
    read: list[str] = []
    monkeypatch.setattr(slices, "read_image", lambda path: read.append(path.name) or files.read_image(path))
    reader = open_windows(folder)
    assert read == ["img0.tif"]
    for rows in (slice(0, 5), slice(5, 9), slice(9, 20)):
        reader.read((slice(2, 5), rows, slice(0, 31)))
    assert read[1:] == ["img2.tif", "img3.tif", "img4.tif"], "each plane is decoded once"


def test_a_few_planes_are_kept_and_each_is_decoded_once_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path / "in")
    monkeypatch.setattr(slices, "CACHED_BYTES", 2 * STACK[0].nbytes)
    reader = open_windows(folder)
    read: list[str] = []
    monkeypatch.setattr(slices, "read_image", lambda path: read.append(path.name) or files.read_image(path))
    for number in (0, 1, 2, 0):
        reader.read((slice(number, number + 1), slice(0, 3), slice(0, 3)))
    assert read == ["img0.tif", "img1.tif", "img2.tif", "img0.tif"]
    together = threading.Barrier(4)

    def window(rows: int) -> Any:
        together.wait()
        return reader.read((slice(7, 8), slice(rows, rows + 1), slice(0, 31)))

    with ThreadPoolExecutor(4) as threads:
        np.testing.assert_array_equal(np.concatenate(list(threads.map(window, range(4))), axis=1), STACK[7:8, :4])
    assert read[4:] == ["img7.tif"]


def test_a_damaged_or_replaced_file_is_named(tmp_path: Path) -> None:
    folder = written(tmp_path / "in")
    reader = open_windows(folder)
    before = reader.fingerprint()
    write_image(folder / "img3.tif", Image(STACK[0, :5]))
    assert open_windows(written(tmp_path / "other")).fingerprint() != before
    with pytest.raises(ImageError, match=r"img3.tif: was replaced while it was read"):
        whole(reader)
    (folder / "img3.tif").write_bytes((folder / "img2.tif").read_bytes()[:300])
    with pytest.raises(ImageError, match=r"img3.tif: truncated"):
        whole(reader)
    assert reader.fingerprint() != before
    (tmp_path / "empty").mkdir()
    with pytest.raises(ImageError, match=r"empty: holds no image of .png"):
        open_windows(tmp_path / "empty")


def test_slices_become_an_array_and_an_array_becomes_slices(tmp_path: Path) -> None:
    folder = written(tmp_path / "in")
    LargeFilter(folder, tmp_path / "volume.zarr", recipe("identity"))()
    np.testing.assert_array_equal(content(tmp_path / "volume.zarr"), STACK)
    target = SliceFolder.of(tmp_path / "run.3", ".png")
    LargeFilter(tmp_path / "volume.zarr", target, recipe("identity"), memory=100_000)()
    assert names(target) == [f"{number:04}.png" for number in range(12)]
    np.testing.assert_array_equal(whole(open_windows(tmp_path / "run.3")), STACK)


def test_planes_of_several_axes_are_numbered_through_and_keep_their_bands(tmp_path: Path) -> None:
    array = RANDOM.integers(0, 256, (2, 3, 3, 8, 9), dtype=np.uint8)  # TZCYX
    source = zarr_array(tmp_path / "a.zarr", array, chunks=[1, 2, 1, 4, 4], names=list("tzcyx"))
    outcome = LargeFilter(source, SliceFolder.of(tmp_path / "out", ".tif"), recipe("identity"))()
    assert outcome.lost == ("axes TZ, whose planes became files",)
    planes = [tifffile.imread(tmp_path / "out" / name) for name in names(tmp_path / "out")]
    np.testing.assert_array_equal(np.reshape(planes, (2, 3, 8, 9, 3)), np.moveaxis(array, 2, -1))


def test_the_writer_reads_its_windows_again_and_a_killed_run_leaves_no_trace(tmp_path: Path) -> None:
    reader = open_windows(written(tmp_path / "in"))
    layout = slices.arranged(reader.layout, tmp_path / "out", reader)
    kind = format_of(SliceFolder.of(tmp_path / "out", ".tif"))
    assert kind is not None
    source = open_windows(tmp_path / "in")
    writer = kind.create(tmp_path / "out", layout, source)
    writer.write(np.s_[2:4, 0:20, 0:31], STACK[2:4])
    np.testing.assert_array_equal(writer.read(np.s_[3:4, 4:9, 0:31]), STACK[3:4, 4:9])
    (tmp_path / "out" / ".convforge-0123456789ab.tmp").write_bytes(b"half a slice")
    kind.reopen(tmp_path / "out", layout, source)
    assert names(tmp_path / "out") == ["0002.tif", "0003.tif"]


def test_only_a_folder_of_slices_is_replaced(tmp_path: Path) -> None:
    source = written(tmp_path / "in")
    target = SliceFolder.of(tmp_path / "out", ".tif")
    for _ in range(2):
        LargeFilter(source, target, recipe("identity"))()
    assert len(names(target)) == 12
    (tmp_path / "out" / "notes.txt").touch()
    with pytest.raises(ImageError, match=r"out: holds notes.txt, which is no slice, so the folder is not replaced"):
        LargeFilter(source, target, recipe("identity"))


def test_files_that_cannot_hold_the_planes_are_refused_before_the_run(tmp_path: Path) -> None:
    source = written(tmp_path / "in")
    target = SliceFolder.of(tmp_path / "out", ".jpg")
    with pytest.raises(ImageError, match=r"out/0000.jpg: JPEG holds uint8, the result is uint16"):
        LargeFilter(source, target, recipe("identity"))()
    assert names(tmp_path) == ["in"]
