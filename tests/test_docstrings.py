"""The examples in the docstrings run, and give what they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import convforge

ROOT = Path(convforge.__file__).parent
MODULES = sorted(
    ".".join(["convforge", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
    if ">>>" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "convforge.dask":
        pytest.importorskip("dask")
    if name.startswith(("convforge.torch", "convforge.integrations.torch")):
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    ran = doctest.testmod(importlib.import_module(name))
    assert ran.attempted
    assert ran.failed == 0, capsys.readouterr().out
