"""Many images on a GPU: pinned buffers, streams, and every result as if its image had been filtered alone."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.gpu.present import gpu, need_gpu

import convforge
from convforge.imaging.files import Image, read_image, write_image
from convforge.imaging.pipeline.lanes import LANES, Clock, lanes_of

need_gpu()

RANDOM = np.random.default_rng(41)


def test_pinned_memory_is_page_locked_and_given_back() -> None:
    from cuda.bindings import driver

    runtime = gpu()
    memory = runtime.pinned(100_000_000)
    memory[...] = 3
    address, part = memory.ctypes.data, memory[-8:].view(np.uint32)
    locked = driver.CUresult.CUDA_SUCCESS
    assert driver.cuMemHostGetFlags(address)[0] == locked
    del memory
    assert driver.cuMemHostGetFlags(address)[0] == locked, "a view keeps it"
    assert part.tolist() == [0x03030303] * 2
    del part
    assert driver.cuMemHostGetFlags(address)[0] != locked
    assert runtime.pinned(0).size == 0


def test_memory_in_use_is_page_locked_until_it_is_freed() -> None:
    from cuda.bindings import driver

    runtime, locked = gpu(), driver.CUresult.CUDA_SUCCESS
    memory = np.frombuffer(mmap.mmap(-1, 50_000_000), np.uint8)
    memory[...] = 3
    address = memory.ctypes.data
    assert driver.cuMemHostGetFlags(address)[0] != locked
    runtime.pin(memory)
    assert driver.cuMemHostGetFlags(address)[0] == locked
    there, part = runtime.allocate(50_000_000), memory[:50_000_000].view(np.uint32)
    del memory
    part[...] = 5
    runtime.begin_copy(there, part.view(np.uint8))
    runtime.synchronize()
    assert (runtime.download(there) == np.array([5, 0, 0, 0] * 12_500_000, np.uint8)).all()
    assert driver.cuMemHostGetFlags(address)[0] == locked, "a view keeps it"
    del part
    assert driver.cuMemHostGetFlags(address)[0] != locked


def test_copies_of_other_bytes_are_refused() -> None:
    runtime = gpu()
    there, host = runtime.allocate(64), runtime.pinned(64)
    for wrong in (host[:32], host[::2]):
        with pytest.raises(ValueError, match="contiguous"):
            runtime.begin_copy(there, wrong)
        with pytest.raises(ValueError, match="contiguous"):
            runtime.begin_copy(wrong, there)


def test_streams_are_lent_again_and_never_twice_at_once() -> None:
    runtime = gpu()
    with runtime.stream() as one, runtime.stream() as other:
        handles = {runtime.stream_handle(one), runtime.stream_handle(other)}
        assert len(handles | {runtime.stream_handle(None)}) == 3
    with runtime.stream() as again:
        assert runtime.stream_handle(again) in handles


@pytest.mark.parametrize("kernel", ["laplacian", "gaussian:7:1.5", "identity"])
def test_each_is_what_filter_gives_for_it_alone(kernel: str) -> None:
    kinds: list[Any] = [
        ((900, 1203, 3), np.uint8), ((700, 640), np.float32), ((3, 120, 130, 1), np.uint16), ((901, 1203, 3), np.uint8),
    ]  # fmt: skip
    images = [RANDOM.integers(0, 200, shape).astype(dtype) for _ in range(12) for shape, dtype in kinds]
    results = convforge.filter_many(images, kernel, device="cuda")
    for image, result in zip(images, results, strict=True):
        np.testing.assert_array_equal(result, convforge.filter(image, kernel, device="cuda"), strict=True)


def test_lanes_time_their_copies_by_the_gpus_clock() -> None:
    from convforge.imaging.pipeline.lanes import Convolver

    runtime, clock = gpu(), Clock()
    convolver = Convolver(
        np.ones((3, 3)), clock, "cuda", channels="each", border="reflect", cval=0.0, stride=1, algorithm="auto",
    )  # fmt: skip
    image = RANDOM.random((1, 4096, 4096, 3)).astype(np.float32)
    lanes = lanes_of(runtime)
    assert len(lanes) == LANES["cuda"]
    with lanes[0] as lane:
        convolver(lane, image, out_dtype=np.float32)
        before = dict(clock.seconds)
        convolver(lane, image, out_dtype=np.float32)
    spent = {name: clock.seconds[name] - before[name] for name in ("upload", "filter", "download")}
    fastest = image.nbytes / 200e9  # no bus is faster
    assert spent["upload"] > fastest
    assert spent["download"] > fastest
    assert 0 < spent["filter"] < spent["upload"]


def test_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from convforge.cli import app as application

    pytest.importorskip("imagecodecs")
    place, out = tmp_path / "in", tmp_path / "out"
    place.mkdir()
    images = {f"{i}.png": RANDOM.integers(0, 256, (300 + i % 3, 400, 3), dtype=np.uint8) for i in range(20)}
    for name, pixels in images.items():
        write_image(place / name, Image(pixels))
    words = ["convforge", "filter", str(place), str(out), "--kernel", "sobel-x", "--device", "cuda"]
    monkeypatch.setattr(sys, "argv", words)
    application.main()
    for name, pixels in images.items():
        expected = convforge.filter(pixels, "sobel-x", device="cuda")
        np.testing.assert_array_equal(read_image(out / name).pixels, expected)
