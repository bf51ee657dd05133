"""`convforge filter --region, --channel, --z, --time`: a part of the whole result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from tests.cli.commands import Ran
from tests.cli.filter.images import LAPLACIAN, RANDOM, SMALL, correlated, kept, saturated

from convforge.imaging.files import read_image

EDGES = ("--kernel", "laplacian", "--method", "direct_naive")
STACK = RANDOM.integers(0, 256, (5, 2, 20, 21), dtype=np.uint8)  # ZCYX


def test_a_region_and_a_channel_of_a_photograph(tmp_path: Path, done: Callable[..., Ran]) -> None:
    source = kept(tmp_path, "a.png", SMALL, alpha=SMALL[..., 0])
    ran = done(source, tmp_path / "b.png", *EDGES, "--region", "-9:,5:40", "--channel", "1")
    result = read_image(tmp_path / "b.png")
    np.testing.assert_array_equal(result.pixels, saturated(correlated(SMALL[..., 1], LAPLACIAN))[-9:, 5:])
    assert result.alpha is not None
    np.testing.assert_array_equal(result.alpha, SMALL[-9:, 5:, 0])
    assert ran.line("part") == "--region -9:,5:40 --channel 1"
    assert ran.line("in").startswith(f"{source}: 31 x 23 pixels, 1 band and alpha")
    assert ran.line("out").startswith(f"{tmp_path / 'b.png'}: 26 x 9 pixels, 1 band and alpha")


def test_planes_and_channels_by_name(tmp_path: Path, run: Callable[..., Ran], done: Callable[..., Ran]) -> None:
    metadata = {"axes": "ZCYX", "Channel": {"Name": ["DAPI", "GFP"]}}
    tifffile.imwrite(tmp_path / "a.ome.tif", STACK, metadata=metadata)
    ran = run(tmp_path / "a.ome.tif", tmp_path / "b.png", *EDGES, "--channel", "gfp", "--z", "-1")
    assert (ran.code, ran.err) == (0, f"convforge: {tmp_path / 'b.png'}: not kept: OME-XML (axes ZCYX)\n")
    np.testing.assert_array_equal(read_image(tmp_path / "b.png").pixels, saturated(correlated(STACK[-1, 1], LAPLACIAN)))
    np.save(tmp_path / "a.npy", STACK)
    done(tmp_path / "a.npy", tmp_path / "b.npy", *EDGES, "--axes", "TCYX", "--time", "1::2", "--channel", 0)
    wanted = [saturated(correlated(plane, LAPLACIAN)) for plane in STACK[1::2, 0]]
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), wanted)


def test_a_part_of_each_image_of_a_folder(tmp_path: Path, run: Callable[..., Ran]) -> None:
    (tmp_path / "in").mkdir()
    kept(tmp_path / "in", "a.png", SMALL)
    kept(tmp_path / "in", "gray.png", SMALL[..., 0])
    ran = run(tmp_path / "in", tmp_path / "out", *EDGES, "--region", "2:8,:", "--channel", "2")
    assert ran.code == 1
    wanted = saturated(correlated(SMALL[..., 2], LAPLACIAN))[2:8]
    np.testing.assert_array_equal(read_image(tmp_path / "out" / "a.png").pixels, wanted)
    assert ran.err.count("\n") == 1
    assert "gray.png: --channel 2 is out of range; there is one channel, with index 0" in ran.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--region", "0:5"), ("--region '0:5' is no region", "0:512,1024:2048")),
        (("--region", "0:5:2,0:9"), ("--stride leaves out",)),
        (("--z", "one"), ("--z 'one' is no index and no slice",)),
        (("--time", "1:2:0"), ("a step is at least 1",)),
        (("--channel", ""), ("names no channel",)),
    ],
)
def test_nonsense_is_refused_before_a_file_is_read(
    tmp_path: Path, refused: Callable[..., str], words: tuple[str, ...], says: tuple[str, ...]
) -> None:
    refused(2, tmp_path / "none.png", tmp_path / "b.png", *EDGES, *words, says=says)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--region", "50:,:"), ("a.png: --region 50:,: holds no pixel of the 31 x 23",)),
        (("--region", "1:2,:", "--stride", "4"), ("holds no pixel of the result", "every 4th row")),
        (("--channel", "red"), ("a.png: --channel red is no channel; the file names no channels",)),
        (("--z", "0"), ("a.png: --z 0 picks from an axis Z, and the axes are YXC", "--axes")),
    ],
)
def test_what_the_image_has_not_is_bad_use(
    tmp_path: Path, refused: Callable[..., str], words: tuple[str, ...], says: tuple[str, ...]
) -> None:
    refused(2, kept(tmp_path, "a.png", SMALL), tmp_path / "b.png", *EDGES, *words, says=says)
    assert not (tmp_path / "b.png").exists()


@pytest.mark.parametrize(
    ("words", "index"),
    [
        (("--region", "3:17,-11:"), np.s_[:, :, 3:17, -11:]),
        (("--region", "3:17,4:19", "--stride", "2x3"), np.s_[:, :, 4:17:2, 6:19:3]),
        (("--z", "2"), np.s_[2]),
        (("--z", "1::2", "--channel", "1:"), np.s_[1::2, 1:]),
        (("--z", "-1", "--channel", "0", "--region", ":5,:6", "--border", "circular"), np.s_[-1, 0, :5, :6]),
    ],
)
def test_in_units_it_is_the_same_part(
    tmp_path: Path, done: Callable[..., Ran], words: tuple[str, ...], index: Any
) -> None:
    np.save(tmp_path / "a.npy", STACK)
    border = "wrap" if "circular" in words else "mirror"
    whole = np.stack([[saturated(correlated(plane, LAPLACIAN, border)) for plane in z] for z in STACK])
    for more in ((), ("--memory", "40kB")):
        ran = done(tmp_path / "a.npy", tmp_path / "b.npy", *EDGES, "--axes", "ZCYX", *words, *more)
        assert ("\nunits" in ran.out) == bool(more)
        assert ran.line("part").startswith("--")
        np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), whole[index])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--region", "50:,:"), "a.npy: --region 50:,: holds no pixel of the 21 x 20"),
        (("--z", "7"), "a.npy: --z 7 is out of range; there are 5 along Z"),
        (("--time", "0"), "a.npy: --time 0 picks from an axis T, and the axes are ZCYX"),
    ],
)
def test_in_units_what_the_image_has_not_is_bad_use_too(
    tmp_path: Path, refused: Callable[..., str], words: tuple[str, ...], says: str
) -> None:
    np.save(tmp_path / "a.npy", STACK)
    more = ("--axes", "ZCYX", "--memory", "1MB", *words)
    refused(2, tmp_path / "a.npy", tmp_path / "b.npy", *EDGES, *more, says=(says,))
