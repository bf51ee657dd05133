"""Why the emulator cannot run here, in a sentence that says what would mend it."""

from __future__ import annotations

import shutil
import sys


class EmulatorUnavailable(RuntimeError):
    """The emulator cannot run here; the text says why, and what would mend it."""


def why_absent() -> str | None:
    """Why kernels cannot be run on the CPU; None where they can."""
    if sys.platform != "linux":
        return "the emulator runs on Linux alone; on Windows, inside WSL"
    if shutil.which("g++") is None:
        return "the emulator needs the C++ compiler g++: apt-get install g++ (Debian, Ubuntu) or dnf install gcc-c++"
    return None
