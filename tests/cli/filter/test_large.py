"""`convforge filter` of Zarr and large .npy files: the report, what is refused, and interrupts."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from tests.cli.commands import Ran
from tests.cli.filter.images import LAPLACIAN, RANDOM, correlated, kept, saturated
from tests.imaging.pipeline.large import act_after, content, interrupt, names, zarr_array

from convforge.backends.cpu import cpu_runtime
from convforge.call import dispatch
from convforge.cli import filter_large as command
from convforge.imaging.pipeline import lanes, large, large_plan, passes

IMAGE = RANDOM.integers(0, 256, (90, 70), dtype=np.uint8)
EDGES = ("--kernel", "laplacian")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return zarr_array(tmp_path / "a.zarr", IMAGE, chunks=[8, 8], shards=[16, 32])


def test_the_report_says_what_it_will_do_and_what_it_did(
    done: Callable[..., Ran], source: Path, tmp_path: Path
) -> None:
    ran = done(source, tmp_path / "b.zarr", *EDGES, "--memory", "20kB")
    np.testing.assert_array_equal(content(tmp_path / "b.zarr"), saturated(correlated(IMAGE, LAPLACIAN)))
    assert ran.line("in") == f"{source}: 90 x 70 uint8, 6.3 kB, chunks 8 x 8, shards 16 x 32"
    assert ran.line("out").startswith(f"{tmp_path / 'b.zarr'}: 90 x 70 uint8")
    assert ran.line("units").startswith("18 of 16 x 32 samples (YX)")
    assert " of 20.0 kB: at most 4 units in work" in ran.line("memory")
    assert ran.line("done").startswith("18 units in ")
    assert ran.line("rate").endswith("GB/s of samples, in and out")
    assert ran.line("limit").partition(":")[0] in ("read", "filter", "write")
    assert ran.out.index("units") < ran.out.index("done")
    assert names(tmp_path) == ["a.zarr", "b.zarr"]


def test_a_npy_file_goes_in_units_by_memory_or_by_its_size(
    done: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = kept(tmp_path, "a.npy", IMAGE)
    wanted = saturated(correlated(IMAGE, LAPLACIAN))
    for more, whole in ((("--memory", "20kB"), False), ((), True)):
        ran = done(source, tmp_path / "b.npy", *EDGES, *more)
        assert ("\nunits" in ran.out) != whole
        np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), wanted)
    monkeypatch.setattr(command, "MAX_PIXELS", IMAGE.size - 1)
    ran = done(source, tmp_path / "b.npy", *EDGES, "--max-pixels", IMAGE.size - 1)
    assert "\nunits" in ran.out
    assert "\nunits" not in done(source, tmp_path / "b.npy", *EDGES, "--max-pixels", IMAGE.size).out


def test_a_result_that_loses_attributes_says_so(run: Callable[..., Ran], tmp_path: Path) -> None:
    source = zarr_array(tmp_path / "a.zarr", IMAGE, chunks=[64, 64], attributes={"by": "me"})
    ran = run(source, tmp_path / "b.npy", *EDGES)
    assert (ran.code, ran.err) == (0, f"convforge: {tmp_path / 'b.npy'}: not kept: attributes\n")
    assert run(source, tmp_path / "b.zarr", *EDGES).err == ""


def test_another_format_names_what_a_tiff_holds_beside_its_image(run: Callable[..., Ran], tmp_path: Path) -> None:
    options: dict[str, Any] = {"tile": (16, 16), "iccprofile": b"a profile", "metadata": None}
    tifffile.imwrite(tmp_path / "a.tif", IMAGE, description="a leaf", datetime="2020:01:02 03:04:05", **options)
    for name in ("b.npy", "b.zarr", "b.ome.zarr"):
        ran = run(tmp_path / "a.tif", tmp_path / name, *EDGES, "--memory", "10MB")
        lost = "description, ICC profile, tags (DateTime)"
        assert (ran.code, ran.err) == (0, f"convforge: {tmp_path / name}: not kept: {lost}\n")
    assert run(tmp_path / "a.tif", tmp_path / "b.tif", *EDGES).err == ""


def test_another_format_names_the_rest_of_an_ome_xml(run: Callable[..., Ran], tmp_path: Path) -> None:
    metadata: dict[str, Any] = {"axes": "YX", "PhysicalSizeX": 0.5, "Channel": {"Name": ["DNA"]}}
    tifffile.imwrite(tmp_path / "a.ome.tif", IMAGE, tile=(16, 16), metadata=metadata)
    assert run(tmp_path / "a.ome.tif", tmp_path / "b.ome.zarr", *EDGES).err == "", "spacing and channel are kept"
    metadata |= {"Plane": {"ExposureTime": 0.1}, "Description": "a cell"}
    tifffile.imwrite(tmp_path / "a.ome.tif", IMAGE, tile=(16, 16), metadata=metadata)
    ran = run(tmp_path / "a.ome.tif", tmp_path / "c.ome.zarr", *EDGES)
    assert (ran.code, ran.err) == (0, f"convforge: {tmp_path / 'c.ome.zarr'}: not kept: OME-XML's Description, Plane\n")
    assert run(tmp_path / "a.ome.tif", tmp_path / "b.ome.tif", *EDGES).err == ""


@pytest.mark.parametrize(
    ("code", "words", "says"),
    [
        (
            1,
            ("a.zarr", "b.png"),
            ("b.png", "is not written in parts", ".zarr, .ome.zarr, .npy, .tif, ", "make .png of it"),
        ),
        (2, ("a.zarr", "b.svs"), ("b.svs: .svs is only read; write b.tif, or b.ome.tif for OME-TIFF",)),
        (1, ("a.png", "b.zarr"), ("a.png", "cannot be read in parts", ".zarr, .ome.zarr, .npy, .tif, ")),
        (
            1,
            ("a.png", "b.png", "--memory", "1GB"),
            ("a.png: cannot be read in parts", "leave --memory out", ".npy, .tif"),
        ),
        (1, ("none.zarr", "b.zarr"), ("none.zarr: no such file",)),
        (1, ("empty.zarr", "b.zarr"), ("empty.zarr: holds no zarr.json",)),
        (1, ("group.zarr", "b.zarr"), ("group.zarr: is a Zarr group; name an array in it, such as", "group.zarr/0")),
        (1, ("a.zarr", "a.zarr/c/b.zarr"), ("a.zarr/c/b.zarr: is inside", "name a place outside")),
        (1, ("group.zarr/0", "group.zarr"), ("group.zarr/0: is inside", "would be replaced")),
        (1, ("a.zarr", "empty.zarr"), ("empty.zarr: exists and is no Zarr array, so it is not replaced",)),
        (1, ("a.zarr", "none/b.zarr"), ("none/b.zarr: cannot be written",)),
        (1, ("complex.zarr", "b.zarr"), ("complex.zarr: samples are complex64", "float16/32/64")),
        (1, ("complex.npy", "b.npy", "--memory", "1GB"), ("complex.npy: samples are complex64",)),
        (1, ("short.npy", "b.npy", "--memory", "1GB"), ("short.npy: truncated", "get it again")),
        (1, ("objects.npy", "b.npy", "--memory", "1GB"), ("objects.npy: samples are object",)),
        (1, ("broken.zarr", "b.zarr"), ("broken.zarr: zarr.json is truncated or damaged",)),
        (1, ("a.zarr", "b.zarr", "--memory", "100"), ("a memory of 100 bytes is too small", "--memory")),
        (2, ("a.zarr", "b.zarr", "--memory", "much"), ("'much' is no size",)),
        (2, ("a.zarr", "b.zarr", "--recursive"), ("--recursive goes with a folder of images",)),
        (2, ("a.zarr", "b.zarr", "--axes", "ZYX"), ("axes 'ZYX' name 3 axes", "a.zarr")),
        (2, ("stack.zarr", "b.zarr"), ("stack.zarr: its shape (9, 8, 7) can be read in several ways", "--axes ZYX")),
        (
            2,
            ("a.zarr", "b.zarr", "--method", "winograd_f4", "--stride", "2"),
            ("--method winograd_f4 cannot filter this image",),
        ),
    ],
)
def test_mistakes(
    refused: Callable[..., str], source: Path, tmp_path: Path, code: int, words: tuple[str, ...], says: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    kept(tmp_path, "a.png", IMAGE)
    (tmp_path / "empty.zarr").mkdir()
    zarr_array(tmp_path / "group.zarr" / "0", IMAGE, chunks=[64, 64])
    (tmp_path / "group.zarr" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    zarr_array(tmp_path / "complex.zarr", IMAGE.astype(np.complex64), chunks=[64, 64])
    zarr_array(tmp_path / "stack.zarr", np.zeros((9, 8, 7), np.uint8), chunks=[8, 8, 8])
    shutil.copytree(source, tmp_path / "broken.zarr")
    (tmp_path / "broken.zarr" / "zarr.json").write_text('{"zarr_format": 3, ')
    np.save("complex.npy", IMAGE.astype(np.complex64))
    np.save("objects.npy", np.array([[object()]]), allow_pickle=True)
    Path("short.npy").write_bytes(kept(tmp_path, "a.npy", IMAGE).read_bytes()[:-1])
    before = names(tmp_path)
    refused(code, *words, *EDGES, says=says)
    assert names(tmp_path) == before


def test_zarr_without_its_library_names_the_extra(
    refused: Callable[..., str], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    refused(1, source, tmp_path / "b.npy", *EDGES, says=(str(source), "pip install 'convforge[zarr]'"))
    assert not (tmp_path / "b.npy").exists()


def test_a_damaged_chunk_is_named(run: Callable[..., Ran], source: Path, tmp_path: Path) -> None:
    shard = source / "c" / "3" / "1"
    shard.write_bytes(shard.read_bytes()[:40])
    ran = run(source, tmp_path / "b.zarr", *EDGES, "--memory", "20kB")
    assert ran.code == 1
    assert ran.err.count("\n") == 1
    assert ran.err.startswith(f"convforge: {source}: a chunk is damaged or cannot be read (")
    assert str(shard) in ran.err
    assert not (tmp_path / "b.zarr").exists()


def test_an_interrupted_run_says_how_to_continue(
    run: Callable[..., Ran], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (source, tmp_path / "b.zarr", *EDGES, "--memory", "20kB")
    act_after(monkeypatch, 4, interrupt)
    ran = run(*words)
    assert ran.code == 130
    assert ran.err.startswith(f"convforge: interrupted; {tmp_path / 'b.zarr'} was not written, ")
    assert ran.err.endswith(" of 18 units are finished; the same command does the rest\n")
    monkeypatch.undo()
    ran = run(*words)
    assert "of 18 were finished before" in ran.line("units")
    np.testing.assert_array_equal(content(tmp_path / "b.zarr"), saturated(correlated(IMAGE, LAPLACIAN)))


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT is POSIX's")
def test_ctrl_c_says_at_once_that_the_work_of_its_threads_is_waited_for(
    run: Callable[..., Ran], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    act_after(monkeypatch, 4, partial(signal.raise_signal, signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        ran = run(source, tmp_path / "b.zarr", *EDGES, "--memory", "20kB")
    finally:
        signal.signal(signal.SIGINT, before)
    first, last = ran.err.splitlines()
    assert (ran.code, first) == (
        130, "convforge: interrupted; waits until the reads, filters and writes in work are finished"
    )  # fmt: skip
    assert last.endswith(" of 18 units are finished; the same command does the rest")


def test_several_devices_are_named(
    done: Callable[..., Ran], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two GPUs whose work the CPU does."""
    for module in (dispatch, large, large_plan, lanes, passes):
        if hasattr(module, "runtime_of"):
            monkeypatch.setattr(module, "runtime_of", lambda device: cpu_runtime())
    ran = done(source, tmp_path / "b.zarr", *EDGES, "--memory", "40kB", "--device", "cuda:2, cuda:00")
    assert ran.line("devices") == "2 GPUs: cuda:2, cuda:0"
    np.testing.assert_array_equal(content(tmp_path / "b.zarr"), saturated(correlated(IMAGE, LAPLACIAN)))
