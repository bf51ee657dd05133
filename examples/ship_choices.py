"""Measure the fastest methods here, store the choices in a file, and load it in a process that may not measure.

    python examples/ship_choices.py
    python examples/ship_choices.py --device cuda --out tuned.json

`convforge tune SUITE -o tuned.json` measures from the command line, and CONVFORGE_TUNED=tuned.json loads it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# The program's convolutions: (shape of x, shape of w).
SHAPES = (((1, 3, 128, 128), (3, 3, 3, 3)), ((1, 16, 28, 28), (16, 16, 3, 3)))

# The target: a process without stored choices, which may not measure.
ELSEWHERE = """
import sys
import convforge.tuning
from convforge.call.dispatch import runtime_of
from convforge.problem import parse_problem

device, path, *problems = sys.argv[1:]
print(convforge.tuning.load(path), "choices loaded")
for text in problems:
    choice = convforge.tuning.decide(parse_problem(text), runtime_of(device))
    assert not choice.untuned, text
    print(f"{text}: {choice.algorithm.name}; {choice.reason}")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="the file; a temporary one by default")
    given = parser.parse_args()
    problems = [f"n{n}c{c}h{h}w{w}_k{k}r{r}s{s}_p1_f32_nchw" for (n, c, h, w), (k, _, r, s) in SHAPES]
    with tempfile.TemporaryDirectory() as folder:
        path = given.out or Path(folder, "tuned.json")
        tune = [sys.executable, "-m", "convforge", "tune", *problems, "--device", given.device, "--budget", "2s"]
        subprocess.run([*tune, "-o", str(path)], check=True)
        held = json.loads(path.read_bytes())
        print(f"{path.name} holds {path.stat().st_size} bytes: {', '.join(held)}")
        elsewhere = {**os.environ, "CONVFORGE_CACHE_DIR": str(Path(folder, "elsewhere")), "CONVFORGE_TUNE": "0"}
        subprocess.run([sys.executable, "-c", ELSEWHERE, given.device, str(path), *problems], check=True, env=elsewhere)


if __name__ == "__main__":
    main()
