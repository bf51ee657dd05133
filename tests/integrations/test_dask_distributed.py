"""convforge.dask on a cluster of two worker processes, also if one is killed while it computes."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.kinds import module

import convforge

module("dask")
distributed = module("distributed")

import dask  # noqa: E402
import dask.array as da  # noqa: E402

import convforge.dask as lazy  # noqa: E402

IMAGE = np.random.default_rng(3).standard_normal((60, 50)).astype(np.float32)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        warnings.catch_warnings(),
        dask.config.set({"distributed.comm.timeouts.connect": "60s", "distributed.comm.timeouts.tcp": "60s"}),
    ):
        warnings.simplefilter("ignore")  # a cluster of a busy machine warns of slow starts, and of the killed worker
        cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True)
        with cluster, distributed.Client(cluster, set_as_default=False) as client:
            yield client


@pytest.mark.thorough  # the next test computes in two processes too
def test_two_processes_compute_the_whole_image(client: Any) -> None:
    image = da.from_array(IMAGE, chunks=(13, 20))
    y = lazy.filter(image, "gaussian:9:2", border="circular")
    z = lazy.conv2d(y[None, None], np.ones((2, 1, 3, 3), np.float32), padding=1, algorithm="direct_naive")
    found = client.compute([y, z], sync=True)
    blurred = convforge.filter(IMAGE, "gaussian:9:2", border="circular")
    np.testing.assert_array_equal(found[0], blurred, strict=True)
    summed = convforge.conv2d(blurred[None, None], np.ones((2, 1, 3, 3), np.float32), padding=1,
                              algorithm="direct_naive")  # fmt: skip
    np.testing.assert_array_equal(found[1], summed, strict=True)


def test_a_killed_worker_changes_nothing(client: Any) -> None:
    def slowly(block: np.ndarray) -> np.ndarray:
        time.sleep(0.05)
        return block

    image = da.from_array(IMAGE, chunks=10).map_blocks(slowly, dtype=np.float32)
    y = lazy.filter(image, "gaussian:9:2", border="reflect")
    (kept,) = client.persist([y])
    parts = distributed.futures_of(kept)
    processes = dict(client.run(os.getpid))
    deadline = time.monotonic() + 60
    while sum(part.done() for part in parts) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    held = client.has_what()
    unlucky = max(processes, key=lambda worker: len(held[worker]))
    assert all(held.values()), "both compute"
    os.kill(processes[unlucky], getattr(signal, "SIGKILL", signal.SIGTERM))
    found = client.compute(kept, sync=True)
    np.testing.assert_array_equal(found, convforge.filter(IMAGE, "gaussian:9:2", border="reflect"), strict=True)
