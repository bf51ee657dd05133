"""The scripts under benchmarks/, imported as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


def script_named(name: str) -> ModuleType:
    """The module that ``benchmarks/NAME.py`` is."""
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their own types
    spec.loader.exec_module(module)
    return module
