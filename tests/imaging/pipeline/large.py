"""Files that are filtered in units, and the recipes of the command."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convforge.imaging.kernels import load_kernel
from convforge.imaging.pipeline.large import LargeFilter, Watch
from convforge.imaging.pipeline.recipe import Recipe

RANDOM = np.random.default_rng(31)


def recipe(kernel: str | Any, **options: Any) -> Recipe:
    """The command's recipe with its defaults."""
    taps = load_kernel(kernel).values if isinstance(kernel, str) else np.asarray(kernel, np.float64)
    defaults: dict[str, Any] = {
        "channels": "each", "border": "reflect", "cval": 0.0, "stride": (1, 1), "device": "cpu", "algorithm": "auto",
        "out_dtype": None, "magnitude": False, "scale": 1.0, "gray": False,
    }  # fmt: skip
    return Recipe(taps, **{**defaults, **options})


def kept(path: Path, array: Any) -> Path:
    np.save(path, array)
    return path


def zarr_array(path: Path, array: Any, *, chunks: Any, shards: Any = None, names: Any = None, **metadata: Any) -> Path:
    """An array in a file of Zarr version 3 with zstd."""
    tensorstore = pytest.importorskip("tensorstore")
    codecs: list[Any] = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd"}]
    if shards is not None:
        codecs = [{"name": "sharding_indexed", "configuration": {"chunk_shape": chunks, "codecs": codecs}}]
    metadata = {"shape": array.shape, **metadata}
    grid = {"name": "regular", "configuration": {"chunk_shape": chunks if shards is None else shards}}
    metadata |= {"data_type": array.dtype.name, "codecs": codecs, "chunk_grid": grid}
    metadata |= {} if names is None else {"dimension_names": names}
    opened(path, tensorstore, metadata=metadata, create=True)[tuple(map(slice, array.shape))] = array
    return path


def opened(path: Path, tensorstore: Any = None, version: int = 3, **options: Any) -> Any:
    tensorstore = tensorstore or pytest.importorskip("tensorstore")
    spec = {"driver": "zarr3" if version == 3 else "zarr", "kvstore": {"driver": "file", "path": f"{path}/"}}
    if "metadata" in options:
        spec["metadata"] = options.pop("metadata")
    return tensorstore.open(spec, **options).result()


def content(path: Path) -> Any:
    """The array in a file."""
    if path.suffix == ".npy":
        return np.load(path)
    return opened(path, version=2 if (path / ".zarray").exists() else 3).read().result()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


COMMAND = """
import sys, convforge
convforge.filter_large(
    sys.argv[1], sys.argv[2], "laplacian", memory=int(sys.argv[3]), device=sys.argv[4], workers=2
)
"""


def act_after(patch: pytest.MonkeyPatch, units: int, act: Callable[[], Any]) -> None:
    """Let each run call `act` when so many units are finished, from the thread that shows the progress."""
    call = LargeFilter.__call__

    def watched(self: LargeFilter, watch: Watch) -> Any:
        def acting(done: int, total: int, label: str) -> None:
            watch(done, total, label)
            if done >= units:
                act()

        return call(self, acting)

    patch.setattr(LargeFilter, "__call__", watched)


def interrupt() -> None:
    """Raise what Ctrl-C raises."""
    raise KeyboardInterrupt


def kill_a_run(source: Path, target: Path, memory: int, device: str = "cpu") -> Path:
    """Filter a file in a process of its own, and kill it when four units are finished; return the journal."""
    journal, until = target.with_name(f"{target.name}.journal"), time.monotonic() + 120
    running = subprocess.Popen([sys.executable, "-c", COMMAND, str(source), str(target), str(memory), device])
    try:
        while not (journal.exists() and journal.read_bytes().count(b"\n") > 4):
            assert running.poll() is None
            assert time.monotonic() < until
            time.sleep(0.001)
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    assert not target.exists()
    return journal
