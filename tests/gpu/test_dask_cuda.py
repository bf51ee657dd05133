"""convforge.dask on the workers of dask-cuda, one for each GPU: right, on every GPU, and after a worker is lost."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.gpu.present import gpu_count, need_gpu

import convforge

need_gpu()

for name in ("dask_cuda", "cupy"):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)

import dask.array as da  # noqa: E402
from dask.distributed import Client, futures_of, wait  # noqa: E402
from dask_cuda import LocalCUDACluster  # noqa: E402

import convforge.dask as lazy  # noqa: E402

PHOTO = np.random.default_rng(7).integers(0, 256, (1500, 1700), np.uint8)
KERNEL = np.array([[0, 1, 0], [2, 5, 2], [0, 1, -3]])


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with LocalCUDACluster(dashboard_address=None) as cluster, Client(cluster) as client:
        yield client


def device_of(block: Any) -> str:
    """Return the library of a block and the GPU of the worker that has it."""
    return f"{type(block).__module__.split('.')[0]} {os.environ['CUDA_VISIBLE_DEVICES'].split(',')[0]}"


def test_blocks_of_cupy_are_filtered_on_every_gpu(client: Client) -> None:
    image = da.from_array(PHOTO, chunks=(100, 130)).map_blocks(to_gpu)
    filtered = lazy.filter(image, KERNEL, out_dtype=np.int16, border="circular").persist()
    wait(filtered)
    places = set(client.gather([client.submit(device_of, part) for part in futures_of(filtered)]))
    assert places == {f"cupy {number}" for number in range(gpu_count())}
    expected = convforge.filter(PHOTO, KERNEL, out_dtype=np.int16, border="circular")
    np.testing.assert_array_equal(filtered.map_blocks(to_host).compute(), expected)


def test_blocks_of_numpy_are_filtered_on_the_worker_s_gpu(client: Client) -> None:
    image = da.from_array(PHOTO, chunks=(300, 700))
    found = lazy.filter(image, KERNEL, out_dtype=np.int16, device="cuda").compute()
    np.testing.assert_array_equal(found, convforge.filter(PHOTO, KERNEL, out_dtype=np.int16))


def test_a_worker_that_is_killed_changes_nothing(client: Client) -> None:
    image = da.from_array(PHOTO, chunks=(40, 50)).map_blocks(to_gpu)
    future = client.compute(lazy.filter(image, KERNEL, out_dtype=np.int16).map_blocks(to_host))
    victim = next(iter(client.run(os.getpid).values()))
    os.kill(victim, signal.SIGKILL)
    np.testing.assert_array_equal(future.result(timeout=120), convforge.filter(PHOTO, KERNEL, out_dtype=np.int16))


def to_gpu(block: Any) -> Any:
    import cupy

    return cupy.asarray(block)


def to_host(block: Any) -> Any:
    return block.get()
