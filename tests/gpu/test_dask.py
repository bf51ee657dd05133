"""convforge.dask on blocks of CuPy: they stay on their GPU, and the result is that of the same call on the CPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.api.definition import whole
from tests.gpu.present import gpu_count, need_gpu
from tests.kinds import module

import convforge
from convforge.problem import PADDING_MODES

need_gpu()

dask = module("dask")

if importlib.util.find_spec("cupy") is None:
    pytest.skip("cupy is not installed", allow_module_level=True)

import cupy  # noqa: E402
import dask.array as da  # noqa: E402

import convforge.dask as lazy  # noqa: E402

RNG = np.random.default_rng(7)
PHOTO = RNG.integers(0, 256, (61, 70), np.uint8)
NOISE = RNG.standard_normal((61, 70)).astype(np.float32)
UNEVEN = ((1, 20, 0, 2, 38), (3, 1, 1, 65))  # chunks of one pixel, narrower than the halo, and empty
DIAGONAL = np.array([[0, 1, 0, 0], [2, 5, 2, 1], [0, 1, -3, 0]])
# float32 sums of 17 + 17 products, in another order than those of the CPU.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(autouse=True, params=["synchronous", "threads"])
def scheduler(request: pytest.FixtureRequest) -> Iterator[None]:
    cupy.cuda.Device(0).use()  # tests of runtimes leave another
    with dask.config.set(scheduler=request.param, num_workers=3):
        yield


def on_gpu(array: np.ndarray, chunks: Any) -> Any:
    """Return a dask array whose blocks are of CuPy."""
    return da.from_array(cupy.asarray(array), chunks=chunks, asarray=False, name=False)


def computed(y: Any) -> np.ndarray:
    """Compute a dask array of CuPy; fail unless its blocks are of CuPy, on the first GPU, and of their sizes."""
    assert isinstance(y._meta, cupy.ndarray)
    blocks = dask.compute(*y.to_delayed().ravel())
    for block, index in zip(blocks, np.ndindex(y.numblocks), strict=True):
        assert isinstance(block, cupy.ndarray)
        assert block.device.id == 0
        assert block.dtype == y.dtype
        assert block.shape == tuple(sizes[i] for sizes, i in zip(y.chunks, index, strict=True))
    result = y.compute()
    assert isinstance(result, cupy.ndarray)
    return cupy.asnumpy(result)


@pytest.mark.parametrize("border", PADDING_MODES)
def test_filter_with_whole_weights_has_the_same_bits(border: str) -> None:
    cval = {"cval": 7} if border == "constant" else {}
    for image, kernel, options in (
        (PHOTO, "laplacian", {"out_dtype": np.int32}),
        (PHOTO, DIAGONAL, {"out_dtype": np.int16, "stride": (2, 3)}),
        (np.rint(9 * NOISE), DIAGONAL, {}),
    ):
        expected = lazy.filter(da.from_array(image, chunks=UNEVEN), kernel, border=border, **cval, **options).compute()
        found = computed(lazy.filter(on_gpu(image, UNEVEN), kernel, border=border, **cval, **options))
        np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize("border", PADDING_MODES)
@pytest.mark.parametrize("chunks", [UNEVEN, (7, 9), -1], ids=["uneven", "small", "one"])
def test_filter_by_a_gaussian(border: str, chunks: Any) -> None:
    expected = convforge.filter(NOISE, "gaussian:17:2", border=border)
    found = computed(lazy.filter(on_gpu(NOISE, chunks), "gaussian:17:2", border=border))
    np.testing.assert_allclose(found, expected, **CLOSE)
    rounded = computed(lazy.filter(on_gpu(PHOTO, chunks), "gaussian:17:2", border=border))
    difference = rounded.astype(np.int64) - convforge.filter(PHOTO, "gaussian:17:2", border=border)
    assert rounded.dtype == np.uint8
    assert np.abs(difference).max() <= 1, "a sum next to a half is rounded to either side"


@pytest.mark.parametrize("algorithm", ["direct_naive", "direct_tiled", "separable"])
def test_filter_has_the_bits_of_the_whole_array_on_the_gpu(algorithm: str) -> None:
    options: dict[str, Any] = {"border": "symmetric", "algorithm": algorithm}
    expected = cupy.asnumpy(convforge.filter(cupy.asarray(NOISE), "gaussian:9:2", **options))
    np.testing.assert_array_equal(computed(lazy.filter(on_gpu(NOISE, UNEVEN), "gaussian:9:2", **options)), expected)


@pytest.mark.parametrize("channels", ["each", "sum"])
def test_stacks_of_bands(channels: str) -> None:
    image = RNG.integers(0, 256, (3, 22, 31, 3), np.uint8)
    options: dict[str, Any] = {"channels": channels, "out_dtype": np.int32}
    found = computed(lazy.filter(on_gpu(image, (2, (1, 21), 15, (1, 2))), "laplacian", **options))
    np.testing.assert_array_equal(found, convforge.filter(image, "laplacian", **options), strict=True)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("border", PADDING_MODES)
def test_conv2d_with_whole_numbers_has_the_same_bits(border: str, layout: str) -> None:
    x, w, bias = whole(2, 6, 25, 26), whole(8, 6, 3, 3), whole(8)
    chunks: Any = (1, (2, 4), (1, 6, 18), (3, 2, 21))
    if layout == "NHWC":
        x, chunks = np.ascontiguousarray(x.transpose(0, 2, 3, 1)), (chunks[0], *chunks[2:], chunks[1])
    options: dict[str, Any] = {
        "layout": layout, "padding_mode": border, "padding": ((2, 0), (1, 3)), "activation": "relu",
        "algorithm": "direct_naive",
    }  # fmt: skip
    expected = convforge.conv2d(x, w, bias, **options)
    for operands in ((w, bias), (cupy.asarray(w), cupy.asarray(bias))):
        found = computed(lazy.conv2d(on_gpu(x, chunks), *operands, **options))
        np.testing.assert_array_equal(found, expected, strict=True)


def test_conv2d_by_auto_in_groups_with_a_residual_and_lazy_weights() -> None:
    x, w, bias = whole(2, 8, 30, 33), whole(16, 4, 3, 3), whole(16)
    residual = whole(2, 16, 30, 33)
    chunks = (1, (4, 4), (13, 17), (8, 25))
    expected = convforge.conv2d(x, w, bias, padding=1, groups=2, residual=residual, activation="relu")
    found = computed(
        lazy.conv2d(
            on_gpu(x, chunks), on_gpu(w, (8, 4, 3, 3)), on_gpu(bias, 5), padding=1, groups=2,
            residual=on_gpu(residual, (2, 16, 7, 33)), activation="relu",
        )
    )  # fmt: skip
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-2)


def test_numpys_blocks_are_computed_on_the_gpu_of_the_worker() -> None:
    y = lazy.filter(da.from_array(PHOTO, chunks=UNEVEN), "laplacian", out_dtype=np.int32, device="cuda")
    assert type(y._meta) is np.ndarray
    found = y.compute()
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, convforge.filter(PHOTO, "laplacian", out_dtype=np.int32), strict=True)


def test_another_device_than_that_of_the_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="the arrays are on cuda:0"):
        lazy.filter(on_gpu(PHOTO, (30, 30)), "laplacian", device="cpu")


def test_blocks_on_another_gpu_stay_there() -> None:
    if gpu_count() < 2:
        pytest.skip("needs two GPUs")
    with cupy.cuda.Device(1):
        image = on_gpu(PHOTO, UNEVEN)
        y = lazy.filter(image, DIAGONAL, out_dtype=np.int32, border="circular")
    expected = convforge.filter(PHOTO, DIAGONAL, out_dtype=np.int32, border="circular")
    blocks = dask.compute(*y.to_delayed().ravel())  # by threads whose current GPU is the first
    assert {block.device.id for block in blocks} == {1}
    # On the host, for dask's own join runs in a thread whose current GPU is the first, of which CuPy warns.
    copied = y.map_blocks(cupy.asnumpy, dtype=y.dtype, meta=np.empty((0, 0), y.dtype))
    np.testing.assert_array_equal(copied.compute(), expected, strict=True)
