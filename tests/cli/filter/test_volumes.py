"""`convforge filter` along Z, and with sigma in units of length, against SciPy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from scipy import ndimage
from tests.cli.commands import Ran
from tests.cli.filter.images import RANDOM, kept
from tests.imaging.pipeline.large import content, names
from tests.imaging.pipeline.large import kept as kept_array

from convforge.imaging.files import Metadata, read_image
from convforge.imaging.windowed import open_windows

VOLUME = RANDOM.integers(0, 60000, (9, 24, 32), dtype=np.uint16)
OME = {"axes": "ZYX"} | {f"PhysicalSize{axis}": gap for axis, gap in (("X", 0.5), ("Y", 0.25), ("Z", 2.0))}
LENGTHS = ("--kernel", "gaussian:2,0.5,0.5um")
WANTED = np.rint(ndimage.gaussian_filter(VOLUME.astype(float), (1, 2, 1), mode="mirror"))


def near(found: Any, wanted: Any) -> None:
    """Planes are summed in float32, so an integer may round to either side of a half."""
    assert found.dtype == np.uint16
    np.testing.assert_allclose(found, wanted, atol=1)
    assert (found != wanted).mean() < 1e-2


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    tifffile.imwrite(tmp_path / "a.ome.tif", VOLUME, ome=True, metadata=OME)
    return tmp_path / "a.ome.tif"


@pytest.mark.parametrize("target", ["b.ome.tif", "b.npy"])
def test_the_spacing_of_the_file_gives_sigma_in_samples(
    run: Callable[..., Ran], stack: Path, tmp_path: Path, target: str
) -> None:
    ran = run(stack, tmp_path / target, *LENGTHS)
    assert ran.code == 0, ran.err
    assert ran.line("kernel").startswith(
        "gaussian:2,0.5,0.5um (spacing 2 x 0.25 x 0.5 um along Z x Y x X), 9x17x9 along Z, Y and X, border"
    )
    near(tifffile.imread(tmp_path / target) if target.endswith("tif") else np.load(tmp_path / target), WANTED)
    assert ("\nspacing" in ran.out) == target.endswith("tif"), "the spacing of OUT, if it has one"


def test_a_spacing_that_is_given_goes_before_that_of_the_file(
    done: Callable[..., Ran], run: Callable[..., Ran], stack: Path, tmp_path: Path
) -> None:
    source = kept_array(tmp_path / "a.npy", VOLUME)
    for image, spacing in ((source, "2,0.25,0.5"), (stack, "0.25,0.5")):  # the stack has a Z of its own
        ran = run(image, tmp_path / "b.npy", *LENGTHS, "--axes", "ZYX", "--spacing", spacing)
        assert ran.code == 0, ran.err
        near(np.load(tmp_path / "b.npy"), WANTED)
    ran = run(source, tmp_path / "b.npy", "--kernel", "gaussian:1um", "--axes", "ZYX", "--spacing", "0.5")
    assert "spacing 0.5 x 0.5 um along Y x X), 17x17, border" in ran.line("kernel")
    assert "\nunits" not in ran.out, "planes of a small image are filtered in memory"
    assert ran.err.endswith("b.npy: not kept: resolution\n")


def test_a_spacing_that_is_given_is_written(run: Callable[..., Ran], tmp_path: Path) -> None:
    source = kept_array(tmp_path / "a.npy", VOLUME)
    for target, spacing, wanted in (("b.tif", "2,0.25,0.5", (2, 0.25, 0.5)), ("c.tif", "0.5", (None, 0.5, 0.5))):
        ran = run(source, tmp_path / target, "--kernel", "laplacian", "--axes", "ZYX", "--spacing", spacing)
        assert (ran.code, ran.err) == (0, "")
        assert open_windows(tmp_path / target).layout.spacing == pytest.approx(wanted, nan_ok=True)
    tifffile.imwrite(tmp_path / "i.tif", VOLUME, imagej=True, metadata={"axes": "ZYX", "unit": "nm", "spacing": 9})
    ran = run(tmp_path / "i.tif", tmp_path / "j.tif", "--kernel", "box:3", "--spacing", "0.5")
    assert (ran.code, ran.err, "\nunits" in ran.out) == (0, "", False)
    assert open_windows(tmp_path / "j.tif").layout.spacing == pytest.approx((None, 0.5, 0.5))
    ran = run(kept(tmp_path, "a.png", VOLUME[0]), tmp_path / "b.png", "--kernel", "box:3", "--spacing", "0.5")
    assert (ran.code, ran.err) == (0, "")
    assert read_image(tmp_path / "b.png").metadata == Metadata((20000, 20000), "centimeter")


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_the_resolution_of_a_photograph_is_a_spacing(done: Callable[..., Ran], tmp_path: Path, name: str) -> None:
    metadata = Metadata((20000, 40000), "centimeter")
    done(kept(tmp_path, name, VOLUME[0], metadata=metadata), tmp_path / f"b{name[1:]}", "--kernel", "gaussian:500nm")
    near(
        read_image(tmp_path / f"b{name[1:]}").pixels,
        np.rint(ndimage.gaussian_filter(VOLUME[0].astype(float), (2, 1), mode="mirror")),
    )


def test_a_folder_of_slices_is_a_volume(done: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for at, plane in enumerate(VOLUME):
        kept(tmp_path / "in", f"{at}.tif", plane)
    words = ("--kernel", "gaussian:1,2,1px")
    done(tmp_path / "in", tmp_path / "b.npy", *words)
    near(content(tmp_path / "b.npy"), WANTED)
    done(tmp_path / "in", tmp_path / "out", *words, "--format", "png")
    assert names(tmp_path / "out") == [f"{at:04}.png" for at in range(len(VOLUME))]
    near(np.stack([read_image(path).pixels for path in sorted((tmp_path / "out").iterdir())]), WANTED)


def test_slices_that_tell_their_spacing_are_a_volume(done: Callable[..., Ran], stack: Path, tmp_path: Path) -> None:
    ran = done(stack, tmp_path / "in", "--kernel", "identity", "--format", "tif", "--spacing", "2,0.25,0.5")
    assert ran.line("spacing") == "2 x 0.25 x 0.5 um along Z x Y x X"
    done(tmp_path / "in", tmp_path / "b.tif", *LENGTHS)
    near(tifffile.imread(tmp_path / "b.tif"), WANTED)
    done(tmp_path / "in", tmp_path / "out", *LENGTHS, "--format", "tif")
    near(np.stack([read_image(path).pixels for path in sorted((tmp_path / "out").iterdir())]), WANTED)


def test_several_volumes_go_one_by_one(run: Callable[..., Ran], stack: Path, tmp_path: Path) -> None:
    other = tmp_path / "c.ome.tif"
    tifffile.imwrite(other, VOLUME[::-1], ome=True, metadata=OME)
    ran = run(stack, other, tmp_path / "out", "--kernel", "gaussian:1,2,1px", "--jobs", 1)
    assert ran.code == 0, ran.err
    assert names(tmp_path / "out") == ["a.ome.tif", "c.ome.tif"]
    near(tifffile.imread(tmp_path / "out" / "c.ome.tif"), WANTED[::-1])


@pytest.mark.parametrize(
    ("code", "words", "says"),
    [
        (2, ("a.npy", "b.npy", *LENGTHS, "--axes", "ZYX"), ("a.npy: ", "samples along Z is not known", "--spacing")),
        (2, ("a.npy", "b.npy", *LENGTHS, "--axes", "ZYX", "--spacing", "2"), ("along Z is not known",)),
        (2, ("a.npy", "b.npy", *LENGTHS), ("a.npy: its shape", "--axes ZYX")),
        (2, ("a.npy", "b.npy", *LENGTHS, "--spacing", "2,x"), ("--spacing '2,x' is no spacing", "0.25")),
        (2, ("a.npy", "b.npy", *LENGTHS, "--spacing", "0"), ("--spacing '0' is no spacing",)),
        (2, ("a.npy", "b.npy", *LENGTHS, "--spacing", "1,1,1,1"), ("is no spacing",)),
        (2, ("a.npy", "b.npy", "--kernel", "box:3", "--spacing", "1um"), ("--spacing '1um' is no spacing",)),
        (2, ("inch.jpg", "b.jpg", "--kernel", "gaussian:1um"), ("inch.jpg: ", "along Y is not known", "--spacing")),
        (2, ("p.png", "q.png", "out", "--kernel", "gaussian:1um"), ("each of several images", "--spacing")),
        (2, (".", "out", "--kernel", "gaussian:1um"), ("each of several images", "--spacing")),
        (2, ("-", "b.png", "--kernel", "gaussian:1um"), ("the spacing of standard input is not read", "--spacing")),
        (2, ("-", "b.png", "--kernel", "gaussian:1,1,1px"), ("- is one image in memory", "along Z")),
        (2, ("a.npy", "-", "--kernel", "gaussian:1,1,1px"), ("- is one image in memory", "along Z")),
        (2, ("p.png", "b.zarr", "--kernel", "gaussian:1,1,1px"), ("p.png: is no volume", "along Y and X only")),
        (2, ("a.npy", "q.png", "out", "--kernel", "gaussian:1,1,1px"), ("q.png: is no volume",)),
        (2, (".", "out", "--kernel", "gaussian:1,1,1px"), ("one by one", "out.zarr", "--format tif")),
        (2, (".", "out", "--kernel", "gaussian:1,1,1um"), ("one by one", "out.zarr", "--format tif")),
        (1, ("none", "out", "--kernel", "gaussian:1,1,1px"), ("none: no such file",)),
        (2, ("a.npy", "b.npy", "--kernel", "gaussian:1,1,1px", "--axes", "ZYX", "--z", "2"), ("--z goes with",)),
        (1, ("a.npy", "b.png", "--kernel", "gaussian:1,1,1px", "--axes", "ZYX"), ("b.png: is not written in",)),
        (1, ("a.npy", "b.npy", "--kernel", "gaussian:1,1,1px", "--axes", "TYX"), ("a.npy: has no axis Z", "--axes")),
        (1, ("none.tif", "b.tif", "--kernel", "gaussian:1um"), ("none.tif: no such file",)),
        (1, ("none.png", "b.png", "--kernel", "gaussian:1um"), ("none.png: no such file",)),
    ],
)  # fmt: skip
def test_mistakes(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: tuple[str, ...],
    says: tuple[str, ...],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    kept_array(tmp_path / "a.npy", VOLUME)
    kept(tmp_path, "p.png", VOLUME[0])
    kept(tmp_path, "q.png", VOLUME[1])
    kept(tmp_path, "inch.jpg", VOLUME[0].astype(np.uint8), metadata=Metadata((300, 300), "inch"))
    before = names(tmp_path)
    refused(code, *words, says=says)
    assert names(tmp_path) == before
