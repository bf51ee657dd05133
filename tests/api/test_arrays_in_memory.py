"""conv2d on arrays however they lie in memory, and on empty and tiny ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.api.definition import Array, W, X, convolved, whole

from convforge import algorithms, conv2d
from convforge.problem import PADDING_MODES

VIEWS: dict[str, Callable[[Array], Array]] = {
    "rows and columns left out": lambda a: a[:, :, ::2, 1::3],
    "channels left out": lambda a: a[:, ::3],
    "upside down": lambda a: a[:, :, ::-1],
    "all reversed": lambda a: a[::-1, ::-1, ::-1, ::-1],
    "axes swapped": lambda a: a.swapaxes(2, 3),
    "channels last": lambda a: np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
    "one channel for all": lambda a: np.broadcast_to(a[:, :1], a.shape),
    "one pixel for all": lambda a: np.broadcast_to(a[:, :, :1, :1], a.shape),
    "Fortran order": lambda a: np.asfortranarray(a),
    "a window of a larger image": lambda a: a[:, :, 2:7, 3:9],
    "a field of records": lambda a: a.astype([("v", "f4"), ("gap", "u1")])["v"],
    "unaligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
    "big-endian": lambda a: a.astype(">f4"),
    "read-only": lambda a: np.lib.stride_tricks.as_strided(a, writeable=False),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("algorithm", ["auto", "im2col"])
def test_any_array_will_do(name: str, algorithm: str) -> None:
    x = VIEWS[name](whole(2, 6, 12, 13))
    before = np.array(x)
    w = whole(4, x.shape[1], 3, 2)
    result = conv2d(x, w, padding=1, algorithm=algorithm)
    np.testing.assert_array_equal(result, convolved(np.array(x, np.float32), w, pads=(1, 1, 1, 1)))
    np.testing.assert_array_equal(np.array(x), before, "x is left as it was")
    assert result.dtype == np.float32
    assert result.dtype.isnative


def test_a_file_mapped_into_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    result = conv2d(mapped, W)
    np.testing.assert_array_equal(result, convolved(X, W))
    assert type(result) is np.ndarray


@pytest.mark.parametrize("name", ["all reversed", "axes swapped", "big-endian", "one pixel for all", "unaligned"])
def test_weights_may_lie_anyhow(name: str) -> None:
    w = VIEWS[name](whole(4, 6, 3, 3))
    np.testing.assert_array_equal(conv2d(X, w), convolved(X, np.array(w, np.float32)))


@pytest.mark.parametrize("shape", [(0, 6, 9, 11), (1, 6, 3, 3)])
def test_empty_batches_and_single_outputs(shape: tuple[int, ...]) -> None:
    result = conv2d(np.ones(shape, np.float32), W)
    assert result.shape == (shape[0], 4, shape[2] - 2, shape[3] - 2)
    np.testing.assert_array_equal(result, convolved(np.ones(shape), W))


@pytest.mark.parametrize(
    "name", [a.name for a in algorithms() if a.operation == "conv2d" and a.ours and a.backend == "cpu"]
)
def test_an_empty_batch_by_every_method(name: str) -> None:
    for size in (1, 3, 5):
        w = np.ones((4, 6, size, size), np.float32)
        x = np.empty((0, 6, 9, 11), np.float32)
        if next(a for a in algorithms(f"n0c6h9w11_k4r{size}s{size}_f32_nchw") if a.name == name).refusal is None:
            assert conv2d(x, w, algorithm=name).shape == (0, 4, 10 - size, 12 - size)


@pytest.mark.parametrize("mode", [mode for mode in PADDING_MODES if mode != "constant"])
def test_a_picture_of_one_pixel(mode: str) -> None:
    x, w = np.full((1, 1, 1), 3, np.float32), whole(2, 1, 3, 3)
    result = conv2d(x, w, padding=1, padding_mode=mode)
    expected = w[:, 0, 1, 1] if mode == "zeros" else w.sum(axis=(1, 2, 3))
    assert result.ravel().tolist() == (3 * expected).tolist()
