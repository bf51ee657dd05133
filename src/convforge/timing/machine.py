"""State of the measuring machine: device, system, clocks, load, libraries, commit."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from convforge.backends.cpu.facts import read_cpuinfo
from convforge.backends.facts import DeviceFacts

_LIBRARIES = ("convforge", "numpy", "numba", "llvmlite", "scipy")


def device_slug(facts: DeviceFacts) -> str:
    """A short name of the device for folders and keys, such as "intel-xeon-gold-6148-8c"."""
    name = re.sub(r"\((?:R|TM|C)\)|@.*|\b(?:CPU|Processor|\d+-Core)\b", " ", facts.name, flags=re.IGNORECASE)
    words = re.findall(r"[a-z0-9]+", name.lower()) or [facts.architecture.lower().replace("_", "-")]
    cores = f"{facts.cores}c" if facts.backend == "cpu" else f"{facts.cores}sm"
    return "-".join([*words, cores])


def machine_table(facts: DeviceFacts) -> dict[str, Any]:
    """Return the machine and its current state as a table for JSON; None for unknown values."""
    return {
        "facts": facts.to_table(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "load": [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "clock_mhz": _clocks(),
        "threads": {name: value for name, value in os.environ.items() if name.endswith("_NUM_THREADS")},
        "byte_order": sys.byteorder,
    }


def versions() -> dict[str, str]:
    """Versions of the libraries that measure and compute, and of NumPy's BLAS."""
    import numpy as np

    found = {}
    for name in _LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    built = np.show_config(mode="dicts")
    blas = built.get("Build Dependencies", {}).get("blas", {}) if built else {}
    return found | ({"blas": f"{blas['name']} {blas.get('version', '')}".strip()} if blas.get("name") else {})


def repository(package: Path | None = None) -> tuple[str | None, bool]:
    """Return the commit of the package's git checkout (or None), and True if it has uncommitted changes."""
    package = package or Path(__file__).parents[1]
    # A package may be installed inside another repository, of which it is not a part.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None, False
    return _git(package, "rev-parse", "HEAD") or None, bool(
        _git(package, "status", "--porcelain", "--untracked-files=no")
    )


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _clocks() -> list[float] | None:
    """Clock of every core in MHz, on Linux."""
    found = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", read_cpuinfo(), re.MULTILINE)
    return [float(value) for value in found] or None
