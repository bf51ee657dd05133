"""`convforge filter --axes`: stacks are filtered plane by plane, and one whose axes are unclear is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile
from tests.cli.commands import Ran
from tests.cli.filter.images import LAPLACIAN, RANDOM, correlated, kept, saturated

STACK = RANDOM.integers(0, 256, (20, 25, 24), dtype=np.uint8)
KERNEL = ("--kernel", "laplacian")
NAIVE = (*KERNEL, "--method", "direct_naive")  # compiles in a fraction of the time


def planes(stack: np.ndarray) -> np.ndarray:
    return np.stack([saturated(correlated(plane, LAPLACIAN)) for plane in stack])


@pytest.mark.thorough
@pytest.mark.parametrize("letters", ["ZYX", "TYX", "CYX", "cyx"])
def test_planes_are_filtered_one_by_one_and_keep_their_axes(
    tmp_path: Path, done: Callable[..., Ran], letters: str
) -> None:
    np.save(tmp_path / "a.npy", STACK)
    ran = done(tmp_path / "a.npy", tmp_path / "b.npy", *KERNEL, "--axes", letters)
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), planes(STACK))
    if letters.upper() == "CYX":
        assert ran.line("axes") == "CYX: one plane"
        assert "20 bands" in ran.line("in")
    else:
        assert ran.line("stack") == f"{letters}: each of the 20 planes by itself"


def test_bands_are_where_the_letters_say(tmp_path: Path, done: Callable[..., Ran]) -> None:
    np.save(tmp_path / "a.npy", np.stack([STACK, STACK[::-1]]))
    done(tmp_path / "a.npy", tmp_path / "b.npy", *NAIVE, "--axes", "CZYX", "--channels", "sum", "--out-dtype", "int16")
    want = [correlated(plane, LAPLACIAN) for plane in STACK.astype(float) + STACK[::-1]]
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), want)


def test_pages_of_a_tiff_are_said(tmp_path: Path, done: Callable[..., Ran]) -> None:
    kept(tmp_path, "a.tif", STACK, pages=True)
    ran = done(tmp_path / "a.tif", tmp_path / "b.tif", *NAIVE)
    assert ran.line("stack") == "pages: each of the 20 planes by itself"


def test_an_unclear_stack_is_asked_about(tmp_path: Path, refused: Callable[..., str]) -> None:
    np.save(tmp_path / "a.npy", STACK)
    readings = (
        "--axes ZYX for 20 planes of 24 x 25 pixels",
        "--axes CYX for 24 x 25 pixels of 20 bands",
        "--axes YXC for 25 x 20 pixels of 24 bands",
    )
    refused(2, tmp_path / "a.npy", tmp_path / "b.npy", *KERNEL, says=(str(tmp_path / "a.npy"), *readings))
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((30, 20, 5), np.uint16))
    refused(2, tmp_path / "a.tif", tmp_path / "b.tif", *KERNEL, says=("--axes YXC for 20 x 30 pixels of 5 bands",))
    assert not (tmp_path / "b.tif").exists()
    refused(2, tmp_path / "a.npy", tmp_path / "b.npy", *KERNEL, "--axes", "TZYX", says=("name 4 axes",))
    refused(2, tmp_path / "none.npy", tmp_path / "b.npy", *KERNEL, "--axes", "QYX", says=("'Q' is no letter",))


def test_each_file_of_a_folder_is_asked_about(tmp_path: Path, run: Callable[..., Ran]) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    np.save(folder / "stack.npy", STACK)
    kept(folder, "rgb.png", np.zeros((8, 9, 3), np.uint8))
    ran = run(folder, out, *NAIVE)
    assert ran.code == 1
    assert [path.name for path in out.glob("[!.]*")] == ["rgb.png"]
    assert ran.err.count("\n") == 1
    assert f"{folder / 'stack.npy'}: its shape (20, 25, 24) can be read in several ways; write --axes ZYX" in ran.err
    ran = run(folder, out, *NAIVE, "--axes", "ZYX")
    assert ran.code == 1
    np.testing.assert_array_equal(np.load(out / "stack.npy"), planes(STACK))
    assert f"{folder / 'rgb.png'}: axes 'ZYX': each pixel of the file has 3 bands" in ran.err
