"""Transforms of the runtimes: what they compute in place, and how cuFFT is asked for them."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest
from tests.backends.emulated import needs_emulator

from convforge.backends.cpu import cpu_runtime
from convforge.backends.cuda import fft as cuda_fft
from convforge.backends.cuda.arrays import DeviceArray
from convforge.backends.emulator import emulator_runtime
from convforge.backends.fft import RealFft

SHAPES = [(5, 8, 5, 3), (8, 6, 4, 1), (1, 2, 2, 2), (6, 10, 8, 4)]


@needs_emulator
@pytest.mark.parametrize("backend", ["cpu", "emulator"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_there_and_back(shape: tuple[int, int, int, int], dtype: str, backend: str) -> None:
    runtime: Any = cpu_runtime() if backend == "cpu" else emulator_runtime()
    there = RealFft(*shape, dtype=dtype)
    batch = np.full(there.reals, np.nan, dtype)
    pixels = np.random.default_rng(1).standard_normal((*there.reals[:2], shape[1])).astype(dtype)
    batch[:, :, : shape[1]] = pixels
    forward, back = runtime.fft(there), runtime.fft(RealFft(*shape, dtype=dtype, inverse=True))
    room = runtime.allocate(max(forward.workspace_bytes, back.workspace_bytes))
    forward(batch, room)
    spectra = batch.view(np.result_type(dtype, np.complex64))[:, :, : shape[1] // 2 + 1]
    np.testing.assert_allclose(spectra, np.fft.rfft2(pixels), rtol=1e-4, atol=1e-4)
    raw = np.ascontiguousarray(batch).reshape(-1).view(np.uint8)  # a run of bytes, as workspaces are
    back(raw, room)
    seen = raw.view(dtype).reshape(there.reals)[:, :, : shape[1]]
    np.testing.assert_allclose(seen, pixels * (shape[0] * shape[1]), rtol=1e-4, atol=1e-3)


@needs_emulator
def test_the_emulator_spoils_its_workspace_and_asks_for_enough() -> None:
    transform = emulator_runtime().fft(RealFft(4, 4, 3, 1, "float32"))
    batch, room = np.zeros((1, 4, 6), np.float32), np.zeros(transform.workspace_bytes, np.uint8)
    transform(batch, room)
    assert (room == 0xFF).all()
    with pytest.raises(ValueError, match="bytes of workspace"):
        transform(batch, room[1:])


@pytest.mark.parametrize("shape", [(0, 8, 5, 1), (8, 8, 4, 1), (8, 8, 5, 0)])
def test_what_is_no_transform(shape: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        RealFft(*shape, dtype="float32")
    with pytest.raises(ValueError, match="float16"):
        RealFft(8, 8, 5, 1, "float16")


class Library:
    """Stands in for libcufft: it notes its calls, and answers what it is told to."""

    def __init__(self, failing: str = "") -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.failing = failing

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> int:
            if name == "cufftCreate":
                args[0]._obj.value = 41
            if name == "cufftMakePlanMany64":
                args[-1]._obj.value = 768
                plain = (list(a) if isinstance(a, ctypes.Array) else a for a in args[:-1])
                self.calls.append((name, *plain))
            elif name == "cufftGetVersion":
                args[0]._obj.value = 12105
            else:
                self.calls.append((name, *args))
            return 8 if name == self.failing else 0

        return call


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    stand_in = Library()
    monkeypatch.setattr(cuda_fft, "_library", lambda: stand_in)
    return stand_in


def handle_of(stream: Any) -> int:
    return 0x77 if stream is None else int(stream)


def test_a_plan_of_cufft_is_in_place_and_allocates_nothing(library: Library) -> None:
    transform = cuda_fft.CufftTransform(RealFft(6, 10, 8, 4, "float32"), handle_of)
    assert (transform.kernel, transform.workspace_bytes) == ("cufftExecR2C", 768)
    made = library.calls[-1]
    assert library.calls[1] == ("cufftSetAutoAllocation", 41, 0)
    assert made == ("cufftMakePlanMany64", 41, 2, [6, 10], [6, 16], 1, 96, [6, 8], 1, 48, 0x2A, 4)
    back = cuda_fft.CufftTransform(RealFft(6, 10, 8, 4, "float64", inverse=True), handle_of)
    assert back.kernel == "cufftExecZ2D"
    assert library.calls[-1][4:] == ([6, 8], 1, 48, [6, 16], 1, 96, 0x6C, 4)


def test_a_call_sets_stream_and_work_area_and_runs_in_place(library: Library) -> None:
    transform = cuda_fft.CufftTransform(RealFft(6, 10, 8, 4, "float32"), handle_of)
    batch, room = DeviceArray.at(0x10000, 4 * 6 * 16 * 4, None), DeviceArray.at(0x40000, 768, None)
    library.calls.clear()
    transform(batch, room, 5)
    assert library.calls == [
        ("cufftSetStream", 41, 5), ("cufftSetWorkArea", 41, 0x40000), ("cufftExecR2C", 41, 0x10000, 0x10000),
    ]  # fmt: skip
    for batch_bytes, room_bytes in ((4 * 6 * 16 * 4 - 1, 768), (4 * 6 * 16 * 4, 767)):
        with pytest.raises(ValueError, match="needs 1536 bytes of data and 768 of workspace"):
            transform(DeviceArray.at(0x10000, batch_bytes, None), DeviceArray.at(0x40000, room_bytes, None))
    library.calls.clear()
    del transform
    gc.collect()
    assert library.calls == [("cufftDestroy", 41)], "a plan goes with its last user"


def test_what_cufft_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = Library(failing="cufftMakePlanMany64")
    monkeypatch.setattr(cuda_fft, "_library", lambda: stand_in)
    with pytest.raises(cuda_fft.CufftError, match=r"cufftMakePlanMany64 says INVALID_SIZE \(8\)"):
        cuda_fft.CufftTransform(RealFft(6, 10, 8, 4, "float32"), handle_of)
    monkeypatch.setattr(cuda_fft, "why_no_fft", lambda: "")
    assert cuda_fft.cufft_version() == "12.1.5"


def test_why_there_is_no_cufft(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> Any:
        raise RuntimeError("Failure finding libcufft.so\nsearched everywhere")

    monkeypatch.setattr(cuda_fft, "_library", absent)
    cuda_fft.why_no_fft.cache_clear()
    try:
        reason = cuda_fft.why_no_fft()
    finally:
        cuda_fft.why_no_fft.cache_clear()
    assert "Failure finding libcufft.so)" in reason
    assert "pip install nvidia-cufft" in reason
    assert "searched everywhere" not in reason
    monkeypatch.setattr(cuda_fft, "why_no_fft", lambda: reason)
    assert cuda_fft.cufft_version() == "unknown"
