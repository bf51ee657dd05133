"""`convforge filter --device cuda:0,cuda:1`: the GPUs that are named filter the units of one image."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.gpu.present import gpu_count, need_gpu

import convforge

need_gpu()

IMAGE = np.random.default_rng(3).integers(0, 256, (400, 300), dtype=np.uint8)
COMMAND = "from convforge.cli import main; main()"
WORDS = ("--kernel", "gaussian:5:1", "--memory", "400kB", "--device")


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1,cuda:0", "cuda"])
def test_the_gpus_that_are_named_filter_one_image(tmp_path: Path, device: str) -> None:
    if device != "cuda:0" and gpu_count() < 2:
        pytest.skip("needs two GPUs")
    source, target = tmp_path / "a.npy", tmp_path / "b.npy"
    np.save(source, IMAGE)
    words = [sys.executable, "-c", COMMAND, "filter", str(source), str(target), *WORDS, device]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    np.testing.assert_array_equal(np.load(target), convforge.filter(IMAGE, "gaussian:5:1", device="cuda:0"))
    said = [line.partition(" ")[2].strip() for line in ran.stdout.splitlines() if line.startswith("devices ")]
    if device == "cuda:1,cuda:0":
        assert said == ["2 GPUs: cuda:1, cuda:0"]
    else:
        assert bool(said) == (device == "cuda")
