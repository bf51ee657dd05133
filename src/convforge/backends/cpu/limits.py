"""Limit of memory that Linux sets to a process by its control groups: that of a container or of a job."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

# Control groups of version 2 have one tree, those of version 1 a tree for memory.
TREES = (("", Path("/sys/fs/cgroup"), "memory.max"), ("memory", Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"))


def memory_limit(process: Path = Path("/proc/self/cgroup"), trees: tuple[tuple[str, Path, str], ...] = TREES) -> int:
    """Return the least limit in bytes of this process's group and the groups around it; 0 if there is none."""
    found: list[int] = []
    groups: dict[str, str] = {}
    with suppress(OSError):
        for line in process.read_text().splitlines():
            _, names, path = line.split(":", 2)
            groups.update(dict.fromkeys(names.split(","), path))
    for name, root, file in trees:
        group = Path(groups.get(name, "/").lstrip("/"))
        for place in (group, *group.parents):
            # In a container the group may have a path that only the machine outside knows: its root has the limit then.
            with suppress(OSError, ValueError):  # "max", or no such group
                found.append(int((root / place / file).read_text()))
    return min(found, default=0)
