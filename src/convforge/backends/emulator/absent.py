"""Reasons why the emulator cannot run here, each with its remedy."""

from __future__ import annotations

import shutil
import sys


class EmulatorUnavailable(RuntimeError):
    """The emulator cannot run here; the message gives the reason and the remedy."""


def why_absent() -> str | None:
    """Return the reason why kernels cannot run on the CPU, or None."""
    if sys.platform != "linux":
        return "the emulator runs on Linux alone; on Windows, inside WSL"
    if shutil.which("g++") is None:
        return "the emulator needs the C++ compiler g++: apt-get install g++ (Debian, Ubuntu) or dnf install gcc-c++"
    return None
