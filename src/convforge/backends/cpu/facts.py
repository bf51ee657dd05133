"""Facts of this machine's CPU from the operating system, or estimates."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

from convforge.backends.facts import DeviceFacts

# Cache sizes where the system does not report them (Windows, macOS): those of a desktop core.
_USUAL_L1, _USUAL_L2, _USUAL_L3 = 32 << 10, 512 << 10, 8 << 20


@cache
def cpu_facts() -> DeviceFacts:
    caches = _caches()
    flags = _cpuinfo("flags").split()
    vector = 64 if "avx512f" in flags else 32 if "avx2" in flags else 16
    return DeviceFacts(
        backend="cpu",
        name=_cpuinfo("model name") or platform.processor() or platform.machine(),
        cores=_cores(),
        l1_bytes=caches.get(1, _USUAL_L1),
        l2_bytes=caches.get(2, _USUAL_L2),
        l3_bytes=caches.get(3, _USUAL_L3),
        memory_bytes=_memory(),
        vector_bytes=vector,
        architecture=platform.machine(),
    )


def _cores() -> int:
    """Cores that this process may use, or CONVFORGE_THREADS if set."""
    wanted = os.environ.get("CONVFORGE_THREADS", "")
    if wanted:
        if not wanted.isdigit() or int(wanted) < 1:
            raise ValueError(f"CONVFORGE_THREADS={wanted!r} must be a whole number of at least 1")
        return int(wanted)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_cpuinfo() -> str:
    """The text of /proc/cpuinfo; empty on other systems than Linux."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _cpuinfo(field: str) -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""


def _caches() -> dict[int, int]:
    """Bytes of the first core's data caches by level."""
    sizes: dict[int, int] = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if (index / "type").read_text().strip() == "Instruction":
                continue
            size = (index / "size").read_text().strip()
            sizes[int((index / "level").read_text())] = int(size.rstrip("K")) << 10
        except (OSError, ValueError):
            continue
    return sizes


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0
