"""The README's install lines, each in an empty environment, and what the README shows next."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
LINES = [line.removeprefix("$ ").partition("#")[0].strip() for line in re.findall(r"^\$ pip .*$", TEXT, re.MULTILINE)]
# Prints how many bytes of machine code NVRTC makes for a GPU that is not there, or that there is no NVRTC.
COMPILE = """
from convforge.backends.cuda.absent import why_no_compiler
from convforge.backends.cuda.compiler import compile_kernel
from convforge.backends.kernel import KernelSource
from convforge.timing.copies import _Copy
source = KernelSource("timing/copy.cu", "copy", (), _Copy, "Copy")
print(why_no_compiler() or len(compile_kernel(source, "sm_90").code))
"""


def run(folder: Path, *words: str, ends: int = 0) -> str:
    """Run a program of the environment in `folder`, from outside the checkout; what it wrote."""
    unset = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    variables = {name: value for name, value in os.environ.items() if name not in unset}
    path = os.pathsep.join([str(folder / "venv" / "bin"), variables["PATH"]])
    done = subprocess.run(
        words, cwd=folder, env={**variables, "PATH": path, "PIP_COMPILE": "0", "COLUMNS": "200"},
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == ends, f"{shlex.join(words)}: {done.stdout}\n{done.stderr}"
    return done.stdout if ends == 0 else done.stderr


def test_the_readme_has_the_install_lines() -> None:
    assert LINES == ["pip install .", "pip install '.[cuda13]'", "pip install '.[lab,cuda13]'"]


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="environments have other folders there")
@pytest.mark.parametrize("line", LINES)
def test_an_install_line_gives_a_library_that_works(line: str, tmp_path: Path) -> None:
    run(tmp_path, sys.executable, "-m", "venv", "venv")
    pip, install, what = shlex.split(line)
    run(tmp_path, pip, install, "--quiet", f"{ROOT}{what.removeprefix('.')}")
    where = run(tmp_path, "python", "-c", "import convforge; print(convforge.__file__)")
    assert Path(where.strip()).is_relative_to(tmp_path / "venv")
    (example,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    ending = "print(edges.shape, edges.dtype, y.shape, z.shape, bool(abs(np.maximum(z, 0) - y).max() < 1e-3))"
    assert run(tmp_path, "python", "-c", f"{example}\n{ending}").strip() == (
        "(512, 512) uint8 (1, 8, 512, 512) (1, 8, 512, 512) True"
    )
    assert "machine" in run(tmp_path, "convforge", "doctor")
    bench = ["convforge", "bench", "n1c1h8w8_k1r3s3_st1_p1_f32_nchw", "--methods", "direct_naive", "--quick"]
    if "lab" in line:
        assert "direct_naive" in run(tmp_path, *bench)
    else:
        assert "pip install 'convforge[lab]'" in run(tmp_path, *bench, ends=1)
    said = run(tmp_path, "python", "-c", COMPILE).strip()
    if "cuda" in line:
        assert int(said) > 1000
    else:
        assert said.startswith("the Python package cuda.core is missing: pip install")
