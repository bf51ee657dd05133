"""`convforge filter`: every method, the report of what was done, and the help."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.commands import Ran
from tests.cli.filter.images import RANDOM, SMALL, correlated, kept

import convforge
from convforge.imaging.files import read_image


@pytest.mark.parametrize("name", [a.name for a in convforge.algorithms() if a.operation == "conv2d"])
def test_every_method_gives_the_same_image_or_says_why_not(tmp_path: Path, run: Callable[..., Ran], name: str) -> None:
    pixels = RANDOM.random((40, 45)).astype(np.float32)
    source, target = kept(tmp_path, "a.tif", pixels), tmp_path / "b.tif"
    ran = run(source, target, "--kernel", "gaussian:5:1.1", "--method", name)
    if ran.code == 0:
        assert ran.line("method").startswith(name)
        assert "asked for by name" in ran.line("method")
        steps = np.exp(-((np.arange(5) - 2) ** 2) / (2 * 1.1**2))
        kernel = np.outer(steps, steps) / steps.sum() ** 2
        np.testing.assert_allclose(read_image(target).pixels, correlated(pixels, kernel), atol=3e-6)
    else:
        assert ran.code == 2
        assert re.fullmatch(rf"convforge: --method {name} cannot filter this image \({name}: .+\)\n", ran.err)
        assert not target.exists()


def test_the_report_names_everything(tmp_path: Path, done: Callable[..., Ran]) -> None:
    source, target = kept(tmp_path, "a.png", SMALL), tmp_path / "b.png"
    ran = done(source, target, "--kernel", "laplacian", "--channels", "sum", "--method", "im2col", "--abs")
    assert ran.line("kernel") == "laplacian, 3x3, bands summed, border reflect (edge pixel not repeated)"
    assert ran.line("method").startswith("im2col [images=")
    assert ran.line("arithmetic") == "uint8 times int8, summed in int32"
    needed = re.fullmatch(r"(\d+) bytes", ran.line("workspace"))
    assert needed is not None
    assert int(needed[1]) > 9 * 23 * 31, "im2col expands each pixel nine times"
    for name in ("read", "plan", "first call", "filter", "convert", "write"):
        assert re.match(r"[\d.]+ m?s", ran.line(name)), name
    assert "compiled" in ran.line("first call")
    ran = done(source, target, "--kernel", "laplacian", "--method", "direct_rows")
    assert "\nworkspace" not in ran.out, "it takes none"
    assert done(source, target, "--kernel", "laplacian").line("method").split(": ", 1)[1], "why auto took it"


def test_bands_are_told_where_there_are_several(tmp_path: Path, done: Callable[..., Ran]) -> None:
    gray, colours = kept(tmp_path, "gray.png", SMALL[..., 0]), kept(tmp_path, "colours.png", SMALL)
    words = ("--kernel", "box:3", "--border", "zeros")
    assert done(gray, tmp_path / "b.png", *words).line("kernel").endswith("3x3, border zeros")
    assert done(colours, tmp_path / "b.png", *words, "--gray").line("kernel").endswith("3x3, border zeros")
    assert done(colours, tmp_path / "b.png", *words).line("kernel").endswith("3x3, each band by itself, border zeros")
    assert done(colours, tmp_path / "b.png", *words, "--channels", "sum").line("kernel").count("3x3, bands summed, ")
    assert done(gray, tmp_path / "b.png", *words, "--channels", "sum").line("kernel").endswith("3x3, border zeros")
    clear = kept(tmp_path, "clear.tif", SMALL[..., 0], alpha=SMALL[..., 1])
    for memory in ((), ("--memory", "1MB")):
        line = done(clear, tmp_path / "b.tif", *words, *memory).line("kernel")
        assert line.endswith("3x3, border zeros"), "alpha is not filtered"
    whole = [
        (gray, (), ""),
        (colours, ("--region", ":9,:9"), ", each band by itself"),
        (colours, ("--channel", "0"), ""),
        (colours, ("--channels", "sum"), ", bands summed"),
        (gray, ("--channels", "sum"), ""),
    ]
    for source, more, bands in whole:
        array = np.asarray(read_image(source).pixels)
        np.save(tmp_path / "a.npy", array[..., 0] if array.shape[-1] == 1 else array)
        ran = done(tmp_path / "a.npy", tmp_path / "b.npy", *words, "--memory", "1MB", *more)
        assert ran.line("kernel").endswith(f"3x3{bands}, border zeros")


def test_a_folder_tells_of_bands_what_is_true_of_every_image(tmp_path: Path, done: Callable[..., Ran]) -> None:
    (tmp_path / "in").mkdir()
    kept(tmp_path / "in", "gray.png", SMALL[..., 0])
    kept(tmp_path / "in", "colours.png", SMALL)
    cases = {
        (): ", each band by itself where there are several",
        ("--channels", "sum"): ", bands summed where there are several",
        ("--gray",): "",
        ("--gray", "--channels", "sum"): "",
    }
    for more, bands in cases.items():
        ran = done(tmp_path / "in", tmp_path / "out", "--kernel", "box:3", "--border", "zeros", *more)
        assert ran.line("kernel").endswith(f"3x3{bands}, border zeros")


def test_a_kernel_that_factors_is_run_as_two_passes_and_its_rank_told(tmp_path: Path, done: Callable[..., Ran]) -> None:
    source = kept(tmp_path, "a.tif", RANDOM.random((40, 45)).astype(np.float32))
    ran = done(source, tmp_path / "b.tif", "--kernel", "gaussian:9:2")
    assert ran.line("method").startswith("separable")
    assert "rank 1" in ran.line("method")


def test_compiling_is_told_apart_and_done_on_a_part_of_a_large_image(
    tmp_path: Path, done: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    from convforge.algorithms.contract import Plan

    shapes: list[tuple[int, ...]] = []
    call = Plan.__call__

    def watched(self: Plan, x: Any, *rest: Any, **more: Any) -> Any:
        shapes.append(x["x"].shape)
        return call(self, x, *rest, **more)

    monkeypatch.setattr(Plan, "__call__", watched)
    source = kept(tmp_path, "a.npy", np.zeros((3, 40, 2500, 1), np.float32), pages=True)
    done(source, tmp_path / "b.npy", "--kernel", "laplacian")
    assert shapes == [(1, 40, 1028, 1), (3, 40, 2500, 1)], "a part whose rows divide into the same vectors"


def test_help_names_every_option(run: Callable[..., Ran]) -> None:
    ran = run("--help")
    assert ran.code == 0
    for word in (
        *("IN", "OUT", "--kernel", "--channels", "--method", "--stride", "--border", "--cval", "--out-dtype"),
        *("--abs", "--scale", "--gray", "--max-pixels", "--device", "laplacian", "gaussian:SIZE:SIGMA"),
    ):
        assert word in ran.out, word
