"""Images in units on one GPU and on two: the bits of the image in memory, after a kill too, and every GPU works."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.gpu.present import gpu_count, need_gpu
from tests.imaging.pipeline.chains import try_one
from tests.imaging.pipeline.large import RANDOM, content, kept, kill_a_run, recipe, zarr_array

import convforge
from convforge.imaging.pipeline.large import LargeFilter
from convforge.imaging.pipeline.passes import Pass
from convforge.problem import PADDING_MODES

need_gpu()

IMAGE = RANDOM.integers(0, 65536, (517, 403), dtype=np.uint16)
SMALL = 2_000_000  # bytes: several units of the images here


@pytest.fixture(params=["cuda:0", "cuda:0,cuda:1"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param.count("cuda") > gpu_count():
        pytest.skip("needs two GPUs")
    return str(request.param)


@pytest.mark.parametrize("kernel", ["laplacian", "gaussian:7:1.5", "box:4"])
@pytest.mark.parametrize("border", PADDING_MODES)
def test_every_border_gives_the_bits_of_the_image_in_memory(
    tmp_path: Path, kernel: str, border: str, device: str
) -> None:
    source = zarr_array(tmp_path / "a.zarr", IMAGE, chunks=[32, 64], shards=[64, 64])
    for number, (stride, suffix) in enumerate(product([(1, 1), (2, 3)], [".zarr", ".npy"])):
        options: dict[str, Any] = {"border": border, "stride": stride, "cval": 7.0 if border == "constant" else 0.0}
        run = LargeFilter(
            source, tmp_path / f"{number}{suffix}", recipe(kernel, device=device, **options), memory=SMALL
        )
        assert len(run.division) > 3
        run()
        wanted = convforge.filter(IMAGE, kernel, device="cuda:0", algorithm=run.passes[0].method, **options)
        np.testing.assert_array_equal(content(run.target), wanted)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "float16", "float32", "float64"])
def test_random_files_and_commands(tmp_path: Path, dtype: str, device: str) -> None:
    pytest.importorskip("imagecodecs")  # some files have a predictor of floats
    for seed in range(6):
        try_one(tmp_path, seed, dtype, device=device)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_along_z_gives_the_bits_of_the_volume_in_memory(tmp_path: Path, dtype: str, device: str) -> None:
    image = RANDOM.integers(0, 200, (23, 120, 90)).astype(dtype)
    source = zarr_array(tmp_path / "a.zarr", image, chunks=[4, 32, 32], names=["z", "y", "x"])
    convforge.filter_large(source, tmp_path / "b.zarr", "gaussian:1.5,2,1px", device=device, memory=3_000_000)
    wanted = convforge.filter(image, "gaussian:1.5,2,1px", axes="ZYX", device="cuda:0")
    np.testing.assert_array_equal(content(tmp_path / "b.zarr"), wanted)


def test_every_gpu_filters_units(tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    image = RANDOM.integers(0, 256, (4000, 4000), dtype=np.uint8)
    run = LargeFilter(
        kept(tmp_path / "a.npy", image), tmp_path / "b.npy", recipe("gaussian:31:4", device=device), memory=20_000_000
    )
    used: list[str] = []
    compute = Pass.compute

    def noted(self: Pass, lane: Any, name: str, *others: Any) -> Any:
        used.append(name)
        return compute(self, lane, name, *others)

    monkeypatch.setattr(Pass, "compute", noted)
    run()
    assert set(used) == set(device.split(","))
    assert len(used) == len(run.division) > 6
    np.testing.assert_array_equal(np.load(run.target), convforge.filter(image, "gaussian:31:4", device="cuda:0"))


def test_a_killed_run_goes_on(tmp_path: Path, device: str) -> None:
    source = kept(tmp_path / "a.npy", RANDOM.integers(0, 256, (3000, 3000), dtype=np.uint8))
    kill_a_run(source, tmp_path / "b.npy", SMALL, device)
    outcome = LargeFilter(source, tmp_path / "b.npy", recipe("laplacian", device=device), memory=SMALL, workers=2)()
    assert outcome.resumed >= 4
    wanted = convforge.filter(np.load(source), "laplacian", device="cuda:0")
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), wanted)
