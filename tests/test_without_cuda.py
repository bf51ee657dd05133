"""Without the CUDA package every entry point says so in one sentence, with the line that installs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

INSTALL = "pip install 'convforge[cuda13]'"

# The package cannot be imported; the first argument is what is run.
BLOCKED = "import sys; sys.modules['cuda'] = None; "

CALLS = """
import numpy as np
import convforge

x, w, plane = np.ones((1, 1, 8, 8), "f4"), np.ones((1, 1, 3, 3), "f4"), np.ones((8, 8), "f4")
problem = convforge.parse_problem("n1c1h8w8_k1r3s3_st1_p1_f32_nchw")
calls = {
    "conv2d": lambda: convforge.conv2d(x, w, device="cuda"),
    "conv2d on another GPU": lambda: convforge.conv2d(x, w, device="cuda:1"),
    "filter": lambda: convforge.filter(plane, "laplacian", device="cuda"),
    "filter_many": lambda: list(convforge.filter_many([plane], "laplacian", device="cuda")),
    "gemm": lambda: convforge.gemm(plane, plane, device="cuda"),
    "relu": lambda: convforge.relu(x, device="cuda"),
    "max_pool2d": lambda: convforge.max_pool2d(x, 2, device="cuda"),
    "Filter": lambda: convforge.Filter(w, device="cuda")(x),
    "algorithms": lambda: convforge.algorithms(problem, device="cuda"),
}
for name, call in calls.items():
    try:
        call()
    except RuntimeError as refused:
        print(f"{name}: {refused}")
"""

CASE = "n1c1h8w8_k1r3s3_st1_p1_f32_nchw"
COMMANDS = {
    "filter": ("filter", "in.npy", "out.npy", "--kernel", "laplacian"),
    "filter of a folder": ("filter", "folder", "out", "--kernel", "laplacian"),
    "bench": ("bench", "smoke"),
    "explain": ("explain", CASE),
    "tune": ("tune", CASE),
    "lab": ("lab",),
    "study": ("study", "size"),
    "gemm": ("gemm", "8", "8", "8"),
    "check": ("check", "kernel.cu"),
}


def ran(code: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "400"}
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + code, *words], capture_output=True, text=True, cwd=folder, env=environment,
        timeout=120, check=False,
    )  # fmt: skip


def test_the_library_says_what_to_install(tmp_path: Path) -> None:
    done = ran(CALLS, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert [line.partition(":")[0].replace(" on another GPU", "") for line in said] == [
        *("conv2d", "conv2d", "filter", "filter_many", "gemm", "relu", "max_pool2d", "Filter", "algorithms"),
    ]
    for line in said:
        assert "the Python package cuda.core is missing" in line, line
        assert INSTALL in line, line


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_line_says_what_to_install(name: str, tmp_path: Path) -> None:
    import numpy as np

    np.save(tmp_path / "in.npy", np.ones((8, 8), np.float32))
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "in.npy", np.ones((8, 8), np.float32))
    (tmp_path / "kernel.cu").write_text('extern "C" __global__ void conv2d() {}')
    done = ran("from convforge.cli import main; main()", *COMMANDS[name], "--device", "cuda", folder=tmp_path)
    said = done.stderr or done.stdout
    assert "Traceback" not in said
    assert said.count(INSTALL) == 1
    if name == "check":  # its report is for standard output, and 2 says that nothing could be run
        assert done.returncode == 2, said
    else:
        assert (done.returncode, done.stdout) == (1, "")
        assert said.startswith("convforge: the Python package cuda.core is missing: ")
        assert said.count("\n") == 1


def test_doctor_says_what_to_install(tmp_path: Path) -> None:
    done = ran("from convforge.cli import main; main()", "doctor", folder=tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""
    assert INSTALL in done.stdout
