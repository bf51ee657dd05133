"""`convforge filter`: bad use and failures, one line and an exit code for each; what was there stays."""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.commands import Ran
from tests.cli.filter.images import LAPLACIAN, SMALL, correlated, kept, saturated

from convforge.backends.cpu import cpu_runtime
from convforge.call import dispatch
from convforge.imaging.files import read_image


@pytest.mark.parametrize(
    "words, says",
    [
        (("--kernel", "lapacian"), ("'lapacian'", "did you mean 'laplacian'")),
        (("--kernel", "1 2; 3"), ("ragged",)),
        (("--kernel", "1 nan; 3 4"), ("nan", "finite")),
        (("--kernel", "1 2j; 3 4"), ("complex",)),
        (("--kernel", ""), ("empty",)),
        (("--kernel", "gaussian:4:1"), ("odd",)),
        (("--kernel", "none.npy"), ("none.npy", "does not exist")),
        ((), ("--kernel",)),
        (("--kernel", "box:3", "--method", "direct_row"), ("direct_row", "did you mean 'direct_rows'")),
        (("--kernel", "box:3", "--border", "mirrorr"), ("'mirrorr'", "reflect", "symmetric")),
        (("--kernel", "sobel"), ("'sobel-x' and 'sobel-y'",)),
        (("--kernel", "log:1.4"), ("'log:13:1.4'",)),
        (("--kernel", "box:3", "--border", "Reflect"), ("'Reflect'", "did you mean 'reflect'")),
        (("--kernel", "box:3", "--border", "Mirror"), ("--border 'Mirror' is unknown; did you mean 'mirror'? Choose",)),
        (("--kernel", "prewitt"), ("'-1 0 1; -1 0 1; -1 0 1' is one direction",)),
        (("--kernel", "motion:5"), ("unknown kernel 'motion:5'; known are laplacian",)),
        (("--kernel", "box:3", "--channels", "all"), ("'all'", "each", "sum")),
        (("--kernel", "box:3", "--stride", "0"), ("--stride '0'", "at least 1")),
        (("--kernel", "box:3", "--stride", "-2"), ("--stride '-2'", "at least 1")),
        (("--kernel", "box:3", "--stride", "1.5"), ("--stride '1.5'", "whole")),
        (("--kernel", "box:3", "--stride", "2x"), ("--stride '2x'", "HxW")),
        (("--kernel", "box:3", "--out-dtype", "unit8"), ("'unit8'", "did you mean 'uint8'")),
        (("--kernel", "box:3", "--out-dtype", "complex64"), ("'complex64'", "float32")),
        (("--kernel", "box:3", "--scale", "nan"), ("--scale nan", "finite")),
        (("--kernel", "box:3", "--scale", "inf"), ("--scale inf", "finite")),
        (("--kernel", "box:3", "--scale", "two"), ("--scale", "number")),
        (("--kernel", "box:3", "--max-pixels", "0"), ("--max-pixels", "greater than or equal to 1")),
        (("--kernel", "box:3", "--device", "tpu"), ("tpu", "cpu")),
        (("--kernel", "box:3", "--device", "cuda:0,tpu"), ("device='tpu' is unknown",)),
        (("--kernel", "box:3", "--device", "cuda:0,"), ("device='' is unknown",)),
        (("--kernel", "box:3", "--device", "cuda:1,cuda:01"), ("names cuda:1 twice", "once")),
        (("--kernel", "box:3", "--device", "cuda:0, cpu"), ("names cpu with others", "cpu works alone")),
        (("--kernel", "box:3", "--device", "cuda,cuda:1"), ("names cuda with others", "alone for all GPUs")),
        (("--kernel", "box:3", "--method", "gemm_1x1"), ("gemm_1x1", "3x3")),
        (("--kernel", "box:3", "--out-dtype", "float32"), ("b.png", "float32", ".tif")),
        (("--kernel", "box:3", "--sharpness", "3"), ("--sharpness",)),
    ],
)
def test_bad_use(tmp_path: Path, refused: Callable[..., str], words: tuple[str, ...], says: tuple[str, ...]) -> None:
    source, target = kept(tmp_path, "a.png", SMALL), tmp_path / "b.png"
    refused(2, source, target, *words, says=says)
    assert not target.exists()


def test_several_gpus_are_refused_where_one_works(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "runtime_of", lambda device: cpu_runtime())  # a machine with two GPUs
    source, words = kept(tmp_path, "a.png", SMALL), ("--kernel", "box:3", "--device", "cuda:0,cuda:1")
    says = "--device cuda:0,cuda:1: several GPUs go with one image in units, and"
    refused(2, source, tmp_path / "b.png", *words, says=(f"{says} {source} is filtered in memory", "name one"))
    refused(2, source, "-", *words, says=(f"{says} - is one image in memory",))
    refused(2, tmp_path, tmp_path / "out", *words, says=(f"{says} the images of {tmp_path} are filtered one by one",))
    refused(2, source, source, tmp_path / "out", *words, says=(f"{says} 2 images are given",))
    assert not (tmp_path / "out").exists()


def test_a_result_that_the_format_has_no_place_for(tmp_path: Path, refused: Callable[..., str]) -> None:
    words = ("--kernel", "box:3")
    alpha = kept(tmp_path, "alpha.png", SMALL, alpha=SMALL[..., 0])
    refused(2, alpha, tmp_path / "b.jpg", *words, says=("no alpha", ".png"))
    pages = kept(tmp_path, "pages.tif", SMALL[None].repeat(2, 0), pages=True)
    refused(2, pages, tmp_path / "b.png", *words, says=("one page", ".tif"))
    bands = kept(tmp_path, "bands.tif", SMALL.repeat(2, -1))
    refused(2, bands, tmp_path / "b.png", *words, says=("6", "--channels sum"))
    deep = kept(tmp_path, "deep.png", SMALL.astype(np.uint16))
    refused(2, deep, tmp_path / "b.jpg", *words, says=("uint16", "--out-dtype uint8"))
    refused(2, deep, tmp_path / "b.gif", *words, says=("'.gif'", ".png"))
    refused(2, deep, tmp_path / "b", *words, says=("no ending",))


def test_a_sum_of_bands_fits_where_the_bands_do_not(tmp_path: Path, done: Callable[..., Ran]) -> None:
    bands = kept(tmp_path, "bands.tif", SMALL.repeat(2, -1)[..., :5])
    done(bands, tmp_path / "b.png", "--kernel", "laplacian", "--channels", "sum")
    expected = saturated(correlated(SMALL.repeat(2, -1)[..., :5], LAPLACIAN).sum(axis=-1))
    np.testing.assert_array_equal(read_image(tmp_path / "b.png").pixels, expected)


def _bomb() -> bytes:
    """A PNG whose header declares 16000 x 16000 pixels over a few bytes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 16000, 16000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    "name, content, says",
    [
        ("none.png", None, "no such file"),
        ("empty.png", b"", "0 bytes"),
        ("text.png", b"This is no image.\n", "not an image"),
        ("head.png", b"\x89PN", "truncated"),
        ("cut.png", slice(0, 900), "truncated"),
        ("bomb.png", _bomb(), "out of proportion"),
        ("cut.npy", b"\x93NUMPY\x01\x00v\x00{'descr'", "truncated"),
        ("objects.npy", np.array([[None, 1]], object), "object"),
        ("complex.npy", np.ones((3, 3), complex), "complex"),
        ("line.npy", np.ones(3), "(3,)"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_failure(
    tmp_path: Path, refused: Callable[..., str], name: str, content: Any, says: str
) -> None:
    source, target = tmp_path / name, kept(tmp_path, "b.png", SMALL)
    before = target.read_bytes()
    if isinstance(content, slice):
        source.write_bytes(before[content])
    elif isinstance(content, bytes):
        source.write_bytes(content)
    elif content is not None:
        np.save(source, content, allow_pickle=True)
    refused(1, source, target, "--kernel", "laplacian", says=(str(source), says))
    assert target.read_bytes() == before, "what was there stays"


def test_more_pixels_than_allowed(tmp_path: Path, refused: Callable[..., str], done: Callable[..., Ran]) -> None:
    source, target = kept(tmp_path, "a.png", SMALL), tmp_path / "b.png"
    words = (source, target, "--kernel", "laplacian", "--max-pixels")
    refused(1, *words, 23 * 31 - 1, says=("31 x 23", "--max-pixels", str(23 * 31)))
    done(*words, 23 * 31)


def test_a_place_that_cannot_be_written_is_a_failure(tmp_path: Path, refused: Callable[..., str]) -> None:
    source = kept(tmp_path, "a.png", SMALL)
    words = ("--kernel", "laplacian")
    refused(1, source, tmp_path / "none" / "b.png", *words, says=("does not exist", "make it first"))
    refused(1, source, source / "b.png", *words, says=("is not a folder",))
    (tmp_path / "c.png").mkdir()
    refused(1, source, tmp_path / "c.png", *words, says=("is a folder",))
    assert not (tmp_path / "b.png").exists()


def test_a_full_disk_leaves_the_old_image(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept(tmp_path, "a.png", SMALL)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    refused(1, path, path, "--kernel", "laplacian", says=("a.png", "No space left"))
    np.testing.assert_array_equal(read_image(path).pixels, SMALL)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.png"]


def test_too_little_memory_is_a_failure(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from convforge.algorithms.contract import Plan

    def exhausted(*words: Any, **more: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(Plan, "__call__", exhausted)
    source = kept(tmp_path, "a.png", SMALL)
    refused(1, source, tmp_path / "b.png", "--kernel", "laplacian", says=("a.png", "memory"))
