"""The examples that take other libraries, run as users run them, on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kinds import module

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(
    "library, name, says",
    [
        pytest.param("torch", "train_cnn", ["the loss fell from"], marks=pytest.mark.thorough),
        pytest.param(
            "torch", "quantized_network", ["accuracy: float32", "8-bit integers: "], marks=pytest.mark.thorough
        ),
        ("jax", "jax_array", ["of shape (4, 8, 64, 64)", "under jit: x is traced by JAX"]),
        pytest.param(
            "numpy",
            "numpy_picture",
            ["blurred: (512, 512, 3), uint8", "edges: (512, 512), int32"],
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "numpy", "ship_choices", ["2 choices loaded", "implicit_gemm; measured: "], marks=pytest.mark.thorough
        ),
    ],
)
def test_an_example(library: str, name: str, says: list[str]) -> None:
    module(library)
    # One thread of PyTorch's own: several wait for each other where cores are shared with other tests.
    ran = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", "--device", "cpu"],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert [words for words in says if words not in ran.stdout] == []


@pytest.mark.thorough
def test_swapped_models_are_stored_as_the_docs_show_them(tmp_path: Path) -> None:
    from convforge.benchmark.sheet_tables import sheet_markdown
    from convforge.benchmark.sheets import load_sheets

    module("torch")
    words = ["--size", "32", "--budget", "0.1", "--out", str(tmp_path)]
    ran = subprocess.run(
        [sys.executable, EXAMPLES / "torch_swap.py", *words],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "convforge takes" in ran.stdout
    (made,) = load_sheets(tmp_path)
    assert made.complete
    found = [(row["model"], row["layers"], row["right"], set(row["times"])) for row in made.rows]
    times = {"eager", "convforge"}
    assert found == [("ResNet-18", 20, True, times), ("MobileNetV2", 52, True, times), ("U-Net", 23, True, times)]
    assert "All outputs keep to the bound." in sheet_markdown("models", [made])


def test_without_jax_the_example_says_so(tmp_path: Path) -> None:
    (tmp_path / "find_nothing.py").write_text(
        "import importlib.util, runpy, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'jax' else find(name, *rest)\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n",
        encoding="utf-8",
    )
    ran = subprocess.run(
        [sys.executable, tmp_path / "find_nothing.py", EXAMPLES / "jax_array.py"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout.startswith("JAX is not installed: pip install jax")


# After what the demo compiles the command line compiles nothing: neither for bytes nor for floats.
COMPILED = """
import sys
from pathlib import Path
import numpy as np
from numba.core import event
import demo
from convforge.cli.app import app

for kernel in demo.KERNELS:
    demo.filter_once(kernel)
with event.install_recorder("numba:compile") as recorder:
    for dtype in demo.SAMPLES:
        for shape in ((70, 90), (70, 90, 3)):
            np.save("in.npy", np.ones(shape, dtype))
            for kernel in (*demo.KERNELS, "gaussian:7:1.5", "box:5", "emboss"):
                app(["filter", "in.npy", "out.npy", "--kernel", kernel], standalone_mode=False)
                assert np.load("out.npy").shape == shape
print(sorted({str(done.data["dispatcher"]) for _, done in recorder.buffer if done.is_start}))
"""


@pytest.mark.thorough
def test_the_demo_compiles_what_filters_of_the_command_line_take(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=500,
        env={**os.environ, "PYTHONPATH": paths, "CONVFORGE_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "[]"
