"""The memory that a plan tells for a TIFF of one compressed strip is what decoding and encoding take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from convforge.imaging.windowed.tiff.codec_memory import decoding_bytes, encoding_bytes, use_of

SIDE = 2500  # pixels of the image; a buffer of the libraries is small beside it

# The growth of the peak while a file is filtered, and what the plan tells; a small file has loaded the libraries.
MEASURE = """
import gc, json, sys
from pathlib import Path
from tests.imaging.pipeline.large import recipe
from convforge.imaging.pipeline.large import LargeFilter

def kilobytes(name):
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[name].split()[0])

folder = Path(sys.argv[1])
LargeFilter(folder / "small.tif", folder / "small_out.tif", recipe("box:3"), workers=2)()
run = LargeFilter(folder / "large.tif", folder / "out.tif", recipe("box:3"), workers=2)
gc.collect()
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = kilobytes("VmRSS")
run()
print(json.dumps([run.needs, 1024 * (kilobytes("VmHWM") - before)]))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of a process is reset on Linux only")
@pytest.mark.parametrize("codec", ["jpeg2000", pytest.param("lzw", marks=pytest.mark.thorough)])
def test_the_plan_tells_the_memory_of_a_codec(tmp_path: Path, codec: str) -> None:
    noise = np.random.default_rng(5).integers(0, 256, (SIDE, SIDE), dtype=np.uint8)
    options: Any = {"compression": codec, "predictor": codec == "lzw", "metadata": None}
    tifffile.imwrite(tmp_path / "large.tif", noise, rowsperstrip=SIDE, **options)
    tifffile.imwrite(tmp_path / "small.tif", noise[:256, :256], rowsperstrip=256, **options)
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, check=True,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20)},
    )  # fmt: skip
    needs, peak = json.loads(ran.stdout)
    assert peak <= 1.1 * needs + 4e6
    assert peak >= needs / 3


def test_codecs_by_number() -> None:
    assert use_of(34712, 1, 1).decoder > use_of(34712, 1, 2).decoder > use_of(8, 1, 1).decoder
    assert use_of(8, 3, 4).decoder == use_of(8, 1, 4).decoder + 1
    assert use_of(8, 2, 1).encoder == use_of(8, 1, 1).encoder + 1
    # No more than the file is read.
    assert decoding_bytes(8, 1, 2, 10**6, 1000) == 1000 + 200_000
    assert encoding_bytes(1, 1, 2, 10**6) == 2 * 10**6
